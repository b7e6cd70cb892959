"""npu-smi, asked again and again without anybody waiting for it (design section 5).

An answer takes from a tenth of a second to many seconds, and now and then never comes. So the queries run in a thread
of their own, one at a time, and the agent's loop only looks at what came back last.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agent.model.node import DeviceType
from agent.model.reason import Problem, Reason, Refused
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.info import parse_info
from agent.node.npu_smi.inventory import DeviceNumber, InventoryReading, needs_affinity, processes_of, read_inventory
from agent.node.npu_smi.tables import shown

EAGER_SECONDS: Final = 1.0
EAGER_QUERIES: Final = 5
EAGER_LIMIT: Final = 10.0
IDLE_SECONDS: Final = 60.0
FAILURE_LIMIT: Final = 60.0
STATIC_SECONDS: Final = 600.0
PATIENCE: Final = 60.0
"""Seconds that one round may take: four queries with their own limit, and starting them."""

UNUSABLE: Final = (
    Reason.TABLE_TRUNCATED,
    Reason.TABLE_UNREADABLE,
    Reason.INVENTORY_INCOMPLETE,
    Reason.INVENTORY_MISMATCH,
)
"""Why the answers of a round can't be used."""


@dataclass(frozen=True, slots=True)
class WatchState:
    """What is known of the NPUs at one moment."""

    reading: InventoryReading | None
    """The last good one, None before the first."""
    problem: Problem | None
    """Why the last round gave none; None when it did. Stays the same text while the cause does."""
    age: float | None
    """Seconds since `reading` arrived."""
    due: float | None
    """When the next round wants to start, by the clock of `poll`; None while one is under way."""


class NpuSmiWatch:
    """Keeps the last good `InventoryReading` up to date.

    Each round reads ``info``; ``info -m`` and ``info -t topo``, which do not change while the driver is loaded, only
    the first time, after a failure (the driver may have been loaded anew), when the process table does not fit the
    inventory, when `davinci` changes, and every 10 minutes. `davinci` reads the host's /dev/davinciN; it runs in the
    thread and may raise Refused. `wake` is called from the thread when a round has ended. `needs_affinity` and
    `override` are asked anew each time, since both come from a spec that changes.

    `poll`, `hasten` and `reread` are for one thread, the loop's.
    """

    def __init__(
        self,
        npu_smi: NpuSmi,
        davinci: Callable[[], Mapping[int, DeviceNumber]],
        wake: Callable[[], None],
        *,
        override: Callable[[], DeviceType | None] = lambda: None,
        needs_affinity: Callable[[DeviceType], bool] = needs_affinity,
        patience: float = PATIENCE,
    ) -> None:
        self._reader = _Reader(npu_smi, davinci, override, needs_affinity)
        self._runner = _Runner(wake)
        self._patience = patience
        self._reading: InventoryReading | None = None
        self._problem: Problem | None = None
        self._arrived = 0.0
        self._started: float | None = None
        self._ended = 0.0
        self._running = False
        self._failures = 0
        self._static: float | None = None  # when the static tables were last read
        self._reread = False
        self._awaiting = False
        self._eager = 0  # rounds started since something has been awaited
        self.unusable: dict[Reason, int] = dict.fromkeys(UNUSABLE, 0)
        """Rounds in which npu-smi answered, and could not be understood, by reason."""

    def poll(self, now: float, *, awaiting: bool) -> WatchState:
        """Takes a result that has arrived and starts a round when one is due. Never blocks.

        `now` is a monotonic clock in seconds. `awaiting`: something should show up in the process table soon, so that
        rounds start 1 s apart, five times, then 2, 4, 8 and 10 s; else once a minute. After a failure they start 1, 2,
        4 and so on up to 60 s after its end.
        """
        if awaiting and not self._awaiting:
            self._eager = 0
        self._awaiting = awaiting
        if self._running and (result := self._runner.take()) is not None:
            self._take(result, now)
        due = self._due()
        if not self._running and now >= due and not self._runner.closed:
            self._start(now)
        problem = self._problem
        if self._running and self._started is not None and now - self._started > self._patience:
            problem = Problem(Reason.NPU_SMI_HUNG, f"npu-smi: no answer in {self._patience:g} s")
        return WatchState(
            reading=self._reading,
            problem=problem,
            age=None if self._reading is None else now - self._arrived,
            due=None if self._running else due,
        )

    def hasten(self) -> None:
        """Something new is awaited: rounds start 1 s apart again, though something was awaited before."""
        self._eager = 0

    def reread(self) -> None:
        """Lets the next round read the static tables too."""
        self._reread = True

    def close(self) -> None:
        """Starts no more rounds. One that is under way is left to end by itself."""
        self._runner.close()

    def _due(self) -> float:
        if self._started is None:
            return float("-inf")
        if self._failures:
            return self._ended + min(2.0 ** min(self._failures - 1, 30), FAILURE_LIMIT)
        if not self._awaiting:
            return self._started + IDLE_SECONDS
        slower = max(0, self._eager - EAGER_QUERIES)
        return self._started + min(EAGER_SECONDS * 2.0 ** min(slower, 30), EAGER_LIMIT)

    def _start(self, now: float) -> None:
        overdue = self._static is None or now - self._static >= STATIC_SECONDS
        static = overdue or self._reread or self._failures > 0
        self._reread = False
        self._started, self._running = now, True
        if self._awaiting:
            self._eager += 1
        self._runner.start(lambda: self._reader.read(static))

    def _take(self, result: _Result, now: float) -> None:
        self._running, self._ended = False, now
        self._problem = result.problem
        if result.reading is None:
            self._failures += 1
            if result.problem is not None and result.problem.reason in self.unusable:
                self.unusable[result.problem.reason] += 1
            return
        self._failures = 0
        self._reading, self._arrived = result.reading, now
        if result.static:
            self._static = now


@dataclass(frozen=True, slots=True)
class _Result:
    """What a round gave: a reading or a problem."""

    reading: InventoryReading | None = None
    problem: Problem | None = None
    static: bool = False
    """The static tables were read."""


class _Reader:
    """One round of queries. Used by one thread at a time."""

    def __init__(
        self,
        npu_smi: NpuSmi,
        davinci: Callable[[], Mapping[int, DeviceNumber]],
        override: Callable[[], DeviceType | None],
        needs_affinity: Callable[[DeviceType], bool],
    ) -> None:
        self._npu_smi = _Constant(npu_smi)
        self._davinci = davinci
        self._override = override
        self._needs_affinity = needs_affinity
        self._last: InventoryReading | None = None
        self._seen: dict[int, DeviceNumber] = {}

    def read(self, static: bool) -> _Result:
        try:
            davinci = dict(self._davinci())
            if not static and self._last is not None and davinci == self._seen:
                with contextlib.suppress(_Changed):
                    self._last = self._with_processes(self._last)
                    return _Result(self._last)
            self._last = read_inventory(
                self._npu_smi, davinci, override=self._override(), needs_affinity=self._needs_affinity
            )
        except Refused as refused:
            return _Result(problem=refused.problem)
        except Exception as error:  # whatever it is, the next round may go well, and the loop must hear of it
            text = f"reading npu-smi: {type(error).__name__}: {shown(str(error), 80)}"
            return _Result(problem=Problem(Reason.NPU_SMI_FAILED, text))
        self._seen = davinci
        return _Result(self._last, static=True)

    def _with_processes(self, last: InventoryReading) -> InventoryReading:
        info = parse_info(self._npu_smi.query("info"))
        if info.version != last.driver_version:
            raise _Changed
        try:
            processes, more = processes_of(info, last.inventory)
        except Refused as refused:
            raise _Changed from refused
        kept = tuple(note for note in last.notes if note.reason is not Reason.PROCESS_TABLE_INCOMPLETE)
        return replace(last, processes=processes, notes=(*kept, *more))


class _Constant:
    """npu-smi, which does not unlearn a query: what a device with this driver has answered once it knows. Who was told
    otherwise would take its NPUs for those of another device, or for NPUs without affinity."""

    def __init__(self, npu_smi: NpuSmi) -> None:
        self._npu_smi = npu_smi
        self._info = ""
        self._answered: dict[tuple[str, ...], str] = {}
        """Queries that were answered, and by which version."""

    def query(self, *args: str) -> str:
        """As `NpuSmi.query`, but for NotSupported, which is NpuSmiFailed where it can't be."""
        try:
            answer = self._npu_smi.query(*args)
        except Refused as refused:
            if refused.reason is Reason.NOT_SUPPORTED and self._answered.get(args) == self._version():
                text = f"npu-smi {shown(' '.join(args), 60)} was answered before: {refused.message}"
                raise Refused(Reason.NPU_SMI_FAILED, text) from refused
            raise
        if args == ("info",):
            self._info = answer
        else:
            self._answered[args] = self._version()
        return answer

    def _version(self) -> str:
        try:
            return parse_info(self._info).version
        except Refused:
            return ""


class _Changed(Exception):  # noqa: N818 - no error: the static tables are to be read again
    """The process table does not fit the inventory."""


class _Runner:
    """A thread that runs one job after the other. The thread is a daemon: it may be stuck when the agent ends."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._job: Callable[[], _Result] | None = None
        self._result: _Result | None = None
        self._thread: threading.Thread | None = None
        self.closed = False

    def start(self, job: Callable[[], _Result]) -> None:
        with self._changed:
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="npu-smi", daemon=True)
                self._thread.start()
            self._changed.notify()

    def take(self) -> _Result | None:
        """The result, once."""
        with self._changed:
            result, self._result = self._result, None
            return result

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.closed or self._job is not None)
                if self.closed or self._job is None:
                    return
                job, self._job = self._job, None
            result = job()
            with self._changed:
                self._result = result
            # The loop that is to be woken may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                self._wake()
