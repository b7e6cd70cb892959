"""The names of threads, kept from pass to pass for as long as whoever hears of every change says so.

A name is believed only while every rename would be heard of (`CommCache.live`), and for that very thread. Three things
guard it:

* An event for a thread drops its name; nothing is taken from the event itself. Two who rename a thread at once are told
  of in any order (the kernel makes the event after it has let go of the name), so that the name in the last event may
  be the older one. The next pass reads what holds.
* A name that was read before an event came is not kept after it: `Reading.changed`.
* Some threads are born without an event, and named without one: those that io_uring and vhost make (create_io_thread
  and vhost_task_create do not pass the process connector). They name themselves first of all. So a name is kept only
  if it was read of a thread that an earlier pass had listed already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import Lock


class Reading:
    """One pass over the threads of a process: what was known when it began, and what was heard since."""

    __slots__ = ("changed", "lost", "names")

    def __init__(self, names: dict[int, bytes], *, lost: bool) -> None:
        self.names = names
        """Tid -> name. An event may take one out at any moment; what is in it has not changed until now."""
        self.changed: set[int] = set()
        """Threads of which an event came since: names read before are not to be relied upon."""
        self.lost = lost
        """Nothing that this pass reads can be kept."""


class CommCache:
    """Names of threads by (tgid, tid). Its methods may be called from any Python thread.

    Whoever hears of events calls `renamed`, `born`, `ended` and `lost` in the order in which they came, and each before
    it acts on the event itself: a pass that is about to write by the old name then sees that it is one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._live = False
        self.deaf: frozenset[int] = frozenset()
        """Processes whose renames are not heard of: of these every pass reads all names. Whoever changes it
        calls `ended` after that, for each that came or went."""
        self._names: dict[int, dict[int, bytes]] = {}
        self._readings: dict[int, list[Reading]] = {}

    @property
    def live(self) -> bool:
        """Whether every rename, birth and end is heard of from now on. While it is False every pass reads all names."""
        return self._live

    @live.setter
    def live(self, live: bool) -> None:
        with self._lock:
            if live != self._live:
                self._live = live
                self._drop_all()

    def renamed(self, tgid: int, tid: int, comm: bytes) -> None:  # noqa: ARG002 - see above: it may be the older name
        """A thread has another name."""
        self._changed(tgid, tid)

    def born(self, tgid: int, tid: int) -> None:
        """A thread began; it has the name of the one that made it."""
        self._changed(tgid, tid)

    def ended(self, tgid: int, tid: int) -> None:
        """A thread ended. `tid` = `tgid`: the process did, or became another program (exec), or its main thread ended
        before the others."""
        with self._lock:
            if tid != tgid:
                self._drop(tgid, tid)
                return
            self._names.pop(tgid, {}).clear()
            for reading in self._readings.get(tgid, ()):
                reading.lost = True

    def lost(self) -> None:
        """Events were lost, or come no more."""
        with self._lock:
            self._drop_all()

    def begin(self, tgid: int) -> Reading:
        """Begins a pass, which must be given to `end`."""
        with self._lock:
            live = self._live and tgid not in self.deaf
            names = self._names.setdefault(tgid, {}) if live else {}
            reading = Reading(names, lost=not live)
            self._readings.setdefault(tgid, []).append(reading)
            return reading

    def end(self, tgid: int, reading: Reading, read: Mapping[int, bytes], living: Collection[int]) -> None:
        """Ends it. Keeps the names that were `read`, but those that may be old by now, of threads among the `living`;
        those of all others are dropped."""
        with self._lock:
            readings = self._readings[tgid]
            readings.remove(reading)
            if not readings:
                del self._readings[tgid]
            if reading.lost:
                return
            names = reading.names
            for tid in names.keys() - living:
                del names[tid]
            names.update((tid, comm) for tid, comm in read.items() if tid in living and tid not in reading.changed)

    def forget(self, tgid: int) -> None:
        """Drops the names of a process that is of no interest any more."""
        with self._lock:
            if tgid not in self._readings:
                self._names.pop(tgid, None)

    def _changed(self, tgid: int, tid: int) -> None:
        with self._lock:
            self._drop(tgid, tid)

    def _drop(self, tgid: int, tid: int) -> None:
        names = self._names.get(tgid)
        if names is not None:
            names.pop(tid, None)
        for reading in self._readings.get(tgid, ()):
            reading.changed.add(tid)

    def _drop_all(self) -> None:
        # Emptied, and not just let go: passes that have begun look into them.
        for names in self._names.values():
            names.clear()
        self._names = {}
        for readings in self._readings.values():
            for reading in readings:
                reading.lost = True
