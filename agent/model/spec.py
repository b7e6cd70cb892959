"""`spec` of a CpuBindingPlan: what people ask for. See design section 7."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType


class Mode(StrEnum):
    ENFORCE = "Enforce"
    DRY_RUN = "DryRun"
    DISABLED = "Disabled"


class Strategy(StrEnum):
    GLOBAL_SLICE = "GlobalSlice"
    TOPO_AFFINITY = "TopoAffinity"
    NUMA_SLICE = "NumaSlice"


class Rebalance(StrEnum):
    NEVER = "Never"
    ON_GROW = "OnGrow"


class Helpers(StrEnum):
    LEAVE = "Leave"
    CONFINE = "Confine"


class Role(StrEnum):
    """What a set of CPUs of a pool is for."""

    IRQ = "irq"
    MAIN = "main"
    ACL = "acl"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class ThreadRule:
    """Threads whose comm starts with `prefix` belong to `role`. comm holds 15 bytes, so that a longer prefix is cut."""

    prefix: str
    role: Role


THREAD_RULES = (ThreadRule("acl_thread", Role.ACL), ThreadRule("release_thread", Role.RELEASE))
"""Thread names of the CANN runtime that are always told apart."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A valid spec with every default filled in."""

    mode: Mode = Mode.ENFORCE
    strategy: Strategy | None = None
    """None is Auto: by device type (design 4.2)."""
    device_type: DeviceType | None = None
    """None is Auto: from what npu-smi prints."""
    reserved_cpus: CpuSet = EMPTY
    include_isolated_cpus: bool = False
    rebalance: Rebalance = Rebalance.NEVER
    irq_binding: bool = True
    memory_migration: bool = True
    uvb_binding: bool = True
    helpers: Helpers = Helpers.LEAVE
    thread_rules: tuple[ThreadRule, ...] = ()
    allow_any_architecture: bool = False


@dataclass(frozen=True, slots=True)
class Cutting:
    """What of a spec the CPUs of a shared domain are cut by (design 4.9, iv)."""

    strategy: Strategy | None = None
    device_type: DeviceType | None = None
    reserved_cpus: CpuSet = EMPTY
    include_isolated_cpus: bool = False

    @classmethod
    def of(cls, spec: Spec) -> Cutting:
        """That part of a spec."""
        return cls(spec.strategy, spec.device_type, spec.reserved_cpus, spec.include_isolated_cpus)


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done for one worker besides placing its threads: `spec`, as its pod's annotations narrow it."""

    irq_binding: bool = True
    memory_migration: bool = True
    helpers: Helpers = Helpers.LEAVE
