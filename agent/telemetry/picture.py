"""Pictures of a plan for a terminal, made from the CpuBindingPlan object alone: the table, and the map of NUMA nodes.

Both are plain text with colours: where there are none (NO_COLOR, a pipe, a dumb terminal) nothing of what they say is
lost, and where a terminal knows ASCII alone they are ASCII. The map has the layout of the SVG picture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from agent.telemetry.layout import APART, GROUP, LETTERS, MEANINGS, Layout, Owner, Row, layout
from agent.telemetry.table import plan_table
from agent.telemetry.text import FAINT, STATE_STYLES, fitted, npu_style

__all__ = ["numa_map", "plan_table"]

_RANGE_WIDTH = 23
_NOTE_WIDTH = 30
_GLYPHS = {**LETTERS, "main": "■"}
_ASCII = {**LETTERS, "main": "m", "free": "."}


class NumaMap:
    """NUMA nodes as blocks, one line for each NPU with CPUs there, one cell for each CPU."""

    def __init__(self, found: Layout) -> None:
        self._layout = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = _ASCII if options.ascii_only else _GLYPHS
        every = [row for block in self._layout.blocks for row in block.rows]
        roles = self._layout.roles()
        if not roles:
            yield Text("no CPUs are known")
            return
        labels = max(len(_label(row)) for row in every)
        ranges = max(min(len(str(row.cpus)), _RANGE_WIDTH) for row in every)
        for block in self._layout.blocks:
            yield fitted(block.title, options, "bold")
            for row in block.rows:
                yield from _lines(row, labels, ranges, options, glyphs)
        yield Text()
        yield from _legend(roles, glyphs, options.max_width)


def numa_map(plan: Mapping[str, Any], *, drifted: Collection[int] = ()) -> NumaMap:
    """A CpuBindingPlan object as a map of its CPUs. NPUs of `drifted` are marked as having threads astray."""
    return NumaMap(layout(plan, drifted))


def _lines(row: Row, labels: int, ranges: int, options: ConsoleOptions, glyphs: Mapping[str, str]) -> Iterator[Text]:
    margin = 2 + labels + 2 + ranges + 2
    note = ", ".join(part for part in (row.note, row.held) if part)
    if len(note) > _NOTE_WIDTH:
        note = note[: _NOTE_WIDTH - 3] + "..."
    room = options.max_width - margin - (2 + len(note) if note else 0)
    per_line = max((room + 1) // (GROUP + 1), 1)
    groups = row.groups()
    listed = str(row.cpus)
    if len(listed) > ranges:
        listed = listed[: ranges - 3] + "..."
    for start in range(0, max(len(groups), 1), per_line):
        line = Text()
        if start == 0:
            line.append_text(fitted(f"  {_label(row):<{labels}}", options, _style(row)))
            line.append(f"  {listed:<{ranges}}  ")
        else:
            line.append(" " * margin)
        for k, group in enumerate(groups[start : start + per_line]):
            line.append(" " if k else "")
            for role, alike in groupby(row.roles[cpu] for cpu in group):
                line.append(glyphs[role] * len(list(alike)), style=_cell_style(row, role))
        if note and start == 0:
            line.append(f"  {note}", style="bold red" if row.drifted else STATE_STYLES.get(row.state, ""))
        yield line


def _legend(roles: list[str], glyphs: Mapping[str, str], width: int) -> Iterator[Text]:
    line = Text()
    for role in roles:
        if line and len(line) + 3 + len(glyphs[role]) + 1 + len(MEANINGS[role]) > width:
            yield line
            line = Text()
        line.append("   " if line else "")
        line.append(glyphs[role], style="bold" if role in APART else "")
        line.append(f" {MEANINGS[role]}")
    yield line


def _label(row: Row) -> str:
    return "-" if row.owner == Owner.FREE else row.label


def _style(row: Row) -> str:
    return npu_style(row.owner) if row.owner >= 0 else FAINT


def _cell_style(row: Row, role: str) -> str:
    style = f"dim {_style(row)}" if row.state == "Idle" and not row.drifted else _style(row)
    return f"reverse {style}" if role in APART else style
