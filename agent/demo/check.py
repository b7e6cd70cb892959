"""Is every thread of every worker where the plan says? Asked of the masks themselves, not of the agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.demo.fake_kernel import FakeKernel
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.spec import THREAD_RULES
from agent.node.cgroups import CgroupTree
from agent.node.host import Host
from agent.node.procfs import ProcFs


class Masks(Protocol):
    """The threads of a host and their masks."""

    def threads(self, pid: int) -> Iterable[tuple[int, str]]:
        """(tid, comm) of each thread of a process; nothing once it is gone."""
        ...

    def mask(self, tid: int) -> CpuSet:
        """Where a thread may run: its mask without offline CPUs."""
        ...

    def cpuset(self, pid: int) -> CpuSet:
        """What the process's cgroup allows."""
        ...


class FakeMasks:
    """Those of a fake kernel, read without its counting that."""

    def __init__(self, kernel: FakeKernel) -> None:
        self._kernel = kernel

    def threads(self, pid: int) -> Iterable[tuple[int, str]]:
        leader = self._kernel.tasks.get(pid)
        return [(tid, self._kernel.tasks[tid].comm) for tid in leader.threads] if leader else []

    def mask(self, tid: int) -> CpuSet:
        return self._kernel.tasks[tid].mask & self._kernel.online

    def cpuset(self, pid: int) -> CpuSet:
        return self._kernel.allowed(pid)


class LiveMasks:
    """Those of the kernel that this runs on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._proc = ProcFs(Path("/"))
        self._cgroups = CgroupTree(Path("/"))

    def threads(self, pid: int) -> Iterable[tuple[int, str]]:
        for tid in self._proc.thread_ids(pid):
            if (comm := self._proc.comm(pid, tid)) is not None:
                yield tid, comm.decode(errors="replace")

    def mask(self, tid: int) -> CpuSet:
        return self._host.get_affinity(tid)

    def cpuset(self, pid: int) -> CpuSet:
        cpus = self._cgroups.process_cpus(pid)
        return CpuSet.span(0, 4095) if cpus is None else cpus


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of a worker, with where it is and where it belongs."""

    npu: int
    pid: int
    tid: int
    comm: str
    role: str
    mask: CpuSet
    target: CpuSet

    @property
    def astray(self) -> bool:
        return self.mask != self.target


def worker_threads(plan: Mapping[str, Any], masks: Masks) -> Iterator[Thread]:
    """Every thread of every worker in a CpuBindingPlan object. A worker without a plan has no threads here."""
    for entry in plan.get("status", {}).get("npus", ()):
        for worker in entry.get("workers", ()):
            roles = worker.get("roles") or entry.get("roles")
            if not roles:
                continue
            pid = worker["pid"]
            for tid, comm in masks.threads(pid):
                role = next((rule.role.value for rule in THREAD_RULES if comm.startswith(rule.prefix)), "main")
                target = CpuSet.parse(roles.get(role) or roles["main"])
                yield Thread(entry["id"], pid, tid, comm, role, masks.mask(tid), target & masks.cpuset(pid))


def astray(plan: Mapping[str, Any], masks: Masks) -> list[Thread]:
    """The threads that are not where the plan says."""
    return [thread for thread in worker_threads(plan, masks) if thread.astray]


def npu_entry(plan: Mapping[str, Any], npu: int) -> Mapping[str, Any]:
    """What the plan says of one NPU; empty where it does not know it."""
    found = (entry for entry in plan.get("status", {}).get("npus", ()) if entry.get("id") == npu)
    return next(found, {})


def pools(plan: Mapping[str, Any]) -> dict[int, str]:
    """The pool of each NPU, as text."""
    return {entry["id"]: entry.get("pool", "") for entry in plan.get("status", {}).get("npus", ())}


def unassigned(plan: Mapping[str, Any]) -> CpuSet:
    """CPUs of the node that are in no pool."""
    status = plan.get("status", {})
    taken = CpuSet.parse(status.get("uvb", {}).get("cpus", ""))
    for pool in pools(plan).values():
        taken |= CpuSet.parse(pool)
    topology = status.get("topology", {})
    return CpuSet.parse(topology.get("cpus", "")) - taken if topology else EMPTY
