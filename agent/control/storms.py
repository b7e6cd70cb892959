"""Workers of which more is heard than is worth it: what a process does to itself must not take the agent's time."""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

WINDOW_SECONDS: Final = 1.0
MOST: Final = 5000
"""Events of one worker in a window. One that makes a thousand threads a second has three thousand."""
A_MOVE: Final = 4
"""What a thread that is moved counts for, besides its event: that takes some system calls."""
FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 320.0


class Storms:
    """Who is not listened to for a while: the sweep finds what its threads did. Each time for twice as long, if it goes
    on. Seconds are of any steady clock, which the caller reads. Not thread-safe."""

    def __init__(self) -> None:
        self._heard: dict[int, int] = {}
        self._since = float("-inf")
        self._spells: dict[int, tuple[float, float]] = {}
        """Pid -> when it is, or was, listened to again, and after how many seconds."""
        self.deaf: frozenset[int] = frozenset()
        """Pids of those who are not listened to now."""

    def heard(self, pid: int, moved: int) -> None:
        """Of an event of a worker, and of how many threads were moved for it."""
        self._heard[pid] = self._heard.get(pid, 0) + 1 + A_MOVE * moved

    def look(self, now: float) -> bool:
        """Whether `deaf` is another than before."""
        loud = [pid for pid, count in self._heard.items() if count > MOST and pid not in self.deaf]
        for pid in loud:
            until, seconds = self._spells.get(pid, (now, 0.0))
            # Whoever has been calm for as long as that took begins anew.
            seconds = min(2 * seconds, LONGEST_SECONDS) if seconds and now < until + seconds else FIRST_SECONDS
            self._spells[pid] = now + seconds, seconds
            log.warning(
                "threads of process %d come, go or change their names thousands of times a second: "
                "the sweep alone puts them in place for %.0f s",
                pid,
                seconds,
            )
        if loud or now - self._since >= WINDOW_SECONDS:
            self._heard.clear()
            self._since = now
        deaf = frozenset(pid for pid, (until, _) in self._spells.items() if until > now) if self._spells else self.deaf
        changed = deaf != self.deaf
        self.deaf = deaf
        return changed

    def next(self) -> float | None:
        """When somebody is to be listened to again."""
        return min((self._spells[pid][0] for pid in self.deaf), default=None)

    def forget(self, pid: int) -> None:
        """It ended: its number is somebody else's one day."""
        self._spells.pop(pid, None)
        self.deaf -= {pid}
