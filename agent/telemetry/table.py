"""A CpuBindingPlan as a table: one row for each NPU, its workers and reasons beside or below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from agent.model.reason import Reason
from agent.telemetry.text import STATE_STYLES, entries, fitted, mapping, npu_style, number, word, wrapped

_GAP = 2
_LIST_WIDTH = 19
"""The longest CPU list that is kept in one line; longer ones go on below."""

_INDENT = 6
_MIN_WIDTH = 40
_ROLES = ("irq", "main", "acl", "release")
_PLAIN_WHEN_FALSE = ("Degraded",)
_SAID_BY_MODE = (Reason.NOT_ENFORCED, Reason.DISABLED)


@dataclass(slots=True)
class _Row:
    npu: int
    cells: list[str]
    state: str
    workers: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class PlanTable:
    """Renders itself in the width that it is given: workers beside their NPU where they fit, else below it."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._name = word(mapping(plan.get("metadata")).get("name"), 60)
        self._status = mapping(plan.get("status"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, _MIN_WIDTH)
        yield from self._header(options, width)
        rows = [_row(entry) for entry in entries(self._status.get("npus"))]
        if rows:
            yield Text()
            yield from _table(rows, options, width)
        yield from self._uvb(options)
        yield from self._conditions(options, width)

    def _header(self, options: ConsoleOptions, width: int) -> Iterator[Text]:
        status = self._status
        facts = [word(status.get(key), 30) for key in ("deviceType", "strategy", "mode", "architecture")]
        if plan_hash := word(status.get("planHash"), 20):
            facts.append(f"plan {plan_hash}")
        line = fitted(self._name or "?", options, "bold")
        line.append_text(fitted("".join(f"  {fact}" for fact in facts if fact), options))
        line.truncate(width, overflow="ellipsis" if not options.ascii_only else "crop")
        yield line
        summary = mapping(status.get("summary"))
        if summary:
            counts = {key: number(summary.get(key), 0) for key in ("npus", "workers", "bound", "failed", "skipped")}
            line = Text(f"{_count(counts['npus'], 'NPU')}, {_count(counts['workers'], 'worker')}")
            for key, style in (("bound", "green"), ("failed", "bold red"), ("skipped", "yellow")):
                if counts[key] or key == "bound":
                    line.append(f", {counts[key]} {key}", style=style if counts[key] else "")
            yield line

    def _uvb(self, options: ConsoleOptions) -> Iterator[Text]:
        uvb = mapping(self._status.get("uvb"))
        if uvb:
            facts = [word(uvb.get("cpus"), 60), word(uvb.get("state"), 20), _because(uvb)]
            yield Text()
            yield fitted("UVB threads  " + "  ".join(fact for fact in facts if fact), options)

    def _conditions(self, options: ConsoleOptions, width: int) -> Iterator[Text]:
        """Those that are not plain; several that say the same share a line."""
        said: dict[tuple[str, str, str], list[str]] = {}
        for condition in entries(self._status.get("conditions")):
            kind, status = word(condition.get("type"), 60), word(condition.get("status"), 10)
            reason = word(condition.get("reason"), 64)
            if status != ("False" if kind in _PLAIN_WHEN_FALSE else "True") and reason not in _SAID_BY_MODE:
                key = status, reason, word(condition.get("message"), 256)
                said.setdefault(key, []).append(kind)
        if said:
            yield Text()
        for (status, reason, message), kinds in said.items():
            grave = status == "False" and "Ready" in kinds
            line = fitted(f"{', '.join(kinds)}: {status}  {reason}", options, "bold red" if grave else "yellow")
            text = f": {message}" if message else ""
            if len(line) + len(text) <= width:
                line.append_text(fitted(text, options))
                yield line
            else:
                line.truncate(width)
                yield line
                yield from (fitted("  " + part, options) for part in wrapped(message, width - 2))


def plan_table(plan: Mapping[str, Any]) -> PlanTable:
    """A CpuBindingPlan object as a table. It renders in 100 columns, and below that in longer form."""
    return PlanTable(plan)


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _row(entry: Mapping[str, Any]) -> _Row:
    roles = mapping(entry.get("roles"))
    nodes = entry.get("numaNodes")
    numa = ",".join(word(node, 6) for node in nodes) if isinstance(nodes, list) else ""
    npu = number(entry.get("id"))
    cells = [word(entry.get("pool")), *(word(roles.get(role)) for role in _ROLES), numa]
    row = _Row(npu, cells, word(entry.get("state"), 12))
    workers = entries(entry.get("workers"))
    row.workers = [_worker(worker, row.state) for worker in workers]
    if because := _because(entry):
        row.notes.append(because)
    if (irq := word(entry.get("irq"), 20)) not in ("", "Bound", "Planned"):
        row.notes.append(" ".join(part for part in ("interrupts:", irq, _because(entry, "irq")) if part))
    for worker in workers:
        because = _because(worker)
        if because and because not in row.notes:
            row.notes.append(because if len(workers) == 1 else f"{word(worker.get('pid'), 12)}: {because}")
        memory = word(worker.get("memory"), 20)
        if memory and memory != "Moved":
            whose = f"memory of {word(worker.get('pid'), 12)}:"
            row.notes.append(" ".join(part for part in (whose, memory, _because(worker, "memory")) if part))
        if own := mapping(worker.get("roles")):
            listed = ", ".join(f"{role} {word(own.get(role))}" for role in _ROLES if own.get(role))
            row.notes.append(f"{word(worker.get('pid'), 12)} has CPUs of its own: {listed}")
    if omitted := number(entry.get("workersOmitted"), 0):
        row.notes.append(f"and {_count(omitted, 'worker')} more")
    return row


def _worker(worker: Mapping[str, Any], npu_state: str) -> str:
    parts = (word(worker.get(key), 100) for key in ("namespace", "pod", "container"))
    title = "/".join(part for part in parts if part)
    state = word(worker.get("state"), 12)
    other = state if state != npu_state else ""
    return " ".join(part for part in (word(worker.get("pid"), 12), title, other) if part)


def _because(entry: Mapping[str, Any], of: str = "") -> str:
    """Reason and message of an entry, or those `of` a step of it."""
    keys = (f"{of}Reason", f"{of}Message") if of else ("reason", "message")
    reason, message = word(entry.get(keys[0]), 64), word(entry.get(keys[1]), 256)
    return f"{reason}: {message}" if reason and message else reason or message


def _table(rows: list[_Row], options: ConsoleOptions, width: int) -> Iterator[Text]:
    titles = ["NPU", "STATE", "POOL", "IRQ", "MAIN", "ACL", "REL", "NUMA"]
    # A column that is empty in every row (roles on Ascend 950) says nothing.
    used = [k for k in range(len(titles)) if k < 2 or any(row.cells[k - 2] for row in rows)]
    columns = [[titles[k], *(_cell(row, k) for row in rows)] for k in used]
    lists = _LIST_WIDTH if width >= 100 else _LIST_WIDTH - 6
    widths = [min(max(map(len, column)), lists) for column in columns]
    taken = sum(widths) + _GAP * len(widths)
    workers = max((len(line) for row in rows for line in row.workers), default=0)
    beside = bool(workers) and taken + max(workers, len("WORKER")) <= width
    head = "".join(f"{column[0]:<{size + _GAP}}" for column, size in zip(columns, widths, strict=True))
    yield fitted((head + ("WORKER" if beside else "")).rstrip()[:width], options, "bold")
    for k, row in enumerate(rows):
        cells = [wrapped(column[k + 1], size) for column, size in zip(columns, widths, strict=True)]
        if beside:
            cells.append(row.workers or [""])
        for level in range(max(map(len, cells))):
            line = _line(row, [cell[level] if level < len(cell) else "" for cell in cells], [*widths, 0], options)
            line.truncate(width)
            yield line
        notes = row.notes if beside else [*row.workers, *row.notes]
        for k_note, note in enumerate(notes):
            style = "" if not beside and k_note < len(row.workers) else STATE_STYLES.get(row.state, "yellow")
            for part in wrapped(note, width - _INDENT):
                yield fitted(" " * _INDENT + part, options, style)


def _line(row: _Row, cells: list[str], widths: list[int], options: ConsoleOptions) -> Text:
    line = Text()
    for column, (cell, size) in enumerate(zip(cells, widths, strict=False)):
        style = {0: npu_style(row.npu), 1: STATE_STYLES.get(row.state, "")}.get(column, "")
        line.append_text(fitted(f"{cell:<{size + _GAP}}" if column < len(cells) - 1 else cell, options, style))
    line.rstrip()
    return line


def _cell(row: _Row, column: int) -> str:
    if column == 0:
        return str(row.npu) if row.npu >= 0 else "?"
    return row.state if column == 1 else row.cells[column - 2]
