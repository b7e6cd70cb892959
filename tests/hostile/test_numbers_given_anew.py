"""A pod ends a thread and has its number given to another process at the worst moment: nobody else's mask changes.

The moment is the one just before the system call, where no check can come between any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.control.confine import Confiner
from agent.control.confinement import Confinement
from agent.control.placing import Placer
from agent.control.uvb import Uvb
from agent.control.watchlist import Watched, WatchList
from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.workload import ProcessId
from agent.node.cgroups import CgroupTree
from agent.node.procfs import ProcFs
from agent.node.threads import ThreadBinder
from agent.node.uvb import NAME, of_the_host
from tests.host.alone import one_at_a_time
from tests.host.support import ALL, APART, ON_A, ON_B, A, B, CountingHost, identity, mask, two_cpus
from tests.hostile.numbers import ended_after, start_as

PROC = Path("/proc")

pytestmark = [two_cpus, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to choose a process's number")]


@pytest.fixture(autouse=True)
def numbers() -> Iterator[None]:
    """No other test has the kernel give a number again meanwhile."""
    with one_at_a_time("pid"):
        yield


@pytest.fixture
def worker() -> Iterator[StandIn]:
    with StandIn("--threads", "4", "--acl", "--release") as worker:
        yield worker


@pytest.fixture
def host() -> CountingHost:
    return CountingHost()


@pytest.fixture
def binder(host: CountingHost) -> ThreadBinder:
    return ThreadBinder(PROC, host)


def swap_at_write(host: CountingHost, tid: int, end: Callable[[], object]) -> None:
    """Just before the mask of this thread is first written `end` ends it, and a stranger gets its number."""

    def swap(writing: int) -> None:
        if writing == tid and tid not in host.written:
            end()
            start_as(tid)

    host.before_write = swap


@pytest.mark.parametrize("noted", [False, True], ids=["listed", "noted"])
def test_a_process_with_the_number_of_an_ended_thread_keeps_its_mask(
    worker: StandIn, host: CountingHost, binder: ThreadBinder, noted: bool
) -> None:
    tid = worker.threads["worker"][1]
    with ended_after(tid):
        if noted:
            binder.masks(identity(worker.pid), cpuset=ALL, online=ALL)
        swap_at_write(host, tid, lambda: worker.end(tid))
        outcome = binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ALL, first=True)
        assert host.written.count(tid) >= 1, "it was not written"
        assert mask(tid) == set(ALL)
        assert outcome.state == "Bound"
        assert {frozenset(mask(other)) for other in worker.threads["acl_thread"]} == {frozenset({B})}


def test_a_process_with_the_number_of_an_ended_worker_keeps_its_mask(
    worker: StandIn, host: CountingHost, binder: ThreadBinder
) -> None:
    process = identity(worker.pid)
    with ended_after(worker.pid):
        swap_at_write(host, worker.pid, worker.kill)
        outcome = binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
        assert mask(worker.pid) == set(ALL)
        assert outcome.problem is not None
        assert outcome.problem.reason == "ProcessGone"
        host.written.clear()
        binder.bind(process, APART, cpuset=ALL, online=ALL, first=True)
        assert host.written == []


def test_a_stranger_that_began_with_a_narrow_mask_has_that_again(
    worker: StandIn, host: CountingHost, binder: ThreadBinder
) -> None:
    tid = worker.threads["worker"][1]
    with ended_after(tid), on({B}):
        swap_at_write(host, tid, lambda: worker.end(tid))
        binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ALL, first=True)
        assert mask(tid) == {B}


def test_a_release_gives_nothing_to_a_process_with_the_number_of_an_ended_thread(
    worker: StandIn, host: CountingHost, binder: ThreadBinder
) -> None:
    binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ALL, first=True)
    host.written.clear()
    tid = worker.threads["worker"][1]
    with ended_after(tid), on({B}):
        swap_at_write(host, tid, lambda: worker.end(tid))
        binder.release(identity(worker.pid), pool=ALL, online=ALL)
        assert host.written.count(tid) >= 1, "it was not written"
        assert mask(tid) == {B}
    assert mask(worker.pid) == set(ALL)


def test_what_is_left_of_a_container_is_freed_and_nobody_who_got_a_number_of_it(
    worker: StandIn, host: CountingHost, binder: ThreadBinder
) -> None:
    tid = worker.threads["worker"][1]
    for other in worker.threads["worker"]:
        os.sched_setaffinity(other, {A})
    with ended_after(tid), on({B}):
        swap_at_write(host, tid, lambda: worker.end(tid))
        binder.release_all([identity(worker.pid)], pool=ON_A, online=ALL)
        assert tid in host.written, "it was not written"
        assert mask(tid) == {B}
    assert all(mask(other) == set(ALL) for other in worker.threads["worker"] if other != tid)


def test_a_helper_whose_number_went_to_a_stranger_is_not_confined(host: CountingHost) -> None:
    with StandIn("--threads", "3") as helper:
        tid = helper.threads["worker"][1]
        key = "container"

        class Here(CgroupTree):
            """Every process is in that container, which this machine has not."""

            def identity(self, pid: int) -> object:  # type: ignore[override]
                return type("Identity", (), {"runtime": True, "key": key})()

        confiner = Confiner(PROC, host, Here(Path("/")))
        ask = Confinement(frozenset({key}), {key: [identity(helper.pid)]}, (), ON_A, ALL)
        with ended_after(tid):
            confiner.survey(ask)
            swap_at_write(host, tid, lambda: helper.end(tid))
            confiner.act(ask)
            assert tid in host.written, "it was not written"
            assert mask(tid) == set(ALL)
        assert mask(helper.pid) == set(ALL) - {A}


class Heard:
    """A placer that watches one worker."""

    def __init__(self, process: ProcessId, host: CountingHost) -> None:
        self.watched = WatchList()
        self.watched.heard = True
        self.watched.publish([Watched(process, APART, ALL, ALL)])
        self.watch = self.watched.watches[process.pid]
        self.placer = Placer(ProcFs(Path("/")), host, self.watched)

    def renamed(self, tid: int) -> None:
        """An event says that this thread is an ACL thread."""
        self.placer.place(self.watch, tid, b"acl_thread", time.monotonic_ns(), time.monotonic())


def test_an_old_event_moves_nobody_who_has_the_number_now(worker: StandIn, host: CountingHost) -> None:
    heard = Heard(identity(worker.pid), host)
    tid = worker.threads["worker"][1]
    with ended_after(tid):
        worker.end(tid)
        start_as(tid)
        heard.renamed(tid)
        heard.placer.process_born(heard.watch, tid)
        assert (host.written, mask(tid)) == ([], set(ALL))


def test_an_old_event_of_an_ended_worker_moves_nobody_who_has_its_number_now(
    worker: StandIn, host: CountingHost
) -> None:
    heard = Heard(identity(worker.pid), host)
    with ended_after(worker.pid):
        worker.kill()
        time.sleep(0.02)  # start times are told in hundredths of a second
        start_as(worker.pid)
        heard.renamed(worker.pid)
        assert (host.written, mask(worker.pid)) == ([], set(ALL))


def test_whoever_gets_the_number_while_an_event_is_acted_on_keeps_his_mask(worker: StandIn, host: CountingHost) -> None:
    heard = Heard(identity(worker.pid), host)
    tid = worker.threads["worker"][1]
    with ended_after(tid):
        swap_at_write(host, tid, lambda: worker.end(tid))
        heard.renamed(tid)
        assert tid in host.written, "it was not written"
        assert mask(tid) == set(ALL)


@pytest.mark.skipif(
    not of_the_host(Path("/proc/self/cgroup").read_text(), CgroupTree(Path("/")).own),
    reason="needs a process of the host itself",
)
@pytest.mark.parametrize("at", ["between", "write"])
def test_whoever_has_the_number_of_an_ended_uvb_thread_keeps_his_mask(host: CountingHost, at: str) -> None:
    with one_at_a_time("uvb"), StandIn("--threads", "1") as service:
        (tid,) = service.spawn(NAME)
        uvb = Uvb(Path("/"), host)
        with ended_after(tid):
            uvb.survey(ON_B, ALL)
            assert [entry.thread.tid for entry in uvb.taken] == [tid]
            if at == "between":
                service.end(tid)
                time.sleep(0.02)
                start_as(tid)
            else:
                swap_at_write(host, tid, lambda: service.end(tid))
            uvb.act(ON_B, ALL)
            assert (tid in host.written) is (at == "write")
            assert mask(tid) == set(ALL)
            assert uvb.taken == ()


class on:  # noqa: N801 - reads as what it does
    """The thread of the test, and what it starts, on these CPUs."""

    def __init__(self, cpus: set[int]) -> None:
        self._cpus = CpuSet(cpus)

    def __enter__(self) -> None:
        os.sched_setaffinity(0, self._cpus)

    def __exit__(self, *_: object) -> None:
        os.sched_setaffinity(0, ALL)
