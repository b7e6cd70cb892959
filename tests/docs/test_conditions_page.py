"""docs/conditions.md lists the conditions and reasons that the code gives, in its order."""

from __future__ import annotations

import re

import pytest

from agent.control.conditions import ACT_FAULTS, PLAN_FAULTS, READ_FAULTS
from agent.model.reason import Reason
from tests.docs.pages import ROOT, code, sections, table
from tests.docs.reasons import NOTES, REMARKS, Standing, standings

PAGE = ROOT / "docs/conditions.md"
SECTIONS = sections(PAGE)
LISTS = {
    name: [text for row in table(SECTIONS[heading]) for text in code(row[0])]
    for name, heading in (
        ("#reading", "Reading"),
        ("#planning", "Planning"),
        ("#acting", "Acting"),
        ("#what-is-missing", "What is missing"),
    )
}
TYPES, REASONS = (table(part) for part in SECTIONS["Conditions"].split("Which reason can stand with which condition:"))


def written() -> set[Standing]:
    """Type, status and reason of the page's table, links to lists spelt out."""
    found = set()
    for kind, status, cell in REASONS:
        listed = [reason for link in re.findall(r"\]\((#[\w-]+)\)", cell) for reason in LISTS[link]]
        found |= {(code(kind)[0], code(status)[0], reason) for reason in [*listed, *code(cell)]}
    return found


def test_every_condition_is_on_the_page_with_every_reason_that_it_can_have() -> None:
    made, said = standings(), written()
    assert sorted(made - said) == [], "not on the page"
    assert sorted(said - made) == [], "only on the page"


def test_every_type_is_explained() -> None:
    kinds = [code(row[0])[0] for row in TYPES]
    assert set(kinds) == {kind for kind, _, _ in standings()}
    assert kinds == list(dict.fromkeys(code(row[0])[0] for row in REASONS)), "in one order"


def test_a_worker_that_is_skipped_is_said_to_be_as_little_bound_as_the_condition_says() -> None:
    (means,) = (row[1] for row in TYPES if code(row[0]) == ["Bound"])
    assert "One that is `Skipped`, for the node's architecture, is not bound: it makes this `False`." in means
    skipped = {reason for kind, status, reason in standings() if (kind, status) == ("Bound", "False")}
    assert Reason.UNSUPPORTED_ARCHITECTURE.value in skipped


@pytest.mark.parametrize(
    ("link", "faults"), [("#reading", READ_FAULTS), ("#planning", PLAN_FAULTS), ("#acting", ACT_FAULTS)]
)
def test_the_faults_are_in_the_order_of_their_gravity(link: str, faults: tuple[Reason, ...]) -> None:
    assert LISTS[link] == [reason.value for reason in faults]


def test_the_page_says_of_every_reason_what_to_do_once() -> None:
    for reasons in LISTS.values():
        assert len(reasons) == len(set(reasons))
    rows = [row for name in ("Reading", "Planning", "Acting", "Neither") for row in table(SECTIONS[name])]
    assert all(row[1].endswith((".", "?")) for row in rows)


def test_the_page_says_of_everything_that_can_be_missing_what_goes_without() -> None:
    assert set(LISTS["#what-is-missing"]) == {reason.value for reason in NOTES}


def test_every_reason_has_its_place_on_the_page() -> None:
    elsewhere = {text for row in table(SECTIONS["Reasons that no condition has"]) for text in code(row[0])}
    in_conditions = {reason for _, _, reason in written()}
    assert elsewhere | in_conditions == {reason.value for reason in Reason}
    assert not elsewhere & in_conditions
    assert {reason.value for reason in REMARKS} <= elsewhere


def test_reasons_that_the_page_names_in_passing_exist() -> None:
    kinds = {kind for kind, _, _ in standings()}
    known = (
        {reason.value for reason in Reason} | kinds | {"Failed", "Partial", "Skipped", "Idle", "Disabled", "Unknown"}
    )
    words = {word for text in code(PAGE.read_text()) for word in re.findall(r"^[A-Z][a-z]+(?:[A-Z][a-z]+)+$", text)}
    assert words - known - {"GlobalSlice", "NumaSlice"} == set()
