"""The processes of a host as they were when the table was last read, and what is looked up of them one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from agent.model.reason import Problem, Reason, Refused
from agent.model.workload import CgroupIdentity, ProcessId
from agent.node.capabilities import NEEDS, Feature, capabilities
from agent.node.cgroups import CgroupTree
from agent.node.proc_table import ProcTable
from agent.node.procfs import ProcessStat, ProcFs

IDENTITY_SECONDS: Final = 60.0
"""For so long a process is believed to stay in its cgroup, unless it is on an NPU."""


class Processes:
    """What a look knows of processes.

    `stats` is as old as the last `scan`. Of that age are also the children that `Observation` tells of. Everything else
    is read when it is asked for.
    """

    def __init__(self, root: Path, proc: ProcFs, cgroups: CgroupTree) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._table = ProcTable(root)
        self._identities: dict[ProcessId, CgroupIdentity] = {}
        self._identities_at = 0.0
        self.stats: Mapping[int, ProcessStat] = {}
        """By pid; kernel threads are not among them."""
        self.held: Mapping[int, frozenset[int]] = {}
        """Pid -> numbers of the davinci devices that it held open at the last `scan`; those alone that held any and
        that npu-smi had no row of."""

    def scan(self, notes: list[Problem]) -> None:
        """Reads the process table. Refused where /proc can't be listed."""
        self.stats = self._table.read()
        notes.extend(self._table.problems)

    def children(self) -> dict[int, tuple[int, ...]]:
        """Pid -> pids of its children, as they are now."""
        return children_of(self._table.read().values())

    def members(self, keys: Collection[str]) -> dict[str, tuple[ProcessId, ...]]:
        """Key of a runtime's container -> the processes in it now, ascending, as far as they can be looked at. Another
        cgroup, such as a user's session, has none: what else runs there did not come of the worker."""
        found: dict[str, list[ProcessId]] = {key: [] for key in keys}
        if not found:
            return {}
        for stat in self._table.read().values():
            process = ProcessId(stat.pid, stat.start_time)
            identity = self._identity(process)
            if identity is not None and identity.runtime and identity.key in found:
                found[identity.key].append(process)
        return {key: tuple(sorted(processes)) for key, processes in found.items()}

    def identities(self, now: float) -> dict[ProcessId, CgroupIdentity]:
        """Where the processes of the last `scan` are, as far as that can be read."""
        if now - self._identities_at >= IDENTITY_SECONDS:
            self._identities, self._identities_at = {}, now
        found: dict[ProcessId, CgroupIdentity] = {}
        for stat in self.stats.values():
            process = ProcessId(stat.pid, stat.start_time)
            if (identity := self._identity(process)) is not None:
                found[process] = identity
        self._identities = found
        return found

    def within(self, containers: Collection[str]) -> frozenset[int]:
        """Pids of processes in containers with these ids, of those that `identities` found last."""
        if not containers:
            return frozenset()
        return frozenset(process.pid for process, at in self._identities.items() if at.container_id in containers)

    def open_files(
        self, listed: Collection[int], davinci: Mapping[int, tuple[int, int]], notes: list[Problem]
    ) -> Mapping[int, frozenset[int]]:
        """`held` anew: who holds which device open, of those of the last `scan` that are not `listed` by npu-smi."""
        self.held = {}
        if not davinci:
            return self.held
        numbers = {device: number for number, device in davinci.items()}
        held = {}
        unseen: dict[Reason, int] = {}
        for pid in sorted(self.stats.keys() - set(listed)):
            try:
                found = self._held(pid, numbers)
            except Refused as refused:
                # Said once. One that is out of reach, such as by a security module, says nothing of the others.
                unseen.setdefault(refused.reason, pid)
                continue
            if found:
                held[pid] = found
        notes += [Problem(reason, _unseen(pid)) for reason, pid in unseen.items()]
        self.held = held
        return held

    def any_opened(
        self, suspects: Iterable[int], listed: Collection[int], davinci: Mapping[int, tuple[int, int]]
    ) -> bool:
        """Whether one of these holds a device open that it did not at the last `scan`. Of one that npu-smi has listed
        more is known already; that nobody's files can be read was said when all were looked at."""
        numbers = {device: number for number, device in davinci.items()}
        for pid in suspects if numbers else ():
            if pid in listed and pid in self.stats:
                continue
            try:
                found = self._held(pid, numbers)
            except Refused:
                continue
            if found and found != self.held.get(pid):
                return True
        return False

    def holds(self, pid: int, davinci: Mapping[int, tuple[int, int]]) -> frozenset[int] | None:
        """Numbers of the davinci devices that a process holds open now; None where that can't be seen."""
        try:
            return self._held(pid, {device: number for number, device in davinci.items()}) if davinci else None
        except Refused:
            return None

    def _held(self, pid: int, numbers: Mapping[tuple[int, int], int]) -> frozenset[int]:
        devices = self._proc.open_devices(pid)
        return frozenset(numbers[device] for device in devices if device in numbers) if devices else frozenset()

    def _identity(self, process: ProcessId) -> CgroupIdentity | None:
        """Where a process is; None where that can't be read, which is said where it is a process on an NPU."""
        try:
            return self._identities.get(process) or self._cgroups.identity(process.pid)
        except Refused:
            return None


def _unseen(pid: int) -> str:
    """That open files can't be seen, of this process and maybe of others, and what would be needed."""
    missing = [one for one in NEEDS if Feature.DEVICES in NEEDS[one].features and one not in capabilities()]
    if missing:
        names = " and ".join(f"CAP_{one.name}" for one in missing)
        return f"open files of other processes cannot be read: the agent lacks {names}"
    return f"open files of process {pid} cannot be read, with all rights for it: does a security module forbid it?"


def children_of(stats: Iterable[ProcessStat]) -> dict[int, tuple[int, ...]]:
    """Pid -> pids of its children."""
    children: dict[int, list[int]] = {}
    for stat in stats:
        children.setdefault(stat.ppid, []).append(stat.pid)
    return {parent: tuple(pids) for parent, pids in children.items()}
