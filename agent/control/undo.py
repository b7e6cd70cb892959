"""Undo: give workers, and what came of them, back to their cpusets (design section 6).

What came of a worker is what descends from it, and whatever else runs in its container on its CPUs: an orphan whose
parent ended began with its masks as well. Other workers that are bound have entries of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from agent.control.bindings import Binding
from agent.control.observe import Observer
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import Moved
from agent.model.reason import Refused
from agent.model.workload import ProcessId
from agent.node.threads import ThreadBinder

Members = Callable[[Collection[str]], Mapping[str, Sequence[ProcessId]]]
"""Key of a runtime's container -> the processes that are in it now."""
Children = Mapping[int, Sequence[int]]
"""Pid -> pids of its children."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What must be known of the host besides the workers themselves."""

    online: CpuSet
    seen: Children
    """As of the last look that read the process table, a minute ago at most: enough to keep those in place that were
    there, while whoever hears of processes sees to those that begin."""
    members: Members
    look: Callable[[], Children]
    cpuset: Callable[[int], CpuSet | None] = lambda _pid: None
    """The effective cpuset of a process; None where it is not known."""

    def lacking(self, pool: CpuSet) -> Callable[[int], CpuSet | None]:
        """Tells of a pid its cpuset where that lacks some of a pool: a thread that has all of it may remember those."""

        def of(pid: int) -> CpuSet | None:
            cpuset = self.cpuset(pid)
            return None if cpuset is None or pool <= cpuset else cpuset

        return of

    @property
    def children(self) -> Children:
        """As of this pass: for what is done once, such as giving back, and would not be done again for a child that was
        missed."""
        return self.look()

    @classmethod
    def of(cls, observer: Observer, now: float) -> Surroundings:
        """As they are now. Refused where the host's CPUs or processes can't be read."""
        online, children = observer.topology(now).online, observer.children()
        return cls(online, children, observer.members, lambda: children, observer.cpuset)


class Undoer:
    """Takes bindings back, one at a time."""

    def __init__(self, binder: ThreadBinder, bindings: dict[ProcessId, Binding]) -> None:
        self._binder = binder
        self._bindings = bindings

    def give_back(self, process: ProcessId, around: Surroundings) -> Moved:
        """The worker first: what begins before it is released begins with its masks."""
        binding = self._bindings[process]
        pool, online = binding.given, around.online
        # Once: later looks are for what could not be given back, and for those that begin meanwhile.
        whole = None if binding.released else around.cpuset(process.pid)
        own = self._binder.release(process, pool=pool, online=online, masks=binding.masks, whole=whole)
        inherited = self._binder.release_descendants(
            process, pool=pool, online=online, children=around.children, exclude=self._others(process), whole=whole
        )
        pools = [other.pool for other in self._neighbours(process)]
        beside = self._release_beside(process, around, pool, unless=pools, remembering=not binding.released)
        return _sum(own, inherited, beside)

    def forget(self, process: ProcessId) -> None:
        """Takes a worker that was given back off the bindings. For those that are still bound in its container it is
        one of the other processes from now on, so that they get to know which of its threads have masks of their own.
        """
        binding = self._bindings[process]
        if binding.masks and self._binder.lives(process):
            for other in self._neighbours(process):
                other.masks = {**binding.masks, **other.masks}
        del self._bindings[process]

    def free_orphans(self, process: ProcessId, around: Surroundings) -> Moved:
        """Gives back what is still on CPUs that a worker has left, and on none that a worker of its container has."""
        binding = self._bindings[process]
        pools = [binding.pool, *(other.pool for other in self._neighbours(process))]
        return self._release_beside(process, around, binding.left | binding.told, unless=pools)

    def haunted(self, process: ProcessId, living: Collection[ProcessId], around: Surroundings) -> bool:
        """Whether something is left on the CPUs of a worker that ended, or may be there again once its cpuset has all
        of them, and they are those of no other."""
        binding = self._bindings[process]
        heirs = (self._bindings[heir] for heir in living if heir in self._bindings)
        if any(heir.container == binding.container and binding.given <= heir.given for heir in heirs):
            return False
        try:
            beside = self._beside(process, around)
        except Refused:
            return True  # nobody knows
        given = binding.given
        return self._binder.inhabits(beside, pool=given, online=around.online, whole=around.lacking(given))

    def _release_beside(
        self,
        process: ProcessId,
        around: Surroundings,
        pool: CpuSet,
        unless: Collection[CpuSet],
        *,
        remembering: bool = False,
    ) -> Moved:
        """`remembering`: also what has its whole cpuset, and may have been told CPUs that this has lost."""
        try:
            beside = self._beside(process, around)
        except Refused as refused:
            return Moved(0, refused.problem)
        whole = around.lacking(pool if remembering else EMPTY)
        masks = self._bindings[process].masks
        return self._binder.release_all(
            beside, pool=pool, online=around.online, unless=unless, masks=masks, whole=whole
        )

    def _beside(self, process: ProcessId, around: Surroundings) -> list[ProcessId]:
        """Who else is in its container: neither a worker, nor descended from one that is alive. Refused where processes
        can't be listed."""
        container = self._bindings[process].container
        if not container:
            return []
        related = _families(around.children, [worker.pid for worker in self._bindings])
        return [member for member in around.members([container]).get(container, ()) if member.pid not in related]

    def _neighbours(self, process: ProcessId) -> list[Binding]:
        """The other workers of its container."""
        container = self._bindings[process].container
        return [b for other, b in self._bindings.items() if other != process and b.container == container]

    def _others(self, process: ProcessId) -> set[int]:
        return {worker.pid for worker in self._bindings if worker != process}


def _families(children: Children, pids: Collection[int]) -> set[int]:
    """Processes with all that descends from them."""
    found = set(pids)
    waiting = deque(pids)
    while waiting:
        new = set(children.get(waiting.popleft(), ())) - found
        found |= new
        waiting.extend(new)
    return found


def _sum(*parts: Moved) -> Moved:
    return Moved(
        sum(part.threads for part in parts), next((part.problem for part in parts if part.problem is not None), None)
    )
