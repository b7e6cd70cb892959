"""Whether a look has to read the process table, and why. Pure.

That table is most of what a look costs: a file of each process, and of those on no NPU all open files. Where the kernel
tells of processes (`agent.control.news`), a look at a quiet node reads it once a minute. The rest is read in each look:
the CPUs that are online, the devices, kubelet's records, the cpusets of everyone on an NPU. Where all of that is as it
was, and nobody is awaited, what was seen last is what there is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from agent.control.news import News
from agent.model.cpuset import CpuSet
from agent.model.node import Inventory, ProcessTable, Topology
from agent.model.reason import Problem
from agent.model.workload import KubeletState, Pod, ProcessId

SCAN_SECONDS: Final = 60.0
"""The process table is read at least this often: news are believed, and checked."""


class Cause(Enum):
    """Why the process table is read."""

    ASKED = "asked to look again"
    NO_NEWS = "nobody tells of processes"
    FIRST = "nothing was read yet"
    LOST = "news were lost"
    PROCESSES = "a process was born or ended"
    SUSPECT = "a process holds an NPU open that it did not"
    NPU_SMI = "npu-smi has answered"
    INVENTORY = "other NPUs"
    DEVICES = "other device files"
    TOPOLOGY = "other CPUs"
    CPUSETS = "a cpuset changed, or a process on an NPU ended"
    PODS = "pods changed"
    KUBELET = "kubelet's records changed"
    SPEC = "spec changed"
    BOUND = "other workers are bound"
    WAITING = "somebody is awaited"
    AGE = "a minute went by"


Cgroups = Mapping[ProcessId, tuple[str, CpuSet | None, CpuSet | None]]
"""Processes on NPUs -> path of their cgroup, its effective cpuset, and that of their container."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What every look reads."""

    topology: Topology
    inventory: Inventory
    table: ProcessTable
    """What npu-smi said. Another answer is another object, be it the same: time has passed."""
    davinci: Mapping[int, tuple[int, int]]
    kubelet: KubeletState
    unread: Problem | None = None
    """Why kubelet's records could not be read."""
    pods: Sequence[Pod] = ()
    """The same object while nothing changed. One that is equal may still mean that a pod was deleted."""
    cgroups: Cgroups = field(default_factory=dict)
    bound: Mapping[ProcessId, str] = field(default_factory=dict)
    spec: Hashable = None


def cause(
    before: Sight | None,
    now: Sight,
    news: News | None,
    *,
    age: float,
    suspect: bool = False,
    waiting: bool = False,
    asked: bool = False,
) -> Cause | None:
    """Why the process table has to be read; None where what was seen last still holds.

    `before` is what the last look saw that read the table, None before the first, and `age` the seconds since then.
    `news` is what came since the last look, None where nobody tells. `suspect`: one of those that these name holds an
    NPU open. `waiting`: the last look left something open that only time or npu-smi decides.
    """
    if asked:
        return Cause.ASKED
    if news is None:
        return Cause.NO_NEWS
    if before is None:
        return Cause.FIRST
    if news.lost:
        return Cause.LOST
    if news.processes:
        return Cause.PROCESSES
    if suspect:
        return Cause.SUSPECT
    if waiting:
        return Cause.WAITING
    if age >= SCAN_SECONDS:
        return Cause.AGE
    return next((cause for cause, changed in _changes(before, now) if changed), None)


def _changes(before: Sight, now: Sight) -> tuple[tuple[Cause, bool], ...]:
    return (
        (Cause.NPU_SMI, now.table is not before.table),
        (Cause.PODS, now.pods is not before.pods),
        (Cause.INVENTORY, now.inventory != before.inventory),
        (Cause.DEVICES, now.davinci != before.davinci),
        (Cause.TOPOLOGY, now.topology != before.topology),
        (Cause.KUBELET, (now.kubelet, now.unread) != (before.kubelet, before.unread)),
        (Cause.CPUSETS, now.cgroups != before.cgroups),
        (Cause.BOUND, now.bound != before.bound),
        (Cause.SPEC, now.spec != before.spec),
    )
