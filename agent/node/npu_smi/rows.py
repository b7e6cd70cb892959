"""Rows of the process table of ``npu-smi info``, told from what process names make of them.

Names are printed as they are, and whoever runs a process chooses its name: newlines, ``|`` and borders among them. So a
row is one only where its first separators stand exactly below those of the header, which a name's own can't, and the
lines behind it that are nothing else are the rest of its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.node.npu_smi import tables

BORDER: Final = re.compile(r"\+[-=+]*[-=]\+", re.ASCII)
MEMORY: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
PROCESS_ID: Final = "Process id"
FIRST: Final = 3
"""Separators of a process row that stand left of the name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table, or a process row with the further lines that its name makes of it."""

    text: str
    in_columns: bool = True
    """False for what is neither a row nor a border below the process table's header, whatever it looks like."""
    more: tuple[str, ...] = ()
    """The rest of a process row. The last one ends as rows do."""

    @property
    def raw(self) -> list[str]:
        """The cells, with the blanks around them."""
        return "\n".join((self.text, *self.more))[1:-1].split("|")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the process table has its separators, and how its rows end.

    NPU, Chip and Process id never overflow their columns; names do.
    """

    places: frozenset[tuple[int, ...]]
    """Of the first three: of the header, and of the border below it, which documents show apart from each other."""
    behind: int
    """As in `_ProcessColumns`."""

    @classmethod
    def of(cls, header: str, below: str) -> _Layout:
        places = {_places(header, "|")}
        if BORDER.fullmatch(below):
            places.add(_places(below, "+"))
        return cls(frozenset(place for place in places if len(place) == FIRST), header.count("|") - 1 - FIRST)

    def is_row(self, line: str) -> bool:
        return line.startswith("|") and _places(line, "|") in self.places

    def is_border(self, line: str) -> bool:
        """Whether it is one that no name is long enough for."""
        return bool(BORDER.fullmatch(line)) and any(len(line) > place[-1] for place in self.places)

    def is_end(self, line: str) -> bool:
        """Whether a line can be the last one of a row that began further up."""
        cells = line[:-1].split("|")
        if not line.endswith("|") or self.behind < 1 or len(cells) <= self.behind:
            return False
        memory = cells[-self.behind].strip()
        return tables.absent(memory) or MEMORY.fullmatch(memory) is not None


def _places(line: str, separator: str) -> tuple[int, ...]:
    """Where the first separators of a line are, as far as there are so many."""
    found: list[int] = []
    while len(found) < FIRST and (at := line.find(separator, found[-1] + 1 if found else 0)) >= 0:
        found.append(at)
    return tuple(found)


def fold(lines: Sequence[str]) -> list[Line]:
    """Puts process rows together that a newline in the name took apart.

    All lines from a row to the next row or border are the rest of its name if the last of them ends as a row does:
    with the memory, which npu-smi prints behind every name. Otherwise each stands for itself, to be refused.
    """
    folded: list[Line] = []
    layout: _Layout | None = None
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if layout is None:
            folded.append(Line(line))
            if is_process_header(line):
                layout = _Layout.of(line, next(filter(None, lines[at:]), ""))
            continue
        if not layout.is_row(line):
            folded.append(Line(line, layout.is_border(line)))
            continue
        end = at
        while end < len(lines) and not layout.is_row(lines[end]) and not layout.is_border(lines[end]):
            end += 1
        more = tuple(filter(None, lines[at:end]))
        if more and layout.is_end(more[-1]):
            at = end
        else:
            more = ()
        folded.append(Line(line, more=more))
    return folded


def is_process_header(line: str) -> bool:
    cells = line.split("|", 3)
    return line.startswith("|") and len(cells) > 2 and cells[2].strip() == PROCESS_ID
