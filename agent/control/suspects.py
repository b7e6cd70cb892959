"""Processes that may have opened an NPU, because they made threads: when each is worth a look."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 0.25
"""From the making of a thread to the look: a runtime that opens an NPU makes threads before, after, or both."""
LONGEST_SECONDS: Final = 60.0
MOST_KNOWN: Final = 4096
QUIET_SECONDS: Final = 1.0
MOST_AT_ONCE: Final = 64
"""Processes of one look: each costs a listing of its open files."""


@dataclass(slots=True)
class _Suspect:
    looked_at: float
    spacing: float
    due: float | None = None


class Suspects:
    """Each has a back-off of its own: the looks at one that makes threads all the time, and has no NPU, get rare.

    Seconds are of any steady clock, which the caller reads. Not thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Suspect] = {}
        self._due: list[tuple[float, int]] = []
        """Heaps: the looks that are due one day, and those of them that are worth a pass. Both have some that are not
        so any more."""
        self._prompt: list[tuple[float, int]] = []
        self.quiet: set[int] = set()
        """Some of those whose look is due in a second or later: of their threads nobody has to hear until then."""

    def __len__(self) -> int:
        return len(self._known)

    def made_thread(self, pid: int, now: float) -> None:
        """A process made a thread. One look will be due for it; more threads until then change nothing."""
        suspect = self._known.get(pid)
        if suspect is None:
            if len(self._known) >= MOST_KNOWN:
                self.forget(next(iter(self._known)))
            suspect = self._known[pid] = _Suspect(float("-inf"), FIRST_SECONDS)
        elif suspect.due is not None:
            return
        soon = now + FIRST_SECONDS
        suspect.due = max(soon, suspect.looked_at + suspect.spacing)
        heapq.heappush(self._due, (suspect.due, pid))
        if suspect.due == soon:
            heapq.heappush(self._prompt, (soon, pid))
        elif suspect.due > now + QUIET_SECONDS and len(self.quiet) < MOST_AT_ONCE:
            self.quiet.add(pid)
        if len(self._due) > 2 * MOST_KNOWN:
            self._tidy()

    def forget(self, pid: int) -> None:
        """It ended, or is known to be on an NPU."""
        self._known.pop(pid, None)
        self.quiet.discard(pid)

    def clear(self) -> None:
        """Nothing is known of any."""
        self._known.clear()
        self.quiet.clear()
        self._tidy()

    def take(self, now: float) -> frozenset[int]:
        """Those whose look is due, the longest due first. The caller looks at each: the next one is later by twice as
        long."""
        taken: set[int] = set()
        while self._due and self._due[0][0] <= now and len(taken) < MOST_AT_ONCE:
            due, pid = heapq.heappop(self._due)
            suspect = self._known.get(pid)
            if suspect is not None and suspect.due == due:
                suspect.looked_at, suspect.due = now, None
                suspect.spacing = min(2 * suspect.spacing, LONGEST_SECONDS)
                taken.add(pid)
                self.quiet.discard(pid)
        return frozenset(taken)

    def next(self) -> float | None:
        """When a look is due that is worth a pass of its own. Not for those that make threads at all times: they are
        looked at in whatever pass comes."""
        while self._prompt:
            due, pid = self._prompt[0]
            suspect = self._known.get(pid)
            if suspect is not None and suspect.due == due:
                return due
            heapq.heappop(self._prompt)
        return None

    def _tidy(self) -> None:
        """Drops what is not so any more: many processes may end before they are looked at."""
        for heap in (self._due, self._prompt):
            heap[:] = [(due, pid) for due, pid in heap if (s := self._known.get(pid)) is not None and s.due == due]
            heapq.heapify(heap)
