"""Puts one thread of a watched worker in place, when the kernel tells of it: by the same rules as a pass over all."""

from __future__ import annotations

import errno
import time
from collections import deque
from typing import Final

from agent.control.watchlist import Watch, WatchList
from agent.model.reason import Refused
from agent.model.workload import ProcessId
from agent.node.host import ThreadHost
from agent.node.procfs import ProcFs
from agent.node.strangers import make_good

ROLE_SECONDS: Final = 1.0
"""For how long after a thread of a role was moved those born on main are asked for their names: one of them may have
begun with the name of the former, just before it was moved."""
ASK_SECONDS: Final = 5.0
LATENCIES: Final = 8192


class Placer:
    """Every method looks at the thread as it is now, and writes at most one mask, if it is not in place and the worker
    is still in the list. Raises nothing for what the host does."""

    def __init__(self, proc: ProcFs, host: ThreadHost, watched: WatchList) -> None:
        self._proc = proc
        self._host = host
        self._watched = watched
        self.latencies: deque[float] = deque(maxlen=LATENCIES)
        """Seconds from the kernel's event to the mask set, of the threads that were moved last."""
        self.moved = 0
        """Threads, and processes, that were put in place."""

    def place(self, watch: Watch, tid: int, comm: bytes, at: int, now: float) -> bool:
        """A thread that has this name, of which the kernel told at the time `at` (nanoseconds of CLOCK_MONOTONIC).
        As in a pass that is not the first, main threads that are on a part of main stay there. Whether a pass over the
        worker is wanted: the cpuset is another, mostly; or nobody can move the thread, for which one now and then is
        enough.
        """
        with self._watched.lock:
            if not self._is_watched(watch):
                return False
            target = watch.target(comm)
            if not target.inside:
                return self._ask(watch, now)
            try:
                found = self._host.get_affinity(tid).bits & watch.online
                if found == target.wanted or (target is watch.main and target.narrows(found)):
                    return False
                # An event may be old: the number that it has can be somebody else's by now.
                if not self._proc.has_thread(watch.entry.process, tid):
                    return False
                self._host.set_affinity(tid, target.cpus)
                if not self._proc.has_thread(watch.entry.process, tid):
                    make_good(self._host, self._proc.folder, tid, target.cpus, watch.entry.online)
                    return False
            except OSError as error:
                return error.errno == errno.EINVAL and self._ask(watch, now)
        self._placed(at)
        self._watched.pinned.roles[target.role] += 1
        if target.role is not watch.main.role:
            watch.moved_at = now
        return False

    def thread_born(self, watch: Watch, tid: int, at: int, now: float) -> bool:
        """A new thread, which has name and mask of the one that made it: if that is in place, so is this one. Returns
        what `place` does."""
        if now - watch.moved_at > ROLE_SECONDS:
            try:
                found = self._host.get_affinity(tid).bits & watch.online
            except OSError:
                return False
            if found == watch.main.wanted:
                return False
        try:
            comm = self._proc.comm(watch.entry.process.pid, tid)
        except Refused:
            return False
        return comm is not None and self.place(watch, tid, comm, at, now)

    def process_born(self, watch: Watch, pid: int) -> None:
        """A process that a thread of the worker forked: from CPUs that are set apart it goes to main."""
        if not (watch.apart and watch.main.inside):
            return
        with self._watched.lock:
            if not self._is_watched(watch):
                return
            try:
                found = self._host.get_affinity(pid).bits & watch.online
                if not found or found & ~watch.apart:
                    return
                child = self._child_of(watch.entry.process, pid)
                if child is None:
                    return
                self._host.set_affinity(pid, watch.main.cpus)
                if not self._proc.has_thread(child, pid):
                    make_good(self._host, self._proc.folder, pid, watch.main.cpus, watch.entry.online)
                    return
            except OSError:
                return
        self.moved += 1
        self._watched.pinned.children += 1

    def _child_of(self, worker: ProcessId, pid: int) -> ProcessId | None:
        """Who has this number, if it is a child of that worker; the sweep finds one that is not."""
        try:
            stat = self._proc.stat(pid)
            parent = None if stat is None or stat.ppid != worker.pid else self._proc.stat(worker.pid)
        except Refused:
            return None
        if stat is None or parent is None or parent.start_time != worker.start_time:
            return None
        return ProcessId(pid, stat.start_time)

    def _is_watched(self, watch: Watch) -> bool:
        return self._watched.watches.get(watch.entry.process.pid) is watch

    def _ask(self, watch: Watch, now: float) -> bool:
        if now - watch.asked_at < ASK_SECONDS:
            return False
        watch.asked_at = now
        return True

    def _placed(self, at: int) -> None:
        self.moved += 1
        seconds = max(0.0, (time.monotonic_ns() - at) / 1e9)
        self.latencies.append(seconds)
        self._watched.pinned.seconds.observe(seconds)
