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
_COUNT_STYLES = {"bound": "green", "failed": "bold red", "skipped": "yellow"}


@dataclass(slots=True)
class NpuRow:
    """What the table says of one NPU."""

    npu: int
    cells: list[str]
    """Pool, the four roles, NUMA nodes."""
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
        rows = npu_rows(self._status)
        if rows:
            yield Text()
            yield from _table(rows, options, width)
        yield from self._uvb(options)
        yield from self._conditions(options, width)

    def _header(self, options: ConsoleOptions, width: int) -> Iterator[Text]:
        line = fitted(self._name or "?", options, "bold")
        line.append_text(fitted("".join(f"  {fact}" for fact in facts(self._status)), options))
        line.truncate(width, overflow="ellipsis" if not options.ascii_only else "crop")
        yield line
        line = Text()
        for what, said in counts(self._status):
            style = "" if said.startswith("0 ") else _COUNT_STYLES.get(what, "")
            line.append(", " if line else "")
            line.append(said, style=style)
        if line:
            yield line

    def _uvb(self, options: ConsoleOptions) -> Iterator[Text]:
        if said := uvb_text(self._status):
            yield Text()
            yield fitted(said, options)

    def _conditions(self, options: ConsoleOptions, width: int) -> Iterator[Text]:
        """Those that are not plain; several that say the same share a line."""
        for k, said in enumerate(not_plain(self._status)):
            if k == 0:
                yield Text()
            line = fitted(said.head, options, "bold red" if said.grave else "yellow")
            text = f": {said.message}" if said.message else ""
            if len(line) + len(text) <= width:
                line.append_text(fitted(text, options))
                yield line
            else:
                line.truncate(width)
                yield line
                yield from (fitted("  " + part, options) for part in wrapped(said.message, width - 2))


def plan_table(plan: Mapping[str, Any]) -> PlanTable:
    """A CpuBindingPlan object as a table. It renders in 100 columns, and below that in longer form."""
    return PlanTable(plan)


def npu_rows(status: Mapping[str, Any]) -> list[NpuRow]:
    """A row for each NPU of a status."""
    return [_row(entry) for entry in entries(status.get("npus"))]


def facts(status: Mapping[str, Any]) -> list[str]:
    """What the node is and does, in single words."""
    words = [word(status.get(key), 30) for key in ("deviceType", "strategy", "mode", "architecture")]
    if plan_hash := word(status.get("planHash"), 20):
        words.append(f"plan {plan_hash}")
    return [fact for fact in words if fact]


def counts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """NPUs and workers, each as what it counts and a text; empty without a summary."""
    summary = mapping(status.get("summary"))
    if not summary:
        return []
    figures = {key: number(summary.get(key), 0) for key in ("npus", "workers", "bound", "failed", "skipped")}
    said = [("npus", _count(figures["npus"], "NPU")), ("workers", _count(figures["workers"], "worker"))]
    return said + [(k, f"{figures[k]} {k}") for k in ("bound", "failed", "skipped") if figures[k] or k == "bound"]


@dataclass(frozen=True, slots=True)
class Said:
    """What conditions say that are not plain; several that say the same are one."""

    kinds: tuple[str, ...]
    status: str
    reason: str
    message: str

    @property
    def grave(self) -> bool:
        return self.status == "False" and "Ready" in self.kinds

    @property
    def head(self) -> str:
        return f"{', '.join(self.kinds)}: {self.status}  {self.reason}"


def not_plain(status: Mapping[str, Any]) -> list[Said]:
    """What the conditions of a status say that is worth saying."""
    said: dict[tuple[str, str, str], list[str]] = {}
    for condition in entries(status.get("conditions")):
        kind, value = word(condition.get("type"), 60), word(condition.get("status"), 10)
        reason = word(condition.get("reason"), 64)
        if value != ("False" if kind in _PLAIN_WHEN_FALSE else "True") and reason not in _SAID_BY_MODE:
            said.setdefault((value, reason, word(condition.get("message"), 256)), []).append(kind)
    return [Said(tuple(kinds), *key) for key, kinds in said.items()]


def uvb_text(status: Mapping[str, Any]) -> str:
    """The UVB threads of an Ascend 950 node in one line; empty where there is no word of them."""
    uvb = mapping(status.get("uvb"))
    said = [word(uvb.get("cpus"), 60), word(uvb.get("state"), 20), _because(uvb)]
    return "  ".join(["UVB threads", *(fact for fact in said if fact)]) if uvb else ""


def _count(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _row(entry: Mapping[str, Any]) -> NpuRow:
    roles = mapping(entry.get("roles"))
    nodes = entry.get("numaNodes")
    numa = ",".join(word(node, 6) for node in nodes) if isinstance(nodes, list) else ""
    npu = number(entry.get("id"))
    cells = [word(entry.get("pool")), *(word(roles.get(role)) for role in _ROLES), numa]
    row = NpuRow(npu, cells, word(entry.get("state"), 12))
    workers = entries(entry.get("workers"))
    row.workers = [worker_text(worker, row.state) for worker in workers]
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


def worker_text(worker: Mapping[str, Any], npu_state: str) -> str:
    """A worker in one line: pid, whose it is, and its state where that is not its NPU's."""
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


def _table(rows: list[NpuRow], options: ConsoleOptions, width: int) -> Iterator[Text]:
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


def _line(row: NpuRow, cells: list[str], widths: list[int], options: ConsoleOptions) -> Text:
    line = Text()
    for column, (cell, size) in enumerate(zip(cells, widths, strict=False)):
        style = {0: npu_style(row.npu), 1: STATE_STYLES.get(row.state, "")}.get(column, "")
        line.append_text(fitted(f"{cell:<{size + _GAP}}" if column < len(cells) - 1 else cell, options, style))
    line.rstrip()
    return line


def _cell(row: NpuRow, column: int) -> str:
    if column == 0:
        return str(row.npu) if row.npu >= 0 else "?"
    return row.state if column == 1 else row.cells[column - 2]
