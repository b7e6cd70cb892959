"""What must outlast the agent: bases, the universe of NPUs, who is bound (design 4.1, 4.9, 6); and, noted
before it is touched, how everything was that the agent changes on the host, so that it can be taken back.

It belongs to one boot: pids and start times mean nothing after another. `agent.control.journal_file` keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Base, Roles
from agent.model.spec import Cutting
from agent.model.workload import ProcessId, ThreadId
from agent.planning.universe import Universe


@dataclass(frozen=True, slots=True)
class BoundWorker:
    """A worker, noted before anything is done to it."""

    process: ProcessId
    pool: CpuSet
    roles: Roles
    container: str = ""
    """Key of its container; what runs in there may have begun with its masks."""
    complete: bool = True
    """Whether its first binding has been through."""
    left: CpuSet = EMPTY
    """CPUs that it had before these, on which something that came of it may still be."""
    masks: Mapping[ThreadId, CpuSet] = field(default_factory=dict)
    """Its threads that had a mask narrower than their cpuset before the first binding -> that mask."""
    memory: MemoryOutcome | None = None
    """What came of moving its memory, which is done once. ``Pending`` in the journal: it was begun."""
    told: CpuSet = EMPTY
    """All CPUs that it had before these, which its threads may remember."""


@dataclass(frozen=True, slots=True)
class TakenIrq:
    """An interrupt, noted before it is moved. Its number is that of the last look: a reset of the NPU changes it."""

    pci: str
    """Address of the PCI function, such as ``0000:c1:00.0``."""
    action: str
    """Name of its handler, such as ``cq_update_irq``."""
    ordinal: int
    """Which of the interrupts with this name, in ascending order of their numbers, from 0."""
    irq: int
    before: CpuSet
    """Its ``smp_affinity_list`` before the first write."""
    given: CpuSet
    """What the agent wrote last, or was about to write."""
    earlier: CpuSet = EMPTY
    """What the agent had given it before that: the value that it has if the write was never made."""


@dataclass(frozen=True, slots=True)
class IrqBans:
    """What was added to the interrupts that irqbalance leaves alone. Another process of it knows nothing of them."""

    balancer: ProcessId
    irqs: frozenset[int]


@dataclass(frozen=True, slots=True)
class UvbThread:
    """A UVB thread, noted before it is moved."""

    thread: ThreadId
    before: CpuSet
    """Its mask where that was narrower than all CPUs; empty where it was not."""
    given: CpuSet
    """What the agent wrote last."""


@dataclass(frozen=True, slots=True)
class ConfinedProcess:
    """A process in a worker's container that is kept off the CPUs of roles, noted before that is done."""

    process: ProcessId
    container: str
    off: CpuSet
    """The CPUs that it is kept off."""
    masks: Mapping[ThreadId, CpuSet] = field(default_factory=dict)
    """Its threads that had a mask narrower than their cpuset before -> that mask."""


@dataclass(frozen=True, slots=True)
class Journal:
    """Contents of the journal. Empty at the first start of a boot."""

    boot_id: str = ""
    universe: Universe = field(default_factory=Universe)
    bases: tuple[Base, ...] = ()
    cut_by: Cutting | None = None
    """What of spec the bases were cut by; None where that is not known."""
    workers: tuple[BoundWorker, ...] = ()
    settled: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Key of a container that owns its CPUs -> its NPUs, where running ones had to tell them and had been still."""
    spec: Mapping[str, Any] | None = None
    """The last accepted `spec`, as people wrote it: in force until the plan can be read."""
    own: bool = False
    """Whether that plan was made by an agent: then it is made anew with this spec."""
    irqs: tuple[TakenIrq, ...] = ()
    bans: IrqBans | None = None
    uvb: tuple[UvbThread, ...] = ()
    confined: tuple[ConfinedProcess, ...] = ()
    begun_at: int = 0
    """Start time of the youngest process when this journal was begun in place of none; 0 where it was the first of its
    boot for sure. Older processes may have been bound by an agent whose journal is gone."""
    lost: bool = False
    """Whether that one was there and could not be used, so that they are likely to have been."""

    @property
    def taken(self) -> str:
        """What of the host is still to be given back, for people: ``2 workers, 34 interrupts``. Empty for nothing."""
        return ", ".join(_counted(count, noun) for noun, count in self._counts.items() if count)

    @property
    def entries(self) -> int:
        """How many things are still to be given back."""
        return sum(self._counts.values())

    @property
    def _counts(self) -> dict[str, int]:
        return {
            "worker": len(self.workers),
            "interrupt": len(self.irqs),
            "UVB thread": len(self.uvb),
            "confined process": len(self.confined),
            "ban of irqbalance": 0 if self.bans is None else len(self.bans.irqs),
        }

    def of_boot(self, boot_id: str) -> Journal:
        """This journal when it is of that boot, else what of it outlasts a boot: the spec."""
        return self if self.boot_id == boot_id else Journal(boot_id=boot_id, spec=self.spec, own=self.own)


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    first, space, rest = noun.partition(" of ")
    return f"{count} {first}{'es' if first.endswith('s') else 's'}{space}{rest}"
