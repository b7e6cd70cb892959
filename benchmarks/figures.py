"""Figures: what a case measured, with its spread and its budget. Pure: no clock, no files."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

RATIO: Final = "x"
"""The unit of a ratio within one run."""

LIMIT: Final = 2.0
"""A ratio that got worse by this factor against the baseline has failed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: median and quartiles of several repeats."""

    name: str
    value: float
    """The median, unless the name says otherwise."""
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    repeats: int
    """0 where this machine can't show it."""
    unit: str = RATIO
    """``x`` for a ratio; all else is this machine's own."""
    budget: float | None = None
    """What design section 9 allows."""
    at_least: bool = False
    """More is better, and the budget is a lower limit."""
    compared: bool = False
    """Whether it is compared with the baseline: a ratio of CPU times or of counts, which another machine gives, too."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """``ok`` or ``OVER``; empty without a budget."""
        if self.budget is None or not self.repeats:
            return ""
        kept = self.value >= self.budget if self.at_least else self.value <= self.budget
        return "ok" if kept else "OVER"

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return asdict(self) | {"verdict": self.verdict}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Figure:
        """Back from there."""
        return cls(**{key: value for key, value in document.items() if key != "verdict"})


def figure(name: str, samples: Sequence[float], **more: Any) -> Figure:
    """The median of samples, with the quartiles as their spread. At least one sample."""
    low, high = quartiles(samples)
    return Figure(name, statistics.median(samples), low, high, len(samples), **more)


def percentile_figure(name: str, samples: Sequence[float], percent: float, **more: Any) -> Figure:
    """A percentile of samples that are the repeats themselves, with the least and the largest as their spread."""
    return Figure(name, percentile(samples, percent), min(samples), max(samples), len(samples), **more)


def single(name: str, value: float, **more: Any) -> Figure:
    """Something that is measured once, over a long time or many occurrences."""
    return Figure(name, value, value, value, 1, **more)


def absent(name: str, why: str) -> Figure:
    """What this machine can't show."""
    return Figure(name, 0.0, 0.0, 0.0, 0, note=f"not measured: {why}")


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; of one sample that one, twice."""
    if len(samples) < 2:
        return samples[0], samples[0]
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return first, third


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` % of all do not exceed (nearest rank)."""
    ordered = sorted(samples)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """One divided by the other, repeat by repeat: what slows the machine down for a while slows both."""
    return [one / other for one, other in zip(ones, others, strict=True)]


# One case's figures by name, or why there are none.
Outcome = dict[str, Figure] | str


def compare(now: dict[str, Outcome], before: dict[str, dict[str, float]], limit: float = LIMIT) -> list[str]:
    """What got worse: a line for each ratio of the baseline that is `limit` times worse now, or is not measured any
    more. Cases that were left out are not compared, nor what a machine can't show for a reason that is told."""
    faults = []
    for case, known in sorted(before.items()):
        outcome = now.get(case)
        if outcome is None or isinstance(outcome, str):
            continue
        for name, value in sorted(known.items()):
            found = outcome.get(name)
            if found is None:
                faults.append(f"{case}: {name}: in the baseline, not measured any more")
            elif not found.repeats:
                continue
            elif found.value <= 0 or value <= 0:
                faults.append(f"{case}: {name}: {shown(found.value)}, baseline {shown(value)}: no ratios")
            elif (worse := value / found.value if found.at_least else found.value / value) >= limit:
                faults.append(f"{case}: {name}: {shown(found.value)}, baseline {shown(value)}: {worse:.1f} times worse")
    return faults


def baseline_of(now: dict[str, Outcome]) -> dict[str, dict[str, float]]:
    """What is compared of these figures."""
    kept = {
        case: {
            name: float(shown(figure.value)) for name, figure in outcome.items() if figure.compared and figure.repeats
        }
        for case, outcome in now.items()
        if not isinstance(outcome, str)
    }
    return {case: values for case, values in kept.items() if values}


def shown(value: float) -> str:
    """Three figures, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    digits = 0
    while abs(value) * 10**digits < 100 and digits < 6:
        digits += 1
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


HEAD: Final = ("case", "figure", "median", "spread", "budget", "")


def table(outcomes: dict[str, Outcome]) -> str:
    """All figures, aligned, with notes below the lines that they belong to."""
    rows: list[tuple[str, ...]] = [HEAD]
    notes: dict[int, str] = {}
    for case, outcome in outcomes.items():
        if isinstance(outcome, str):
            rows.append((case, f"not measured: {outcome}"))
            continue
        for k, entry in enumerate(outcome.values()):
            if entry.note:
                notes[len(rows)] = entry.note
            rows.append((case if k == 0 else "", *_cells(entry)))
    whole = [row for row in rows if len(row) == len(HEAD)]
    widths = [max(len(row[k]) for row in whole) for k in range(len(HEAD))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = []
    for number, row in enumerate(rows):
        # Text to the left, numbers to the right.
        cells = [cell.ljust(width) if k in (0, 1, 5) else cell.rjust(width) for k, (cell, width) in _zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
        if number in notes:
            lines.append(f"{'':{widths[0]}}    {notes[number]}")
    return "\n".join(lines)


def _cells(entry: Figure) -> tuple[str, ...]:
    unit = "" if entry.unit == "" else f" {entry.unit}"
    spread = "" if entry.repeats < 2 else f"{shown(entry.low)}–{shown(entry.high)} of {entry.repeats}"
    limit = "" if entry.budget is None else f"{'≥' if entry.at_least else '≤'} {shown(entry.budget)}{unit}"
    return entry.name, shown(entry.value) + unit if entry.repeats else "–", spread, limit, entry.verdict


def _zip(row: tuple[str, ...], widths: list[int]) -> list[tuple[int, tuple[str, int]]]:
    return list(enumerate(zip(row, widths, strict=False)))
