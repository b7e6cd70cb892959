"""The workers whose threads are put in place as soon as the kernel tells of them, between the passes of the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agent.control.timings import Pinned
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.spec import ThreadRule
from agent.model.workload import ProcessId
from agent.node.targets import Target, Targets

_NAMES: Final = 1024
"""Names of one worker's threads that are remembered: a thread can give itself any number."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A worker that is bound, with all that its threads' places depend on."""

    process: ProcessId
    roles: Roles
    cpuset: CpuSet
    online: CpuSet
    rules: tuple[ThreadRule, ...] = ()


class Watch:
    """One entry of the list, with what is made of it once. For the thread that hears events."""

    __slots__ = ("_names", "_targets", "apart", "asked_at", "entry", "main", "moved_at", "online")

    def __init__(self, entry: Watched) -> None:
        self.entry = entry
        self._targets = Targets(entry.roles, entry.cpuset, entry.online, entry.rules)
        self._names = 0
        self.main = self._targets.main
        self.online = entry.online.bits
        self.apart = (entry.roles.apart & entry.online).bits
        self.moved_at = float("-inf")
        """When a thread of a role was last moved, by the clock of whoever does so."""
        self.asked_at = float("-inf")
        """When a pass over the worker was last asked for, since a thread of it could not be moved."""

    def target(self, comm: bytes) -> Target:
        """Where a thread of this name belongs."""
        self._names += 1
        if self._names > _NAMES:
            entry = self.entry
            self._targets = Targets(entry.roles, entry.cpuset, entry.online, entry.rules)
            self._names = 0
        return self._targets.of(comm)


class WatchList:
    """By whom threads may be moved besides the loop, and which.

    So that the two never undo each other's work, the loop withdraws whoever is not to be bound as it was, before it
    acts, and publishes who is bound after it has. The thread that hears events holds `lock` while it looks at a worker
    of the list and moves a thread of it; so that, once `withdraw` has returned, no move of an entry withdrawn is under
    way. A process that ended meanwhile is not published: its number may be another's by then.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pinned = Pinned()
        """What was moved so, for whoever does it to count."""
        self.watches: Mapping[int, Watch] = MappingProxyType({})
        """By pid. Replaced as a whole, under the lock."""
        self.near: frozenset[int] = frozenset()
        """Pids of all that are to be bound, watched already or not yet: of these everything has to be heard."""
        self.heard = False
        """Whether anybody listens: else nothing is published."""
        self.added: Callable[[], None] = lambda: None
        """Called where workers came into the list: what their threads did between the pass and that was missed."""
        self.changed: Callable[[], None] = lambda: None
        """Called where `near` changed."""
        self._ended: set[int] = set()
        self._void = False

    def withdraw(self, keep: Iterable[Watched]) -> None:
        """Before a pass acts: takes off all that is not as in `keep`."""
        entries = {entry.process.pid: entry for entry in keep}
        with self.lock:
            self._ended.clear()
            self._void = False
            self._replace({pid: watch for pid, watch in self.watches.items() if entries.get(pid) == watch.entry})
        self._approach(frozenset(entries))

    def publish(self, bound: Iterable[Watched]) -> None:
        """After a pass has acted: those who are bound."""
        with self.lock:
            if self._void or not self.heard:
                return
            before = self.watches
            now: dict[int, Watch] = {}
            for entry in bound:
                pid = entry.process.pid
                if pid not in self._ended:
                    watch = before.get(pid)
                    now[pid] = watch if watch is not None and watch.entry == entry else Watch(entry)
            self._replace(now)
            new = any(watch is not before.get(pid) for pid, watch in now.items())
        if new:
            self.added()

    def clear(self) -> None:
        """Nobody is watched from now on: nothing is to be bound."""
        self.forget()
        self._approach(frozenset())

    def forget(self) -> None:
        """Nobody is watched until a pass has acted: something was not heard."""
        with self.lock:
            self._void = True
            self._replace({})

    def ended(self, pid: int) -> None:
        """A process of the list ended, or somebody else has its number."""
        with self.lock:
            self._ended.add(pid)
            if pid in self.watches:
                self._replace({other: watch for other, watch in self.watches.items() if other != pid})

    def _approach(self, pids: frozenset[int]) -> None:
        if pids != self.near:
            self.near = pids
            self.changed()

    def _replace(self, watches: dict[int, Watch]) -> None:
        if watches.keys() != self.watches.keys() or any(watch is not self.watches[p] for p, watch in watches.items()):
            self.watches = MappingProxyType(watches)
