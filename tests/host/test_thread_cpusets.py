"""Bound threads when somebody writes the cpuset of their container, with real cgroups on the running kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.outcome import WorkerOutcome
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.node.threads import ThreadBinder
from tests.host.support import (
    ALL,
    APART,
    BOTH,
    ON_A,
    A,
    B,
    Cgroup,
    CountingHost,
    cpuset_cgroup,
    identity,
    mask,
    masks,
    tids,
    two_cpus,
)

pytestmark = two_cpus


@pytest.fixture
def worker(group: Cgroup) -> Iterator[StandIn]:
    with StandIn("--threads", "200", "--acl", "--release") as worker:
        group.add(worker.pid)
        yield worker


def bind(binder: ThreadBinder, worker: StandIn, cpuset: CpuSet, *, first: bool = False) -> WorkerOutcome:
    return binder.bind(identity(worker.pid), APART, cpuset=cpuset, online=ALL, first=first)


def in_place(worker: StandIn) -> bool:
    apart = {*worker.threads["acl_thread"], *worker.threads["release_thread"]}
    return masks(worker.pid) == {tid: {B} if tid in apart else {A} for tid in tids(worker.pid)}


def test_all_roles_are_back_one_pass_after_the_cpuset_shrank_and_grew(
    binder: ThreadBinder, group: Cgroup, worker: StandIn
) -> None:
    bind(binder, worker, group.cpus, first=True)
    group.write(ON_A)
    group.write(BOTH)
    bind(binder, worker, group.cpus)
    assert in_place(worker)


def test_all_roles_are_back_one_pass_after_their_masks_were_reset_to_the_whole_cpuset(
    binder: ThreadBinder, group: Cgroup, worker: StandIn
) -> None:
    """As kernels before 6.2 do whenever the cpuset is written."""
    bind(binder, worker, group.cpus, first=True)
    for tid in tids(worker.pid):
        os.sched_setaffinity(tid, {A, B})
    outcome = bind(binder, worker, group.cpus)
    assert in_place(worker)
    assert outcome.repaired == outcome.written == len(tids(worker.pid))
    assert {(drift.mask, drift.kind) for drift in outcome.drift} == {(BOTH, "cpuset")}
    assert outcome.by_cpuset == outcome.repaired


def test_what_somebody_else_moved_is_told_apart_from_what_the_kernel_did(
    binder: ThreadBinder, group: Cgroup, worker: StandIn
) -> None:
    bind(binder, worker, group.cpus, first=True)
    (acl,) = worker.threads["acl_thread"]
    os.sched_setaffinity(acl, {A})
    assert [drift.kind for drift in bind(binder, worker, group.cpus).drift] == ["thread"]
    os.sched_setaffinity(acl, {A})
    assert [drift.kind for drift in bind(binder, worker, CpuSet({A, B, 99})).drift] == ["cpuset"], "it was rewritten"


def test_a_cpuset_that_is_written_with_what_it_has_costs_no_writes(
    binder: ThreadBinder, host: CountingHost, group: Cgroup, worker: StandIn
) -> None:
    bind(binder, worker, group.cpus, first=True)
    group.write(BOTH)
    host.written.clear()
    assert bind(binder, worker, group.cpus).state == "Bound"
    assert host.written == []


def test_a_cpuset_that_no_longer_holds_a_role_asks_for_a_new_plan(
    binder: ThreadBinder, host: CountingHost, group: Cgroup, worker: StandIn
) -> None:
    bind(binder, worker, group.cpus, first=True)
    group.write(ON_A)
    host.written.clear()
    for _ in range(3):
        outcome = bind(binder, worker, group.cpus)
        assert outcome.problem is not None
        assert (outcome.state, outcome.problem.reason) == ("Failed", Reason.CPUSET_CHANGED)
        assert host.written == []
    smaller = binder.bind(identity(worker.pid), Roles(main=ON_A), cpuset=group.cpus, online=ALL, first=False)
    assert smaller.state == "Bound"


def test_a_cpuset_that_shrank_since_it_was_read_asks_for_a_new_plan(
    binder: ThreadBinder, group: Cgroup, worker: StandIn
) -> None:
    before = group.cpus
    group.write(ON_A)
    outcome = bind(binder, worker, before, first=True)
    assert outcome.problem is not None
    assert (outcome.state, outcome.problem.reason) == ("Failed", Reason.CPUSET_CHANGED)
    assert set(map(frozenset, masks(worker.pid).values())) == {frozenset({A})}


def test_released_threads_follow_their_cpuset_when_it_grows(
    binder: ThreadBinder, group: Cgroup, worker: StandIn
) -> None:
    bind(binder, worker, group.cpus, first=True)
    group.write(ON_A)
    released = binder.release(identity(worker.pid), pool=BOTH, online=ALL)
    assert (released.threads, released.problem) == (len(tids(worker.pid)), None)
    assert set(map(frozenset, masks(worker.pid).values())) == {frozenset({A})}
    group.write(BOTH)
    assert set(map(frozenset, masks(worker.pid).values())) == {frozenset({A, B})}


def test_a_thread_in_a_cpuset_of_its_own_does_not_keep_the_others_from_being_bound(
    binder: ThreadBinder, group: Cgroup, worker: StandIn
) -> None:
    (acl,) = worker.threads["acl_thread"]
    with cpuset_cgroup(ON_A) as other:
        other.add_thread(acl)
        outcome = bind(binder, worker, group.cpus, first=True)
        assert outcome.problem is not None
        assert outcome.problem.reason is Reason.CPUSET_CHANGED
        assert mask(acl) == {A}
        assert mask(worker.threads["release_thread"][0]) == {B}
