"""Observe: the host as it is now, as the input of planning.

Reads in the order topology, processes, containers, kubelet's records, and asks `agent.planning` whose process is whose.
What can't be read is a `Problem` beside what could; only a node whose CPUs can't be read at all is `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from agent.control.attribution import Attributor, Expected
from agent.control.settling import Settling
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, ProcessTable, Topology
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import CgroupIdentity, Container, KubeletState, Pod, ProcessId, Worker
from agent.node.cgroups import CgroupTree
from agent.node.devices import read_davinci
from agent.node.kubelet import read_cpu_manager_state
from agent.node.procfs import ProcessStat, ProcFs
from agent.node.sysfs import read_topology
from agent.planning.attribution import Attribution, npus_of_devices
from agent.planning.evidence import SeenContainer, find_pod, gather, with_devices
from agent.planning.optin import invalid_annotation

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


class Choice(Enum):
    """What is to become of a process on an NPU."""

    BIND = "bind"
    LEAVE = "leave"
    """Nobody asked for it to be bound."""
    RELEASE = "release"
    """Its pod says that it is not to be bound: what was done to it is undone."""
    KEEP = "keep"
    """Nothing is known: its pod is gone, or was not seen yet. It stays as it is (design section 7, "Absence never acts
    on the host")."""


Chooser = Callable[[Candidate], Choice]
"""Who is to be bound: what pods opted in, or what ``--select`` says."""


def everything(_candidate: Candidate) -> Choice:
    """Every NPU worker of the host: the default without Kubernetes."""
    return Choice.BIND


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen in one look."""

    topology: Topology
    inventory: Inventory = field(default_factory=lambda: Inventory((), DeviceType.UNKNOWN))
    """The NPUs that it was looked at with."""
    workers: tuple[Worker, ...] = ()
    containers: tuple[Container, ...] = ()
    strangers: Mapping[int, tuple[Candidate, ...]] = field(default_factory=dict)
    """NPU -> processes on it that are not to be bound."""
    dismissed: frozenset[ProcessId] = frozenset()
    """Those of them whose pods say that they are not to be bound."""
    unknown: frozenset[ProcessId] = frozenset()
    """Workers that were bound and of whose pods nothing is known: not even whether they own their CPUs."""
    misannotated: Mapping[tuple[str, str], Problem] = field(default_factory=dict)
    """(namespace, pod) -> why what its annotations ask for can't be used."""
    places: Mapping[ProcessId, tuple[str, str, str]] = field(default_factory=dict)
    """Namespace, pod and container of the workers, and of those dismissed, that are in pods."""
    pods: Mapping[ProcessId, Pod] = field(default_factory=dict)
    """The pods themselves, of workers alone."""
    cpusets: Mapping[ProcessId, CpuSet] = field(default_factory=dict)
    """The effective cpuset of each worker's own cgroup, which may be narrower than its container's."""
    children: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Pid -> pids of its children."""
    notes: tuple[Problem, ...] = ()
    awaited: frozenset[ProcessId | str] = frozenset()
    """Processes that hold an NPU open and that npu-smi does not list yet, and ids of containers that asked to be bound
    and have nobody on an NPU: worth asking again soon."""

    def undecided(self, process: ProcessId) -> bool:
        """Whether what the pod of a worker asks for is not known just now: it is gone, was not listed yet, or can't be
        understood. What is done for such a worker stays as it is (design section 7)."""
        namespace, pod, _ = self.places.get(process, ("", "", ""))
        return process in self.unknown or (namespace, pod) in self.misannotated


class Observer:
    """Looks at one host. Keeps only what must outlast a look: whose NPU is it, and how long NPUs have been settled."""

    def __init__(
        self,
        root: Path,
        *,
        architecture: str | None = None,
        chooses: Chooser = everything,
        pods: Callable[[], Sequence[Pod]] = tuple,
        kubelet: Callable[[], KubeletState] | None = None,
        patient: bool = True,
    ) -> None:
        """`patient` False takes running NPUs for settled at once: right for a single look, where nothing can change."""
        self.root = root
        self.proc = ProcFs(root)
        self.cgroups = CgroupTree(root)
        self._architecture = architecture
        self._chooses = chooses
        self._pods = pods
        self._kubelet = kubelet or (lambda: KubeletState(*read_cpu_manager_state(root)))
        self._topology: Topology | None = None
        self._topology_at = 0.0
        self._attributor = Attributor(patient=patient)
        self._expected = Expected()
        self._identities: dict[ProcessId, CgroupIdentity] = {}
        self._identities_at = 0.0
        self.settling = Settling(patient=patient)
        self.bound: frozenset[ProcessId] = frozenset()
        """The workers that are bound, for whoever acts to say: of these it stays so where nothing is known."""

    def adopt(self, processes: Iterable[ProcessId]) -> None:
        """Workers that an agent had bound before: those of which nothing is known stay so."""
        self.bound = self.bound | frozenset(processes)

    def topology(self, now: float) -> Topology:
        """The CPUs of the host; `Refused` where they can't be read."""
        stale = now - self._topology_at >= TOPOLOGY_SECONDS
        before = None if stale else self._topology
        self._topology = read_topology(self.root, architecture=self._architecture, cgroups=self.cgroups, before=before)
        if before is None:
            self._topology_at = now
        return self._topology

    def children(self) -> dict[int, tuple[int, ...]]:
        """Pid -> pids of its children, as they are now."""
        return _children(self._stats([]).values())

    def members(self, keys: Collection[str]) -> dict[str, tuple[ProcessId, ...]]:
        """Key of a runtime's container -> the processes in it now, ascending, as far as they can be looked at. Another
        cgroup, such as a user's session, has none: what else runs there did not come of the worker."""
        found: dict[str, list[ProcessId]] = {key: [] for key in keys}
        if not found:
            return {}
        for stat in self._stats([]).values():
            process = ProcessId(stat.pid, stat.start_time)
            identity = self._identity(process)
            if identity is not None and identity.runtime and identity.key in found:
                found[identity.key].append(process)
        return {key: tuple(sorted(processes)) for key, processes in found.items()}

    def look(self, inventory: Inventory, table: ProcessTable, now: float, *, table_age: float = 0.0) -> Observation:
        """One look at the host, with what npu-smi said `table_age` seconds ago. `now` is monotonic, in seconds."""
        notes: list[Problem] = []
        topology = self.topology(now)
        stats = self._stats(notes)
        davinci = read_davinci(self.root)
        kubelet = self._read_kubelet(notes)
        pods = self._pods()

        listed = {row.pid for row in table.rows}
        table = self._attributor.rows(table, stats)
        if self._attributor.foreign:
            message = f"none of the {len(listed)} processes that npu-smi lists is in /proc: another PID namespace?"
            notes.append(Problem(Reason.NOT_THIS_KERNEL, message))
        opened = self._opened(stats.values(), inventory, davinci, table, notes)
        found = self._attributor.attribute(table, opened, stats, now, now - table_age)
        candidates = [self._candidate(stats[pid], attribution, pods, notes) for pid, attribution in found.items()]
        chosen: list[Candidate] = []
        dismissed: list[Candidate] = []
        unknown: set[ProcessId] = set()
        strangers: dict[int, tuple[Candidate, ...]] = {}
        for candidate in candidates:
            choice = self._chooses(candidate)
            if choice is Choice.BIND or (choice is Choice.KEEP and candidate.process in self.bound):
                chosen.append(candidate)
                if choice is Choice.KEEP and candidate.pod is None:
                    unknown.add(candidate.process)
                continue
            if choice is Choice.RELEASE:
                dismissed.append(candidate)
            for npu in candidate.attribution.npus:
                strangers[npu] = (*strangers.get(npu, ()), candidate)

        dismissed += [c for c in self._idle(stats, found, pods, notes) if self._chooses(c) is Choice.RELEASE]

        cpusets = self._cpusets(candidates, topology, notes)
        members = {c.identity.key: [c.process.pid] for c in candidates}
        seen = self._containers(candidates, cpusets, topology, notes)
        if pods or kubelet.grants:  # else nothing could tell that a container owns its CPUs
            seen += self._bystanders(stats.values(), members, topology, now, notes)
        containers = [
            self._with_devices(container, members.get(container.key, []), davinci, inventory)
            for container in gather(seen, pods, kubelet, inventory, topology.online)
            if container.owned is not None or container.key in members
        ]
        running: dict[str, frozenset[int]] = {}
        for candidate in candidates:
            key = candidate.identity.key
            running[key] = running.get(key, frozenset()) | set(candidate.attribution.npus)
        return Observation(
            topology=topology,
            inventory=inventory,
            workers=tuple(
                Worker(c.process, c.attribution.npus, c.identity.key, c.name, c.attribution.residual) for c in chosen
            ),
            containers=self.settling.mark(containers, running, {c.identity.key for c in chosen}, now),
            strangers=strangers,
            dismissed=frozenset(c.process for c in dismissed),
            unknown=frozenset(unknown),
            misannotated={
                (pod.namespace, pod.name): problem for pod in pods if (problem := invalid_annotation(pod)) is not None
            },
            pods={c.process: c.pod for c in chosen if c.pod},
            places={c.process: (c.pod.namespace, c.pod.name, c.container_name) for c in chosen + dismissed if c.pod},
            cpusets=cpusets,
            children=_children(stats.values()),
            notes=tuple(dict.fromkeys(notes)),
            awaited=self._attributor.awaited
            | self._expected.without_worker(pods, {c.identity.container_id for c in candidates}, now),
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

    def _idle(
        self, stats: Mapping[int, ProcessStat], found: Collection[int], pods: Sequence[Pod], notes: list[Problem]
    ) -> list[Candidate]:
        """Bound workers that are on no NPU any more: they stay as they are unless their pods say otherwise."""
        idle = [stat for p in sorted(self.bound) if p.pid not in found and (stat := stats.get(p.pid)) is not None]
        candidates = [self._candidate(stat, Attribution(()), pods, notes) for stat in idle]
        return [candidate for candidate in candidates if candidate.process in self.bound]

    def _cpusets(
        self, candidates: Sequence[Candidate], topology: Topology, notes: list[Problem]
    ) -> dict[ProcessId, CpuSet]:
        """The effective cpuset of each process's own cgroup."""
        read = {
            c.process: self._cpus(topology, notes, partial(self.cgroups.process_cpus, c.process.pid))
            for c in candidates
        }
        return {process: cpus for process, cpus in read.items() if cpus is not None}

    def _containers(
        self,
        candidates: Sequence[Candidate],
        cpusets: Mapping[ProcessId, CpuSet],
        topology: Topology,
        notes: list[Problem],
    ) -> list[SeenContainer]:
        """The containers of everyone on an NPU: one that is not to be bound may own CPUs and NPUs all the same."""
        seen: dict[str, SeenContainer] = {}
        for candidate in candidates:
            key, path = candidate.identity.key, candidate.identity.path
            if key in seen:
                continue
            read = partial(self.cgroups.effective_cpus, path)
            cpus = self._cpus(topology, notes, read) if path else cpusets.get(candidate.process)
            if cpus is None:
                place = printable(path, 120) or f"process {candidate.process.pid}"
                notes.append(Problem(Reason.CPUSET_UNREADABLE, f"no effective cpuset for {place}"))
            else:
                seen[key] = SeenContainer(candidate.identity, cpus)
        return list(seen.values())

    def _bystanders(
        self,
        stats: Iterable[ProcessStat],
        members: dict[str, list[int]],
        topology: Topology,
        now: float,
        notes: list[Problem],
    ) -> list[SeenContainer]:
        """Pods' containers in which nobody is on an NPU (yet): they may own CPUs, or NPUs that they have not opened.
        Adds the processes of every container to `members`."""
        if now - self._identities_at >= TOPOLOGY_SECONDS:
            self._identities, self._identities_at = {}, now
        known, self._identities = self._identities, {}
        seen: dict[str, SeenContainer] = {}
        for stat in stats:
            process = ProcessId(stat.pid, stat.start_time)
            identity = known.get(process) or self._identity(process)
            if identity is None:
                continue
            self._identities[process] = identity
            if not (identity.pod_uid and identity.container_id):
                continue
            key = identity.key
            if key in members:
                members[key].append(stat.pid)
                continue
            members[key] = [stat.pid]
            cpus = self._cpus(topology, notes, partial(self.cgroups.effective_cpus, identity.path))
            if cpus is not None:
                seen[key] = SeenContainer(identity, cpus)
        return list(seen.values())

    def _identity(self, process: ProcessId) -> CgroupIdentity | None:
        """Where a process is; None where that can't be read, which is said where it is a process on an NPU."""
        try:
            return self._identities.get(process) or self.cgroups.identity(process.pid)
        except Refused:
            return None

    def _with_devices(
        self, container: Container, pids: Sequence[int], davinci: Mapping[int, tuple[int, int]], inventory: Inventory
    ) -> Container:
        """An owner of CPUs with the NPUs in its /dev, as any of its processes shows it: one may be ending."""
        if container.owned is None or container.npus is not None or not davinci:
            return container
        for pid in sorted(set(pids)):
            if (devices := self.proc.root_devices(pid, davinci)) is not None:
                return with_devices(container, devices, inventory)
        return container

    def _cpus(self, topology: Topology, notes: list[Problem], read: Callable[[], CpuSet | None]) -> CpuSet | None:
        """A cpuset; where the host has no cpuset hierarchy nothing confines a process but the root."""
        if not self.cgroups.form:
            return topology.root
        try:
            return read()
        except Refused as refused:
            notes.append(refused.problem)
            return None


def _children(stats: Iterable[ProcessStat]) -> dict[int, tuple[int, ...]]:
    children: dict[int, tuple[int, ...]] = {}
    for stat in stats:
        children[stat.ppid] = (*children.get(stat.ppid, ()), stat.pid)
    return children
