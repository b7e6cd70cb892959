"""Observe: the host as it is now, as the input of planning.

Reads in the order topology, processes, containers, kubelet's records, and asks `agent.planning` whose process is whose.
What can't be read is a `Problem` beside what could; only a node whose CPUs can't be read at all is `Refused`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from agent.control.attribution import Attributor, Expected
from agent.control.containers import ContainerReader
from agent.control.news import News
from agent.control.processes import Processes, children_of
from agent.control.scanning import Cause, Sight, cause
from agent.control.settling import Settling
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, ProcessTable, Topology
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import CgroupIdentity, Container, KubeletState, Pod, ProcessId, Worker
from agent.node.cgroups import CgroupTree
from agent.node.devices import read_davinci
from agent.node.kubelet import read_cpu_manager_state
from agent.node.procfs import ProcessStat, ProcFs
from agent.node.sysfs import SystemFiles, read_topology
from agent.planning.attribution import Attribution, npus_of_devices
from agent.planning.evidence import find_pod, gather
from agent.planning.optin import invalid_annotation

log = logging.getLogger(__name__)

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
    cgroup: str = ""
    """Path of its own cgroup, which may lie below its container's; empty where it can't be read."""


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
    """Pid -> pids of its children, as of the last look that read the process table. Those that began since then are
    missing: whoever hears of processes puts children of workers in place when they begin. For what must miss none there
    is `Observer.latest_children`."""
    notes: tuple[Problem, ...] = ()
    awaited: frozenset[ProcessId | str] = frozenset()
    """Processes that hold an NPU open and that npu-smi does not list yet, and ids of containers that asked to be bound
    and have nobody on an NPU: worth asking again soon."""
    suspects: frozenset[int] = frozenset()
    """Pids of these processes, and of all that are in these containers."""

    def undecided(self, process: ProcessId) -> bool:
        """Whether what the pod of a worker asks for is not known just now: it is gone, was not listed yet, or can't be
        understood. What is done for such a worker stays as it is (design section 7)."""
        namespace, pod, _ = self.places.get(process, ("", "", ""))
        return process in self.unknown or (namespace, pod) in self.misannotated


class Observer:
    """Looks at one host. Keeps what must outlast a look: whose NPU is it, how long NPUs have been settled, and what was
    seen, for as long as nothing says that it is otherwise (`agent.control.scanning`)."""

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
        """`patient` False takes running NPUs for settled at once: right for a single look, where nothing can change.
        `pods` gives the same object for as long as nothing changed."""
        self.root = root
        self.proc = ProcFs(root)
        self.cgroups = CgroupTree(root)
        self.processes = Processes(root, self.proc, self.cgroups)
        self._containers = ContainerReader(self.proc, self.cgroups)
        self._architecture = architecture
        self._chooses = chooses
        self._pods = pods
        self._kubelet = kubelet or (lambda: KubeletState(*read_cpu_manager_state(root)))
        self._system_files = SystemFiles()
        self._topology: Topology | None = None
        self._topology_at = 0.0
        self._attributor = Attributor(patient=patient)
        self._expected = Expected()
        self._last: Observation | None = None
        self._sight: Sight | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._paths: dict[ProcessId, str] = {}
        """Candidates -> path of their cgroup, as of the last look that read the process table."""
        self._scanned_at = 0.0
        self._children: Mapping[int, tuple[int, ...]] | None = None
        self.cause: Cause | None = None
        """Why the last look read the process table; None when it did not."""
        self.settling = Settling(patient=patient)
        self.bound: Mapping[ProcessId, str] = {}
        """The workers that are bound -> keys of their containers, for whoever acts to say: of these it stays so where
        nothing is known."""

    def adopt(self, bound: Mapping[ProcessId, str]) -> None:
        """Workers that an agent had bound before: those of which nothing is known stay so."""
        self.bound = {**self.bound, **bound}

    def topology(self, now: float) -> Topology:
        """The CPUs of the host; `Refused` where they can't be read."""
        stale = now - self._topology_at >= TOPOLOGY_SECONDS
        before = None if stale else self._topology
        found = read_topology(
            self.root,
            architecture=self._architecture,
            cgroups=self.cgroups,
            before=before,
            files=self._system_files,
        )
        if before is None:
            self._topology_at = now
        # The same object while nothing changed: who compares it later is done at once.
        if self._topology is None or found != self._topology:
            self._topology = found
        return self._topology

    @property
    def last_topology(self) -> Topology | None:
        """The CPUs of the host as they were read last."""
        return self._topology

    @property
    def cpu_manager_policy(self) -> str:
        """kubelet's, as of the last look; empty where there is no kubelet."""
        sight = self._sight
        return "" if sight is None else sight.kubelet.policy

    def children(self) -> Mapping[int, tuple[int, ...]]:
        """Pid -> pids of its children, as they are now."""
        return self.processes.children()

    def latest_children(self) -> Mapping[int, tuple[int, ...]]:
        """As of the last look: those that it has seen, or, where it read no process table, read once since then."""
        if self._children is None:
            self._children = self.processes.children()
        return self._children

    def members(self, keys: Collection[str]) -> dict[str, tuple[ProcessId, ...]]:
        """Key of a runtime's container -> the processes in it now."""
        return self.processes.members(keys)

    def cpuset(self, pid: int) -> CpuSet | None:
        """The effective cpuset of a process now; None where that can't be read."""
        try:
            return self.cgroups.process_cpus(pid)
        except Refused:
            return None

    def opened(self, suspects: Collection[int]) -> bool:
        """Whether one of these processes holds an NPU open that it did not when the process table was last read."""
        sight = self._sight
        return sight is None or self._opened(suspects, sight)

    def look(
        self,
        inventory: Inventory,
        table: ProcessTable,
        now: float,
        *,
        table_age: float = 0.0,
        news: News | None = None,
        spec: Hashable = None,
        afresh: bool = False,
    ) -> Observation:
        """One look at the host, with what npu-smi said `table_age` seconds ago. `now` is monotonic, in seconds.

        `news` is what came since the last look; without any everything is read. Where nothing gives cause for that the
        last observation is returned, the same object, unless `afresh`. `spec` is what people ask for.
        """
        # News are told once: those of a look that fails are as good as lost.
        last, self._last, self._children = self._last, None, None
        notes: list[Problem] = []
        sight = self._read(inventory, table, now, spec, notes)
        self.cause = cause(
            self._sight if last is not None else None,
            sight,
            news,
            age=now - self._scanned_at,
            suspect=news is not None and self._opened(news.suspects, sight),
            waiting=last is not None and (bool(last.awaited) or self.settling.unsettled),
            asked=afresh,
        )
        if self.cause is None and last is not None:
            self._last = last
        else:
            log.debug("reading all processes: %s", self.cause.value if self.cause else "")
            self._last = self._scan(sight, now, table_age, notes)
        return self._last

    def _opened(self, suspects: Collection[int], sight: Sight) -> bool:
        return self.processes.any_opened(suspects, {row.pid for row in sight.table.rows}, sight.davinci)

    def _read(
        self, inventory: Inventory, table: ProcessTable, now: float, spec: Hashable, notes: list[Problem]
    ) -> Sight:
        """What every look reads."""
        topology = self.topology(now)
        try:
            kubelet, unread = self._kubelet(), None
        except Refused as refused:
            kubelet, unread = KubeletState(), refused.problem
            notes.append(unread)
        places = self._containers.places(c.process for c in self._candidates)
        return Sight(
            topology=topology,
            inventory=inventory,
            table=table,
            davinci=read_davinci(self.root),
            kubelet=kubelet,
            unread=unread,
            pods=self._pods(),
            cgroups=self._containers.cgroups_of(places, topology, []),
            bound=self.bound,
            spec=spec,
        )

    def _scan(self, sight: Sight, now: float, table_age: float, notes: list[Problem]) -> Observation:
        """A look that reads the process table."""
        topology, inventory, pods, davinci = sight.topology, sight.inventory, sight.pods, sight.davinci
        self.processes.scan(notes)
        stats = self.processes.stats
        table = self._attributor.rows(sight.table, stats)
        if self._attributor.foreign:
            count = len({row.pid for row in sight.table.rows})
            message = f"none of the {count} processes that npu-smi lists is in /proc: another PID namespace?"
            notes.append(Problem(Reason.NOT_THIS_KERNEL, message))
        told = npus_of_devices(inventory, davinci)
        table = self._attributor.borne_out(table, stats, lambda pid: self._npus_open(pid, sight), told, self.bound)
        held = self.processes.open_files({row.pid for row in table.rows}, davinci, notes)
        opened = {pid: npus_of_devices(inventory, numbers) for pid, numbers in held.items()}
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

        places = {c.process: (c.cgroup, c.identity) for c in candidates}
        cgroups = self._containers.cgroups_of(places, topology, notes)
        members = {c.identity.key: [c.process.pid] for c in candidates}
        seen = self._containers.containers_of(places, cgroups, notes)
        if pods or sight.kubelet.grants:  # else nothing could tell that a container owns its CPUs
            seen += self._containers.bystanders(self.processes.identities(now), members, topology, notes)
        containers = [
            self._containers.with_devices(container, members.get(container.key, []), davinci, inventory)
            for container in gather(seen, pods, sight.kubelet, inventory, topology.online)
            if container.owned is not None or container.key in members
        ]
        running: dict[str, frozenset[int]] = {}
        for candidate in candidates:
            key = candidate.identity.key
            running[key] = running.get(key, frozenset()) | set(candidate.attribution.npus)
        expected = self._expected.without_worker(pods, {c.identity.container_id for c in candidates}, now)
        starting = self._attributor.awaited
        self._paths = {candidate.process: candidate.cgroup for candidate in candidates if candidate.cgroup}
        self._candidates, self._scanned_at = tuple(candidates), now
        self._sight = replace(sight, cgroups=cgroups)
        self._children = children_of(stats.values())
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
            cpusets={process: own for process, (_, own, _) in cgroups.items() if own is not None},
            children=self._children,
            notes=tuple(dict.fromkeys(notes)),
            awaited=starting | expected,
            suspects=frozenset(process.pid for process in starting) | self.processes.within(expected),
        )

    def _npus_open(self, pid: int, sight: Sight) -> frozenset[int] | None:
        """The NPUs that a process holds open; None where that can't be seen."""
        numbers = self.processes.holds(pid, sight.davinci)
        return None if numbers is None else npus_of_devices(sight.inventory, numbers)

    def _candidate(
        self, stat: ProcessStat, attribution: Attribution, pods: Sequence[Pod], notes: list[Problem]
    ) -> Candidate:
        process = ProcessId(stat.pid, stat.start_time)
        path, status = None, None
        try:
            path = self.cgroups.path(stat.pid)
            status = self.proc.status(stat.pid)
        except Refused as refused:
            notes.append(refused.problem)
        # Where it can't be read, it is where it was: it has hardly been moved just now.
        path = path or self._paths.get(process)
        identity = self.cgroups.identity_of(path) if path else CgroupIdentity(path="")
        pod, container = find_pod(identity, pods)
        return Candidate(
            process=process,
            name=printable(stat.comm, 32),
            uid=status.uid if status else None,
            identity=identity,
            pod=pod,
            container_name=container.name if container else "",
            attribution=attribution,
            cgroup=path or "",
        )

    def _idle(
        self, stats: Mapping[int, ProcessStat], found: Collection[int], pods: Sequence[Pod], notes: list[Problem]
    ) -> list[Candidate]:
        """Bound workers that are on no NPU any more: they stay as they are unless their pods say otherwise. So does
        what one has left that ended; whatever is in its container tells of its pod."""
        living = {p for p in self.bound if (stat := stats.get(p.pid)) is not None and stat.start_time == p.start_time}
        idle = [stats[p.pid] for p in sorted(living) if p.pid not in found]
        candidates = [self._candidate(stat, Attribution(()), pods, notes) for stat in idle]
        ended = {p: key for p, key in sorted(self.bound.items()) if key and p not in living}
        left = self.processes.members(set(ended.values()))
        for process, key in ended.items():
            beside = next((stats[p.pid] for p in left[key] if p.pid in stats), None)
            if beside is not None:
                candidate = self._candidate(beside, Attribution(()), pods, notes)
                candidates.append(replace(candidate, process=process))
        return candidates
