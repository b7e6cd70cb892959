"""The cache of names, against what any order of events, passes and renames would make of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.node.comms import CommCache, Reading

PIDS = st.sampled_from([10, 20])
TIDS = st.sampled_from([0, 1, 2])
COMMS = st.sampled_from([b"python3", b"acl_thread", b"release_thread", b""])


@dataclass
class Pass:
    """A pass on its way, with the names that it has read so far and how many events each thread had had by then."""

    tgid: int
    reading: Reading
    read: dict[int, bytes] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)


class Names(RuleBasedStateMachine):
    """Threads of two processes, whose names change at any moment, and events of that which come later, in order.

    `count` is how many events a thread has had. What the cache has of a thread was read, and read after its last event.
    """

    @initialize()
    def start(self) -> None:
        self.cache = CommCache()
        self.cache.live = True
        self.names = {(tgid, tgid + n): b"python3" for tgid in (10, 20) for n in range(3)}
        self.count: dict[tuple[int, int], int] = {}
        self.passes: list[Pass] = []
        self.stored: dict[tuple[int, int], int] = {}

    def event(self, tgid: int, tid: int) -> None:
        self.count[tgid, tid] = self.count.get((tgid, tid), 0) + 1

    @rule(tgid=PIDS, n=TIDS, comm=COMMS)
    def rename(self, tgid: int, n: int, comm: bytes) -> None:
        self.names[tgid, tgid + n] = comm
        if self.cache.live:
            self.cache.renamed(tgid, tgid + n, comm)
        self.event(tgid, tgid + n)

    @rule(tgid=PIDS, n=TIDS)
    def bear(self, tgid: int, n: int) -> None:
        self.names[tgid, tgid + n] = b"python3"
        self.cache.born(tgid, tgid + n)
        self.event(tgid, tgid + n)

    @rule(tgid=PIDS, n=st.sampled_from([1, 2]))
    def end(self, tgid: int, n: int) -> None:
        self.names.pop((tgid, tgid + n), None)
        self.cache.ended(tgid, tgid + n)
        self.event(tgid, tgid + n)

    @rule(what=st.sampled_from(["nothing"] * 7 + ["lost", "deaf", "hears", "exec 10", "exec 20"]))
    def lose(self, what: str) -> None:
        """What takes away much at once is rare, or there would never be anything to lose."""
        tgids = [10, 20]
        if what == "lost":
            self.cache.lost()
        elif what.startswith("exec"):
            tgids = [int(what.removeprefix("exec "))]
            self.cache.ended(tgids[0], tgids[0])
        elif what == "nothing" or self.cache.live == (what == "hears"):
            return
        else:
            self.cache.live = what == "hears"
        for tgid in tgids:
            self.end_of_all(tgid)

    def end_of_all(self, tgid: int) -> None:
        for n in range(3):
            self.event(tgid, tgid + n)

    @rule(tgid=PIDS)
    def begin(self, tgid: int) -> None:
        self.passes.append(Pass(tgid, self.cache.begin(tgid)))

    @precondition(lambda self: self.passes)
    @rule(data=st.data(), ns=st.sets(TIDS, min_size=1))
    def read(self, data: st.DataObject, ns: set[int]) -> None:
        at = data.draw(st.sampled_from(self.passes))
        for tid in (at.tgid + n for n in ns):
            if (at.tgid, tid) in self.names:
                at.read[tid] = self.names[at.tgid, tid]
                at.at[tid] = self.count.get((at.tgid, tid), 0)

    @precondition(lambda self: self.passes)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self.passes))
        self.passes.remove(at)
        living = {tid for tgid, tid in self.names if tgid == at.tgid}
        self.cache.end(at.tgid, at.reading, at.read, living)
        for tid, comm in self.kept(at.tgid).items():
            assert tid in living, "the cache is as large as what lives"
            if at.read.get(tid) == comm:
                self.stored[at.tgid, tid] = max(self.stored.get((at.tgid, tid), 0), at.at[tid])

    @rule(tgid=PIDS)
    def forget(self, tgid: int) -> None:
        self.cache.forget(tgid)

    def kept(self, tgid: int) -> dict[int, bytes]:
        """What a pass that began now would not read."""
        reading = self.cache.begin(tgid)
        kept = dict(reading.names)
        self.cache.end(tgid, reading, {}, kept)
        return kept

    @invariant()
    def a_name_that_is_kept_is_never_older_than_the_last_event(self) -> None:
        for tgid in (10, 20):
            kept = self.kept(tgid)
            assert not kept or self.cache.live
            for tid, comm in kept.items():
                assert self.names[tgid, tid] == comm
                assert self.stored[tgid, tid] == self.count.get((tgid, tid), 0)

    @invariant()
    def a_pass_on_its_way_relies_on_no_name_that_changed(self) -> None:
        for at in self.passes:
            for tid, comm in at.reading.names.items():
                assert self.names[at.tgid, tid] == comm
            for tid, count in at.at.items():
                stale = self.count.get((at.tgid, tid), 0) != count
                assert not stale or at.reading.lost or tid in at.reading.changed


TestNames = Names.TestCase
TestNames.settings = settings(max_examples=200, stateful_step_count=40)


def test_a_name_is_read_once_while_every_rename_is_heard_of() -> None:
    cache = CommCache()
    for live, kept in ((False, {}), (True, {11: b"acl_thread"})):
        cache.live = live
        reading = cache.begin(10)
        assert reading.names == {}
        cache.end(10, reading, {11: b"acl_thread"}, {11})
        assert cache.begin(10).names == kept


def test_what_was_read_before_all_renames_were_heard_of_is_not_kept() -> None:
    cache = CommCache()
    reading = cache.begin(10)
    cache.live = True
    cache.end(10, reading, {11: b"python3"}, {11})
    assert cache.begin(10).names == {}


def test_the_end_of_a_process_empties_what_a_pass_on_its_way_relies_on() -> None:
    cache = CommCache()
    cache.live = True
    cache.end(10, cache.begin(10), {10: b"python3"}, {10})
    reading = cache.begin(10)
    assert reading.names
    cache.ended(10, 10)
    assert not reading.names
    cache.end(10, reading, {10: b"python3"}, {10})
    assert cache.begin(10).names == {}


def test_names_from_before_a_time_in_which_nothing_was_heard_are_gone() -> None:
    cache = CommCache()
    cache.live = True
    cache.end(10, cache.begin(10), {10: b"python3"}, {10})
    cache.live = False
    cache.live = True
    assert cache.begin(10).names == {}


def test_what_one_pass_read_before_events_were_lost_is_not_for_another() -> None:
    cache = CommCache()
    cache.live = True
    one, other = cache.begin(10), cache.begin(10)
    cache.lost()
    cache.end(10, one, {10: b"python3"}, {10})
    assert other.names == {}


def test_only_names_of_threads_that_are_listed_are_kept() -> None:
    cache = CommCache()
    cache.live = True
    cache.end(10, cache.begin(10), {10: b"a", 11: b"b", 12: b"c"}, {10, 11})
    assert cache.begin(10).names == {10: b"a", 11: b"b"}
    cache.end(10, cache.begin(10), {}, {10})
    assert cache.begin(10).names == {10: b"a"}


def test_nothing_is_kept_of_processes_that_nobody_looks_at() -> None:
    cache = CommCache()
    cache.live = True
    for pid in range(1000):
        cache.born(pid, pid + 1)
        cache.renamed(pid, pid + 1, b"name")
        cache.end(pid, cache.begin(pid), {pid: b"name"}, {pid})
        cache.forget(pid)
    assert (cache._names, cache._readings) == ({}, {})
