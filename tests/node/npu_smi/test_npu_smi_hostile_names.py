"""Whoever runs a process chooses its name, and npu-smi prints it as it is: no name changes what is read of others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.node.npu_smi.info import InfoTable, parse_info
from tests.node.npu_smi.samples import DASHES, RULE, attempt, device, info_text

COMM_BYTES = 15


@dataclass(frozen=True)
class Form:
    """One build's way to print the process table: the formats of its rows are those of the published tables."""

    header: str
    ids: str
    """Of NPU and chip."""
    name: int
    tail: str
    """Of the memory, and of the pid in the container where there is one."""
    chips: int = 1

    def row(self, card: int, chip: int, pid: int, name: bytes, memory: int) -> bytes:
        # printf pads by bytes.
        ids = self.ids.format(card, chip)
        return f"| {ids}| {pid:<14}| ".encode() + name.ljust(self.name) + self.tail.format(memory).encode()


FORMS = {
    "A2": Form("NPU     Chip              | Process id    | Process name             | Process memory(MB)      ",
               "{:<8}{:<18}", 25, "| {:<24}|"),
    "A3": Form("NPU     Chip              | Process id    | Process name             | Process memory(MB)      ",
               "{:<8}{:<18}", 25, "| {:<24}|", chips=2),
    "A3, container": Form(
        "NPU     Chip       | Process id    | Process name| Process memory(MB) |Process id in container",
        "{:<8}{:<18}", 12, "| {:<19}| NA                    |", chips=2,
    ),
    "950": Form("NPU ID                    | Process id    | Process name             | Process memory(MB)       ",
                "{:<26}", 25, "| {:<24}|"),
    "950, container": Form(
        "NPU ID                    | Process id    | Process name       "
        "| Process memory(MB)    | Process id in container",
        "{:<26}", 19, "| {:<22}| NA                      |",
    ),
}  # fmt: skip
CARDS = 4
IDLE = {2, 3}
Row = tuple[int, int, int, int]
"""(card, chip, pid, MiB)."""


def rendered(form: Form, rows: list[Row], names: list[bytes]) -> str:
    """The output with these rows, as the agent gets it. Every card without a row is idle."""
    lines: list[bytes] = []
    for card in range(CARDS):
        found = [form.row(*row[:3], name, row[3]) for row, name in zip(rows, names, strict=True) if row[0] == card]
        lines += found or [f"| No running processes found in NPU {card:<58}|".encode()]
        lines.append(RULE.encode())
    table = [DASHES, f"| {form.header}|", RULE, *(line.decode(errors="replace") for line in lines)]
    if form.ids.count("{") == 1:  # a 950's device table is another, and not what this is about
        return "\n".join([*table, ""])
    devices = [device(card, chip) for card in range(CARDS) for chip in range(form.chips)]
    return info_text(devices) + "\n".join([*table, ""])


def rows_of(form: Form) -> list[Row]:
    return [
        (card, chip, 1000 + 100 * card + 10 * chip + n, 107 + n)
        for card in range(CARDS)
        if card not in IDLE
        for chip in range(form.chips)
        for n in range(2)
    ]


def comm(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"")[:COMM_BYTES]


PIECES = (
    "\n;|;| ;|1|;|1 0|12345|; ;0;1;NA;+;+==+;+===+;---;...;|...|;…;\r;\t;\x0b;\x1c;\u2028;工;\udcff;a;100;"
    "No running processes found in NPU 3;| No running;Process id;NPU;Health"
)
NAMES = st.one_of(
    st.text(max_size=COMM_BYTES),
    st.lists(st.sampled_from(PIECES.split(";")), max_size=COMM_BYTES).map("".join),
    st.text(alphabet="|\n +=-.01a", max_size=COMM_BYTES),
).map(comm)
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def sure(form: Form, table: InfoTable) -> set[tuple[int, int]]:
    """The chips of which the table says what runs there."""
    return {(card, chip) for card in range(CARDS) for chip in range(form.chips) if table.states(card, chip)}


@forms
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_name_changes_nothing_but_itself(form: Form, data: st.DataObject) -> None:
    rows = rows_of(form)
    names = [data.draw(NAMES | st.just(b"python")) for _ in rows]
    table, problem = attempt(parse_info, rendered(form, rows, names))
    assert table is not None, problem
    assert [(row.card, row.chip, row.pid, row.memory_mib) for row in table.processes] == rows
    assert all(row.name.isprintable() for row in table.processes)
    broken = {row[:2] for row, name in zip(rows, names, strict=True) if b"\n" in name}
    everywhere = {(card, chip) for card in range(CARDS) for chip in range(form.chips)}
    assert sure(form, table) == everywhere - broken


@forms
@given(name=st.text(alphabet="|\n +=-.01a", max_size=COMM_BYTES).filter(lambda name: "\n" in name).map(comm))
@example(name=b"x|1|\n+==+\n")
@example(name=b"\n+==+\n+==+\n")
@settings(max_examples=25, deadline=None)
def test_a_cut_behind_any_line_of_a_broken_row_is_no_whole_table(form: Form, name: bytes) -> None:
    text = rendered(form, [(3, form.chips - 1, 4711, 107)], [name])
    start = text.index("| 3 ", text.index("Process id")) + 1
    for end in (place for place, letter in enumerate(text[:-1]) if place > start and letter == "\n"):
        _refused_around(text, end)


def _refused_around(text: str, end: int) -> None:
    for place in range(end - 2, end + 4):
        table, _ = attempt(parse_info, text[:place])
        assert table is None


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a\nb", "a\\x0ab"),
        ("\n", ""),
        ("a\n\nb", "a\\x0ab"),
        ("|1|\n|1 0|12345|", "|1|"),
        ("a\n...\nb", "a"),
        ("a\n+===+\nb", "a"),
        ("a\n|Process id|b", "a"),
    ],
)
@forms
def test_a_newline_in_a_name_keeps_the_row_and_makes_the_chip_unsure(form: Form, name: str, read: str) -> None:
    table = parse_info(rendered(form, [(0, 0, 4711, 30112), (1, 0, 4712, 107)], [name.encode(), b"python"]))
    assert [(row.card, row.pid, row.memory_mib) for row in table.processes] == [(0, 4711, 30112), (1, 4712, 107)]
    assert table.processes[0].name.startswith(read)
    assert not table.states(0, 0)
    assert all(table.states(card, 0) for card in (1, 2, 3))
    assert not table.whole


def test_a_long_name_does_not_make_a_card_idle() -> None:
    form = FORMS["950"]
    name = b"x |\n| No running processes found in NPU 1 |\n" + RULE[:20].encode() + b"\ny"
    table = parse_info(rendered(form, [(0, 0, 4711, 30112), (1, 0, 4712, 107)], [name, b"python"]))
    assert [(row.card, row.pid) for row in table.processes] == [(0, 4711), (1, 4712)]
    assert not table.states(0, 0)


def test_a_row_may_stand_below_the_border_where_the_header_does_not() -> None:
    # A document's header is narrower than the border below it, and the rows are printed by the border's widths.
    form = FORMS["A3, container"]
    assert form.header.index("|") + 2 != RULE.index("+", 1)
    assert len(parse_info(rendered(form, rows_of(form), [b"python"] * len(rows_of(form)))).processes) == 8
