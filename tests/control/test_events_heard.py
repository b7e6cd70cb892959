"""What is made of the kernel's events, and that nothing of it ever ends the hearing."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.control.news import News
from agent.control.watchlist import Watched
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.workload import ProcessId
from agent.node.proc_messages import COMM, EXEC, EXIT, FORK, Event
from tests.control.hearing import ears_of, ended, executed, forked, named, thread_born
from tests.control.rig import Rig, wait_until


def start(tmp_path: Path) -> tuple[Rig, Worker]:
    rig = Rig(tmp_path, "a2")
    worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"), threads=3)
    worker.add_role_threads()
    rig.settle()
    return rig, worker


def test_names_births_and_ends_of_all_are_passed_on_in_order(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        ears.stream.tell()
        # What was read of a worker's names before everything was heard of it is not sure.
        assert ears.comms.told == [("lost",), ("ended", worker.pid, worker.pid)]
        ears.comms.told.clear()
        ears.stream.tell(thread_born(7, 8), named(7, 8, "a name"), ended(7, 8), executed(7), forked(7, 9), ended(7))
        assert ears.comms.told == [
            ("born", 7, 8),
            ("renamed", 7, 8, b"a name"),
            ("ended", 7, 8),
            ("ended", 7, 7),  # another program: its names are others
            ("ended", 7, 7),
        ]
        ears.comms.told.clear()
        ears.stream.tell(lost=True)
        assert ears.comms.told == [("lost",)]
        heard = ears.comms.live
    assert (heard, ears.comms.live) == (True, False)
    assert ears.comms.told[-1] == ("lost",)


def test_the_first_news_are_that_nothing_is_known(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    with ears_of(rig) as ears:
        wait_until(ears.woken.is_set)
        assert ears.events.take().lost
        assert ears.events.take() == News()


def test_lost_events_empty_the_list_until_a_pass_has_looked(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        rig.sweep()
        ears.events.take()
        ears.woken.clear()
        [task] = worker.grow(1)
        writes = rig.writes()
        ears.stream.tell(named(worker.pid, task.tid, "acl_thread"), lost=True)
        assert rig.writes() == writes, "it may be another process by now"
        wait_until(ears.woken.is_set)
        assert ears.events.take().lost
        rig.node.kernel.rename(task.tid, "acl_thread")
        rig.sweep()
        assert str(task.mask) == rig.npu(0)["roles"]["acl"]
        assert ears.pids() == {worker.pid}


def test_a_stream_that_breaks_off_is_opened_again_and_everything_looked_at(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig, streams=2) as ears:
        rig.sweep()
        ears.events.take()
        first = ears.stream
        first.break_off(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        wait_until(lambda: first.closed)
        wait_until(lambda: ears.stream is not first and ears.events.up)
        assert ears.events.problem() is None
        assert not ears.pids()
        assert ears.events.take().lost
        rig.sweep()
        assert ears.pids() == {worker.pid}


def test_where_there_are_no_events_the_plan_says_so_and_everything_else_goes_on(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig, streams=0) as ears:
        wait_until(ears.woken.is_set)
        assert not ears.events.up
        [task] = worker.grow(1, "acl_thread")
        rig.sweep()
        assert rig.condition("Degraded")["reason"] == Reason.EVENTS_UNAVAILABLE
        assert rig.condition("Ready")["status"] == "True"
        assert str(task.mask) == rig.npu(0)["roles"]["acl"]
        rig.ask(mode="DryRun")
        rig.sweep()
        assert rig.condition("Degraded")["status"] == "False", "nobody needs them"


def test_without_anybody_who_hears_nothing_is_missing(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    assert rig.condition("Degraded")["status"] == "False"


def test_a_number_that_is_given_to_another_process_is_not_the_workers_any_more(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        rig.sweep()
        ears.stream.tell(forked(1, worker.pid))
        assert not ears.pids()


def test_the_fault_of_a_host_call_is_said_once_and_the_next_event_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        rig.sweep()
        ears.events.take()
        [task] = worker.grow(1)

        def broken(_tid: int) -> CpuSet:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patch:
            patch.setattr(rig.node.kernel, "get_affinity", broken)
            for _ in range(3):
                ears.stream.tell(named(worker.pid, task.tid, "acl_thread"))
        assert ears.events.take().lost
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
        rig.sweep()
        ears.stream.tell(named(worker.pid, task.tid, "acl_thread"))
        assert str(task.mask) == rig.npu(0)["roles"]["acl"]


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EPERM, errno.EINVAL])
def test_what_the_kernel_refuses_is_left_to_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        rig.sweep()
        wait_until(ears.woken.is_set)
        [task] = worker.grow(1)
        time.sleep(0.3)
        ears.woken.clear()

        def refuses(_tid: int, _cpus: CpuSet) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(rig.node.kernel, "set_affinity", refuses)
            ears.stream.tell(named(worker.pid, task.tid, "acl_thread"))
            ears.stream.tell()
        assert ears.woken.is_set() is (number == errno.EINVAL), "another cpuset, mostly"
        assert ears.pids() == {worker.pid}


def test_cpus_that_are_not_all_in_the_cpuset_are_not_written(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        narrow = CpuSet.parse("0-3")
        roles = Roles(main=narrow, acl=CpuSet.parse("7"), release=CpuSet.parse("3"))
        ears.watched.withdraw(())
        ears.watched.publish([Watched(worker.identity, roles, narrow, CpuSet.parse("0-9"))])
        writes = rig.writes()
        ears.stream.tell(named(worker.pid, worker.threads[0].tid, "acl_thread"))
        assert rig.writes() == writes


def test_an_awaited_container_that_forks_at_all_times_costs_fewer_and_fewer_passes(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    with ears_of(rig) as ears:
        begun = time.monotonic() + 100
        now = [begun]
        ears.events._clock = lambda: now[0]
        ears.events.interest((), {7})
        passes = []
        for step in range(600):
            now[0] = begun + step * 0.1
            ears.woken.clear()
            ears.stream.tell(forked(7, 8), ended(8))
            if ears.woken.is_set():
                passes.append(now[0])
                assert ears.events.take().processes
                ears.events.interest((), {7})
        assert passes[1] - passes[0] < 0.7
        assert 12 <= len(passes) <= 20
        # Another container begins.
        ears.woken.clear()
        ears.events.interest((), {7, 70})
        now[0] += 6
        ears.stream.tell(forked(70, 71))
        assert ears.woken.is_set()


def test_looks_at_suspects_are_asked_for_four_times_a_second_at_most(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    with ears_of(rig) as ears:
        begun = time.monotonic() + 100
        now = [begun]
        ears.events._clock = lambda: now[0]
        wait_until(ears.woken.is_set)
        ears.events.take()
        looks = []
        ears.events.glance = lambda: looks.append(now[0])
        ears.woken.clear()
        suspects: set[int] = set()
        for step in range(200):
            now[0] = begun + step * 0.05
            before = len(looks)
            ears.stream.tell(thread_born(10_000 + step, 30_000 + step))
            if len(looks) > before:
                suspects |= ears.events.take().suspects
        assert 30 <= len(looks) <= 41
        assert len(suspects) > 180
        assert not ears.woken.is_set(), "no pass for anybody who may be nobody"


def test_a_bound_worker_of_which_no_plan_is_made_just_now_is_heard_of_all_the_same(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        rig.sweep()
        ears.stream.tell()
        assert ears.stream.focused == ({worker.pid}, set(), set())
        ears.events.interest({worker.identity, ProcessId(77, 1)}, {7})
        ears.stream.tell()
        assert ears.stream.focused == ({worker.pid}, {7, 77}, set())
        for event in (executed(77), ended(77), executed(worker.pid), ended(worker.pid)):
            ears.events.take()
            ears.stream.tell(event)
            assert ears.events.take().processes
        ears.stream.tell(forked(77, 78), ended(78))
        assert not ears.events.take().processes


def test_what_a_worker_forks_before_it_is_watched_is_looked_for_and_afterwards_it_is_no_news(tmp_path: Path) -> None:
    rig, worker = start(tmp_path)
    with ears_of(rig) as ears:
        ears.stream.tell()
        assert ears.events.take().processes, "before all was heard of it"
        ears.stream.tell(forked(worker.pid, 4_200_000))
        assert ears.events.take().processes, "it is not watched yet"
        rig.sweep()
        ears.events.take()
        assert ears.pids() == {worker.pid}
        ears.stream.tell(forked(worker.pid, 4_200_001), ended(4_200_001))
        assert not ears.events.take().processes


def test_a_suspect_whose_time_had_not_come_with_a_pass_is_looked_at_when_it_has(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    with ears_of(rig) as ears:
        looks = threading.Event()
        ears.events.glance = looks.set
        wait_until(ears.woken.is_set)
        ears.stream.tell(thread_born(10_000, 10_001))
        assert not ears.events.take().suspects
        assert looks.wait(10)
        assert ears.events.take().suspects == {10_000}


event: st.SearchStrategy[Event] = st.tuples(
    st.one_of(st.sampled_from([FORK, EXEC, COMM, EXIT]), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 1, 7, 4_100_000, 4_100_010, 4_100_011]),
    st.binary(min_size=16, max_size=16),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(event, max_size=20), max_size=10))
def test_whatever_the_kernel_tells_the_hearing_goes_on(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Event]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("node"), "a2")
    with ears_of(rig) as ears:
        cpus = CpuSet.parse("0-9")
        roles = Roles(main=CpuSet.parse("0-7"), acl=CpuSet.parse("8"), release=CpuSet.parse("9"))
        ears.watched.withdraw(())
        ears.watched.publish(Watched(ProcessId(pid, 1), roles, cpus, cpus) for pid in (7, 4_100_010))
        for batch in batches:
            ears.stream.tell(*batch)
        assert ears.events.up
        assert ears.events._thread.is_alive()
