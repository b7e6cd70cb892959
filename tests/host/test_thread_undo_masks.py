"""Masks that threads had before they were bound, and who shares a container: with real processes and cpusets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.outcome import Moved
from agent.model.workload import ProcessId, ThreadId
from agent.node.threads import ThreadBinder
from tests.host.support import (
    ALL,
    APART,
    BOTH,
    ON_A,
    ON_B,
    A,
    B,
    Cgroup,
    CountingHost,
    identity,
    mask,
    tids,
    two_cpus,
)

pytestmark = two_cpus


@pytest.fixture
def worker() -> Iterator[StandIn]:
    with StandIn("--threads", "3", "--acl", "--release") as worker:
        yield worker


def thread(worker: StandIn, tid: int) -> ThreadId:
    stat = Path(f"/proc/{worker.pid}/task/{tid}/stat").read_bytes()
    return ThreadId(tid, int(stat.rpartition(b")")[2].split()[19]))


def bind(binder: ThreadBinder, worker: StandIn, cpuset: CpuSet = ALL) -> None:
    assert binder.bind(identity(worker.pid), APART, cpuset=cpuset, online=ALL, first=True).state == "Bound"


def test_masks_that_are_narrower_than_the_cpuset_are_found_with_one_read_for_each_thread(
    binder: ThreadBinder, host: CountingHost, worker: StandIn
) -> None:
    own = worker.threads["worker"][0]
    os.sched_setaffinity(own, {B})
    assert binder.masks(identity(worker.pid), cpuset=ALL, online=ALL) == {thread(worker, own): ON_B}
    assert (sorted(host.read), host.written) == (sorted(tids(worker.pid)), [])
    assert binder.masks(identity(worker.pid), cpuset=ON_B, online=ALL) == {}, "that is all that there is"
    now = identity(worker.pid)
    assert binder.masks(ProcessId(now.pid, now.start_time - 1), cpuset=ALL, online=ALL) == {}


def test_a_thread_gets_its_own_mask_back_and_the_others_follow_their_cpuset(
    binder: ThreadBinder, host: CountingHost, worker: StandIn, group: Cgroup
) -> None:
    """Since Linux 6.2 the kernel remembers what a thread was told."""
    group.add(worker.pid)
    pinned, wide = worker.threads["worker"][:2]
    os.sched_setaffinity(pinned, {B})
    masks = binder.masks(identity(worker.pid), cpuset=BOTH, online=ALL)
    bind(binder, worker, BOTH)
    assert mask(pinned) == {A}
    group.write(ON_A)
    assert binder.release(identity(worker.pid), pool=BOTH, online=ALL, masks=masks).problem is None
    assert mask(pinned) == {A}, "its cpuset has nothing of its own mask now"
    group.write(BOTH)
    assert mask(wide) == {A, B}
    bind(binder, worker, BOTH)
    released = binder.release(identity(worker.pid), pool=BOTH, online=ALL, masks=masks)
    assert (mask(pinned), mask(wide), released) == ({B}, {A, B}, Moved(6))
    host.written.clear()
    binder.release(identity(worker.pid), pool=ON_B, online=ALL, masks=masks)
    assert host.written == [], "it has it already, though that is within the pool"


def test_a_mask_of_another_thread_with_the_same_number_is_not_given(binder: ThreadBinder, worker: StandIn) -> None:
    tid = worker.threads["worker"][0]
    masks = {ThreadId(tid, thread(worker, tid).start_time - 1): ON_B}
    bind(binder, worker)
    binder.release(identity(worker.pid), pool=BOTH, online=ALL, masks=masks)
    assert mask(tid) == set(ALL)


def test_others_in_a_container_are_given_back_where_they_are_on_these_cpus_alone(
    binder: ThreadBinder, worker: StandIn
) -> None:
    bind(binder, worker)
    of_main, of_acl = (worker.fork(worker.threads[name][0])[0] for name in ("worker", "acl_thread"))
    others = [identity(of_main), identity(of_acl)]
    assert binder.inhabits(others, pool=ON_B, online=ALL)
    assert binder.release_all(others, pool=BOTH, online=ALL, unless=[ON_A]) == Moved(1)
    assert (mask(of_main), mask(of_acl)) == ({A}, set(ALL))
    gone = ProcessId(of_main, identity(of_main).start_time - 1)
    assert binder.release_all([gone], pool=BOTH, online=ALL) == Moved(0)
    assert not binder.inhabits([gone], pool=BOTH, online=ALL)
    assert binder.release_all(others, pool=ON_A, online=ALL) == Moved(1)
    assert mask(of_main) == set(ALL)
