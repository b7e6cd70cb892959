"""docs/troubleshooting.md has an answer for every reason, and its stories are what the agent says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from agent.model.reason import Reason
from tests.docs.pages import ROOT, anchors, blocks, code, links, sections, table
from tests.docs.troubles import PAGE, STORIES, node, story, written

SECTIONS = sections(PAGE)
ELSEWHERE, HERE = (table(part) for part in SECTIONS["By reason"].split("These have their answer here:"))


def test_every_reason_has_one_answer() -> None:
    said = Counter(reason for row in (*ELSEWHERE, *HERE) for reason in code(row[0]))
    assert sorted(set(said) ^ {reason.value for reason in Reason}) == []
    assert [reason for reason, count in said.items() if count > 1] == []


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row[2])
def test_where_another_page_has_the_answer_it_names_the_reason_in_a_row_of_that_section(row: list[str]) -> None:
    ((path, anchor),) = re.findall(r"\]\(([\w.]+)#([\w-]+)\)", row[2])
    page = ROOT / "docs" / path
    (text,) = [body for title, body in sections(page).items() if title.lower().replace(" ", "-") == anchor]
    assert anchor in anchors(page)
    missing = [reason for reason in code(row[0]) if f"`{reason}`" not in text]
    assert missing == []


def test_an_answer_of_this_page_has_a_place_a_cause_and_something_to_do() -> None:
    assert all(len(row) == 4 and all(row) for row in HERE)


def test_no_answer_of_this_page_stands_on_the_page_of_conditions_too() -> None:
    lists = [
        sections(ROOT / "docs/conditions.md")[name] for name in ("Reading", "Planning", "Acting", "What is missing")
    ]
    answered = {reason for text in lists for row in table(text) for reason in code(row[0])}
    assert answered & {reason for row in HERE for reason in code(row[0])} == set()


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_what_the_agent_says(name: str) -> None:
    at = list(STORIES).index(name)
    assert written(PAGE.read_text())[at] == story(name), "make docs"
    assert written(SECTIONS[name]) == [story(name)], "below its heading"


def test_all_stories_are_told() -> None:
    assert len(blocks(PAGE, "text")) == len(STORIES)


def test_a_driver_that_never_answered_is_told_as_the_page_says(tmp_path: Path) -> None:
    rig = node(tmp_path)
    rig.node.npu_smi.fail()
    rig.settle()
    for kind in ("Ready", "TopologyDiscovered"):
        assert (rig.condition(kind)["status"], rig.condition(kind)["reason"]) == ("False", "DriverNotReady")
    assert rig.status["summary"]["bound"] == 0


def test_the_page_leads_to_the_list_of_reasons() -> None:
    assert "reasons.md" in links(PAGE)
