"""Names and listings of threads: what is asked of the kernel otherwise than through files, and what is kept."""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.outcome import WorkerOutcome
from agent.model.reason import Reason
from agent.node.comms import CommCache
from agent.node.listing import Listing, parse
from agent.node.taskdir import TaskDir
from agent.node.taskstats import BATCH, TaskStats
from agent.node.threads import ThreadBinder
from tests.host.alone import LAST_PID, next_pid, one_at_a_time
from tests.host.support import ALL, APART, ON_A, ON_B, A, B, CountingHost, identity, mask, tids, two_cpus


@pytest.fixture
def worker() -> Iterator[StandIn]:
    with StandIn("--threads", "4", "--acl", "--release") as worker:
        yield worker


@pytest.fixture
def numbers() -> Iterator[None]:
    """No other test has the kernel give a number again meanwhile."""
    with one_at_a_time("pid"):
        yield


@pytest.fixture
def tasks(worker: StandIn) -> Iterator[TaskDir]:
    tasks = TaskDir.open("/proc", worker.pid)
    assert tasks is not None
    with tasks:
        yield tasks


# Listings


def test_a_listing_has_every_thread_with_the_inode_of_its_folder(tasks: TaskDir) -> None:
    folder = Path(f"/proc/{tasks.pid}/task")
    assert tasks.entries() == {tid: (folder / str(tid)).stat().st_ino for tid in tids(tasks.pid)}


def test_a_listing_is_the_same_one_until_something_changes(tasks: TaskDir, worker: StandIn) -> None:
    before = tasks.entries()
    assert tasks.entries() is before
    (tid,) = worker.spawn("late")
    assert list(tasks.entries()) == [*before, tid]
    worker.end(tid)
    assert tasks.entries() == before


@pytest.mark.parametrize("born", [0, 1, 3])
@pytest.mark.parametrize("ended", [(), (0,), (2,), (0, 1, 2)])
def test_another_look_finds_all_that_came_and_went(
    tasks: TaskDir, worker: StandIn, born: int, ended: tuple[int, ...]
) -> None:
    victims = worker.spawn("victim", 3)
    for _ in range(40):
        before = tasks.entries()
        worker.end(*(victims[n] for n in ended))
        late = worker.spawn("late", born)
        after = tasks.entries()
        assert list(after) == list(map(int, os.listdir(f"/proc/{tasks.pid}/task")))
        assert (after is before) == (not born and not ended)
        for n, tid in zip(ended, worker.spawn("victim", len(ended)), strict=True):
            victims[n] = tid
        worker.end(*late)


def test_while_threads_come_and_go_each_look_finds_those_that_stay() -> None:
    with StandIn("--threads", "20", "--churn", "1000") as worker:
        tasks = TaskDir.open("/proc", worker.pid)
        assert tasks is not None
        with tasks:
            stay = {worker.pid, *worker.threads["worker"]}
            seen: set[int] = set()
            end = time.monotonic() + 1
            while time.monotonic() < end:
                found = tasks.entries().keys()
                assert stay <= found
                seen |= found
            assert len(seen) > 100, "and many of the others"


def test_a_listing_larger_than_its_buffer_is_read_whole() -> None:
    with StandIn("--threads", "1500") as worker:
        tasks = TaskDir.open("/proc", worker.pid)
        assert tasks is not None
        with tasks:
            assert sorted(tasks.entries()) == sorted(tids(worker.pid))


@pytest.mark.usefixtures("numbers")
def test_a_thread_that_got_the_number_of_another_has_another_inode(tasks: TaskDir, worker: StandIn) -> None:
    (tid,) = worker.spawn("first")
    before = tasks.entries()[tid]
    worker.end(tid)
    spawn_as(worker, "second", tid)
    assert tasks.entries()[tid] != before


def spawn_as(worker: StandIn, name: str, tid: int) -> None:
    """Has the kernel give a new thread this number."""
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip(f"needs {LAST_PID} (CONFIG_CHECKPOINT_RESTORE), and the right to write it")
    for _ in range(100):
        with next_pid(tid):
            (got,) = worker.spawn(name)
        if got == tid:
            return
        worker.end(got)
    pytest.skip("others take the number all the time")


def test_where_the_number_of_the_call_is_not_known_the_listing_is_the_same(tasks: TaskDir) -> None:
    listing = Listing(os.open(f"/proc/{tasks.pid}/task", os.O_RDONLY | os.O_DIRECTORY), architecture="sparc64")
    try:
        assert listing.read() == tasks.entries()
        assert listing.read() is listing.read()
    finally:
        os.close(listing._fd)


def entry(name: bytes, inode: int) -> bytes:
    """A struct linux_dirent64, as the kernel lays it out."""
    length = (19 + len(name) + 1 + 7) & ~7
    return (struct.pack("=QqHB", inode, 1, length, 4) + name).ljust(length, b"\0")


NAMES = st.one_of(st.integers(1, 1 << 22).map(str), st.sampled_from(["self", "12a45", "x", "-1"]))


@given(st.dictionaries(NAMES, st.integers(1, 1 << 63)), st.booleans())
def test_a_listing_is_read_whatever_the_length_of_its_names(entries: dict[str, int], dots: bool) -> None:
    content = b"".join(entry(name.encode(), inode) for name, inode in entries.items())
    if dots:
        content = entry(b".", 7) + entry(b"..", 8) + content
    assert parse(content)[0] == {int(name): inode for name, inode in entries.items() if name.isdecimal()}


def test_a_process_of_which_only_a_zombie_is_left_has_no_threads(tasks: TaskDir, worker: StandIn) -> None:
    assert tasks.alive()
    worker.kill(reap=False)
    for _ in range(1000):
        if not tasks.entries():
            break
        time.sleep(0.005)
    assert Path(f"/proc/{worker.pid}/task/{worker.pid}").exists()
    assert (tasks.entries(), tasks.alive()) == ({}, False)
    worker.kill()
    assert (tasks.entries(), tasks.alive()) == ({}, False)


# Names by taskstats


@pytest.fixture
def stats() -> TaskStats:
    stats = TaskStats()
    if stats.names([os.getpid()]) is None:
        pytest.skip("needs taskstats: CONFIG_TASKSTATS and CAP_NET_ADMIN")
    return stats


@pytest.mark.parametrize("count", [1, BATCH - 1, BATCH, 3 * BATCH + 1])
def test_the_kernel_tells_the_same_names_as_the_files(stats: TaskStats, count: int) -> None:
    with StandIn("--threads", str(count), "--acl") as worker:
        worker.spawn("\xff\xfe\x80")
        worker.spawn("two\nlines\n")
        worker.spawn("")
        tasks = TaskDir.open("/proc", worker.pid)
        assert tasks is not None
        with tasks:
            tids = list(tasks.entries())
            assert stats.names(tids) == tasks.comms(tids) == [tasks.comm(str(tid)) for tid in tids]


def test_a_thread_that_ended_has_no_name_and_the_others_have_theirs(stats: TaskStats, worker: StandIn) -> None:
    gone, *rest = worker.spawn("name", 3)
    worker.end(gone)
    assert stats.names([rest[0], gone, rest[1]]) == [b"name", None, b"name"]
    assert stats.names([gone]) == [None]
    assert stats.names([]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_without_the_right_the_files_are_read(worker: StandIn, tasks: TaskDir) -> None:
    stats = TaskStats()
    os.seteuid(65534)
    try:
        assert stats.names(tids(worker.pid)) is None
        assert tasks.comms(worker.threads["acl_thread"]) == [b"acl_thread"]
    finally:
        os.seteuid(0)


def test_names_that_are_not_told_are_read_from_their_files(worker: StandIn) -> None:
    host = CountingHost()
    host.names = lambda tids: [None, *([b"not so"] * (len(tids) - 1))]  # type: ignore[method-assign]
    outcome = ThreadBinder(Path("/proc"), host).bind(
        identity(worker.pid), APART, cpuset=ALL, online=ALL, rules=(), first=True
    )
    assert outcome.written == 7


# Names that are kept


class Sweep:
    """A binder that keeps names, and what it reads."""

    def __init__(self, worker: StandIn) -> None:
        self.worker = worker
        self.comms = CommCache()
        self.comms.live = True
        self.host = CountingHost()
        self.asked: list[int] = []
        self.host.names = self._names  # type: ignore[method-assign]
        self.binder = ThreadBinder(Path("/proc"), self.host, self.comms)

    def _names(self, tids: Sequence[int]) -> None:
        self.asked += tids

    def look(self, *, first: bool = False) -> tuple[WorkerOutcome, list[int]]:
        """One pass, and the threads whose names it read."""
        self.asked.clear()
        outcome = self.binder.bind(identity(self.worker.pid), APART, cpuset=ALL, online=ALL, first=first)
        return outcome, sorted(self.asked)


@pytest.fixture
def sweep(worker: StandIn) -> Sweep:
    """After two passes: names are kept of threads that an earlier pass had listed."""
    sweep = Sweep(worker)
    everyone = sorted(tids(worker.pid))
    assert [sweep.look(first=True)[1], sweep.look()[1]] == [everyone, everyone]
    return sweep


@two_cpus
def test_names_are_not_read_again_while_renames_are_heard_of(sweep: Sweep) -> None:
    outcome, read = sweep.look()
    assert (outcome.state, outcome.written, read) == ("Bound", 0, [])


@two_cpus
def test_where_renames_are_not_heard_of_every_pass_reads_every_name(sweep: Sweep, worker: StandIn) -> None:
    sweep.comms.live = False
    for _ in range(3):
        assert sweep.look()[1] == sorted(tids(worker.pid))
    (tid,) = worker.threads["worker"][:1]
    worker.rename(tid, "acl_thread")
    sweep.look()
    assert mask(tid) == {B}


@two_cpus
def test_a_thread_of_which_an_event_came_is_read_again_and_no_other(sweep: Sweep, worker: StandIn) -> None:
    tid = worker.threads["worker"][0]
    worker.rename(tid, "acl_thread")
    sweep.comms.renamed(worker.pid, tid, b"acl_thread")
    assert sweep.look()[1] == [tid]
    assert mask(tid) == {B}
    assert sweep.look()[1] == []


@two_cpus
def test_the_name_of_a_new_thread_is_kept_from_the_second_pass_on(sweep: Sweep, worker: StandIn) -> None:
    """The kernel names threads of its own making, such as those of io_uring, without an event, but at once."""
    (tid,) = worker.spawn("early")
    assert [sweep.look()[1] for _ in range(3)] == [[tid], [tid], []]


@two_cpus
@pytest.mark.usefixtures("numbers")
def test_a_number_that_was_given_anew_is_noticed_without_an_event(sweep: Sweep, worker: StandIn) -> None:
    tid = worker.threads["worker"][0]
    worker.end(tid)
    spawn_as(worker, "acl_thread", tid)
    os.sched_setaffinity(tid, ALL)
    assert tid in sweep.look()[1]
    assert mask(tid) == {B}


@two_cpus
def test_a_thread_that_is_renamed_while_it_is_written_ends_where_its_new_name_says(worker: StandIn) -> None:
    sweep = Sweep(worker)
    tid = worker.threads["worker"][2]

    def rename(writing: int) -> None:
        """Whoever hears of events pins the thread at once, just before the pass writes by the old name."""
        if writing == tid and not renamed:
            renamed.append(tid)
            worker.rename(tid, "acl_thread")
            sweep.comms.renamed(worker.pid, tid, b"acl_thread")
            os.sched_setaffinity(tid, {B})

    renamed: list[int] = []
    sweep.host.before_write = rename
    outcome, _ = sweep.look(first=True)
    assert mask(tid) == {B}
    assert outcome.written == 7, "it counts once"


@two_cpus
def test_a_thread_that_renames_itself_all_the_time_keeps_no_pass_from_its_end(worker: StandIn) -> None:
    sweep = Sweep(worker)
    tid = worker.threads["worker"][2]
    sweep.host.before_write = lambda writing: sweep.comms.renamed(worker.pid, tid, b"x")
    outcome, _ = sweep.look(first=True)
    assert (outcome.state, outcome.written) == ("Bound", 7)


# The noted masks


@two_cpus
def test_what_was_noted_just_before_is_not_asked_for_again(worker: StandIn) -> None:
    host = CountingHost()
    binder = ThreadBinder(Path("/proc"), host)
    process = identity(worker.pid)
    acl = worker.threads["acl_thread"][0]
    os.sched_setaffinity(acl, {B})
    binder.masks(process, cpuset=ALL, online=ALL)
    host.read.clear()
    late: list[int] = []
    host.before_write = lambda tid: None if late else late.extend(worker.spawn("release_thread"))
    outcome = binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
    assert (outcome.state, outcome.written) == ("Bound", 7)
    assert sorted(host.read) == sorted([acl, *late]), "what seemed to be in place, and what is new"
    assert {tid: mask(tid) for tid in (acl, *late)} == {acl: {B}, late[0]: {B}}


@two_cpus
def test_what_was_noted_long_ago_is_asked_for_again(worker: StandIn) -> None:
    host = CountingHost()
    binder = ThreadBinder(Path("/proc"), host)
    process = identity(worker.pid)
    binder.masks(process, cpuset=ALL, online=ALL)
    time.sleep(0.15)
    host.read.clear()
    binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
    assert sorted(host.read) == sorted(tids(worker.pid))


# Folders that are kept open


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@two_cpus
def test_a_folder_is_open_for_as_long_as_its_process_is_of_interest(worker: StandIn) -> None:
    binder = ThreadBinder(Path("/proc"), CountingHost())
    process = identity(worker.pid)
    binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
    open_now = descriptors()
    for _ in range(3):
        binder.bind(process, APART, cpuset=ALL, online=ALL, first=False)
        binder.check(process, APART, cpuset=ALL, online=ALL)
        assert binder.lives(process)
    binder.retain([process])
    assert descriptors() == open_now
    binder.retain([])
    assert descriptors() == open_now - 1
    binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
    worker.kill()
    outcome = binder.bind(process, APART, cpuset=ALL, online=ALL, first=False)
    assert outcome.problem is not None
    assert outcome.problem.reason is Reason.PROCESS_GONE
    assert not binder.lives(process)
    assert descriptors() == open_now - 1


@two_cpus
def test_where_no_more_files_can_be_opened_folders_that_are_kept_are_closed() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        workers = [stack.enter_context(StandIn("--threads", "40", "--acl")) for _ in range(4)]
        binder = ThreadBinder(Path("/proc"), CountingHost())
        for worker in workers[:3]:
            binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ALL, first=True)
        process = identity(workers[3].pid)
        spare = os.open("/dev/null", os.O_RDONLY)
        stack.callback(os.close, spare)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        try:
            while True:
                stack.callback(os.close, os.dup(spare))
        except OSError:
            outcome = binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
            again = binder.bind(identity(workers[0].pid), APART, cpuset=ALL, online=ALL, first=False)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert (outcome.state, outcome.written) == ("Bound", 42), outcome.problem
        assert (again.state, again.written) == ("Bound", 0)


def test_masks_of_many_threads_are_those_of_each(worker: StandIn) -> None:
    for host in (CountingHost(), CountingHost(512)):
        first, second, *_ = everyone = tids(worker.pid)
        os.sched_setaffinity(first, {A})
        os.sched_setaffinity(second, {B})
        gone = worker.spawn("short")[0]
        worker.end(gone)
        masks = host.get_masks([*everyone, gone, *everyone * 60])
        assert masks[len(everyone)] == -3, "ESRCH"
        del masks[len(everyone)]
        assert list(map(CpuSet.from_bits, masks)) == [host.get_affinity(tid) for tid in everyone] * 61
        assert masks[:2] == [ON_A.bits, ON_B.bits]
