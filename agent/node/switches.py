"""How often threads were taken off their CPUs before they were done: ``nonvoluntary_ctxt_switches`` (proc(5))."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from agent.model.reason import Reason, Refused
from agent.model.workload import ProcessId
from agent.node.files import join, read_bytes
from agent.node.procfs import ProcFs

LOOK_SECONDS: Final = 0.02
"""What one look may take. A file of ``status`` takes some twenty microseconds, so that this is about a thousand of
them: the others have their turn in the next looks, in which nothing of what they did meanwhile is lost."""

_COUNT: Final = b"\nnonvoluntary_ctxt_switches:\t"

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Counted(Generic[K]):
    """A process whose threads are looked at, and what a thread of this name counts for."""

    process: ProcessId
    key: Callable[[bytes], K]


class SwitchCounter(Generic[K]):
    """Adds up what threads did since they were first seen; of a thread that began later, all that it did. What one does
    between the last look at it and its end is missed. For one thread at a time; `totals` may be read by any."""

    def __init__(self, root: Path, *, seconds: float = LOOK_SECONDS) -> None:
        self._proc_root, self._proc = f"{join(root)}/proc", ProcFs(root)
        self._seconds = seconds
        self.totals: dict[K, int] = {}
        self._seen: dict[tuple[ProcessId, int], int] = {}
        self._known: set[ProcessId] = set()
        """Those whose threads were listed for the last round: what is not among these threads is new."""
        self._missed: set[tuple[ProcessId, int]] = set()
        """Threads of the last round that were not read: how much of what they did is new is not known."""
        self._waiting: deque[tuple[Counted[K], int]] = deque()
        self._fresh: set[ProcessId] = set()
        self._listed: set[tuple[ProcessId, int]] = set()
        """Processes and threads of the round under way."""

    def look(self, processes: Sequence[Counted[K]]) -> None:
        """Goes on where the last look ended, for as long as a look may take. Raises nothing for what the host does."""
        until = time.monotonic() + self._seconds
        if not self._waiting:
            self._begin(processes)
        living = {counted.process for counted in processes}
        while self._waiting:
            counted, tid = self._waiting.popleft()
            if counted.process in living:
                self._add(counted, tid)
            if time.monotonic() >= until:
                return

    def _begin(self, processes: Collection[Counted[K]]) -> None:
        """A new round over all threads: the last one has been through."""
        self._known, self._fresh = self._fresh, set()
        self._missed = self._listed - self._seen.keys()
        threads: set[tuple[ProcessId, int]] = set()
        for counted in processes:
            process = counted.process
            try:
                stat = self._proc.stat(process.pid)
                if stat is None or stat.start_time != process.start_time:
                    continue
                tids = self._proc.thread_ids(process.pid)
            except Refused:
                continue
            if not tids:
                continue
            self._fresh.add(process)
            threads.update((process, tid) for tid in tids)
            self._waiting.extend((counted, tid) for tid in tids)
        self._seen = {thread: count for thread, count in self._seen.items() if thread in threads}
        self._listed = threads

    def _add(self, counted: Counted[K], tid: int) -> None:
        process = counted.process
        try:
            status = read_bytes(f"{self._proc_root}/{process.pid}/task/{tid}/status", Reason.PROCESS_UNREADABLE)
        except Refused:
            return
        read = _parse(status) if status else None
        if read is None:
            return
        comm, now = read
        key, thread = counted.key(comm), (process, tid)
        # A thread that was not there in the last round is new: what it did, it did since.
        began = process in self._known and thread not in self._missed
        before = self._seen.get(thread, 0 if began else now)
        if now < before:
            before = 0  # that was another thread's number
        self._seen[thread] = now
        self.totals[key] = self.totals.get(key, 0) + now - before


def _parse(status: bytes) -> tuple[bytes, int] | None:
    """Name (with ``\\n`` and ``\\\\`` escaped, which no prefix of a role has) and count."""
    at = status.rfind(_COUNT)
    digits = status[at + len(_COUNT) :].strip() if at >= 0 else b""
    if not (status.startswith(b"Name:\t") and digits.isdigit() and len(digits) <= 20):
        return None
    return status[6 : status.index(b"\n")], int(digits)
