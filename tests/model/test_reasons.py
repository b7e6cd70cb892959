"""The list of reasons in the docs is the one in the code."""

from __future__ import annotations

import re
from pathlib import Path

from agent.control.conditions import ACT_FAULTS, GRAVITY, PLAN_FAULTS, READ_FAULTS
from agent.model.reason import Reason, printable

DOCS = Path(__file__).parents[2] / "docs/reasons.md"


def test_every_reason_is_a_condition_reason_of_kubernetes() -> None:
    """metav1.Condition: `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`; ours are CamelCase and short enough for a label."""
    for reason in Reason:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]{1,62}", reason.value)
        assert reason.meaning.endswith(".")


def test_the_docs_list_every_reason_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", DOCS.read_text(), re.MULTILINE))
    assert rows == {reason.value: reason.meaning for reason in Reason}


def test_no_reason_is_ranked_twice() -> None:
    assert len(set(GRAVITY)) == len(READ_FAULTS) + len(PLAN_FAULTS) + len(ACT_FAULTS)


def test_text_of_unknown_origin_becomes_one_printable_line() -> None:
    assert printable("a\nb\x1b[31m\u202e\udcff") == "a\\x0ab\\x1b[31m\\x202e\\xdcff"
    assert len(printable("x" * 1000, 50)) == 50
