"""Pictures of a plan, made from the CpuBindingPlan object alone: the table, and the map of NUMA nodes.

Both are plain text with colours: where there are none (NO_COLOR, a pipe, a dumb terminal) nothing of what they say is
lost, and where a terminal knows ASCII alone they are ASCII.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.telemetry.table import plan_table
from agent.telemetry.text import FAINT, cpus, entries, fitted, mapping, npu_style, number, word

__all__ = ["numa_map", "plan_table"]

_GROUP = 8
"""Cells between two blanks."""

_RANGE_WIDTH = 23
_FREE, _OUT, _UVB = -1, -2, -3
"""Owners of CPUs that are no NPU's: unassigned, not to be used, UVB threads'."""

_GLYPHS = {"irq": "i", "main": "■", "acl": "a", "release": "r", "free": "·", "out": "x", "uvb": "u"}
_ASCII = {**_GLYPHS, "main": "m", "free": "."}
_MEANINGS = {
    "irq": "interrupts",
    "main": "main",
    "acl": "ACL thread",
    "release": "release thread",
    "uvb": "UVB threads",
    "free": "unassigned",
    "out": "reserved, isolated or offline",
}


@dataclass(frozen=True, slots=True)
class _Run:
    """The CPUs that one owner has on one NUMA node, with the role of each."""

    owner: int
    cpus: CpuSet
    roles: Mapping[int, str]


class NumaMap:
    """NUMA nodes as blocks, one line for each NPU with CPUs there, one cell for each CPU."""

    def __init__(self, plan: Mapping[str, Any], drifted: Collection[int]) -> None:
        status = mapping(plan.get("status"))
        self._npus = {number(entry.get("id")): entry for entry in entries(status.get("npus"))}
        self._drifted = frozenset(drifted)
        topology = mapping(status.get("topology"))
        self._online = cpus(topology.get("cpus"))
        self._nodes = _nodes(topology, self._online)
        self._owner, self._role = _assigned(self._npus, status)
        out = cpus(topology.get("reservedCpus")) | cpus(topology.get("isolatedCpus"))
        for cpu in union(self._nodes.values()):
            if cpu not in self._owner:
                shut = cpu in out or cpu not in self._online
                self._owner[cpu], self._role[cpu] = (_OUT, "out") if shut else (_FREE, "free")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = _ASCII if options.ascii_only else _GLYPHS
        runs = {node: self._runs(listed) for node, listed in self._nodes.items()}
        every = [run for found in runs.values() for run in found]
        if not every:
            yield Text("no CPUs are known")
            return
        labels = max(len(_label(run.owner)) for run in every)
        ranges = max(min(len(str(run.cpus)), _RANGE_WIDTH) for run in every)
        for node, listed in self._nodes.items():
            yield fitted(f"NUMA node {node}  CPUs {listed}", options, "bold")
            for run in runs[node]:
                yield from self._lines(run, labels, ranges, options, glyphs)
        yield Text()
        yield self._legend(glyphs)

    def _runs(self, listed: CpuSet) -> list[_Run]:
        owned: dict[int, list[int]] = {}
        for cpu in listed:
            owned.setdefault(self._owner[cpu], []).append(cpu)
        runs = [_Run(owner, CpuSet(found), self._role) for owner, found in owned.items()]
        return sorted(runs, key=lambda run: (run.owner < 0, run.cpus.first))

    def _lines(
        self, run: _Run, labels: int, ranges: int, options: ConsoleOptions, glyphs: Mapping[str, str]
    ) -> Iterator[Text]:
        note, note_style = self._note(run.owner)
        margin = 2 + labels + 2 + ranges + 2
        room = options.max_width - margin - (2 + len(note) if note else 0)
        per_line = max((room + 1) // (_GROUP + 1), 1)
        groups = _groups(run.cpus)
        listed = str(run.cpus)
        if len(listed) > ranges:
            listed = listed[: ranges - 3] + "..."
        for start in range(0, len(groups), per_line):
            line = Text()
            if start == 0:
                line.append_text(fitted(f"  {_label(run.owner):<{labels}}", options, _style(run.owner)))
                line.append(f"  {listed:<{ranges}}  ")
            else:
                line.append(" " * margin)
            for k, group in enumerate(groups[start : start + per_line]):
                line.append(" " if k else "")
                for role, alike in groupby(run.roles[cpu] for cpu in group):
                    style = _cell_style(run.owner, role, idle=note == "idle")
                    line.append(glyphs[role] * len(list(alike)), style=style)
            if note and start == 0:
                line.append(f"  {note}", style=note_style)
            yield line

    def _note(self, owner: int) -> tuple[str, str]:
        """What to say beside an NPU's cells; nothing where all is well."""
        if owner in self._drifted:
            return "! drifted", "bold red"
        state = word(mapping(self._npus.get(owner)).get("state"), 12)
        return {
            "Idle": ("idle", FAINT),
            "Failed": ("failed", "bold red"),
            "Partial": ("partial", "yellow"),
            "Pending": ("pending", "cyan"),
            "Skipped": ("skipped", "yellow"),
        }.get(state, ("", ""))

    def _legend(self, glyphs: Mapping[str, str]) -> Text:
        line = Text()
        present = set(self._role.values())
        for role, meaning in _MEANINGS.items():
            if role in present:
                line.append("   " if line else "")
                line.append(glyphs[role], style="bold" if role in ("irq", "acl", "release") else "")
                line.append(f" {meaning}")
        return line


def numa_map(plan: Mapping[str, Any], *, drifted: Collection[int] = ()) -> NumaMap:
    """A CpuBindingPlan object as a map of its CPUs. NPUs of `drifted` are marked as having threads astray."""
    return NumaMap(plan, drifted)


def _nodes(topology: Mapping[str, Any], online: CpuSet) -> dict[int, CpuSet]:
    """NUMA nodes with their CPUs; CPUs without a node count as node 0's (design 4.4)."""
    nodes = {number(node.get("id")): cpus(node.get("cpus")) for node in entries(topology.get("numaNodes"))}
    if homeless := online - union(nodes.values()):
        nodes[0] = nodes.get(0, EMPTY) | homeless
    return {node: listed for node, listed in sorted(nodes.items()) if listed}


def _assigned(
    npus: Mapping[int, Mapping[str, Any]], status: Mapping[str, Any]
) -> tuple[dict[int, int], dict[int, str]]:
    """CPU -> NPU and CPU -> role. Pools of NPUs are disjoint; a worker's own pool comes after that of its NPU."""
    owner: dict[int, int] = {}
    role: dict[int, str] = {}

    def take(who: int, pool: object, roles: object) -> None:
        for name in ("irq", "acl", "release", "main"):
            for cpu in cpus(mapping(roles).get(name)):
                owner.setdefault(cpu, who)
                role.setdefault(cpu, name)
        for cpu in cpus(pool):
            owner.setdefault(cpu, who)
            role.setdefault(cpu, "main")

    for npu, entry in npus.items():
        take(npu, entry.get("pool"), entry.get("roles"))
    for npu, entry in npus.items():
        for worker in entries(entry.get("workers")):
            take(npu, worker.get("pool"), worker.get("roles"))
    for cpu in cpus(mapping(status.get("uvb")).get("cpus")):
        owner.setdefault(cpu, _UVB)
        role.setdefault(cpu, "uvb")
    return owner, role


def _groups(listed: CpuSet) -> list[list[int]]:
    """Runs of at most eight adjacent CPUs."""
    return [
        list(range(start, min(start + _GROUP, last + 1)))
        for first, last in listed.ranges()
        for start in range(first, last + 1, _GROUP)
    ]


def _label(owner: int) -> str:
    return {_FREE: "-", _OUT: "-", _UVB: "UVB"}.get(owner, f"NPU {owner}")


def _style(owner: int) -> str:
    return npu_style(owner) if owner >= 0 else FAINT


def _cell_style(owner: int, role: str, *, idle: bool) -> str:
    style = f"dim {_style(owner)}" if idle else _style(owner)
    return f"reverse {style}" if role in ("irq", "acl", "release") else style
