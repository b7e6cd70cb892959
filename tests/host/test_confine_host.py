"""Confined helpers as real processes of this machine, in a cgroup that is named as a container's is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from agent.control.confine import Confiner
from agent.control.confinement import Confinement, ConfineOutcome
from agent.demo.standin import StandIn
from agent.model.workload import ProcessId
from agent.node.cgroups import CgroupTree
from tests.host.support import (
    ALL,
    BOTH,
    ON_A,
    ON_B,
    A,
    B,
    Cgroup,
    CountingHost,
    cpuset_cgroup,
    identity,
    mask,
    masks,
    two_cpus,
)

PROC = Path("/proc")

pytestmark = two_cpus


class Container:
    """A cgroup with a worker and a server, and what confines the latter."""

    def __init__(self, group: Cgroup, key: str, worker: StandIn, server: StandIn) -> None:
        self.group, self.key, self.worker, self.server = group, key, worker, server
        self.members = [identity(worker.pid), identity(server.pid)]
        self.host = CountingHost()
        self.confiner = Confiner(PROC, self.host, CgroupTree(Path("/")))

    def sweep(self, *more: ProcessId, wanted: bool = True) -> ConfineOutcome:
        members = {self.key: [*self.members, *more]}
        keys = frozenset({self.key} if wanted else ())
        ask = Confinement(keys, members, {identity(self.worker.pid)}, ON_B, ALL)
        self.confiner.survey(ask)
        return self.confiner.act(ask).outcomes.get(self.key, ConfineOutcome())


@pytest.fixture
def container() -> Iterator[Container]:
    key = token_hex(32)
    with cpuset_cgroup(BOTH, key) as group, StandIn("--threads", "2") as worker, StandIn("--threads", "3") as server:
        for process in (worker, server):
            group.add(process.pid)
        yield Container(group, key, worker, server)


def test_helpers_are_confined_once_and_free_again_after_while_the_worker_is_left_alone(container: Container) -> None:
    assert container.sweep() == ConfineOutcome(written=4)
    assert set(map(frozenset, masks(container.server.pid).values())) == {frozenset({A})}
    assert set(map(frozenset, masks(container.worker.pid).values())) == {frozenset({A, B})}
    assert container.sweep() == ConfineOutcome()
    assert len(container.host.written) == 4
    container.sweep(wanted=False)
    container.sweep(wanted=False)
    assert set(map(frozenset, masks(container.server.pid).values())) == {frozenset({A, B})}
    assert container.confiner.taken == ()


def test_a_thread_that_had_chosen_the_cpu_set_apart_keeps_it(container: Container) -> None:
    chosen = container.server.spawn("pinned")[0]
    os.sched_setaffinity(chosen, {B})
    outcome = container.sweep()
    assert (outcome.written, outcome.left) == (4, 1)
    assert mask(chosen) == {B}


def test_children_are_given_back_with_their_parent(container: Container) -> None:
    container.sweep()
    (child,) = container.server.fork(container.server.spawn("forker")[0])
    assert mask(child) == {A}
    container.sweep(identity(child), wanted=False)
    container.sweep(identity(child), wanted=False)
    assert mask(child) == {A, B}


def test_a_cpuset_that_shrinks_and_widens_is_followed_and_those_cpus_stay_out(container: Container) -> None:
    container.sweep()
    container.group.write(ON_A)
    container.sweep()
    container.group.write(BOTH)
    container.sweep()  # before Linux 6.2 the kernel gave back the whole cpuset
    assert set(map(frozenset, masks(container.server.pid).values())) == {frozenset({A})}
    container.sweep(wanted=False)
    assert set(map(frozenset, masks(container.server.pid).values())) == {frozenset({A, B})}


def test_a_process_that_is_not_in_the_container_is_never_touched(container: Container) -> None:
    with StandIn("--threads", "1") as stranger:
        container.sweep(identity(stranger.pid))
        assert set(map(frozenset, masks(stranger.pid).values())) == {frozenset(ALL)}
