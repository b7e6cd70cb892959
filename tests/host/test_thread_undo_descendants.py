"""Giving back what descends from a worker, with real processes on the running kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.outcome import Moved
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
    cpuset_cgroup,
    identity,
    mask,
    two_cpus,
)

pytestmark = two_cpus


@pytest.fixture
def worker(binder: ThreadBinder, host: CountingHost) -> Iterator[StandIn]:
    with bound_worker(binder, host) as worker:
        yield worker


def family(worker: StandIn, thread: str = "worker", depth: int = 1) -> tuple[list[int], dict[int, list[int]]]:
    """Forks a child, a child of that and so on; their pids, and the process table's view of them."""
    pids = worker.fork(worker.threads[thread][0], depth)
    return pids, {parent: [child] for parent, child in zip([worker.pid, *pids], pids, strict=False)}


def give_back(
    binder: ThreadBinder,
    worker: StandIn | ProcessId,
    children: dict[int, list[int]],
    *,
    pool: CpuSet = BOTH,
    exclude: frozenset[int] = frozenset(),
) -> Moved:
    process = worker if isinstance(worker, ProcessId) else identity(worker.pid)
    return binder.release_descendants(process, pool=pool, online=ALL, children=children, exclude=exclude)


@pytest.mark.parametrize(("thread", "cpu"), [("worker", A), ("acl_thread", B)])
def test_children_and_grandchildren_may_run_wherever_their_cpuset_lets_them(
    binder: ThreadBinder, host: CountingHost, worker: StandIn, thread: str, cpu: int
) -> None:
    (child, grandchild), children = family(worker, thread, depth=2)
    assert mask(child) == mask(grandchild) == {cpu}, "a child starts with the mask of the thread that forked it"
    assert give_back(binder, worker, children) == Moved(2)
    assert mask(child) == mask(grandchild) == set(ALL)
    assert sorted(host.written) == sorted([child, grandchild]), "the worker itself is not touched"


def test_they_follow_their_cpuset_when_it_grows(binder: ThreadBinder, worker: StandIn) -> None:
    with cpuset_cgroup(BOTH) as group:
        (child,), children = family(worker)
        group.add(child)
        group.write(ON_A)
        assert give_back(binder, worker, children) == Moved(1)
        assert mask(child) == {A}
        group.write(BOTH)
        assert mask(child) == {A, B}


def test_a_descendant_with_a_mask_beyond_the_pool_is_left_alone_and_its_children_are_not(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (child, grandchild), children = family(worker, depth=2)
    os.sched_setaffinity(child, {A, B})
    assert give_back(binder, worker, children, pool=ON_A) == Moved(1)
    assert host.written == [grandchild]


def test_a_descendant_that_is_a_worker_itself_is_left_alone_with_what_descends_from_it(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (child, grandchild), children = family(worker, depth=2)
    (other,), _ = family(worker)
    children[worker.pid].append(other)
    assert give_back(binder, worker, children, exclude=frozenset({child})) == Moved(1)
    assert host.written == [other]
    assert mask(child) == mask(grandchild) == {A}


def test_children_of_another_worker_are_left_alone(binder: ThreadBinder, host: CountingHost, worker: StandIn) -> None:
    with StandIn("--threads", "1") as other:
        binder.bind(identity(other.pid), APART, cpuset=ALL, online=ALL, first=True)
        host.written.clear()
        (mine,), children = family(worker)
        (theirs,), more = family(other)
        assert give_back(binder, worker, children | more) == Moved(1)
        assert mask(theirs) == {A}
        assert host.written == [mine]


def test_one_that_is_forked_while_its_parent_is_released_is_found_in_the_next_look(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    born: list[int] = []
    acl = worker.threads["acl_thread"][0]
    host.before_write = lambda _: None if born else born.extend(worker.fork(acl))
    assert binder.release(identity(worker.pid), pool=BOTH, online=ALL) == Moved(5)
    assert mask(born[0]) == {B}
    assert give_back(binder, worker, {worker.pid: born}) == Moved(1)
    (late,), children = family(worker)
    assert mask(late) == set(ALL), "after that a child starts free"
    assert give_back(binder, worker, children | {worker.pid: [*born, late]}) == Moved(0 if len(ALL) > 2 else 2)


def test_a_process_that_is_no_child_any_more_is_not_believed_to_be_one(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (_, grandchild), _ = family(worker, depth=2)
    with StandIn() as stranger:
        os.sched_setaffinity(stranger.pid, {A})
        assert give_back(binder, worker, {worker.pid: [stranger.pid, grandchild]}) == Moved(0)
    assert give_back(binder, worker, {worker.pid: [stranger.pid]}) == Moved(0), "it has ended"
    assert host.written == []


def test_descendants_of_a_worker_that_ended_are_not_looked_at(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    _, children = family(worker)
    now = identity(worker.pid)
    host.read.clear()
    assert give_back(binder, ProcessId(now.pid, now.start_time - 1), children) == Moved(0)
    assert host.read == []


def test_one_that_ends_meanwhile_does_not_keep_the_others(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    (first,), _ = family(worker)
    (second,), _ = family(worker)

    def end_it(tid: int) -> None:
        if tid == first:
            os.kill(first, 9)
            while Path(f"/proc/{first}/status").read_text().split("State:\t")[1][0] not in "ZX":
                pass

    host.before_write = end_it
    assert give_back(binder, worker, {worker.pid: [first, second]}).problem is None
    assert mask(second) == set(ALL)


def test_a_process_table_that_goes_in_circles_comes_to_an_end(binder: ThreadBinder, worker: StandIn) -> None:
    (child,), _ = family(worker)
    assert give_back(binder, worker, {worker.pid: [child, child, worker.pid], child: [worker.pid, child]}) == Moved(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_without_the_right_it_says_so_and_heals(binder: ThreadBinder, worker: StandIn) -> None:
    (child,), children = family(worker)
    os.seteuid(65534)
    try:
        result = give_back(binder, worker, children)
    finally:
        os.seteuid(0)
    assert result.threads == 0
    assert result.problem is not None
    assert result.problem.reason is Reason.PERMISSION_DENIED
    assert str(child) in result.problem.message
    assert give_back(binder, worker, children) == Moved(1)


def test_who_lives_is_told_by_start_time_and_not_by_pid_alone(binder: ThreadBinder) -> None:
    with StandIn() as process:
        now = identity(process.pid)
        assert binder.lives(now)
        assert not binder.lives(ProcessId(now.pid, now.start_time - 1))
        process.kill(reap=False)
        while binder.lives(now):
            pass
        assert Path(f"/proc/{now.pid}").exists(), "a zombie is nobody"
    assert not binder.lives(now)


def test_one_that_cannot_be_looked_at_lives(tmp_path: Path, host: CountingHost) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("damaged")
    binder = ThreadBinder(tmp_path, host)
    assert binder.lives(ProcessId(7, 1))
    result = binder.release_descendants(ProcessId(7, 1), pool=ON_B, online=ALL, children={7: [8]})
    assert result.problem is not None
    assert result.problem.reason is Reason.PROCESS_UNREADABLE
