"""The containers of a host with their cpusets, read for everyone on an NPU and for those that may own CPUs or NPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.control.scanning import Cgroups
from agent.model.cpuset import CpuSet
from agent.model.node import Inventory, Topology
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import CgroupIdentity, Container, ProcessId
from agent.node.cgroups import CgroupTree
from agent.node.procfs import ProcFs
from agent.planning.evidence import SeenContainer, with_devices

Places = Mapping[ProcessId, tuple[str, CgroupIdentity]]
"""Processes -> path of their cgroup, empty where that can't be read, and whose it is."""


class ContainerReader:
    """Reads cpusets: those of one cgroup once in a look, however many processes are in it."""

    def __init__(self, proc: ProcFs, cgroups: CgroupTree) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._last: dict[str, CpuSet] = {}
        """Paths -> the cpuset that was read last: what others may use is not to depend on whether one can be read."""
        self._near: frozenset[str] = frozenset()
        self._far: frozenset[str] = frozenset()
        """Paths of those with a process on an NPU, and of all others, when they were looked at last."""

    def cgroups_of(self, places: Places, topology: Topology, notes: list[Problem]) -> Cgroups:
        """The cpusets of processes on NPUs, by their own cgroups, which may have less than their containers."""
        read = self._reader(topology, notes)
        self._near = frozenset(identity.path for _, identity in places.values())
        self._forget()
        return {
            process: (path, read(path), self._latest(identity.path, read(identity.path)))
            for process, (path, identity) in places.items()
        }

    def containers_of(self, places: Places, cgroups: Cgroups, notes: list[Problem]) -> list[SeenContainer]:
        """The containers of everyone on an NPU: one that is not to be bound may own CPUs and NPUs all the same."""
        seen: dict[str, SeenContainer] = {}
        for process, (_, identity) in places.items():
            if identity.key in seen:
                continue
            _, own, whole = cgroups[process]
            cpus = whole if identity.path else own
            if cpus is None:
                place = printable(identity.path, 120) or f"process {process.pid}"
                notes.append(Problem(Reason.CPUSET_UNREADABLE, f"no effective cpuset for {place}"))
            else:
                seen[identity.key] = SeenContainer(identity, cpus)
        return list(seen.values())

    def bystanders(
        self,
        identities: Mapping[ProcessId, CgroupIdentity],
        members: dict[str, list[int]],
        topology: Topology,
        notes: list[Problem],
    ) -> list[SeenContainer]:
        """Pods' containers in which nobody is on an NPU (yet): they may own CPUs, or NPUs that they have not opened.
        Adds the processes of every container to `members`.

        Their cpusets are not looked at between two scans: what kubelet gives one of them for its own it takes from all
        the others, and that is seen.
        """
        read = self._reader(topology, notes)
        self._far = frozenset(identity.path for identity in identities.values())
        self._forget()
        seen: dict[str, SeenContainer] = {}
        for process, identity in identities.items():
            if not (identity.pod_uid and identity.container_id):
                continue
            key = identity.key
            if key in members:
                members[key].append(process.pid)
                continue
            members[key] = [process.pid]
            cpus = self._latest(identity.path, read(identity.path))
            if cpus is not None:
                seen[key] = SeenContainer(identity, cpus)
        return list(seen.values())

    def with_devices(
        self, container: Container, pids: Sequence[int], davinci: Mapping[int, tuple[int, int]], inventory: Inventory
    ) -> Container:
        """An owner of CPUs with the NPUs in its /dev, as any of its processes shows it: one may be ending."""
        if container.owned is None or container.npus is not None or not davinci:
            return container
        for pid in sorted(set(pids)):
            if (devices := self._proc.root_devices(pid, davinci)) is not None:
                return with_devices(container, devices, inventory)
        return container

    def places(self, processes: Iterable[ProcessId]) -> dict[ProcessId, tuple[str, CgroupIdentity]]:
        """Where processes are now; those that ended or can't be looked at are missing."""
        found = {}
        for process in processes:
            try:
                path = self._cgroups.path(process.pid)
            except Refused:
                continue
            if path is not None:
                found[process] = path, self._cgroups.identity_of(path)
        return found

    def _latest(self, path: str, cpus: CpuSet | None) -> CpuSet | None:
        """The cpuset of a container, as it was where it can't be read now."""
        if cpus is None:
            return self._last.get(path)
        self._last[path] = cpus
        return cpus

    def _forget(self) -> None:
        """What was read of those that are there no more."""
        for path in self._last.keys() - self._near - self._far:
            del self._last[path]

    def _reader(self, topology: Topology, notes: list[Problem]) -> Callable[[str], CpuSet | None]:
        """Reads the effective cpuset of a path, once; None where that is empty. Where the host has no cpuset hierarchy
        nothing confines a process but the root."""
        known: dict[str, CpuSet | None] = {}
        anywhere = self._cgroups.mount is not None

        def read(path: str) -> CpuSet | None:
            if not anywhere and path in ("", "/"):
                return topology.root
            if path and path not in known:
                known[path] = None
                try:
                    known[path] = self._cgroups.effective_cpus(path)
                except Refused as refused:
                    notes.append(refused.problem)
            return known.get(path)

        return read
