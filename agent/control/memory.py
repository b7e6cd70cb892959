"""Moving the memory of workers to the NUMA node of their CPUs, beside the control loop (design section 6).

Once per worker, at its first binding. The order is the caller's, because the journal is:

    mover.submit(entry.worker, entry.allotment, topology, home=affinity, enabled=...)     # Pending, nothing moves yet
    journals.save(... memory=mover.outcomes.get(process) ...)
    mover.begin()                                                                         # now it may
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from agent.control.backoff import Refusal
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import Topology
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Roles
from agent.model.reason import Problem, Reason, Refused
from agent.model.workload import ProcessId, Worker
from agent.node.host import Host
from agent.node.memory import (
    Account,
    PageMover,
    Range,
    balancing_hides_pages,
    free_memory,
    read_account,
    read_ranges,
    refusal,
)
from agent.node.procfs import ProcFs
from agent.planning.memory import objection, target_node

log = logging.getLogger(__name__)

DEADLINE_SECONDS: Final = 10.0
"""What one worker may take."""

CLOSING_SECONDS: Final = 2.0
"""How long `close` waits for the batch that is under way."""

_UNREAD: Final = frozenset(
    {Reason.PROCESS_UNREADABLE, Reason.TOPOLOGY_UNREADABLE, Reason.PROCESS_GONE, Reason.ONE_NUMA_NODE}
)
"""Why memory was left alone, which says nothing of it and may be otherwise by now. A process that is gone is not
submitted again."""

MUCH: Final = 16 << 20
"""Bytes of a worker that may have been missed without a word: every one has some that are not looked at."""


class MemoryMover:
    """Moves memory in one thread, one worker after the other, one batch after the other.

    Between two batches it looks whether the worker is still the same process, whether it is still wanted, and what time
    it is. `clock` is a monotonic one, in seconds; `wake` is called from the thread when a worker is done; `page_size`
    as of `PageMover`. All other methods are for one thread, the loop's; `outcomes` is for any.
    """

    def __init__(
        self,
        root: Path,
        host: Host,
        *,
        wake: Callable[[], None] = lambda: None,
        seconds: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        page_size: int | None = None,
    ) -> None:
        self._root = root
        self._proc = ProcFs(root)
        self._pages = PageMover(root, host, page_size=page_size, clock=clock)
        self._wake = wake
        self._seconds = seconds
        self._clock = clock
        self._record: dict[ProcessId, MemoryOutcome] = {}
        self._unread: dict[ProcessId, Refusal] = {}
        """When to look again at workers of whose memory nothing could be read."""
        self._submitted: list[ProcessId] = []
        self._queue: deque[ProcessId] = deque()
        self._under_way: ProcessId | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def outcomes(self) -> dict[ProcessId, MemoryOutcome]:
        """What came of each worker that was ever submitted or adopted, as of now."""
        with self._lock:
            return dict(self._record)

    @property
    def idle(self) -> bool:
        """Whether nothing is being moved or waits its turn; what was submitted and not begun does not count."""
        with self._lock:
            return not self._queue and self._under_way is None

    def adopt(self, outcomes: Mapping[ProcessId, MemoryOutcome]) -> None:
        """What the journal of an earlier run of the agent has. What was begun there and not finished stays as it is:
        how far that came is not known, and the worker has been slowed down once."""
        with self._lock:
            for process, outcome in outcomes.items():
                self._record[process] = _interrupted(process, outcome) if outcome.state == "Pending" else outcome

    def submit(
        self,
        worker: Worker,
        roles: Roles,
        pool: CpuSet,
        topology: Topology,
        *,
        home: CpuSet = EMPTY,
        enabled: bool = True,
    ) -> None:
        """Notes a worker that is bound for the first time; nothing is done for one that was noted before.

        `home` are the CPUs near its NPU (`Npu.affinity`); `enabled` is what spec, settings and annotation come to. It
        is ``Pending`` from then on, until `begin`, or ``Skipped`` at once where the plan says enough against it.
        """
        process, earlier = worker.process, self._record.get(worker.process)
        if self._closed or not self._is_due(process):
            return
        node = target_node(topology, roles.main, pool, home)
        problem = objection(topology, node, enabled=enabled, npus=len(worker.npus))
        if problem is not None and earlier is not None and earlier.problem == problem:
            return  # it has more memory by now, perhaps, which is no news
        if problem is None:
            outcome = MemoryOutcome("Pending", Problem(Reason.PENDING, "its memory waits to be moved"), node)
            self._submitted.append(process)
        else:
            outcome = MemoryOutcome("Skipped", problem, node, skipped=self._resident(process))
        with self._lock:
            self._record[process] = outcome

    def _is_due(self, process: ProcessId) -> bool:
        """Whether a worker's memory is to be looked at: it never was, or nothing could be read when it was. What was
        begun is not begun again."""
        outcome = self._record.get(process)
        if outcome is None:
            return True
        if outcome.state != "Skipped" or outcome.problem is None or outcome.problem.reason not in _UNREAD:
            return False
        refusal, now = self._unread.get(process), self._clock()
        again = refusal is not None and refusal.problem == outcome.problem
        if refusal is not None and again and now < refusal.until:
            return False
        self._unread[process] = Refusal.after(refusal, outcome.problem, now)
        return again

    def begin(self) -> None:
        """Starts with those submitted since. The journal must have been written: what it does not know as begun would
        be moved a second time after a crash."""
        if not self._submitted or self._closed:
            return
        with self._lock:
            self._queue.extend(process for process in self._submitted if process in self._record)
            self._submitted.clear()
            if self._queue and self._thread is None:
                # A daemon: a call that the kernel does not end must not hold up the end of the agent.
                self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
                self._thread.start()

    def retain(self, processes: Collection[ProcessId]) -> None:
        """Forgets all other workers. One whose memory is being moved is left after the batch under way."""
        with self._lock:
            self._record = {process: kept for process, kept in self._record.items() if process in processes}
            self._unread = {process: kept for process, kept in self._unread.items() if process in processes}
            self._submitted = [process for process in self._submitted if process in self._record]
            self._queue = deque(process for process in self._queue if process in self._record)

    def close(self, timeout: float = CLOSING_SECONDS) -> None:
        """Ends after the batch under way, waiting for that so many seconds at most.

        A worker in the midst of which it ended is ``Partial`` then, with what was moved. Those whose turn had not come
        are no longer in `outcomes`: with a journal that is written after this, the next run of the agent takes them up.
        """
        with self._lock:
            self._closed = True
            for process in (*self._submitted, *self._queue):
                self._record.pop(process, None)
            self._queue.clear()
            thread = self._thread
        self._submitted.clear()
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed or not self._queue:
                    self._thread = None  # the next `begin` starts another
                    return
                process = self._under_way = self._queue.popleft()
                node = self._record[process].node
            assert node is not None  # what is queued was submitted
            outcome = self._move(process, node)
            with self._lock:
                self._under_way = None
                if process in self._record:
                    self._record[process] = outcome
            log.log(
                logging.INFO if outcome.problem is None else logging.WARNING,
                "memory of process %d: %s, %d MiB moved to node %d, %d MiB left, %d MiB not tried%s",
                process.pid,
                outcome.state,
                outcome.moved >> 20,
                node,
                outcome.left >> 20,
                outcome.skipped >> 20,
                "" if outcome.problem is None else f": {outcome.problem}",
            )
            self._wake()

    def _move(self, process: ProcessId, node: int) -> MemoryOutcome:
        task = _Task(process, node, self._clock() + self._seconds)
        try:
            return self._attempt(task)
        except Refused as refused:
            return task.ended(refused.problem)
        except OSError as error:
            return task.ended(refusal(error, node))
        except Exception as error:
            # Nobody else would say so: the thread would be gone, and every worker Pending for ever.
            log.exception("memory of process %d", process.pid)
            return replace(task.ended(Problem(Reason.PROCESS_UNREADABLE, f"unexpected: {error!r}")), state="Failed")

    def _attempt(self, task: _Task) -> MemoryOutcome:
        pid, node = task.process.pid, task.node
        account = read_account(self._root, pid) if self._lives(task.process) else None
        ranges = read_ranges(self._root, pid) if account is not None else None
        if account is None or ranges is None:
            return task.ended(_gone(task.process))
        task.resident = account.resident
        if (problem := self._obstacle(task, account, ranges)) is not None:
            return task.ended(problem)
        for window in self._pages.windows(ranges):
            if (problem := self._halt(task)) is not None:
                return task.ended(problem)
            batch = self._pages.move(pid, window, node, halt=lambda: self._halt(task))
            task.begun |= batch.error is None or batch.moved > 0
            task.there += batch.there
            task.moved += batch.moved
            task.left += batch.left
            if batch.error is not None:
                return task.ended(refusal(batch.error, node))
            if batch.halt is not None:
                return task.ended(batch.halt)
        if task.unseen > max(task.resident // 10, MUCH) and balancing_hides_pages(self._root):
            return task.ended(Problem(Reason.NUMA_BALANCING, f"{task.unseen >> 20} MiB look absent, and are not"))
        return MemoryOutcome("Moved", None, node, task.moved, task.left, task.unseen)

    def _obstacle(self, task: _Task, account: Account, ranges: list[Range]) -> Problem | None:
        """What speaks against it, found before anything is moved."""
        node = task.node
        if account.mems_allowed is not None and node not in account.mems_allowed:
            allowed = str(account.mems_allowed)
            return Problem(Reason.OUTSIDE_MEMS_ALLOWED, f"NUMA node {node} is not in its cpuset.mems {allowed}")
        free = free_memory(self._root, node)
        if free is None:
            return Problem(Reason.TOPOLOGY_UNREADABLE, f"how much of NUMA node {node} is free cannot be read")
        if _fits(task.resident, free):
            return None
        # All its anonymous memory is more than there is room for; much of it may be there already.
        away = 0
        for window in self._pages.windows(ranges):
            if (problem := self._halt(task)) is not None:
                return problem if problem.reason is not Reason.BUDGET_SPENT else _full(node, free, task.resident)
            away += self._pages.count(task.process.pid, window, node).elsewhere
            if not _fits(away, free):
                return _full(node, free, task.resident)
        return None

    def _halt(self, task: _Task) -> Problem | None:
        """Why no further batch is to begin."""
        with self._lock:
            wanted = task.process in self._record and not self._closed
        if not wanted:
            return Problem(Reason.MIGRATION_INTERRUPTED, "it was stopped before it was through; it is not redone")
        if not self._lives(task.process):
            return _gone(task.process)
        if self._clock() >= task.deadline:
            return Problem(Reason.BUDGET_SPENT, f"not through after {self._seconds:g} s")
        return None

    def _lives(self, process: ProcessId) -> bool:
        stat = self._proc.stat(process.pid)
        return stat is not None and stat.start_time == process.start_time

    def _resident(self, process: ProcessId) -> int:
        try:
            account = read_account(self._root, process.pid)
        except Refused:
            return 0
        return 0 if account is None else account.resident


@dataclass(slots=True)
class _Task:
    """One worker, and how far it is."""

    process: ProcessId
    node: int
    deadline: float
    resident: int = 0
    """Bytes of private memory that can be there at most."""
    begun: bool = False
    """Whether anything of it has been through."""
    there: int = 0
    moved: int = 0
    left: int = 0

    def ended(self, problem: Problem) -> MemoryOutcome:
        """The outcome when no more is tried, because of this problem."""
        state: Literal["Partial", "Skipped"] = "Partial" if self.begun else "Skipped"
        return MemoryOutcome(state, problem, self.node, self.moved, self.left, self.unseen)

    @property
    def unseen(self) -> int:
        """Bytes that were not tried. When all ranges were, it is pages of private mappings of files that the process
        wrote to, and what it gave back meanwhile; the kernel's account is some MiB off with hundreds of threads."""
        return max(0, self.resident - self.there - self.moved - self.left)


def _fits(size: int, free: int) -> bool:
    """With a tenth to spare: the worker goes on to take memory while it is moved."""
    return free >= size + size // 10


def _full(node: int, free: int, size: int) -> Problem:
    return Problem(
        Reason.TARGET_NODE_FULL, f"NUMA node {node} has {free >> 20} MiB free; the worker has {size >> 20} MiB"
    )


def _gone(process: ProcessId) -> Problem:
    return Problem(Reason.PROCESS_GONE, f"process {process.pid} ended")


def _interrupted(process: ProcessId, outcome: MemoryOutcome) -> MemoryOutcome:
    message = f"the agent ended while the memory of process {process.pid} was being moved"
    return replace(outcome, state="Partial", problem=Problem(Reason.MIGRATION_INTERRUPTED, message))
