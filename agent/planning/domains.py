"""Domains (design 4.1, 4.7, 4.9): which containers share which CPUs, and for which NPUs these are cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.plan import DEFAULT_DOMAIN, Base, PlanInput
from agent.model.workload import Container, Worker


@dataclass(frozen=True, slots=True)
class Domain:
    """CPUs from which pools are cut, with the NPUs that share them."""

    name: str
    base: CpuSet
    """What is cut."""
    npus: tuple[int, ...]
    """For whom it is cut, ascending."""
    exclusive: bool = False
    allowed: dict[str, CpuSet] = field(default_factory=dict)
    """Container key -> the CPUs it may use now. Of one domain they differ only while kubelet rewrites cpusets."""
    free: CpuSet = EMPTY
    """What a container of a shared domain could use at most."""
    round: int = 0
    """As in `Base`."""
    cpuset: CpuSet = EMPTY
    """As in `Base`."""

    @property
    def cpus(self) -> CpuSet:
        """The CPUs that some container of the domain may use now; where it has none, those that one could."""
        return union(self.allowed.values()) if self.allowed else self.base & self.free


def node_cpus(inp: PlanInput) -> CpuSet:
    """Online CPUs within the root cpuset, without reserved and (unless included) isolated ones (design section 2)."""
    topology, spec = inp.topology, inp.spec
    cpus = topology.online & topology.root - spec.reserved_cpus
    return cpus if spec.include_isolated_cpus else cpus - topology.isolated


def exclusive_cpus(inp: PlanInput) -> CpuSet:
    """Every CPU that some container owns, whether or not it uses an NPU."""
    return union(c.owned for c in inp.containers if c.owned is not None)


def exclusive_domains(inp: PlanInput) -> list[Domain]:
    """One for each container that owns its CPUs and uses NPUs. Isolated CPUs that it owns are its own."""
    usable = inp.topology.online & inp.topology.root - inp.spec.reserved_cpus
    running = _running(inp.workers)
    domains = []
    for container in sorted(inp.containers, key=lambda c: c.key):
        if container.owned is None:
            continue
        npus = running.get(container.key, frozenset()) if container.npus is None else container.npus
        if known := tuple(sorted(npus & set(inp.inventory.ids))):
            cpus = container.owned & container.cpus & usable
            domains.append(Domain(container.title, cpus, known, exclusive=True, allowed={container.key: cpus}))
    return domains


def shared_domains(
    inp: PlanInput, exclusive: Iterable[Domain], bases: Sequence[Base], anew: Collection[str] = ()
) -> list[Domain]:
    """The shared domains, each cut from its recorded base, else from what its containers are allowed now.

    Containers with the same allowed CPUs are one domain. With bases recorded, pods join the base that is most like what
    they are allowed: kubelet rewrites the cpusets of shared containers one after the other, and a domain must survive
    that. Others join the base of their own cpuset, which nobody rewrites. A recorded base without containers keeps its
    claims, so that a worker's going moves nobody. Where nobody is in a shared domain the node's own CPUs stand in, to
    show the pools that wait. Containers named in `anew` join no base: theirs left them without CPUs.
    """
    free = node_cpus(inp) - exclusive_cpus(inp)
    granted = {npu for domain in exclusive for npu in domain.npus}
    universe = tuple(npu for npu in inp.inventory.ids if npu not in granted)
    inhabited = {worker.container for worker in inp.workers}
    shared = [c for c in inp.containers if c.owned is None and c.key in inhabited and c.cpus & free]
    if not shared:
        return [Domain(DEFAULT_DOMAIN, free, universe, free=free)]

    known = set(inp.inventory.ids)
    domains = {
        base.domain: Domain(
            name=base.domain,
            base=base.cpus,
            npus=tuple(npu for npu in base.npus if npu in known),
            free=free,
            round=base.round,
            cpuset=base.cpuset,
        )
        for base in bases
    }
    after = max((base.round for base in bases), default=-1) + 1
    for group in _groups(shared, free):
        base = None if group.allowed.keys() <= set(anew) else group.known_from(bases)
        if base is not None:
            domains[base.domain].allowed.update(group.allowed)
            continue
        name = str(group.cpus) if DEFAULT_DOMAIN in domains else DEFAULT_DOMAIN
        if name in domains:  # the base of these CPUs left them without, or is of another kind
            name = f"{name}@{after}"
        domains[name] = Domain(
            name, group.cpus, universe, allowed=group.allowed, free=free, round=after, cpuset=group.cpuset
        )
    return sorted(
        domains.values(), key=lambda d: (d.round, d.name != DEFAULT_DOMAIN, -len(d.base), d.base.bits, d.name)
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Shared containers that are allowed the same CPUs now."""

    cpus: CpuSet
    allowed: dict[str, CpuSet]
    cpuset: CpuSet

    def known_from(self, bases: Sequence[Base]) -> Base | None:
        """The recorded base that these containers were cut from."""
        if self.cpuset:
            return next((base for base in bases if base.cpuset == self.cpuset), None)
        near = [
            base
            for base in bases
            if not base.cpuset and (base.cpus == self.cpus or not base.cpus.isdisjoint(self.cpus))
        ]
        return min(near, key=lambda b: (len((b.cpus | self.cpus) - (b.cpus & self.cpus)), b.domain), default=None)


def _groups(shared: Sequence[Container], free: CpuSet) -> list[_Group]:
    """The largest first, so that it is called the default domain."""
    by_cpus: dict[CpuSet, list[Container]] = {}
    for container in sorted(shared, key=lambda c: c.key):
        by_cpus.setdefault(container.cpus & free, []).append(container)
    groups = []
    for cpus, members in by_cpus.items():
        rewritten = any(member.pod_uid for member in members)
        cpuset = EMPTY if rewritten else min((m.cpus for m in members), key=lambda c: (len(c), c.bits))
        groups.append(_Group(cpus, {member.key: cpus for member in members}, cpuset))
    return sorted(groups, key=lambda group: (-len(group.cpus), group.cpus.bits))


def _running(workers: Iterable[Worker]) -> dict[str, frozenset[int]]:
    running: dict[str, frozenset[int]] = {}
    for worker in workers:
        running[worker.container] = running.get(worker.container, frozenset()) | set(worker.npus)
    return running


def allowed_in(domain: Domain, container: Container | None) -> CpuSet:
    """What a container of a domain may use now."""
    return domain.allowed.get(container.key, EMPTY) if container else domain.cpus
