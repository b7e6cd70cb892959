"""Events of processes as a test makes them up, and who hears them."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

from agent.control.events import Events
from agent.model.reason import Reason, Refused
from agent.node.proc_events import Batch
from agent.node.proc_messages import COMM, EXEC, EXIT, FORK, Event
from agent.node.procfs import ProcFs
from tests.control.rig import Rig, wait_until

NOTHING = bytes(16)


def named(tgid: int, tid: int, comm: str) -> Event:
    return (COMM, time.monotonic_ns(), tid, tgid, comm.encode().ljust(16, b"\0"))


def thread_born(tgid: int, tid: int) -> Event:
    return (FORK, time.monotonic_ns(), 1, 1, struct.pack("=ii8x", tid, tgid))


def forked(parent: int, pid: int) -> Event:
    return (FORK, time.monotonic_ns(), parent, parent, struct.pack("=ii8x", pid, pid))


def ended(tgid: int, tid: int = 0) -> Event:
    return (EXIT, time.monotonic_ns(), tid or tgid, tgid, NOTHING)


def executed(tgid: int) -> Event:
    return (EXEC, time.monotonic_ns(), tgid, tgid, NOTHING)


class FakeStream:
    """A stream of what is `told`."""

    def __init__(self) -> None:
        self._batches: deque[Batch | Exception] = deque()
        self._changed = threading.Condition()
        self._asked = False
        self._alarmed = False
        self.closed = False
        self.focused: tuple[set[int], set[int], set[int]] = (set(), set(), set())

    def tell(self, *events: Event, lost: bool = False) -> None:
        """These events happen; returns once they were heard."""
        self._put(Batch(list(events), lost))

    def break_off(self, error: Exception) -> None:
        """Nothing is to be read any more."""
        with self._changed:
            self._batches.append(error)
            self._changed.notify_all()

    def _put(self, batch: Batch) -> None:
        with self._changed:
            self._batches.append(batch)
            self._changed.notify_all()
            # Whoever asks for more is through with what he was given.
            assert self._changed.wait_for(lambda: (not self._batches and self._asked) or self.closed, 10)

    def wait(self, seconds: float | None) -> None:
        with self._changed:
            self._asked = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._batches) or self._alarmed, seconds)
            self._asked = self._alarmed = False

    def take(self) -> Batch:
        with self._changed:
            batch = self._batches.popleft() if self._batches else Batch([], False)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def focus(self, near: Collection[int], family: Collection[int], quiet: Collection[int]) -> None:
        self.focused = (set(near), set(family), set(quiet))

    def interrupt(self) -> None:
        with self._changed:
            self._alarmed = True
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class Notebook:
    """Takes down what whoever remembers names of threads is told."""

    def __init__(self) -> None:
        self.live = False
        self.deaf: frozenset[int] = frozenset()
        self.told: list[tuple[object, ...]] = []

    def renamed(self, tgid: int, tid: int, comm: bytes) -> None:
        self.told.append(("renamed", tgid, tid, comm))

    def born(self, tgid: int, tid: int) -> None:
        self.told.append(("born", tgid, tid))

    def ended(self, tgid: int, tid: int) -> None:
        self.told.append(("ended", tgid, tid))

    def lost(self) -> None:
        self.told.append(("lost",))


class Ears:
    """Hears of what a rig's node is said to do. `streams` are handed out one after the other; without one there are no
    events to be had."""

    def __init__(self, rig: Rig, streams: int = 1) -> None:
        self.rig = rig
        self.streams = [FakeStream() for _ in range(streams)]
        self._left = list(self.streams)
        self.comms = Notebook()
        self.woken = threading.Event()
        actor = rig.agent.parts.actor
        self.events = Events(self._listen, ProcFs(rig.node.root), rig.node.kernel, actor.watched, comms=self.comms)
        self.events.wake = self.woken.set
        self.watched = actor.watched
        rig.agent.parts = replace(rig.agent.parts, news=self.events)

    @property
    def stream(self) -> FakeStream:
        return self.streams[len(self.streams) - len(self._left) - 1]

    def _listen(self) -> FakeStream:
        if not self._left:
            raise Refused(Reason.EVENTS_UNAVAILABLE, "none here")
        return self._left.pop(0)

    def pids(self) -> set[int]:
        return set(self.watched.watches)


@contextmanager
def ears_of(rig: Rig, streams: int = 1) -> Iterator[Ears]:
    ears = Ears(rig, streams)
    with ears.events:
        wait_until(lambda: ears.events.up or ears.events.problem() is not None)
        yield ears
