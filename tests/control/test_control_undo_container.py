"""What came of a worker and is no descendant of it any more: orphans in its container, and workers that let go."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.demo.fake_kernel import FakeTask
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from tests.control.pods import OUT, annotate, by_annotation, free, is_free
from tests.control.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, "a2", chooses=by_annotation)


def start(rig: Rig, *npus: int, name: str = "llm-0") -> list[Worker]:
    """Workers in one container."""
    pod = rig.node.kubelet.add_pod(name)
    workers = [Worker.start(rig.node, npu, pod, threads=4) for npu in npus]
    for worker in workers:
        worker.add_role_threads()
    return workers


def orphan(worker: Worker, thread: int = 0) -> FakeTask:
    """A process that a child of the worker left behind; its parent is the container's init now."""
    kernel = worker.node.kernel
    child = worker.fork(creator=worker.threads[thread].tid)
    left = kernel.start_process("leftover", parent=child.tid)
    kernel.end(child.tid)
    left.ppid = 1
    kernel.proc.write_names(left)
    return left


def opt_out(rig: Rig, worker: Worker) -> None:
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.sweep()


def test_orphans_are_given_back_with_the_worker_and_those_of_other_containers_are_not(rig: Rig) -> None:
    (worker,), (other,) = start(rig, 0), start(rig, 1, name="stays")
    rig.settle()
    orphans = [orphan(worker, thread) for thread in (0, 4, 5)]
    theirs = orphan(other)
    elsewhere = orphan(worker)
    rig.node.kernel.set_by_other(elsewhere.tid, CpuSet.parse("3"))
    mask = theirs.mask
    opt_out(rig, worker)
    assert free(*orphans)
    assert theirs.mask == mask
    assert str(elsewhere.mask) == "3", "that is not where the agent had put it"


def test_a_process_of_the_same_user_session_is_not_taken_for_one_that_the_worker_left(tmp_path: Path) -> None:
    """A cgroup is a container only where a runtime made it one."""
    rig = Rig(tmp_path, "a2")
    worker = Worker.start(rig.node, 0, None, threads=4)
    rig.settle()
    stranger = rig.node.kernel.start_process("make", cgroup=worker.threads[0].cgroup)
    cpus = CpuSet(list(CpuSet.parse(rig.npu(0)["roles"]["main"]))[:2])
    rig.node.kernel.set_by_other(stranger.tid, cpus)
    rig.ask(mode="Disabled")
    rig.sweep()
    assert is_free(worker)
    assert stranger.mask == cpus


def test_a_worker_of_a_container_that_ends_leaves_its_orphans_to_be_given_back_and_its_neighbour_bound(
    rig: Rig,
) -> None:
    first, second = start(rig, 0, 1)
    rig.settle()
    left = orphan(first)
    first.end()
    for _ in range(2):
        rig.sweep()
        assert [worker.process for worker in rig.agent.planner.journal.workers] == [first.identity, second.identity]
        rig.restart()
        rig.settle()
    rig.ask(mode="Disabled")
    rig.sweep()
    assert free(left)
    assert is_free(second)
    assert rig.condition("Restored")["status"] == "True"


def test_a_pod_that_opts_out_gets_back_what_its_ended_worker_left(rig: Rig) -> None:
    first, second = start(rig, 0, 1)
    rig.settle()
    left = orphan(first)
    first.end()
    rig.sweep()
    opt_out(rig, second)
    assert free(left)
    assert rig.agent.planner.journal.workers == ()


def test_a_worker_that_ended_is_forgotten_once_nothing_is_left_on_its_cpus_or_another_has_them(rig: Rig) -> None:
    first, second = start(rig, 0, 1)
    rig.settle()
    left = orphan(first)
    first.end()
    rig.sweep()
    successor = Worker.start(rig.node, 0, first.pod, threads=4)
    rig.settle()
    assert [w.process for w in rig.agent.planner.journal.workers] == [second.identity, successor.identity]
    opt_out(rig, successor)
    assert free(left)

    (third,) = start(rig, 2, name="llm-1")
    rig.settle()
    left = orphan(third)
    third.end()
    rig.sweep()
    assert [w.process for w in rig.agent.planner.journal.workers] == [third.identity]
    rig.node.kernel.end(left.tid)
    rig.sweep()
    assert rig.agent.planner.journal.workers == ()


def test_orphans_on_cpus_that_a_worker_has_left_are_given_back_when_the_plan_is_cut_anew(rig: Rig) -> None:
    first, second = start(rig, 0, 1)
    rig.settle()
    orphans, inside = [orphan(worker) for worker in (first, second)], orphan(first, 4)
    cpu = inside.mask
    rig.ask(reservedCpus="0-9,144-150")
    rig.sweep(400)
    rig.sweep(11)
    assert free(*orphans)
    assert inside.mask == cpu <= CpuSet.parse(rig.pools()[0]), "that is within the new pool as well"
    assert {str(w.left) for w in rig.agent.planner.journal.workers} == {""}
    opt_out(rig, first)
    assert free(inside)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_worker_that_let_go_of_its_npu_stays_bound_until_its_pod_opts_out(rig: Rig, restarted: bool) -> None:
    (worker,) = start(rig, 0)
    rig.settle()
    child = worker.fork()
    rig.node.let_go(worker.pid)
    rig.node.kernel.proc.set_fds(worker.pid, [])
    rig.restart()
    writes = rig.writes()
    rig.settle()
    assert rig.npu(0)["state"] == "Idle"
    assert (rig.writes(), is_free(worker)) == (writes, False)
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.events()
    if restarted:
        rig.restart()
        rig.settle()
    rig.sweep()
    assert is_free(worker)
    assert free(child)
    assert rig.events() == [("CpuReleased", "llm-0")]


def test_a_pod_that_opts_out_after_its_only_worker_ended_gets_back_what_that_left(rig: Rig) -> None:
    (worker,), (other,) = start(rig, 0), start(rig, 1, name="stays")
    rig.settle()
    left, theirs = orphan(worker), orphan(other)
    worker.end()
    other.end()
    rig.sweep()
    rig.restart()
    rig.settle()
    opt_out(rig, worker)
    assert free(left)
    assert not free(theirs)
    assert [entry.process for entry in rig.agent.planner.journal.workers] == [other.identity]
    assert ("CpuReleased", "llm-0") in rig.events()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_masks_of_their_own_of_workers_of_one_container_are_not_taken_for_what_the_others_left(
    rig: Rig, *, one_by_one: bool
) -> None:
    """One thread of each had chosen a CPU that lies in the other's pool by now."""
    workers = start(rig, 0, 1)
    own = [CpuSet.parse(cpu) for cpu in ("180", "150")]
    for worker, cpu in zip(workers, own, strict=True):
        rig.node.kernel.set_by_other(worker.threads[1].tid, cpu)
    rig.settle()
    assert all(cpu <= CpuSet.parse(rig.pools()[npu]) for npu, cpu in zip((1, 0), own, strict=True))
    if one_by_one:
        rig.node.kernel.denied = {workers[1].threads[0].tid}
    opt_out(rig, workers[0])
    if one_by_one:
        rig.restart()
        rig.settle()
        rig.node.kernel.denied = set()
        rig.sweep()
    assert [worker.threads[1].mask for worker in workers] == own
    assert free(*(task for worker in workers for task in worker.threads if task is not worker.threads[1]))
    assert rig.agent.planner.journal.workers == ()


def test_what_a_worker_left_that_remembers_cpus_which_its_cpuset_has_lost_is_given_back(rig: Rig) -> None:
    """Since Linux 6.2 it would have them again once the cpuset does; until then it looks as if it were free."""
    (worker,) = start(rig, 0)
    rig.settle()
    left = orphan(worker)
    worker.end()
    with_all = rig.node.kernel.allowed(left.tid)
    rig.node.kernel.write_cpuset(left.cgroup, CpuSet.parse("0-95"))
    assert str(left.mask) == "0-95"
    rig.sweep()
    rig.restart()
    rig.settle()
    opt_out(rig, worker)
    assert rig.agent.planner.journal.workers == ()
    rig.node.kernel.write_cpuset(left.cgroup, with_all)
    assert left.mask == with_all
