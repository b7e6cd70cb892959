"""Threads with masks of their own before they were bound: they are noted first, and get these back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.journal import Journal
from agent.control.restore import restore_all
from agent.control.steps import HostSteps
from agent.demo.fake_kernel import FakeTask
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from agent.model.workload import ThreadId
from agent.node.procfs import boot_id
from tests.control.pods import OUT, annotate, by_annotation, free, is_free
from tests.control.rig import Rig, masks


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, "a2", chooses=by_annotation)


def start(rig: Rig, npu: int = 0, own: dict[int, str] | None = None, **how: object) -> Worker:
    """A worker in a pod of its own, of whose threads some have masks of their own."""
    pod = rig.node.kubelet.add_pod(f"llm-{npu}", **how)  # type: ignore[arg-type]
    worker = Worker.start(rig.node, npu, pod, threads=6)
    worker.add_role_threads()
    for index, cpus in (own or {}).items():
        pin(worker.threads[index], cpus)
        rig.node.kernel.set_by_other(worker.threads[index].tid, CpuSet.parse(cpus))
    return worker


def pin(task: FakeTask, cpus: str) -> None:
    task.mask = task.asked = CpuSet.parse(cpus)


def opt_out(rig: Rig, worker: Worker) -> None:
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.sweep()


def on_disk(rig: Rig) -> Journal:
    journal, problem = journal_file.load(rig.journal_file, boot_id(rig.node.root))
    assert problem is None
    return journal


def saves(monkeypatch: pytest.MonkeyPatch) -> list[Journal]:
    """The journals that are written from now on."""
    written: list[Journal] = []
    save = journal_file.save

    def counted(path: Path, journal: Journal) -> None:
        save(path, journal)
        written.append(journal)

    monkeypatch.setattr(journal_file, "save", counted)
    return written


def before_each_write(rig: Rig, monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
    write = rig.node.kernel.set_affinity

    def looked(tid: int, cpus: CpuSet) -> None:
        look()
        write(tid, cpus)

    monkeypatch.setattr(rig.node.kernel, "set_affinity", looked)


# Noted first


def test_all_new_workers_are_noted_in_one_write_before_any_thread_is_moved(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [start(rig, npu, {1: "7"}) for npu in range(3)]
    written = saves(monkeypatch)
    known: list[tuple[int, set[int]]] = []
    before_each_write(
        rig,
        monkeypatch,
        lambda: known.append((len(written), {worker.process.pid for worker in written[-1].workers})),
    )
    rig.settle()
    everyone = {worker.pid for worker in workers}
    first = known[0][0]
    assert set(map(str, known)) == {str((first, everyone))}, "the journal is written once, before the first thread"
    noted, done = written[first - 1], written[first]
    assert {worker.complete for worker in noted.workers} == {False}
    assert {worker.complete for worker in done.workers} == {True}
    for later in written[first:]:  # once more when their memory was moved
        assert replace(later, workers=()) == replace(done, workers=())
    task = workers[0].threads[1]
    assert noted.workers[0].masks == {ThreadId(task.tid, task.start_time): CpuSet.parse("7")}


def test_what_changes_nothing_writes_no_journal_and_reads_no_mask_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(rig, 0, {1: "7"})
    rig.settle()
    written, writes = saves(monkeypatch), rig.writes()
    stamp = rig.journal_file.stat()
    reads = rig.node.kernel.calls["sched_getaffinity"]
    rig.sweep()
    assert rig.node.kernel.calls["sched_getaffinity"] - reads == len(worker.threads)
    rig.restart()
    rig.settle()
    worker.grow(3)
    rig.sweep()
    assert (written, rig.writes()) == ([], writes)
    assert rig.journal_file.stat().st_mtime_ns == stamp.st_mtime_ns


def test_new_cpus_are_noted_before_a_thread_is_put_on_them_and_the_old_ones_with_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(rig)
    rig.settle()
    rig.ask(reservedCpus="144-150")
    rig.sweep(400)
    old = CpuSet.parse(rig.pools()[0])
    noted: list[Journal] = []
    before_each_write(rig, monkeypatch, lambda: noted.append(on_disk(rig)))
    rig.sweep(11)
    new = CpuSet.parse(rig.pools()[0])
    assert old != new
    assert noted
    for journal in noted:
        (entry,) = journal.workers
        assert (entry.pool, entry.left, entry.complete) == (new, old, False)
    (entry,) = on_disk(rig).workers
    assert (entry.pool, entry.left, entry.complete) == (new, CpuSet(), True)
    assert entry.process == worker.identity


def test_a_journal_that_cannot_be_written_keeps_nobody_from_being_bound_and_given_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, journal: Journal) -> None:
        raise Refused(Reason.STATE_NOT_WRITTEN, "no space")

    monkeypatch.setattr(journal_file, "save", full)
    worker = start(rig, 0, {1: "7"})
    rig.settle()
    assert rig.npu(0)["state"] == "Bound"
    assert rig.condition("Degraded")["reason"] == "StateNotWritten"
    opt_out(rig, worker)
    assert str(worker.threads[1].mask) == "7"


# Given back


def test_a_thread_gets_the_mask_of_its_own_back_and_the_others_all_cpus(rig: Rig) -> None:
    worker = start(rig, 0, {1: "7", 2: "100-110", 3: "144-147", 6: "150"})
    rig.settle()
    opt_out(rig, worker)
    own = [worker.threads[index] for index in (1, 2, 3, 6)]
    assert [str(task.mask) for task in own] == ["7", "100-110", "144-147", "150"]
    assert free(*(task for task in worker.threads if task not in own))
    assert on_disk(rig).workers == ()


def test_it_does_so_for_the_agent_after_the_one_that_bound_it(rig: Rig) -> None:
    worker = start(rig, 0, {1: "7", 3: "144-147"})
    rig.settle()
    rig.restart()
    rig.settle()
    opt_out(rig, worker)
    assert [str(worker.threads[index].mask) for index in (1, 3)] == ["7", "144-147"]


def test_a_thread_that_has_the_mask_of_its_own_already_is_neither_written_nor_counted_again(rig: Rig) -> None:
    worker = start(rig, 0, {3: "146-147"})
    rig.settle()
    rig.node.kernel.denied = {worker.threads[2].tid}
    opt_out(rig, worker)
    assert [h.message for h in rig.told if h.reason is Reason.CPU_RELEASED] == [
        f"process {worker.pid}: 7 threads given back to their cpuset"
    ]
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes + 1, "the one that is denied is tried again"
    assert str(worker.threads[3].mask) == "146-147"


def test_a_mask_of_its_own_of_which_the_cpuset_has_nothing_any_more_becomes_all_cpus(rig: Rig) -> None:
    worker = start(rig, 0, {1: "7"})
    rig.settle()
    assert worker.pod
    rig.node.kernel.write_cpuset(worker.pod.container().cgroup, CpuSet.parse("144-191"))
    opt_out(rig, worker)
    assert is_free(worker)


def test_another_thread_with_the_number_of_one_that_had_a_mask_of_its_own_gets_all_cpus(rig: Rig) -> None:
    worker = start(rig, 0, {1: "7"})
    rig.settle()
    task = worker.threads[1]
    task.start_time += 1
    rig.node.kernel.proc.write_names(task)
    opt_out(rig, worker)
    assert is_free(worker)


def test_a_thread_that_somebody_moved_beyond_the_pool_is_left_where_it_is(rig: Rig) -> None:
    worker = start(rig, 0, {1: "7"})
    rig.settle()
    rig.node.kernel.denied = {task.tid for task in worker.threads}  # so that it is not repaired before
    rig.node.kernel.set_by_other(worker.threads[1].tid, CpuSet.parse("8"))
    rig.node.kernel.set_by_other(worker.threads[2].tid, CpuSet.parse("8"))
    rig.ask(mode="Disabled")
    rig.sweep()
    rig.node.kernel.denied = set()
    rig.sweep()
    assert [str(worker.threads[index].mask) for index in (1, 2)] == ["8", "8"]
    assert free(*worker.threads[3:])


def test_a_mask_that_a_child_began_with_is_not_its_own_when_it_becomes_a_worker_itself(rig: Rig) -> None:
    parent = start(rig)
    rig.settle()
    assert parent.pod
    child = parent.fork("VLLM::Worker")
    rig.node.hold(child.tid, [(1, 40000)], child.comm)
    worker = Worker(rig.node, 1, parent.pod, child)
    rig.settle()
    assert masks(worker) == {"main": {rig.npu(1)["roles"]["main"]}}
    opt_out(rig, parent)
    assert is_free(worker)


# A journal that was lost


@pytest.mark.parametrize("reserved", ["", "144-150"])
def test_after_a_damaged_journal_masks_that_an_agent_gave_are_nobodys_own(rig: Rig, reserved: str) -> None:
    """The plan that was cut anew may give other CPUs than those that the threads are on."""
    worker = start(rig)
    rig.settle()
    children = [worker.fork(creator=worker.threads[index].tid) for index in (0, -1)]
    text = rig.journal_file.read_text()
    rig.journal_file.write_text(text[: len(text) // 2])
    rig.ask(reservedCpus=reserved)
    rig.restart()
    rig.settle()
    assert rig.npu(0)["state"] == "Bound"
    assert rig.condition("Degraded")["reason"] == "StateUnreadable"
    (entry,) = on_disk(rig).workers
    assert entry.masks == {}
    opt_out(rig, worker)
    assert is_free(worker)
    assert free(*children)


def test_it_is_remembered_that_the_journal_was_lost_but_of_processes_that_began_later_masks_are_known(
    rig: Rig,
) -> None:
    old = start(rig, 0, annotations={})
    pin(old.threads[1], "7")
    rig.journal_file.write_text("{")
    rig.restart()
    rig.settle()
    young = start(rig, 1, {1: "7"})
    rig.restart()
    assert old.pod
    annotate(rig, old.pod, {"cpubind.dev/enabled": "true"})
    rig.settle()
    rig.ask(mode="Disabled")
    rig.sweep()
    assert is_free(old)
    assert str(young.threads[1].mask) == "7"


def test_masks_that_are_those_of_the_plan_are_a_threads_own_where_no_agent_can_have_given_them(rig: Rig) -> None:
    """vLLM-Ascend binds its workers by the same rules, from inside."""
    rig.settle()
    worker = start(rig, 0)
    roles = rig.npu(0)["roles"]
    before = {"main": {roles["main"]}, "acl_thread": {roles["acl"]}, "release_thread": {roles["release"]}}
    for task in worker.threads:
        pin(task, *before.get(task.comm, before["main"]))
    rig.settle()
    opt_out(rig, worker)
    assert masks(worker) == before
    assert not is_free(worker)


def test_without_a_journal_masks_that_are_those_of_the_plan_are_nobodys_own(rig: Rig) -> None:
    """Somebody has deleted it."""
    worker = start(rig)
    rig.settle()
    rig.journal_file.unlink()
    rig.restart()
    rig.settle()
    opt_out(rig, worker)
    assert is_free(worker)


@pytest.mark.parametrize("first", ["Enforce", "DryRun"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("remembers_masks", [True, False])
def test_cpus_that_were_taken_and_came_back_are_given_back_too(
    rig: Rig, first: str, restarted: bool, remembers_masks: bool
) -> None:
    """Since Linux 6.2 a thread remembers what it was told, be it more than the pool that it has by now."""
    rig.node.kernel.remembers_masks = remembers_masks
    worker = start(rig)
    rig.settle()
    pool = CpuSet.parse(rig.npu(0)["pool"])
    batch = rig.node.kubelet.add_pod("batch", own_cpus=CpuSet(sorted(pool)[4:8]), annotations={})
    for _ in range(2):
        rig.sweep()
    assert len(CpuSet.parse(rig.npu(0)["pool"])) == len(pool) - 4
    rig.ask(mode=first)
    rig.sweep()
    if restarted:
        rig.restart()
    rig.node.kubelet.remove_pod(batch)
    rig.ask(mode="Disabled")
    rig.settle()
    whole = {str(rig.node.profile.topology.online)}
    assert {str(task.mask) for task in worker.threads} == whole
    assert rig.condition("Restored")["status"] == "True"


def test_a_child_that_remembers_more_than_the_last_pool_moves_with_its_worker(rig: Rig) -> None:
    worker = start(rig)
    rig.settle()
    pool = CpuSet.parse(rig.npu(0)["pool"])
    batch = rig.node.kubelet.add_pod("batch", own_cpus=CpuSet(sorted(pool)[4:8]), annotations={})
    for _ in range(2):
        rig.sweep()
    child = worker.fork(creator=worker.pid)
    rig.node.kubelet.remove_pod(batch)
    rig.ask(strategy="GlobalSlice")
    rig.sweep()
    assert pool.isdisjoint(CpuSet.parse(rig.npu(0)["pool"]))
    assert str(child.mask) == rig.npu(0)["roles"]["main"]


@pytest.mark.parametrize("by", ["plan", "spec", "restore"])
def test_a_cpuset_that_lost_the_whole_pool_binds_nobody_anew_when_it_gets_that_back(rig: Rig, by: str) -> None:
    """Since Linux 6.2 a thread has its whole cpuset then, and remembers what it was told all the same."""
    worker = start(rig)
    rig.settle()
    child = worker.fork(creator=worker.pid)
    cgroup, before = worker.threads[0].cgroup, rig.writes()
    if by == "spec":
        rig.ask(mode="DryRun")
        rig.sweep()
    rig.node.kernel.write_cpuset(cgroup, CpuSet.parse("0-23"))
    assert {str(task.mask) for task in worker.threads} == {"0-23"}
    if by == "restore":
        observer = rig.agent.parts.observer
        steps = HostSteps(rig.node.root, rig.node.kernel, observer.cgroups)
        restored = restore_all(Actor(rig.node.root / "proc", rig.node.kernel), steps, observer, on_disk(rig))
        assert restored.journal.taken == ""
    else:
        rig.ask(mode="Disabled" if by == "spec" else "Enforce")
        rig.sweep()
    assert rig.writes() - before == len(worker.threads) + 1
    rig.node.kernel.write_cpuset(cgroup, rig.node.profile.topology.online)
    assert is_free(worker)
    assert free(child)


def test_without_a_journal_there_is_something_to_give_back_once_it_was_bound_again(rig: Rig) -> None:
    """As docs/upgrade.md has it of agents that were removed, and of their journal."""
    worker = start(rig)
    rig.settle()
    rig.journal_file.unlink()
    rig.ask(mode="Disabled")
    rig.restart()
    rig.settle()
    assert rig.condition("Restored")["status"] == "True", "nothing is known of what an agent did"
    assert not is_free(worker)
    rig.ask(mode="Enforce")
    rig.settle()
    rig.ask(mode="Disabled")
    rig.settle()
    assert is_free(worker)
