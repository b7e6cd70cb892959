"""Observe: the host as it is now, as the input of planning.

Reads in the order topology, processes, containers, kubelet's records, and asks `agent.planning` whose process is whose.
What can't be read is a `Problem` beside what could; only a node whose CPUs can't be read at all is `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from agent.model.cpuset import CpuSet
from agent.model.node import Inventory, ProcessTable, Topology
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import CgroupIdentity, Container, KubeletState, Pod, ProcessId, Worker
from agent.node.cgroups import CgroupTree
from agent.node.devices import read_davinci
from agent.node.kubelet import read_cpu_manager_state
from agent.node.procfs import ProcessStat, ProcFs
from agent.node.sysfs import read_topology
from agent.planning.attribution import Attribution, attribute, npus_of_devices
from agent.planning.evidence import SeenContainer, find_pod, gather

SETTLE_SECONDS = 10.0
"""Running NPUs stand in for allocated ones once they have not changed for this long (design 4.1)."""
START_SECONDS = 2.0
"""A starting worker opens NPUs some time before npu-smi lists it. One that holds several open waits for a table that
is younger by this: most of these are leftovers, which only the table can tell."""
AWAIT_SECONDS = 120.0
"""For this long a process that holds an NPU open is expected in the table; a monitor that never shows up there is not
a reason to ask npu-smi every few seconds for ever."""
TOPOLOGY_SECONDS = 60.0
"""Cores are read again after this long, or when the online CPUs change; everything else in every look."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process on an NPU, before it is decided whether it is to be bound."""

    process: ProcessId
    name: str
    uid: int | None
    identity: CgroupIdentity
    pod: Pod | None
    container_name: str
    attribution: Attribution


Selector = Callable[[Candidate], bool]
"""Whether a process on an NPU is to be bound: opted-in pods, or what ``--select`` says."""


def everything(_candidate: Candidate) -> bool:
    """Every NPU worker of the host: the default without Kubernetes."""
    return True


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen in one look."""

    topology: Topology
    workers: tuple[Worker, ...] = ()
    containers: tuple[Container, ...] = ()
    strangers: Mapping[int, tuple[Candidate, ...]] = field(default_factory=dict)
    """NPU -> processes on it that are not to be bound."""
    cpusets: Mapping[ProcessId, CpuSet] = field(default_factory=dict)
    """The effective cpuset of each worker's own cgroup, which may be narrower than its container's."""
    children: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Pid -> pids of its children."""
    notes: tuple[Problem, ...] = ()
    awaiting: bool = False
    """A process holds an NPU open that npu-smi does not list: worth asking npu-smi again soon."""


class Observer:
    """Looks at one host. Keeps only what must outlast a look: who was a worker, and how long NPUs have been settled."""

    def __init__(
        self,
        root: Path,
        *,
        architecture: str | None = None,
        selects: Selector = everything,
        pods: Callable[[], Sequence[Pod]] = tuple,
        kubelet: Callable[[], KubeletState] | None = None,
        patient: bool = True,
    ) -> None:
        """`patient` False takes running NPUs for settled at once: right for a single look, where nothing can change."""
        self.root = root
        self.proc = ProcFs(root)
        self.cgroups = CgroupTree(root)
        self._architecture = architecture
        self._selects = selects
        self._pods = pods
        self._kubelet = kubelet or (lambda: KubeletState(*read_cpu_manager_state(root)))
        self._patient = patient
        self._topology: Topology | None = None
        self._topology_at = 0.0
        self._known: dict[ProcessId, Attribution] = {}
        self._unlisted: dict[ProcessId, float] = {}
        self._settled: dict[str, tuple[frozenset[int], float]] = {}

    def topology(self, now: float) -> Topology:
        """The CPUs of the host; `Refused` where they can't be read."""
        stale = now - self._topology_at >= TOPOLOGY_SECONDS
        before = None if stale else self._topology
        self._topology = read_topology(self.root, architecture=self._architecture, cgroups=self.cgroups, before=before)
        if before is None:
            self._topology_at = now
        return self._topology

    def look(self, inventory: Inventory, table: ProcessTable, now: float, *, table_age: float = 0.0) -> Observation:
        """One look at the host, with what npu-smi said `table_age` seconds ago. `now` is monotonic, in seconds."""
        notes: list[Problem] = []
        topology = self.topology(now)
        stats = self._stats(notes)
        davinci = read_davinci(self.root)
        kubelet = self._read_kubelet(notes)
        pods = self._pods()

        opened = self._opened(stats.values(), inventory, davinci, table, notes)
        found = self._attribute(stats, table, opened)
        listed = {row.pid for row in table.rows}
        if listed and not listed & stats.keys():
            message = f"none of the {len(listed)} processes that npu-smi lists is in /proc: another PID namespace?"
            notes.append(Problem(Reason.NOT_THIS_KERNEL, message))
        awaited = self._await(found, stats, listed, now)
        found = self._started(found, now - table_age)
        candidates = [self._candidate(stats[pid], attribution, pods, notes) for pid, attribution in found.items()]
        chosen = [c for c in candidates if self._selects(c)]
        strangers: dict[int, tuple[Candidate, ...]] = {}
        for candidate in candidates:
            if candidate not in chosen:
                for npu in candidate.attribution.npus:
                    strangers[npu] = (*strangers.get(npu, ()), candidate)

        seen, cpusets = self._containers(chosen, candidates, davinci, topology, notes)
        workers = tuple(
            Worker(c.process, c.attribution.npus, _key(c.identity), c.name, c.attribution.residual) for c in chosen
        )
        containers = gather(seen, pods, kubelet, inventory, topology.online)
        return Observation(
            topology=topology,
            workers=workers,
            containers=self._settle(containers, workers, now),
            strangers=strangers,
            cpusets=cpusets,
            children=_children(stats.values()),
            notes=tuple(dict.fromkeys(notes)),
            awaiting=awaited,
        )

    def _stats(self, notes: list[Problem]) -> dict[int, ProcessStat]:
        stats = {}
        for pid in self.proc.pids():
            try:
                stat = self.proc.stat(pid)
            except Refused as refused:
                notes.append(refused.problem)
                continue
            if stat is not None and not stat.kernel_thread:
                stats[pid] = stat
        return stats

    def _read_kubelet(self, notes: list[Problem]) -> KubeletState:
        try:
            return self._kubelet()
        except Refused as refused:
            notes.append(refused.problem)
            return KubeletState()

    def _opened(
        self,
        stats: Iterable[ProcessStat],
        inventory: Inventory,
        davinci: Mapping[int, tuple[int, int]],
        table: ProcessTable,
        notes: list[Problem],
    ) -> dict[int, frozenset[int]]:
        """NPUs whose device file a process holds open, for the processes that the table has no row of."""
        if not davinci:
            return {}
        listed = {row.pid for row in table.rows}
        numbers = {device: number for number, device in davinci.items()}
        opened = {}
        for stat in stats:
            if stat.pid in listed:
                continue
            try:
                devices = self.proc.open_devices(stat.pid)
            except Refused as refused:
                notes.append(Problem(refused.reason, "open files of other processes cannot be read (CAP_SYS_PTRACE)"))
                return {}
            if devices and (held := {numbers[device] for device in devices if device in numbers}):
                opened[stat.pid] = npus_of_devices(inventory, held)
        return opened

    def _attribute(
        self, stats: Mapping[int, ProcessStat], table: ProcessTable, opened: Mapping[int, frozenset[int]]
    ) -> dict[int, Attribution]:
        """Attribution by pid of living processes."""
        alive = {
            process.pid: attribution
            for process, attribution in self._known.items()
            if (stat := stats.get(process.pid)) and stat.start_time == process.start_time
        }
        found = {pid: a for pid, a in attribute(table, opened, alive).items() if pid in stats}
        self._known = {ProcessId(pid, stats[pid].start_time): a for pid, a in found.items()}
        return dict(sorted(found.items()))

    def _await(
        self, found: Mapping[int, Attribution], stats: Mapping[int, ProcessStat], listed: Collection[int], now: float
    ) -> bool:
        """Whether some process that holds an NPU open may soon be in the table."""
        unlisted = [ProcessId(pid, stats[pid].start_time) for pid, a in found.items() if not a.by_row]
        self._unlisted = {
            process: self._unlisted.get(process, now) for process in unlisted if process.pid not in listed
        }
        return any(now - since < AWAIT_SECONDS for since in self._unlisted.values())

    def _started(self, found: Mapping[int, Attribution], table_at: float) -> dict[int, Attribution]:
        """Without the processes that hold several NPUs open and are too young for the table to have listed them."""
        if not self._patient:
            return dict(found)
        young = {process.pid for process, since in self._unlisted.items() if table_at < since + START_SECONDS}
        return {pid: a for pid, a in found.items() if not (pid in young and len(a.npus) > 1)}

    def _candidate(
        self, stat: ProcessStat, attribution: Attribution, pods: Sequence[Pod], notes: list[Problem]
    ) -> Candidate:
        identity, status = None, None
        try:
            identity = self.cgroups.identity(stat.pid)
            status = self.proc.status(stat.pid)
        except Refused as refused:
            notes.append(refused.problem)
        identity = identity or CgroupIdentity(path="")
        pod, container = find_pod(identity, pods)
        return Candidate(
            process=ProcessId(stat.pid, stat.start_time),
            name=printable(stat.comm, 32),
            uid=status.uid if status else None,
            identity=identity,
            pod=pod,
            container_name=container.name if container else "",
            attribution=attribution,
        )

    def _containers(
        self,
        chosen: Sequence[Candidate],
        candidates: Sequence[Candidate],
        davinci: Mapping[int, tuple[int, int]],
        topology: Topology,
        notes: list[Problem],
    ) -> tuple[list[SeenContainer], dict[ProcessId, CpuSet]]:
        """The containers of everyone on an NPU: one that is not to be bound may own CPUs and NPUs all the same."""
        seen: dict[str, SeenContainer] = {}
        cpusets = {}
        for candidate in candidates:
            pid, key = candidate.process.pid, _key(candidate.identity)
            own = self._cpus(topology, notes, partial(self.cgroups.process_cpus, pid))
            if own is not None:
                cpusets[candidate.process] = own
            if key in seen:
                continue
            path = candidate.identity.path
            cpus = self._cpus(topology, notes, partial(self.cgroups.effective_cpus, path)) if path else own
            if cpus is None:
                if candidate in chosen:
                    message = f"no effective cpuset for {printable(path, 120) or f'process {pid}'}"
                    notes.append(Problem(Reason.CPUSET_UNREADABLE, message))
                continue
            devices = self.proc.root_devices(pid, davinci) if candidate.identity.runtime else None
            seen[key] = SeenContainer(candidate.identity, cpus, devices)
        return list(seen.values()), cpusets

    def _cpus(self, topology: Topology, notes: list[Problem], read: Callable[[], CpuSet | None]) -> CpuSet | None:
        """A cpuset; where the host has no cpuset hierarchy nothing confines a process but the root."""
        if not self.cgroups.form:
            return topology.root
        try:
            return read()
        except Refused as refused:
            notes.append(refused.problem)
            return None

    def _settle(self, containers: Iterable[Container], workers: Iterable[Worker], now: float) -> tuple[Container, ...]:
        """Marks owners of CPUs whose NPUs are only known from what runs, until that has been still for a while."""
        running: dict[str, frozenset[int]] = {}
        for worker in workers:
            running[worker.container] = running.get(worker.container, frozenset()) | set(worker.npus)
        settled = {}
        result = []
        for container in containers:
            if container.owned is None or container.npus is not None or not self._patient:
                result.append(container)
                continue
            npus = running.get(container.key, frozenset())
            before, since = self._settled.get(container.key, (None, now))
            settled[container.key] = (npus, since if npus == before else now)
            still = now - settled[container.key][1] >= SETTLE_SECONDS
            result.append(container if still else _unsettled(container))
        self._settled = settled
        return tuple(result)


def _key(identity: CgroupIdentity) -> str:
    return identity.container_id or identity.path


def _unsettled(container: Container) -> Container:
    return replace(container, settled=False)


def _children(stats: Iterable[ProcessStat]) -> dict[int, tuple[int, ...]]:
    children: dict[int, tuple[int, ...]] = {}
    for stat in stats:
        children[stat.ppid] = (*children.get(stat.ppid, ()), stat.pid)
    return children
