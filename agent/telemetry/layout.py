"""What is where in a picture of a node, on a terminal as in SVG: NUMA nodes as blocks, in each a row for each owner of
CPUs, in each row a cell for each CPU. Made from the CpuBindingPlan object alone; pure.

Every CPU of the topology is in exactly one cell, whatever the object says of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.telemetry.table import worker_text
from agent.telemetry.text import cpus, entries, mapping, number, word

GROUP: Final = 8
"""Cells between two gaps."""

MAX_NPUS: Final = 512
"""As many as the CRD allows."""

MAX_WORKERS: Final = 16
"""Workers of an NPU; the agent lists no more."""

MEANINGS: Final[Mapping[str, str]] = {
    "irq": "interrupts",
    "main": "main",
    "acl": "ACL thread",
    "release": "release thread",
    "uvb": "UVB threads",
    "free": "unassigned",
    "reserved": "reserved",
    "isolated": "isolated",
    "offline": "offline",
}
"""What a cell can be for, in the order of the legend: roles first, then what is no NPU's."""

LETTERS: Final[Mapping[str, str]] = {
    "irq": "i",
    "acl": "a",
    "release": "r",
    "uvb": "u",
    "free": "·",
    "reserved": "x",
    "isolated": "#",
    "offline": "-",
}
"""What tells a cell apart where there are no colours. Those of main are full, without a letter."""

APART: Final = ("irq", "acl", "release")
"""Roles whose CPUs nothing else should run on."""

DRIFT_REASONS: Final = ("CpuBindingConflict", "Drift")
"""Reasons that say that threads or interrupts are not where the plan says."""


class Owner(IntEnum):
    """Owners of CPUs that are no NPU; those that are have their id, which is not negative."""

    UVB = -1
    FREE = -2
    RESERVED = -3
    ISOLATED = -4
    OFFLINE = -5


_ROLE_OF: Final = {owner: owner.name.lower() for owner in Owner}
_NOTES: Final = {"Idle", "Failed", "Partial", "Pending", "Skipped"}


@dataclass(frozen=True, slots=True)
class Row:
    """The CPUs that one owner has on one NUMA node."""

    owner: int
    label: str
    cpus: CpuSet
    roles: Mapping[int, str]
    """CPU -> what it is for, a key of MEANINGS."""
    state: str = ""
    """That of the NPU, such as ``Bound``; empty for others."""
    note: str = ""
    """What to say beside the cells; empty where all is well."""
    drifted: bool = False
    workers: tuple[str, ...] = ()
    more: int = 0
    """Workers that are not listed."""
    because: str = ""
    """Reason and message of the NPU."""
    held: str = ""
    """Which of the CPUs are isolated, reserved or offline, and an NPU's or the UVB threads' all the same."""

    def groups(self) -> list[list[int]]:
        """Runs of at most eight adjacent CPUs."""
        return [
            list(range(start, min(start + GROUP, last + 1)))
            for first, last in self.cpus.ranges()
            for start in range(first, last + 1, GROUP)
        ]


@dataclass(frozen=True, slots=True)
class Block:
    """A NUMA node. `node` is None for the NPUs that have no CPUs anywhere."""

    node: int | None
    cpus: CpuSet
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        return "Without CPUs" if self.node is None else f"NUMA node {self.node}  CPUs {self.cpus}"


@dataclass(frozen=True, slots=True)
class Layout:
    blocks: tuple[Block, ...]

    def roles(self) -> list[str]:
        """What the cells are for, in the order of the legend."""
        present = {row.roles[cpu] for block in self.blocks for row in block.rows for cpu in row.cpus}
        return [role for role in MEANINGS if role in present]


def layout(plan: Mapping[str, Any], drifted: Collection[int] = ()) -> Layout:
    """The layout of a CpuBindingPlan object. NPUs of `drifted` are marked, and those of which the object says it."""
    status = mapping(plan.get("status"))
    topology = mapping(status.get("topology"))
    npus = {number(entry.get("id")): entry for entry in entries(status.get("npus"))[:MAX_NPUS]}
    npus = {npu: entry for npu, entry in npus.items() if npu >= 0}
    nodes = _nodes(topology)
    every = union(nodes.values())
    owner, role = _assigned(npus, status)
    beside = _beside(topology, every)
    for kind, listed in beside:
        for cpu in listed:
            if owner.setdefault(cpu, kind) == kind:
                role.setdefault(cpu, _ROLE_OF[kind])
    facts = {npu: _facts(entry, npu in drifted) for npu, entry in npus.items()}
    blocks = []
    for node, listed in nodes.items():
        owned: dict[int, list[int]] = {}
        for cpu in listed:
            owned.setdefault(owner[cpu], []).append(cpu)
        rows = []
        for who, found in owned.items():
            row = Row(who, label(who), CpuSet(found), {cpu: role[cpu] for cpu in found}, **facts.get(who, {}))
            rows.append(replace(row, held=_held(row.cpus, beside)) if who >= Owner.UVB else row)
        blocks.append(Block(node, listed, tuple(sorted(rows, key=lambda row: (row.owner < 0, row.cpus.first)))))
    seen = {row.owner for block in blocks for row in block.rows}
    without = [Row(npu, label(npu), EMPTY, {}, **facts[npu]) for npu in sorted(npus) if npu not in seen]
    if without:
        blocks.append(Block(None, EMPTY, tuple(without)))
    return Layout(tuple(blocks))


def label(owner: int) -> str:
    if owner >= 0:
        return f"NPU {word(owner, 8)}"
    return "UVB" if owner == Owner.UVB else MEANINGS[_ROLE_OF[Owner(owner)]]


def _held(row: CpuSet, beside: list[tuple[Owner, CpuSet]]) -> str:
    """Which of an NPU's CPUs are what others are not used for: a container may own isolated ones, say."""
    said = [f"{label(who)} {held}" for who, listed in beside if who != Owner.FREE and (held := row & listed)]
    return ", ".join(said)


def _nodes(topology: Mapping[str, Any]) -> dict[int, CpuSet]:
    """NUMA nodes with their CPUs, ascending; those without a node count as node 0's (design 4.4)."""
    nodes: dict[int, CpuSet] = {}
    taken = EMPTY
    for node in sorted(entries(topology.get("numaNodes")), key=lambda node: number(node.get("id"))):
        key = number(node.get("id"))
        found = (cpus(node.get("cpus")) | cpus(node.get("offlineCpus"))) - taken
        if found:
            nodes[key] = nodes.get(key, EMPTY) | found
        taken |= found
    if homeless := cpus(topology.get("cpus")) - taken:
        nodes[0] = nodes.get(0, EMPTY) | homeless
    return dict(sorted(nodes.items()))


def _beside(topology: Mapping[str, Any], every: CpuSet) -> list[tuple[Owner, CpuSet]]:
    """What CPUs are that nobody has; the first that says so counts."""
    return [
        (Owner.OFFLINE, every - cpus(topology.get("cpus"))),
        (Owner.RESERVED, cpus(topology.get("reservedCpus"))),
        (Owner.ISOLATED, cpus(topology.get("isolatedCpus"))),
        (Owner.FREE, every),
    ]


def _assigned(
    npus: Mapping[int, Mapping[str, Any]], status: Mapping[str, Any]
) -> tuple[dict[int, int], dict[int, str]]:
    """CPU -> NPU and CPU -> role. Pools of NPUs are disjoint; a worker's own pool comes after that of its NPU."""
    owner: dict[int, int] = {}
    role: dict[int, str] = {}

    def take(who: int, pool: object, roles: object) -> None:
        for name in ("irq", "acl", "release", "main"):
            for cpu in cpus(mapping(roles).get(name)):
                if owner.setdefault(cpu, who) == who:
                    role.setdefault(cpu, name)
        for cpu in cpus(pool):
            if owner.setdefault(cpu, who) == who:
                role.setdefault(cpu, "main")

    for npu, entry in npus.items():
        take(npu, entry.get("pool"), entry.get("roles"))
    for npu, entry in npus.items():
        for worker in entries(entry.get("workers"))[:MAX_WORKERS]:
            take(npu, worker.get("pool"), worker.get("roles"))
    for cpu in cpus(mapping(status.get("uvb")).get("cpus")):
        owner.setdefault(cpu, Owner.UVB)
        role.setdefault(cpu, "uvb")
    return owner, role


def _facts(entry: Mapping[str, Any], drifted: bool) -> dict[str, Any]:
    workers = entries(entry.get("workers"))[:MAX_WORKERS]
    reasons = [entry.get("reason"), entry.get("irqReason"), *(worker.get("reason") for worker in workers)]
    drifted = drifted or any(reason in DRIFT_REASONS for reason in reasons if isinstance(reason, str))
    state = word(entry.get("state"), 12)
    because = [text for text in (word(entry.get("reason"), 64), word(entry.get("message"), 256)) if text]
    return {
        "state": state,
        "note": "! drifted" if drifted else state.lower() if state in _NOTES else "",
        "drifted": drifted,
        "workers": tuple(worker_text(worker, state) for worker in workers),
        "more": max(number(entry.get("workersOmitted"), 0), 0),
        "because": ": ".join(because),
    }
