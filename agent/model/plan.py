"""The plan: which CPUs each NPU's worker, threads and interrupts should run on. Made by `agent.planning` alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType, Inventory, Topology
from agent.model.reason import Problem
from agent.model.spec import Role, Spec, Strategy
from agent.model.workload import Container, Worker

DEFAULT_DOMAIN = "default"
"""Name of the first shared domain; the only one on a node whose shared containers have one cpuset."""


@dataclass(frozen=True, slots=True)
class Base:
    """The CPUs that a shared domain was last cut from (design 4.9), and for which NPUs."""

    domain: str
    cpus: CpuSet
    npus: tuple[int, ...]
    """Ascending logical ids of the NPUs that got a slice."""
    round: int = 0
    """Bases cut together have one number; where domains overlap, later ones yield to what earlier ones were given."""
    cpuset: CpuSet = EMPTY
    """The cpuset by which its containers are known again, where that is their own (docker ``--cpuset-cpus``, a slice).
    Empty for pods: kubelet rewrites their shared cpuset, one container after the other."""


@dataclass(frozen=True, slots=True)
class PlanInput:
    """All that a plan depends on: topology, inventory, domains (containers and workers), bases, configuration."""

    topology: Topology
    inventory: Inventory
    containers: tuple[Container, ...] = ()
    workers: tuple[Worker, ...] = ()
    bases: tuple[Base, ...] = ()
    spec: Spec = field(default_factory=Spec)


@dataclass(frozen=True, slots=True)
class Roles:
    """A pool by use. On Ascend 950 and for a process on several NPUs `main` alone."""

    main: CpuSet
    irq: CpuSet = EMPTY
    """SQ interrupt on its first CPU, CQ interrupts on its second."""
    acl: CpuSet = EMPTY
    release: CpuSet = EMPTY

    def of(self, role: Role) -> CpuSet:
        """The CPUs where threads of a role belong: `main` where the role has none of its own."""
        cpus: CpuSet = getattr(self, role.value)
        return cpus or self.main

    @property
    def apart(self) -> CpuSet:
        """The CPUs that nothing but their own thread or interrupt should run on."""
        return self.irq | self.acl | self.release


@dataclass(frozen=True, slots=True)
class Allotment:
    """What one NPU gets in one domain: a pool with its roles, or the problem that left it without."""

    pool: CpuSet = EMPTY
    roles: Roles | None = None
    problem: Problem | None = None
    note: Problem | None = None
    """Something worth knowing about a pool that was given all the same (``OffAffinity``)."""


@dataclass(frozen=True, slots=True)
class NpuPlan:
    """One NPU of the node. `allotment` is that of its first domain."""

    id: int
    domain: str
    allotment: Allotment
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker: the pool and roles that apply to it, or the problem that leaves it unbound."""

    worker: Worker
    domain: str
    allotment: Allotment
    own: bool = False
    """Its pool is not that of its NPU's entry (another domain, or several NPUs)."""


@dataclass(frozen=True, slots=True)
class DomainPlan:
    """A domain as it was cut, for `explain`."""

    name: str
    cpus: CpuSet
    """Allowed now."""
    base: CpuSet
    """What was cut; equal to `cpus` in an exclusive domain."""
    npus: tuple[int, ...]
    exclusive: bool
    containers: tuple[str, ...] = ()
    """Keys of its containers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan for a node; pure data, a function of its PlanInput."""

    device_type: DeviceType
    strategy: Strategy
    npus: tuple[NpuPlan, ...] = ()
    """Every NPU of the inventory, ascending."""
    workers: tuple[WorkerPlan, ...] = ()
    """Ascending by NPU, then by process."""
    domains: tuple[DomainPlan, ...] = ()
    bases: tuple[Base, ...] = ()
    """The bases in force after this plan."""
    node_cpus: CpuSet = EMPTY
    exclusive_cpus: CpuSet = EMPTY
    uvb: CpuSet = EMPTY
    problem: Problem | None = None
    """Why there is no plan at all."""
    uvb_problem: Problem | None = None

    def npu(self, npu_id: int) -> NpuPlan | None:
        return next((npu for npu in self.npus if npu.id == npu_id), None)
