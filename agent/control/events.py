"""Hears the kernel's events of processes: puts threads of bound workers in place at once, and tells the loop the rest.

What is not heard, or not understood, the sweep finds. So nothing here raises, and nothing is ever taken for granted: an
event says that something is worth a look at a thread as it is now.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

from agent.control.news import News
from agent.control.placing import Placer
from agent.control.storms import Storms
from agent.control.stream import Comms, NoComms, Stream
from agent.control.suspects import Suspects
from agent.control.watchlist import WatchList
from agent.model.reason import Problem, Refused
from agent.model.workload import ProcessId
from agent.node.host import ThreadHost
from agent.node.proc_events import Batch, ProcEvents
from agent.node.proc_messages import COMM, EXEC, EXIT, FORK, Event, child_of, comm_of
from agent.node.procfs import ProcFs

log = logging.getLogger(__name__)

WAKE_SECONDS: Final = 0.25
"""The least time between two passes that events ask for."""
LONGEST_WAKE_SECONDS: Final = 5.0
"""The same for processes of awaited containers, once nothing has come of many."""
FIRST_RETRY_SECONDS: Final = 1.0
LONGEST_RETRY_SECONDS: Final = 300.0
QUIET_SECONDS: Final = 1.0
"""Between two changes of whose new threads nobody has to hear."""
REST_SECONDS: Final = 0.008
"""Between two looks while workers make threads all the time, none of which has to be moved: to be woken for each costs
many times what looking at it does. A thread that has to be moved may wait twice as long."""
COMPLAINT_SECONDS: Final = 60.0


class Events:
    """A thread that hears events, and a `NewsSource` for the loop. `start` and `stop` once each."""

    def __init__(
        self,
        listen: Callable[[], Stream],
        proc: ProcFs,
        host: ThreadHost,
        watched: WatchList,
        *,
        comms: Comms | None = None,
        own_pid: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`listen` begins to listen, or is Refused. `own_pid` is the agent's, which makes threads of its own."""
        self.wake: Callable[[], None] = lambda: None
        """Begins a pass of the loop; for whoever has one to set."""
        self.glance: Callable[[], None] | None = None
        """Has the loop look at suspects, and begin a pass if one of them is on an NPU. Without it there is a pass."""
        self._listen = listen
        self.placer = Placer(proc, host, watched)
        self._watched = watched
        self._comms: Comms = comms or NoComms()
        self._own = own_pid
        self._clock = clock
        self._lock = threading.Lock()
        """Of what follows: news."""
        self._lost = self._processes = False
        self._suspects = Suspects()
        self._told = False  # of suspects, since the last `take`
        self._family: set[int] = set()
        self._awaited: frozenset[int] = frozenset()
        self._bound: frozenset[int] = frozenset()
        self._unheard = False
        self._spacing = WAKE_SECONDS
        self._family_at = float("-inf")
        # Of the thread alone.
        self._wake_at: float | None = None
        self._woken_at = self._complained_at = float("-inf")
        self._storms = Storms()
        self._near_of: frozenset[int] | None = None
        """What `near` of the list was when it was made of that."""
        self._near: frozenset[int] = frozenset()
        self._kin: frozenset[int] = frozenset()
        self._quiet: frozenset[int] = frozenset()
        self._quiet_at = float("-inf")
        self._refocus = True
        self._stream: Stream | None = None
        self._problem: Problem | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    @classmethod
    def of_host(cls, root: Path, host: ThreadHost, watched: WatchList, comms: Comms | None = None) -> Events:
        """Of the running kernel, whose /proc is below `root`."""
        return cls(partial(ProcEvents.of_host, root), ProcFs(root), host, watched, comms=comms, own_pid=os.getpid())

    # For the loop.

    @property
    def up(self) -> bool:
        """As in `NewsSource`."""
        return self._watched.heard

    def problem(self) -> Problem | None:
        """As in `NewsSource`. None before the first try has come to an end, too."""
        return self._problem

    def take(self) -> News:
        """As in `NewsSource`."""
        with self._lock:
            news = News(self._lost, self._processes, self._suspects.take(self._clock()))
            self._lost = self._processes = self._told = False
            later = self._suspects.next() is not None
        if later:
            self._nudge()  # whoever waits did not wait for these
        return news

    def interest(self, bound: Collection[ProcessId], awaited: Collection[int]) -> None:
        """As in `NewsSource`."""
        with self._lock:
            told = frozenset(awaited)
            if not told <= self._awaited | self._family:
                # Another container: what its processes did before all of that was heard is not known.
                self._spacing = WAKE_SECONDS
                self._unheard = True
            self._awaited, self._family = told, set(told)
            self._bound = frozenset(process.pid for process in bound)
            for pid in self._bound:
                self._suspects.forget(pid)
            self._refocus = self._unheard or told | (self._bound - self._near) != self._kin
        if self._refocus:
            self._nudge()

    def start(self) -> None:
        """Begins to listen, in a thread of its own. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it. Nothing is moved any more when this returns."""
        self._stopped.set()
        self._nudge()
        if self._thread.is_alive():
            self._thread.join()

    def _nudge(self) -> None:
        """Whoever waits for events looks around."""
        if (stream := self._stream) is not None:
            stream.interrupt()

    def __enter__(self) -> Events:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # The thread.

    def _run(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while not self._stopped.is_set():
            try:
                stream = self._listen()
            except Refused as refused:
                self._tell_problem(refused.problem)
            except Exception:
                log.exception("no events")
            else:
                begun = self._clock()
                self._hear_all(stream)
                if self._clock() - begun > LONGEST_RETRY_SECONDS:
                    delay = FIRST_RETRY_SECONDS
            self._stopped.wait(delay)
            delay = min(2 * delay, LONGEST_RETRY_SECONDS)

    def _tell_problem(self, problem: Problem) -> None:
        news = self._problem is None
        self._problem = problem
        if news:
            self.wake()  # it belongs into the plan

    def _hear_all(self, stream: Stream) -> None:
        """Until `stop`, or until the stream is of no use any more."""
        self._stream = stream
        try:
            self._watched.changed = self._nudge
            self._near, self._kin, self._quiet, self._refocus = frozenset(), frozenset(), frozenset(), True
            self._near_of, self._storms = None, Storms()
            self._forget()
            self._problem = None
            self._comms.live = self._watched.heard = True
            self._ask(self._clock())
            idle_at = float("-inf")
            patience: float | None = 0.0
            while not self._stopped.is_set():
                stream.wait(patience)
                batch = stream.take()
                now = self._clock()
                moved = self.placer.moved
                self._take_in(batch, now)
                self._refocus |= self._storms.look(now)
                self._focus(stream, now)
                patience = self._perhaps_wake(now)
                if (again := self._storms.next()) is not None:
                    patience = max(0.0, again - now) if patience is None else min(patience, max(0.0, again - now))
                if batch.events and self.placer.moved == moved:
                    if now - idle_at < 2 * REST_SECONDS:
                        time.sleep(REST_SECONDS)
                    idle_at = now
        except OSError as error:
            log.warning("events of processes ended: %s; trying again", error)
        except Exception:
            log.exception("events of processes ended; trying again")
        finally:
            self._comms.live = self._watched.heard = False
            self._stream = None
            self._forget()
            stream.close()
            if not self._stopped.is_set():
                self.wake()  # from now on the sweep is all there is

    def _focus(self, stream: Stream, now: float) -> None:
        """Has everything heard of those who are to be bound, and of those who are awaited what they come to."""
        near_of = self._watched.near
        quietly = now - self._quiet_at >= QUIET_SECONDS and self._suspects.quiet != self._quiet
        if near_of is self._near_of and not (self._refocus or quietly):
            return
        deaf = self._comms.deaf = self._storms.deaf
        near = near_of - deaf
        with self._lock:
            self._refocus = False
            kin = frozenset(self._family) | (self._bound - near)
            quiet = (frozenset(self._suspects.quiet) if quietly else self._quiet) | deaf
        new, changed = near - self._near, near ^ self._near
        if quietly:
            self._quiet_at = now
        stream.focus(near, kin, quiet)
        self._near_of, self._near, self._kin, self._quiet = near_of, near, kin, quiet - deaf
        for pid in changed:
            self._comms.ended(pid, pid)  # not every change of its names was, or will be, heard of
        with self._lock:
            for pid in new:
                self._suspects.forget(pid)
            if new:
                self._processes = True  # nor what they forked
                self._ask(now)
            unheard, self._unheard = self._unheard, False
            if unheard:
                self._family_changed(now)

    def _forget(self) -> None:
        """What happened is not known: nobody is who he was, until the loop has looked."""
        self._watched.forget()
        self._comms.lost()
        with self._lock:
            self._lost = True
            self._suspects.clear()

    def _take_in(self, batch: Batch, now: float) -> None:
        if batch.lost:
            self._forget()
            self._ask(now)
        elif batch.others_lost:
            with self._lock:
                self._lost = True
            self._ask(now)
        try:
            with self._lock:
                for event in batch.events:
                    before = self.placer.moved
                    self._one(event, now)
                    if event[3] in self._near:
                        self._storms.heard(event[3], self.placer.moved - before)
                for event in batch.others:
                    self._other(event, now)
        except Exception:  # a fault of our own is no reason to hear nothing any more: the sweep finds what was missed
            if now - self._complained_at >= COMPLAINT_SECONDS:
                self._complained_at = now
                log.exception("events were not understood; looking at everything instead")
            self._forget()
            self._ask(now)

    def _one(self, event: Event, now: float) -> None:
        """Of a worker, mostly."""
        what, at, pid, tgid, rest = event
        if what == FORK:
            child, child_tgid = child_of(rest)
            if child != child_tgid:
                self._comms.born(child_tgid, child)
                watch = self._watched.watches.get(child_tgid)
                if watch is None:
                    self._made_thread(child_tgid, now)
                elif self.placer.thread_born(watch, child, at, now):
                    self._ask(now)
            else:
                self._process_born(tgid, child, now)
        elif what == COMM:
            comm = comm_of(rest)
            self._comms.renamed(tgid, pid, comm)
            watch = self._watched.watches.get(tgid)
            if watch is not None and self.placer.place(watch, pid, comm, at, now):
                self._ask(now)
        else:
            if what == EXIT:
                self._comms.ended(tgid, pid)
            elif what == EXEC:
                self._comms.ended(tgid, tgid)  # the names of its threads are others, without an event for that
            self._other(event, now)

    def _other(self, event: Event, now: float) -> None:
        """Of a process whose names nobody remembers."""
        what, _, pid, tgid, rest = event
        if what == FORK:
            child, child_tgid = child_of(rest)
            if child != child_tgid:
                self._made_thread(child_tgid, now)
            else:
                self._process_born(tgid, child, now)
        elif what == EXIT:
            if pid == tgid:
                self._process_ended(pid, now)
        elif what == EXEC:
            if self._matters(tgid):
                self._processes = True
                self._ask(now)
            elif tgid in self._family:
                self._family_changed(now)

    def _made_thread(self, pid: int, now: float) -> None:
        if pid != self._own and pid not in self._near and pid not in self._storms.deaf:
            self._suspects.made_thread(pid, now)

    def _process_born(self, parent: int, pid: int, now: float) -> None:
        if parent in self._family:
            self._family.add(pid)
            self._refocus = True
            self._family_changed(now)
        elif parent in self._near and parent not in self._watched.watches:
            self._family_changed(now)  # it is not known yet where that child belongs
        if pid in self._watched.watches:
            self._watched.ended(pid)  # that was another's number
        watch = self._watched.watches.get(parent)
        if watch is not None:
            self.placer.process_born(watch, pid)

    def _process_ended(self, pid: int, now: float) -> None:
        self._suspects.forget(pid)
        self._storms.forget(pid)
        if self._matters(pid):
            self._watched.ended(pid)
            self._processes = True
            self._ask(now)
        elif pid in self._family:
            self._family.discard(pid)
            self._refocus = True
            self._family_changed(now)

    def _matters(self, pid: int) -> bool:
        """Whether it is a worker that is bound, or is to be."""
        return pid in self._near or pid in self._bound or pid in self._watched.watches

    def _family_changed(self, now: float) -> None:
        """A process of an awaited container did something. One that does so at all times, and opens no NPU, is worth
        fewer and fewer passes."""
        self._processes = True
        if now - self._family_at > 4 * LONGEST_WAKE_SECONDS:
            self._spacing = WAKE_SECONDS
        self._family_at = now
        if self._wake_at is None:
            self._wake_at = max(now, self._woken_at + self._spacing)
            self._spacing = min(2 * self._spacing, LONGEST_WAKE_SECONDS)

    def _ask(self, now: float) -> None:
        """A pass is wanted, as soon as there may be one."""
        soon = max(now, self._woken_at + WAKE_SECONDS)
        self._wake_at = soon if self._wake_at is None else min(self._wake_at, soon)

    def _next(self) -> float | None:
        """When the loop is to be woken next."""
        with self._lock:
            look = None if self._told else self._suspects.next()
        if look is not None:
            look = max(look, self._woken_at + WAKE_SECONDS)
        return min((at for at in (look, self._wake_at) if at is not None), default=None)

    def _perhaps_wake(self, now: float) -> float | None:
        """Wakes the loop if it is time to. Seconds until it is next; None for no end."""
        at = self._next()
        if at is None or now < at:
            return None if at is None else at - now
        whole = self._wake_at is not None and now >= self._wake_at
        if whole:
            self._wake_at = None
        self._woken_at = now
        with self._lock:
            self._told = True
        (self.wake if whole or self.glance is None else self.glance)()
        return 0.0 if self._wake_at is not None else None
