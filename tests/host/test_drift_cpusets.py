"""Who moved the threads of a bound worker: kubelet's writes to a real cpuset, another writer, a second binder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.control.act import Actor
from agent.control.observe import Observation
from agent.demo.standin import StandIn
from agent.model.node import DeviceType, Topology
from agent.model.outcome import WorkerOutcome
from agent.model.plan import Allotment, Plan, WorkerPlan
from agent.model.reason import Reason
from agent.model.spec import Spec, Strategy
from agent.model.workload import Worker
from tests.host.support import (
    ALL,
    APART,
    BOTH,
    ON_A,
    A,
    B,
    Cgroup,
    CountingHost,
    identity,
    masks,
    tids,
    two_cpus,
)

pytestmark = two_cpus

TOPOLOGY = Topology(ALL, ALL, (), ())


@pytest.fixture
def worker(group: Cgroup) -> Iterator[StandIn]:
    with StandIn("--threads", "100", "--acl", "--release") as worker:
        group.add(worker.pid)
        yield worker


class Bench:
    """An actor whose clock the test moves, and a plan that has this worker alone."""

    def __init__(self, group: Cgroup, worker: StandIn) -> None:
        self.host = CountingHost()
        self.now = 1000.0
        self.actor = Actor(Path("/proc"), self.host, clock=lambda: self.now)
        self._group, self._worker, self.pid = group, worker, worker.pid
        assert self.step().state == "Bound"

    def step(self, seconds: float = 5.0) -> WorkerOutcome:
        """One pass."""
        self.now += seconds
        process = identity(self._worker.pid)
        entry = WorkerPlan(Worker(process, (0,), "", "worker"), "", Allotment(BOTH, APART))
        plan = Plan(DeviceType.A3, Strategy.GLOBAL_SLICE, workers=(entry,))
        seen = Observation(TOPOLOGY, cpusets={process: self._group.cpus})
        self.actor.prepare(plan, seen, Spec())
        return self.actor.act(plan, seen, Spec(), lambda _keys: {}).outcomes[process]

    def in_place(self) -> bool:
        named = self._worker.threads
        apart = {*named["acl_thread"], *named["release_thread"]}
        pid = self._worker.pid
        return masks(pid) == {tid: {B} if tid in apart else {A} for tid in tids(pid)}

    def move(self, *cpus: int, count: int | None = None) -> int:
        """Another writer moves so many of the worker's threads, or all."""
        moved = sorted(tids(self._worker.pid))[:count]
        for tid in moved:
            os.sched_setaffinity(tid, cpus)
        return len(moved)


@pytest.fixture
def bench(group: Cgroup, worker: StandIn) -> Bench:
    return Bench(group, worker)


@pytest.mark.parametrize("resets", [False, True])
def test_kubelets_writes_for_three_pods_within_a_minute_are_no_conflict(
    bench: Bench, group: Cgroup, resets: bool
) -> None:
    """Since Linux 6.2 threads have their masks again when the cpuset has; before, they got all of it."""
    for _ in range(3):
        group.write(ON_A)
        problem = bench.step(10).problem
        assert problem is not None
        assert problem.reason is Reason.CPUSET_CHANGED
        group.write(BOTH)
        if resets:
            bench.move(A, B)
        assert bench.step(5).state == "Bound"
        assert bench.in_place()
    assert bench.actor.drift.totals.detected["thread"] == 0
    assert (bench.actor.drift.totals.detected["cpuset"] > 0) is resets


def test_a_pass_that_meets_half_of_a_change_takes_none_of_it_for_another_writers(bench: Bench, group: Cgroup) -> None:
    for _ in range(5):
        group.write(ON_A)
        bench.step(3)
        group.write(BOTH)
        for _ in range(3):
            bench.move(B, count=20)  # a mask that is neither the old one nor the whole cpuset
            assert bench.step(0.5).state == "Bound"
    assert bench.in_place()
    assert bench.actor.drift.totals.detected["thread"] == 0


def test_another_writer_is_left_alone_after_the_third_time_and_no_mask_is_written_meanwhile(bench: Bench) -> None:
    states = []
    for _ in range(3):
        bench.move(B, count=20)
        states.append(bench.step().state)
        assert bench.in_place()
    assert states == ["Bound", "Bound", "Partial"]
    bench.move(B, count=20)
    bench.host.written.clear()
    outcome = bench.step()
    assert outcome.problem is not None
    assert (outcome.state, outcome.problem.reason) == ("Partial", Reason.CPU_BINDING_CONFLICT)
    assert bench.host.written == []
    assert bench.step(5.5).state == "Partial"
    assert bench.in_place()
    assert [bench.step(30).state for _ in range(2)] == ["Partial", "Bound"]


def test_a_worker_that_ends_during_the_back_off_is_gone(bench: Bench, worker: StandIn) -> None:
    for _ in range(3):
        bench.move(B, count=20)
        bench.step()
    process = identity(worker.pid)
    worker.kill()
    entry = WorkerPlan(Worker(process, (0,), "", "worker"), "", Allotment(BOTH, APART))
    seen = Observation(TOPOLOGY, cpusets={process: BOTH})
    plan = Plan(DeviceType.A3, Strategy.GLOBAL_SLICE, workers=(entry,))
    outcome = bench.actor.act(plan, seen, Spec(), lambda _keys: {}).outcomes[process]
    assert outcome.problem is not None
    assert (outcome.state, outcome.problem.reason) == ("Pending", Reason.PROCESS_GONE)


def test_a_second_binder_that_puts_the_whole_process_elsewhere_is_known_by_that(bench: Bench) -> None:
    count = bench.move(B)
    outcome = bench.step()
    assert bench.in_place()
    assert (outcome.state, outcome.at_once) == ("Bound", True)
    assert outcome.repaired == count - 2, "its ACL and release threads were on that CPU already"
    bench.move(B, count=20)
    assert not bench.step().at_once


@pytest.mark.parametrize("number", [errno.EPERM, errno.EBUSY])
def test_a_thread_that_the_kernel_does_not_let_be_put_back_is_counted_once(bench: Bench, number: int) -> None:
    def refuse(_tid: int) -> None:
        raise OSError(number, os.strerror(number))

    bench.move(B, count=1)
    bench.host.before_write = refuse
    first, second = bench.step(), bench.step()
    assert [thread.tid for thread in first.unrepaired] == [bench.pid]
    assert (first.drift, second.unrepaired) == ((), ())
    totals = bench.actor.drift.totals
    assert (totals.detected["thread"], totals.repaired["thread", "failed"]) == (1, 1)
    bench.host.before_write = lambda _tid: None
    assert bench.step().state == "Bound"
    assert bench.in_place()


def test_a_thread_that_ends_while_it_is_put_back_is_no_failure(bench: Bench) -> None:
    def end(_tid: int) -> None:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    bench.move(B, count=1)
    bench.host.before_write = end
    assert bench.step().unrepaired == ()
