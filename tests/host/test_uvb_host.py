"""UVB threads as real threads of this machine: named by prctl, found, moved, given back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.control.uvb import Uvb
from agent.demo.standin import StandIn
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import Moved, UvbOutcome
from agent.node.cgroups import CgroupTree
from agent.node.uvb import NAME, UvbThreads, of_the_host
from tests.host.alone import one_at_a_time
from tests.host.support import ALL, ON_A, ON_B, A, B, CountingHost, cpuset_cgroup, mask, two_cpus

ROOT = Path("/")

pytestmark = [
    two_cpus,
    pytest.mark.skipif(
        os.getuid() != 0 or not of_the_host(Path("/proc/self/cgroup").read_text(), CgroupTree(ROOT).own),
        reason="needs a process of root in the root cgroup or a system slice",
    ),
]


@pytest.fixture
def service() -> Iterator[StandIn]:
    """A process of the host with a UVB thread. All such threads of this machine are looked at, and moved."""
    with one_at_a_time("uvb"), StandIn("--threads", "2") as service:
        yield service


def online() -> CpuSet:
    return CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text())


def sweep(uvb: Uvb, cpus: CpuSet) -> UvbOutcome:
    uvb.survey(cpus, online())
    return uvb.act(cpus, online())


def test_only_the_thread_of_that_name_is_moved_once_and_it_is_free_again_after(service: StandIn) -> None:
    (thread,) = service.spawn(NAME)
    host = CountingHost()
    uvb = Uvb(ROOT, host)
    assert sweep(uvb, ON_B) == UvbOutcome("Bound", None, threads=1, written=1)
    assert sweep(uvb, ON_B) == UvbOutcome("Bound", None, threads=1)
    assert host.written == [thread]
    assert mask(thread) == {B}
    assert mask(service.pid) == set(ALL)
    (taken,) = uvb.taken
    assert (taken.thread.tid, taken.before, taken.given) == (thread, EMPTY, ON_B)
    assert uvb.restore(online()) == Moved(1)
    assert mask(thread) == set(ALL)


def test_a_later_agent_gives_back_a_narrow_mask_to_a_thread_that_it_never_saw_under_its_name(service: StandIn) -> None:
    (thread,) = service.spawn(NAME)
    os.sched_setaffinity(thread, {A})
    uvb = Uvb(ROOT, CountingHost())
    sweep(uvb, ON_B)
    service.rename(thread, "worker")
    later = Uvb(ROOT, CountingHost())
    later.adopt(uvb.taken)
    assert later.restore(online()) == Moved(1)
    assert mask(thread) == {A}


def test_one_that_ends_is_no_error(service: StandIn) -> None:
    (thread,) = service.spawn(NAME)
    uvb = Uvb(ROOT, CountingHost())
    uvb.survey(ON_B, online())
    service.end(thread)
    assert uvb.act(ON_B, online()) == UvbOutcome("Idle")
    assert uvb.taken == ()


def test_a_service_in_a_cpuset_beside_the_pool_is_left_and_one_within_it_moved(service: StandIn) -> None:
    (thread,) = service.spawn(NAME)
    with cpuset_cgroup(ON_A) as group:
        os.sched_setaffinity(thread, ALL)
        group.add_thread(thread)
        # A cgroup of this test is no system slice: the thread is seen because its process is in the root.
        assert [seen.thread.tid for seen in UvbThreads(ROOT).scan()[0]] == [thread]
        group.add(service.pid)
        assert UvbThreads(ROOT).scan()[0] == []
        assert sweep(Uvb(ROOT, CountingHost()), ON_B) == UvbOutcome("Idle")
        assert mask(thread) == {A}
