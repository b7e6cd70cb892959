"""From a PlanInput to a Plan: the whole of design section 4, in the order in which it is written there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import DeviceType
from agent.model.plan import Allotment, Base, DomainPlan, NpuPlan, Plan, PlanInput, Roles, WorkerPlan
from agent.model.reason import Problem, Reason
from agent.model.spec import Spec, Strategy
from agent.model.workload import Container, Worker
from agent.planning.affinity import exclusive_affinity, topo_affinity
from agent.planning.clusters import cluster_slices, uvb_cpus
from agent.planning.domains import Domain, allowed_in, exclusive_cpus, exclusive_domains, node_cpus, shared_domains
from agent.planning.resolver import resolve, share_evenly
from agent.planning.roles import split
from agent.planning.slices import Slice, global_slice, numa_slice

ARM64 = frozenset({"aarch64", "arm64"})
"""``uname -m`` of the machines on which binding runs (vLLM-Ascend skips others, too)."""

Shares = dict[int, Slice]


def make_plan(inp: PlanInput) -> Plan:
    """The plan for a node. Never raises: what can't be planned carries its `Problem`, and everything else is planned.

    With bases recorded the shared domains are cut from these, unless a running NPU would be left without its CPUs and
    a new cut helps (design 4.9, ii). Without a worker in a shared domain no base counts (4.9, i).
    """
    inp = _in_order(inp)
    device, strategy = device_type(inp), choose_strategy(inp)
    empty = Plan(device, strategy, node_cpus=node_cpus(inp))
    if problem := _impossible(inp, empty.node_cpus):
        failed = Allotment(problem=problem)
        return replace(
            empty,
            problem=problem,
            npus=tuple(NpuPlan(npu, "", failed) for npu in inp.inventory.ids),
            workers=tuple(WorkerPlan(worker, "", failed) for worker in sorted(inp.workers, key=_worker_order)),
        )
    plan = _plan_from(inp, device, strategy, inp.bases)
    if not inp.bases or not (starved := _starved(plan)):
        return plan
    hit = {entry.domain for entry in starved}
    # Clusters are cut from the shared domains together, so that none of these can be cut anew by itself.
    kept = () if _cuts_clusters(device, strategy) else tuple(base for base in inp.bases if base.domain not in hit)
    everyone = [key for domain in plan.domains if domain.name in hit for key in domain.containers]
    # First those alone who have nothing: what the others were given stays. Then their whole domain.
    for bases, anew in ((inp.bases, [entry.worker.container for entry in starved]), (kept, everyone)):
        fresh = _plan_from(inp, device, strategy, bases, anew)
        if len(_unplanned(fresh)) < len(_unplanned(plan)):
            return fresh
    return plan


def _in_order(inp: PlanInput) -> PlanInput:
    """NPUs ascending by id: whoever made the inventory may have read them in any order."""
    npus = tuple(sorted(inp.inventory.npus, key=lambda npu: npu.id))
    return inp if npus == inp.inventory.npus else replace(inp, inventory=replace(inp.inventory, npus=npus))


def device_type(inp: PlanInput) -> DeviceType:
    """The device type in force: what `spec` says, else what npu-smi showed."""
    return inp.spec.device_type or inp.inventory.device_type


def choose_strategy(inp: PlanInput) -> Strategy:
    """The strategy in force: what `spec` says, else by device type (design 4.2)."""
    if inp.spec.strategy is not None:
        return inp.spec.strategy
    if device_type(inp) is DeviceType.A3:
        return Strategy.GLOBAL_SLICE
    if device_type(inp) is DeviceType.ASCEND_950 or any(npu.affinity is not None for npu in inp.inventory.npus):
        return Strategy.TOPO_AFFINITY
    return Strategy.GLOBAL_SLICE


def needs_affinity(spec: Spec, device: DeviceType) -> bool:
    """Whether a plan can't be made without `npu-smi info -t topo`."""
    if spec.strategy is not None:
        return spec.strategy is Strategy.TOPO_AFFINITY
    return (spec.device_type or device) is not DeviceType.A3


def _impossible(inp: PlanInput, cpus: CpuSet) -> Problem | None:
    if inp.topology.architecture not in ARM64 and not inp.spec.allow_any_architecture:
        message = f"the node is {inp.topology.architecture}; allowAnyArchitecture would bind all the same"
        return Problem(Reason.UNSUPPORTED_ARCHITECTURE, message)
    if not inp.inventory.npus:
        return Problem(Reason.NO_NPUS, "npu-smi shows no NPU")
    if not cpus:
        taken = f"online {inp.topology.online}, reserved {inp.spec.reserved_cpus}, isolated {inp.topology.isolated}"
        return Problem(Reason.NO_CPUS, f"no CPU is left to plan with ({taken})")
    return None


def _plan_from(
    inp: PlanInput, device: DeviceType, strategy: Strategy, bases: Sequence[Base], anew: Collection[str] = ()
) -> Plan:
    exclusive = exclusive_domains(inp)
    shared = shared_domains(inp, exclusive, bases, anew)
    cut = _Cut(inp, device, strategy)
    shares = [*cut.exclusive(exclusive), *cut.shared(shared)]
    domains = [*exclusive, *shared]
    view = _View(inp, domains, shares, irq_roles=device.binds_irqs, whole_clusters=cut.clusters)
    npus = tuple(view.npu(npu) for npu in inp.inventory.ids)
    entries = {npu.id: npu for npu in npus}
    plan = Plan(
        device_type=device,
        strategy=strategy,
        npus=npus,
        workers=tuple(view.worker(worker, entries) for worker in sorted(inp.workers, key=_worker_order)),
        domains=tuple(
            DomainPlan(d.name, d.cpus, d.base, d.npus, d.exclusive, tuple(sorted(d.allowed))) for d in domains
        ),
        bases=_bases(shared),
        node_cpus=node_cpus(inp),
        exclusive_cpus=exclusive_cpus(inp) & inp.topology.online,
    )
    if device is not DeviceType.ASCEND_950:
        return plan
    clusters = [share.cpus for part in shares for share in part.values()]
    uvb = uvb_cpus(inp.topology, plan.node_cpus, plan.exclusive_cpus, clusters)
    problem = None if uvb else Problem(Reason.NO_UVB_CPUS, "NUMA node 0 has no CPU left beside CPU 0 and the clusters")
    return replace(plan, uvb=uvb, uvb_problem=problem)


def _bases(shared: Sequence[Domain]) -> tuple[Base, ...]:
    """What to record: nothing where nobody is in a shared domain, and no domain that is empty and in nobody's way."""
    lived = union(domain.base for domain in shared if domain.allowed)
    kept = [domain for domain in shared if domain.allowed or not domain.base.isdisjoint(lived)]
    return tuple(Base(d.name, d.base, d.npus, d.round, d.cpuset) for d in kept) if lived else ()


class _Cut:
    """Cuts domains by the strategy in force. The pools of different NPUs never meet, whatever the domains."""

    def __init__(self, inp: PlanInput, device: DeviceType, strategy: Strategy) -> None:
        self.inp, self.strategy = inp, strategy
        self.clusters = _cuts_clusters(device, strategy)

    def exclusive(self, domains: Sequence[Domain]) -> list[Shares]:
        """Each container by itself; they can only overlap where the evidence for them contradicts itself."""
        return _disjoint([self._exclusive_slices(domain) for domain in domains], {})

    def shared(self, domains: Sequence[Domain]) -> list[Shares]:
        """All shared domains together (design 4.7): what an NPU may claim in any of them is dealt once.

        Domains that were cut later get what earlier ones left, so that a new one moves nobody.
        """
        given: dict[int, CpuSet] = {}
        shares: dict[str, Shares] = {}
        for number in sorted({domain.round for domain in domains}):
            members = [domain for domain in domains if domain.round == number]
            if self.clusters:
                cpus = union(domain.base for domain in domains if domain.round <= number)
                parts = self._cluster_slices(cpus, members, given)
            else:
                parts = _disjoint([self._slices(domain.base, domain.npus) for domain in members], given)
            shares.update({domain.name: part for domain, part in zip(members, parts, strict=True)})
        return [shares[domain.name] for domain in domains]

    def _cluster_slices(self, cpus: CpuSet, domains: Sequence[Domain], given: dict[int, CpuSet]) -> list[Shares]:
        wanted = sorted({npu for domain in domains for npu in domain.npus} - given.keys())
        slices = cluster_slices(self.inp.topology, self.inp.inventory, cpus - union(given.values()), wanted)
        given.update({npu: piece.cpus for npu, piece in slices.items() if not piece.problem})
        return [{npu: slices[npu] if npu in slices else Slice(given[npu]) for npu in domain.npus} for domain in domains]

    def _exclusive_slices(self, domain: Domain) -> Shares:
        topology, inventory = self.inp.topology, self.inp.inventory
        if self.clusters:
            return cluster_slices(topology, inventory, domain.base, domain.npus)
        if len(domain.npus) == 1:
            return {domain.npus[0]: Slice(domain.base)}
        if self.strategy is Strategy.TOPO_AFFINITY:
            return exclusive_affinity(topology, inventory, domain.base, domain.npus)
        slices = self._slices(domain.base, domain.npus)
        if any(part.problem for part in slices.values()):
            return slices
        left = share_evenly(domain.base - union(part.cpus for part in slices.values()), list(domain.npus))
        return {npu: replace(part, cpus=part.cpus | left[npu]) for npu, part in slices.items()}

    def _slices(self, cpus: CpuSet, npus: tuple[int, ...]) -> Shares:
        if not npus:  # all of the node's NPUs belong to containers with CPUs of their own
            return {}
        match self.strategy:
            case Strategy.GLOBAL_SLICE:
                return global_slice(cpus, npus)
            case Strategy.NUMA_SLICE:
                return numa_slice(self.inp.topology, cpus, npus)
            case Strategy.TOPO_AFFINITY:
                return topo_affinity(self.inp.topology, self.inp.inventory, cpus, npus)


def _cuts_clusters(device: DeviceType, strategy: Strategy) -> bool:
    return device is DeviceType.ASCEND_950 and strategy is Strategy.TOPO_AFFINITY


def _disjoint(parts: list[Shares], given: dict[int, CpuSet]) -> list[Shares]:
    """One share for each NPU over all these domains, so that no CPU is given to two of them. `given` holds what NPUs
    were given before and takes up what they get now."""
    claims: dict[int, CpuSet] = {}
    for part in parts:
        for npu, piece in part.items():
            claims[npu] = claims.get(npu, EMPTY) | piece.cpus
    taken = {npu: union(cpus for other, cpus in given.items() if other != npu) for npu in claims} if given else {}
    shares = resolve({npu: cpus - taken.get(npu, EMPTY) for npu, cpus in claims.items()})
    for npu, share in shares.items():
        given[npu] = given.get(npu, EMPTY) | share
    return [
        {npu: piece if piece.problem else replace(piece, cpus=given[npu]) for npu, piece in part.items()}
        for part in parts
    ]


class _View:
    """What the NPUs and workers of the node see of the domains that were cut."""

    def __init__(
        self,
        inp: PlanInput,
        domains: Sequence[Domain],
        shares: Sequence[Mapping[int, Slice]],
        *,
        irq_roles: bool,
        whole_clusters: bool,
    ) -> None:
        self.inp, self.irq_roles, self.whole_clusters = inp, irq_roles, whole_clusters
        self.cut = list(zip(domains, shares, strict=True))
        self.containers = {container.key: container for container in inp.containers}
        self.home = {key: (domain, share) for domain, share in self.cut for key in domain.allowed}

    def npu(self, npu: int) -> NpuPlan:
        """An NPU's entry: that of the first domain in which it has a worker, else of the first that has CPUs for it."""
        inhabited = {w.container for w in self.inp.workers if npu in w.npus}
        mine = [(domain, share) for domain, share in self.cut if npu in share]
        if not mine:
            message = "it was not there when the CPUs in force were cut; the next new base has CPUs for it"
            return NpuPlan(npu, "", self._present(npu, Allotment(problem=Problem(Reason.PENDING, message))))
        domain, share = next(
            (pair for pair in mine if pair[0].exclusive or inhabited & pair[0].allowed.keys()),
            next((pair for pair in mine if pair[1][npu].cpus), mine[0]),
        )
        key = min(inhabited & domain.allowed.keys(), default=None)
        allotment = self._allot(domain, share, npu, self.containers.get(key) if key else None)
        return NpuPlan(npu, domain.name, self._present(npu, allotment), exclusive=domain.exclusive)

    def _present(self, npu: int, allotment: Allotment) -> Allotment:
        """A card that fell off keeps its CPUs, and says so whatever else is wrong with it."""
        found = self.inp.inventory.get(npu)
        if found is None or not found.missing:
            return allotment
        gone = Problem(Reason.NPU_MISSING, f"NPU {npu} was there since the driver was loaded and is gone")
        return replace(allotment, problem=gone)

    def worker(self, worker: Worker, entries: Mapping[int, NpuPlan]) -> WorkerPlan:
        """A worker's own view: the pool of its NPU as far as its container may use it."""
        container = self.containers.get(worker.container)
        placed = self.home.get(worker.container)
        if container is None or placed is None:
            return WorkerPlan(worker, "", Allotment(problem=self._homeless(worker, container)), own=True)
        domain, share = placed
        if not container.settled:
            message = f"the NPUs of {container.title} changed in the last 10 s"
            return WorkerPlan(worker, domain.name, Allotment(problem=Problem(Reason.NPUS_CHANGING, message)), own=True)
        parts = [self._allot(domain, share, npu, container) for npu in worker.npus]
        if len(parts) == 1:
            entry = entries.get(worker.npus[0])
            own = entry is None or entry.domain != domain.name or entry.allotment.pool != parts[0].pool
            return WorkerPlan(worker, domain.name, parts[0], own=own)
        return WorkerPlan(worker, domain.name, _spanning(worker, parts), own=True)

    def _allot(self, domain: Domain, share: Mapping[int, Slice], npu: int, container: Container | None) -> Allotment:
        piece = share.get(npu)
        if piece is None:
            if not domain.exclusive and any(npu in other for d, other in self.cut if d.exclusive):
                message = f"NPU {npu} is allocated to a container with CPUs of its own, and this process is not in it"
                return Allotment(problem=Problem(Reason.NPU_NOT_IN_DOMAIN, message))
            message = f"NPU {npu} is not among the NPUs {', '.join(map(str, domain.npus))} of domain {domain.name}"
            return Allotment(problem=Problem(Reason.NPU_NOT_IN_DOMAIN, message))
        if piece.problem:
            return Allotment(problem=piece.problem)
        pool = piece.cpus & (allowed_in(domain, container) if container else domain.cpus)
        if self.whole_clusters and pool != piece.cpus:
            message = f"the cpuset lacks {piece.cpus - pool} of cluster {piece.cpus}"
            return Allotment(problem=Problem(Reason.INSUFFICIENT_CLUSTERS, message))
        return split(pool, irq_roles=self.irq_roles, note=piece.note)

    def _homeless(self, worker: Worker, container: Container | None) -> Problem:
        if container is None:
            return Problem(Reason.CPUSET_UNREADABLE, f"the cpuset of process {worker.process.pid} cannot be read")
        if container.owned is None:
            message = f"none of the CPUs {container.cpus} of {container.title} is free for NPUs"
            return Problem(Reason.INSUFFICIENT_CPUS, message)
        message = f"none of the NPUs of {container.title} is in the inventory"
        return Problem(Reason.NPU_NOT_IN_DOMAIN, message)


def _spanning(worker: Worker, parts: list[Allotment]) -> Allotment:
    """One process on several NPUs: main is the union of their main CPUs, and there are no role threads."""
    mains = [part.roles.main for part in parts if part.roles]
    if not mains:
        return next(part for part in parts if part.problem) if parts else Allotment()
    message = f"the process works on NPUs {', '.join(map(str, worker.npus))}: main CPUs of all, no role threads"
    main = union(mains)
    return Allotment(main, Roles(main=main), note=Problem(Reason.MULTIPLE_NPUS, message))


_STARVED = frozenset(
    {
        Reason.INSUFFICIENT_CPUS,
        Reason.INSUFFICIENT_CLUSTERS,
        Reason.AFFINITY_OUTSIDE_CPUSET,
        Reason.AFFINITY_SPANS_NODES,
        Reason.NPU_NOT_IN_DOMAIN,
    }
)


def _unplanned(plan: Plan) -> list[WorkerPlan]:
    """Workers of shared domains that are left without CPUs."""
    exclusive = {key for domain in plan.domains if domain.exclusive for key in domain.containers}
    return [w for w in plan.workers if w.allotment.problem and w.worker.container not in exclusive]


def _starved(plan: Plan) -> list[WorkerPlan]:
    """Those of them for which another base could have CPUs."""
    return [w for w in _unplanned(plan) if w.allotment.problem and w.allotment.problem.reason in _STARVED]


def _worker_order(worker: Worker) -> tuple[tuple[int, ...], int, int]:
    return worker.npus, worker.process.pid, worker.process.start_time
