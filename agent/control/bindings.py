"""What is in force for one worker, and what its threads had before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.control.journal import BoundWorker
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.plan import Roles
from agent.model.workload import ProcessId, ThreadId


@dataclass(slots=True)
class Binding:
    """A worker that was bound, or is about to be. `BoundWorker` is what of it outlasts the agent."""

    roles: Roles
    pool: CpuSet
    container: str = ""
    """Key of its container."""
    masks: Mapping[ThreadId, CpuSet] = field(default_factory=dict)
    """Its threads that had a mask narrower than their cpuset before the first binding -> that mask; and those of former
    workers of its container."""
    left: CpuSet = EMPTY
    """The CPUs that it had before these, on which something that came of it may still be."""
    told: CpuSet = EMPTY
    """All CPUs that it had before these. A thread that was in place when some were taken from its cpuset was told
    nothing then: since Linux 6.2 it remembers them, and has them again when its cpuset does."""
    complete: bool = False
    """A first binding has been through, as far as the kernel let it: from then on a main thread that narrowed itself is
    left alone."""
    released: bool = False
    """It was taken back, as far as that went, and that was told."""
    undone: bool = False
    """It was taken back whole: another pass has to find whatever was forked meanwhile."""

    @classmethod
    def adopted(cls, worker: BoundWorker) -> Binding:
        """The binding that an earlier run of the agent noted."""
        return cls(
            roles=worker.roles,
            pool=worker.pool,
            container=worker.container,
            masks=worker.masks,
            left=worker.left,
            told=worker.told,
            complete=worker.complete,
        )

    def noted(self, process: ProcessId) -> BoundWorker:
        """This binding for the journal."""
        return BoundWorker(
            process=process,
            pool=self.pool,
            roles=self.roles,
            container=self.container,
            complete=self.complete,
            left=self.left,
            told=self.told,
            masks=self.masks,
        )

    @property
    def given(self) -> CpuSet:
        """Every CPU that the agent may have put a thread on."""
        return self.pool | self.left | self.told

    def moved_to(self, roles: Roles, pool: CpuSet, container: str) -> Binding:
        """The binding to other CPUs. What the threads had before the first one is what they had before this one."""
        left, told = self.pool | self.left, self.given
        return Binding(roles, pool, container or self.container, masks=self.masks, left=left, told=told)
