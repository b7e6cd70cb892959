"""Taking masks back: releasing threads, returning descendants, with real processes on the running kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.outcome import Moved
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.workload import ProcessId
from agent.node.threads import ThreadBinder
from tests.host.support import (
    ALL,
    APART,
    BOTH,
    ON_A,
    ON_B,
    A,
    B,
    CountingHost,
    bound_worker,
    identity,
    mask,
    masks,
    two_cpus,
)

pytestmark = two_cpus


@pytest.fixture
def worker(binder: ThreadBinder, host: CountingHost) -> Iterator[StandIn]:
    with bound_worker(binder, host) as worker:
        yield worker


def give_back(
    binder: ThreadBinder,
    worker: StandIn | ProcessId,
    children: dict[int, list[int]],
    *,
    roles: Roles = APART,
    cpuset: CpuSet = ALL,
    exclude: frozenset[int] = frozenset(),
) -> Moved:
    process = worker if isinstance(worker, ProcessId) else identity(worker.pid)
    return binder.return_descendants(process, roles, cpuset=cpuset, online=ALL, children=children, exclude=exclude)


# Release


def test_released_threads_may_run_wherever_their_cpuset_lets_them(binder: ThreadBinder, worker: StandIn) -> None:
    assert binder.release(identity(worker.pid), pool=BOTH, online=ALL) == Moved(5)
    assert set(map(frozenset, masks(worker.pid).values())) == {frozenset(ALL)}


def test_a_thread_with_a_mask_beyond_the_pool_is_left_alone(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (acl,) = worker.threads["acl_thread"]
    os.sched_setaffinity(worker.pid, {A, B})
    assert binder.release(identity(worker.pid), pool=ON_A, online=ALL) == Moved(2)
    assert sorted(host.written) == sorted(worker.threads["worker"])
    assert mask(acl) == {B}


def test_a_thread_born_of_one_that_is_not_released_yet_is_released_too(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    born: list[int] = []
    host.before_write = lambda tid: None if born else born.extend(worker.spawn("late"))
    assert binder.release(identity(worker.pid), pool=BOTH, online=ALL) == Moved(6)
    assert mask(born[0]) == set(ALL)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_release_without_the_right_says_so(binder: ThreadBinder, worker: StandIn) -> None:
    os.seteuid(65534)
    try:
        released = binder.release(identity(worker.pid), pool=BOTH, online=ALL)
    finally:
        os.seteuid(0)
    assert released.threads == 0
    assert released.problem is not None
    assert released.problem.reason is Reason.PERMISSION_DENIED


def test_threads_that_were_released_are_no_drift_when_they_are_bound_again(
    binder: ThreadBinder, worker: StandIn
) -> None:
    binder.release(identity(worker.pid), pool=BOTH, online=ALL)
    outcome = binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ALL, first=True)
    assert (outcome.written, outcome.repaired) == (5, 0)


# Descendants


def test_what_the_acl_thread_forked_goes_back_to_main_down_to_its_grandchildren(
    binder: ThreadBinder, worker: StandIn
) -> None:
    child, grandchild = worker.fork(worker.threads["acl_thread"][0], depth=2)
    assert mask(child) == mask(grandchild) == {B}, "a child starts with the mask of the thread that forked it"
    assert give_back(binder, worker, {worker.pid: [child], child: [grandchild]}) == Moved(2)
    assert mask(child) == mask(grandchild) == {A}
    assert mask(worker.threads["acl_thread"][0]) == {B}, "the worker itself is not touched"


def test_a_grandchild_is_found_below_a_child_that_is_in_place(binder: ThreadBinder, worker: StandIn) -> None:
    child, grandchild = worker.fork(worker.threads["acl_thread"][0], depth=2)
    os.sched_setaffinity(child, {A})
    assert give_back(binder, worker, {worker.pid: [child], child: [grandchild]}) == Moved(1)
    assert mask(grandchild) == {A}


def test_a_descendant_that_runs_elsewhere_is_left_alone(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (of_main,) = worker.fork(worker.threads["worker"][0])
    (of_acl,) = worker.fork(worker.threads["acl_thread"][0])
    os.sched_setaffinity(of_acl, {A, B})
    assert give_back(binder, worker, {worker.pid: [of_main, of_acl]}) == Moved(0)
    assert host.written == []


def test_a_descendant_that_is_a_worker_itself_is_left_alone_with_what_descends_from_it(
    binder: ThreadBinder, worker: StandIn
) -> None:
    child, grandchild = worker.fork(worker.threads["acl_thread"][0], depth=2)
    children = {worker.pid: [child], child: [grandchild]}
    assert give_back(binder, worker, children, exclude=frozenset({child})) == Moved(0)
    assert mask(child) == mask(grandchild) == {B}


def test_a_process_that_is_no_child_any_more_is_not_believed_to_be_one(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    grandchild = worker.fork(worker.threads["acl_thread"][0], depth=2)[1]
    with StandIn() as stranger:
        os.sched_setaffinity(stranger.pid, {B})
        assert give_back(binder, worker, {worker.pid: [stranger.pid, grandchild]}) == Moved(0)
    assert give_back(binder, worker, {worker.pid: [stranger.pid]}) == Moved(0), "it has ended"
    assert host.written == []


def test_descendants_of_a_worker_that_ended_are_not_looked_at(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (child,) = worker.fork(worker.threads["acl_thread"][0])
    now = identity(worker.pid)
    host.read.clear()
    assert give_back(binder, ProcessId(now.pid, now.start_time - 1), {now.pid: [child]}) == Moved(0)
    assert host.read == []


def test_a_process_table_that_goes_in_circles_comes_to_an_end(binder: ThreadBinder, worker: StandIn) -> None:
    (child,) = worker.fork(worker.threads["acl_thread"][0])
    assert give_back(binder, worker, {worker.pid: [child, child, worker.pid], child: [worker.pid, child]}) == Moved(1)


def test_what_was_forked_on_cpus_that_the_worker_has_left_goes_to_main(binder: ThreadBinder, worker: StandIn) -> None:
    (child,) = worker.fork(worker.threads["acl_thread"][0])
    assert mask(child) == {B}
    moved = binder.return_descendants(
        identity(worker.pid), Roles(main=ON_A), cpuset=ALL, online=ALL, children={worker.pid: [child]}, left=ON_B
    )
    assert moved == Moved(1)
    assert mask(child) == {A}


def test_where_nothing_is_set_apart_no_process_is_looked_at(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (child,) = worker.fork(worker.threads["acl_thread"][0])
    host.read.clear()
    assert give_back(binder, worker, {worker.pid: [child]}, roles=Roles(main=BOTH)) == Moved(0)
    assert host.read == []


def test_descendants_stay_where_main_is_not_within_the_cpuset(binder: ThreadBinder, worker: StandIn) -> None:
    (child,) = worker.fork(worker.threads["acl_thread"][0])
    result = give_back(binder, worker, {worker.pid: [child]}, cpuset=ON_B)
    assert result.problem is not None
    assert result.problem.reason is Reason.CPUSET_CHANGED
    assert mask(child) == {B}
