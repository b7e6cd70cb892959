"""What is counted and measured, for whoever exports it. Label values are closed sets: they stand here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from agent.model.outcome import DRIFT_KINDS, REPAIR_RESULTS, DriftKind, RepairResult
from agent.model.reason import Reason
from agent.model.spec import Role

OperationRole: TypeAlias = Literal["irq", "main", "acl", "release", "uvb", "helper"]
OPERATION_ROLES: Final[tuple[OperationRole, ...]] = ("irq", "main", "acl", "release", "uvb", "helper")
"""Of what is moved: interrupts, threads by their role, UVB threads, and threads of other processes that are taken off
CPUs that are set apart."""

OperationResult: TypeAlias = Literal["bound", "failed"]
OPERATION_RESULTS: Final[tuple[OperationResult, ...]] = ("bound", "failed")
Operation: TypeAlias = tuple[OperationRole, OperationResult, Reason]

THREAD_ROLES: Final = ("main", "acl", "release", "uvb")
WORKER_ROLES: Final = (Role.MAIN, Role.ACL, Role.RELEASE)
"""Roles that threads of a worker have."""

IrqState: TypeAlias = Literal["placed", "astray"]
IRQ_STATES: Final[tuple[IrqState, ...]] = ("placed", "astray")

MemoryResult: TypeAlias = Literal["moved", "left", "skipped"]
MEMORY_RESULTS: Final[tuple[MemoryResult, ...]] = ("moved", "left", "skipped")

PlanChange: TypeAlias = Literal["start", "spec", "topology", "inventory", "workload", "base"]
PLAN_CHANGES: Final[tuple[PlanChange, ...]] = ("start", "spec", "topology", "inventory", "workload", "base")
"""Why pools or roles are other ones: the first plan of this run of the agent; what people ask for; the CPUs of the
node; its NPUs; containers and workers with their cpusets; a shared domain that was cut anew."""

Command: TypeAlias = Literal["info", "info -m", "info -t topo", "info -t board", "other", "tables"]
QUERIES: Final[tuple[Command, ...]] = ("info", "info -m", "info -t topo", "info -t board", "other")
"""What npu-smi is asked, without the numbers of card and chip."""
TABLES: Final[Command] = "tables"
"""Not a query: what the answers of one round say together can't be used."""
COMMANDS: Final[tuple[Command, ...]] = (*QUERIES, TABLES)

QUERY_REASONS: Final = (
    Reason.NO_NPUS,
    Reason.NPU_SMI_NOT_FOUND,
    Reason.NPU_SMI_LIBRARY_MISSING,
    Reason.NPU_SMI_FAILED,
    Reason.NPU_SMI_HUNG,
    Reason.DRIVER_NOT_READY,
    Reason.DRIVER_BUSY,
    Reason.NOT_SUPPORTED,
)
"""Why a query of npu-smi has no answer, gravest first."""

EventStream: TypeAlias = Literal["up", "down", "off"]
EVENT_STREAMS: Final[tuple[EventStream, ...]] = ("up", "down", "off")
"""Whether the kernel's events of processes are heard, are to be heard and are not, or are not asked for."""

FAST_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bounds for what should take a fraction of a millisecond."""
PASS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
START_SECONDS: Final = (0.25, 0.5, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""Bounds for what begins with a program that loads its libraries before it opens an NPU."""
QUERY_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Distribution:
    """A histogram. One thread observes; any may look at it meanwhile, and then sees one observation more or less."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        """Upper bounds, ascending, each part of its bucket; one more bucket has all above."""
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        """Sum of all that was observed."""

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is counted and measured besides what the plan says. The default is that of an agent that has done
    nothing yet. What is in it may go on counting while it is read."""

    cgroup: str = ""
    """``v1``, ``v2``, ``hybrid``; empty while it is not known."""
    cpu_manager_policy: str = ""
    """kubelet's; empty where there is no kubelet."""
    event_stream: EventStream = "off"
    threads: Mapping[str, int] = field(default_factory=dict)
    """By one of THREAD_ROLES: threads of workers that are to be bound, and UVB threads."""
    operations: Mapping[Operation, int] = field(default_factory=dict)
    bind_seconds: Distribution = field(default_factory=lambda: Distribution(PASS_SECONDS))
    start_to_bound: Distribution = field(default_factory=lambda: Distribution(START_SECONDS))
    event_to_pinned: Distribution = field(default_factory=lambda: Distribution(FAST_SECONDS))
    drift_detected: Mapping[DriftKind, int] = field(default_factory=lambda: dict.fromkeys(DRIFT_KINDS, 0))
    drift_repaired: Mapping[tuple[DriftKind, RepairResult], int] = field(
        default_factory=lambda: {(kind, result): 0 for kind in DRIFT_KINDS for result in REPAIR_RESULTS}
    )
    irqs: Mapping[IrqState, int] = field(default_factory=dict)
    memory_bytes: Mapping[MemoryResult, int] = field(default_factory=dict)
    locality: Mapping[int, float] = field(default_factory=dict)
    """By NPU with a bound worker whose memory can be told."""
    switches: Mapping[tuple[int, Role], int] = field(default_factory=dict)
    """By NPU and role of the thread."""
    plan_changes: Mapping[PlanChange, int] = field(default_factory=dict)
    query_seconds: Mapping[Command, Distribution] = field(default_factory=dict)
    query_errors: Mapping[tuple[Command, Reason], int] = field(default_factory=dict)
    journal_entries: int = 0
    overlap: int = 0
    """CPUs in pools of more than one NPU."""
