"""What came of making threads be where the plan says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from agent.model.cpuset import CpuSet
from agent.model.reason import Problem
from agent.model.spec import Role
from agent.model.workload import ProcessId

BindState: TypeAlias = Literal["Bound", "Partial", "Failed", "Pending"]
"""Those states of design section 7 that binding the threads of a worker can end in."""


DriftKind: TypeAlias = Literal["thread", "cpuset", "irq"]
"""What had moved, and why (design section 6, "Drift"): a thread that somebody moved, one that the kernel moved after
kubelet wrote its cpuset, an interrupt. The second is nobody's fault, and never a conflict."""

RepairResult: TypeAlias = Literal["repaired", "left", "failed"]
"""What came of it: put back; left as it is, since somebody else keeps moving it; or the kernel refused."""

DRIFT_KINDS: Final[tuple[DriftKind, ...]] = ("thread", "cpuset", "irq")
REPAIR_RESULTS: Final[tuple[RepairResult, ...]] = ("repaired", "left", "failed")


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """The threads of one role, by what became of each; every thread counts once."""

    placed: int = 0
    """In place already."""
    written: int = 0
    left: int = 0
    """Main threads that narrowed themselves to a part of main, left alone."""
    unmovable: int = 0
    """The kernel lets nobody move them."""
    denied: int = 0
    """The agent lacks the right to move them."""
    outside: int = 0
    """Not touched: the planned CPUs are not within the container's cpuset."""

    @property
    def total(self) -> int:
        return self.placed + self.written + self.left + self.unmovable + self.denied + self.outside


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A thread that is not where the plan says."""

    tid: int
    comm: str
    """Its name, made printable."""
    role: Role
    mask: CpuSet
    """Where it may run, as sched_getaffinity(2) says."""
    target: CpuSet
    """Where it belongs."""
    kind: DriftKind = "thread"


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """One pass over the threads of one worker."""

    process: ProcessId
    state: BindState
    problem: Problem | None = None
    """The gravest, with the reason why `state` is not ``Bound``."""
    threads: Mapping[Role, ThreadCounts] = field(default_factory=dict)
    """Roles that have threads."""
    vanished: int = 0
    """Threads that ended while they were looked at."""
    drift: tuple[Misplaced, ...] = ()
    """Threads that an earlier pass had seen in place or put there, that were found elsewhere, and were put back."""
    unrepaired: tuple[Misplaced, ...] = ()
    """Those that the kernel did not let be put back."""
    at_once: bool = False
    """The main threads had all been put on one mask, by somebody else."""

    @property
    def written(self) -> int:
        """Threads whose mask was written."""
        return sum(counts.written for counts in self.threads.values())

    @property
    def repaired(self) -> int:
        """Threads that had moved away and were put back."""
        return len(self.drift)

    @property
    def by_cpuset(self) -> int:
        """Of those, the ones that the kernel had moved with their cpuset."""
        return sum(thread.kind == "cpuset" for thread in self.drift)


@dataclass(frozen=True, slots=True)
class Moved:
    """How many threads a release, or a return of descendants, moved."""

    threads: int = 0
    problem: Problem | None = None
    """Why threads that should have been moved were not."""


@dataclass(frozen=True, slots=True)
class IrqOutcome:
    """One pass over the interrupts of one NPU."""

    npu: int
    state: Literal["Bound", "Partial", "Failed", "Skipped"]
    problem: Problem | None = None
    """Why `state` is not ``Bound``."""
    irqs: int = 0
    """Interrupts that have a target."""
    written: int = 0
    drift: int = 0
    """Of those written, the ones that an earlier pass had put in place."""
    astray: int = field(default=0, compare=False)
    """Of `irqs`, the ones that are elsewhere all the same."""


@dataclass(frozen=True, slots=True)
class MemoryOutcome:
    """What came of moving the memory of one worker."""

    state: Literal["Pending", "Moved", "Partial", "Skipped", "Failed"]
    """``Pending`` is being moved, or waits its turn; ``Partial`` ended before all was tried."""
    problem: Problem | None = None
    """Why `state` is not ``Moved``."""
    node: int | None = None
    """The NUMA node that it was moved to."""
    moved: int = 0
    """Bytes that were on another node and are on `node` now."""
    left: int = 0
    """Bytes that the kernel could not move, such as those pinned for DMA."""
    skipped: int = 0
    """Bytes of private memory that were not tried: the time was up, or the whole step was skipped."""


@dataclass(frozen=True, slots=True)
class UvbOutcome:
    """One pass over the UVB threads of an Ascend 950 node."""

    state: Literal["Idle", "Bound", "Partial", "Failed", "Skipped"]
    """``Idle``: there are none."""
    problem: Problem | None = None
    threads: int = 0
    written: int = 0
    drift: int = 0
