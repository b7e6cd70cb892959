"""The fault matrix: what the agent reads, writes and asks, each with all that can go wrong there.

One table in code. Tests are parametrised with its rows, and ``python -m tests.faults`` tries them and prints them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agent.model.reason import Reason
from agent.telemetry.text import wrapped


class Side(StrEnum):
    """Who is at fault."""

    HOST = "host"
    NPU_SMI = "npu-smi"
    API = "API server"


@dataclass(frozen=True, slots=True)
class Row:
    """One fault at one place, and what is to be seen of it. A side may have rows of a class of its own."""

    side: Side
    place: str
    """What is read, written or asked: ``/proc/<pid>/stat``, ``npu-smi info -m``, ``list pods``."""
    fault: str
    """An errno's name, a status code, or a word or two: ``EIO``, ``403``, ``hang``, ``short read``."""
    reason: Reason | None = None
    """The one reason that is reported while it lasts; None where the fault changes nothing that is worth a word."""
    why: str = ""
    """Where the reason is not to be expected, or is seen elsewhere than in the plan: why, or where."""
    quick: bool = False
    """Tried by ``make test``, too."""

    @property
    def key(self) -> str:
        """Tells this row from all others; the id of its tests."""
        return f"{self.side}: {self.place}: {self.fault}"


@dataclass(slots=True)
class Tally:
    """What became of the rows that were tried, by their keys. A row may be tried in several scenes."""

    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)

    def add(self, key: str, *, survived: bool) -> None:
        self.tried[key] += 1
        self.survived[key] += survived


_WIDTHS = (44, 24, 58)
_HEAD = ("place", "reported", "faults")


def matrix(rows: Sequence[Row], tally: Tally | None = None) -> Iterator[str]:
    """The table in lines: one entry for each place and reason, with the faults that it stands for. With a tally the
    faults that were not survived are marked with an exclamation mark, those that were not tried are in parentheses, and
    the counts are beside them."""
    counts = ("rows",) if tally is None else ("tried", "survived")
    yield _line((*_HEAD, *counts))
    yield _line("-" * width for width in (*_WIDTHS, *(len(count) for count in counts)))
    for side in Side:
        of_side = [row for row in rows if row.side is side]
        for (place, reason), group in _grouped(of_side).items():
            yield from _entry(place, reason, group, tally)
        if of_side:
            yield _line((f"{side}: all", "", f"{len(of_side)} rows", *_counts(of_side, tally)))
            yield ""
    yield _line(("all", "", f"{len(rows)} rows", *_counts(rows, tally)))


def duplicates(rows: Iterable[Row]) -> list[str]:
    """Keys that more than one row has."""
    return [key for key, count in Counter(row.key for row in rows).items() if count > 1]


def _grouped(rows: Sequence[Row]) -> Mapping[tuple[str, Reason | None], list[Row]]:
    places = dict.fromkeys(row.place for row in rows)
    groups: dict[tuple[str, Reason | None], list[Row]] = {}
    for place in places:
        for row in rows:
            if row.place == place:
                groups.setdefault((place, row.reason), []).append(row)
    return groups


def _entry(place: str, reason: Reason | None, group: Sequence[Row], tally: Tally | None) -> Iterator[str]:
    reported = "nothing" if reason is None else reason.value
    faults = " · ".join(_marked(row, tally) for row in group)
    cells = [wrapped(text, width) for text, width in zip((place, reported, faults), _WIDTHS, strict=True)]
    for k in range(max(map(len, cells))):
        counts = _counts(group, tally) if k == 0 else ()
        yield _line((*(cell[k] if k < len(cell) else "" for cell in cells), *counts))


def _marked(row: Row, tally: Tally | None) -> str:
    if tally is None:
        return row.fault
    if not tally.tried[row.key]:
        return f"({row.fault})"
    return row.fault if tally.survived[row.key] == tally.tried[row.key] else f"{row.fault}!"


def _counts(rows: Iterable[Row], tally: Tally | None) -> tuple[str, ...]:
    keys = [row.key for row in rows]
    if tally is None:
        return (str(len(keys)),)
    return (str(sum(tally.tried[key] for key in keys)), str(sum(tally.survived[key] for key in keys)))


def _line(cells: Iterable[str]) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells, (*_WIDTHS, 8, 8), strict=False)]
    return "  ".join(padded).rstrip()
