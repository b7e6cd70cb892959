"""What happens to bound workers between two passes: kubelet's doing, another writer, a second binder (design 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.control.act import ActResult
from agent.control.drift import VLLM_ASCEND
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.outcome import Misplaced, WorkerOutcome
from agent.model.spec import Role
from agent.model.workload import ProcessId
from tests.control.pods import OUT, annotate, by_annotation, is_free
from tests.control.rig import Rig, masks, narrow

CONFLICT = "CpuBindingConflict"
ELSEWHERE = CpuSet.parse("300-303")


def start(rig: Rig, *npus: int) -> list[Worker]:
    """Bound workers, each in a pod of its own."""
    workers = [Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}")) for npu in npus]
    for worker in workers:
        worker.add_role_threads()
    rig.settle()
    assert rig.status["summary"]["bound"] == len(npus)
    rig.events()
    return workers


def in_place(rig: Rig, *workers: Worker) -> bool:
    """Whether every thread is where the published plan says."""
    return all(masks(worker) == _planned(rig, worker) for worker in workers)


def _planned(rig: Rig, worker: Worker) -> dict[str, set[str]]:
    roles = rig.npu(worker.npu)["roles"]
    return {"main": {roles["main"]}, "acl_thread": {roles["acl"]}, "release_thread": {roles["release"]}}


def fight(rig: Rig, worker: Worker) -> None:
    """Somebody moves a worker's threads in each of three passes."""
    for _ in range(3):
        worker.drift(ELSEWHERE, 5)
        rig.sweep()


def detected(rig: Rig) -> dict[str, int]:
    return {str(kind): count for kind, count in rig.agent.drift().detected.items()}


def test_the_agent_says_of_which_npus_the_last_pass_found_threads_elsewhere(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first, _ = start(rig, 2, 7)
    assert rig.agent.moved() == {}
    first.drift(ELSEWHERE, 5)
    rig.sweep()
    assert rig.agent.moved() == {2: 5}
    rig.sweep()
    assert rig.agent.moved() == {}


def test_in_a_dry_run_nothing_has_moved_since_nothing_was_put_anywhere(tmp_path: Path) -> None:
    rig = Rig(tmp_path, force_dry_run=True)
    Worker.start(rig.node, 2, rig.node.kubelet.add_pod("llm-2"))
    rig.settle()
    rig.sweep()
    assert rig.npu(2)["state"] == "Planned"
    assert rig.agent.moved() == {}


# kubelet


@pytest.mark.parametrize("remembers_masks", [True, False])
def test_three_guaranteed_pods_within_a_minute_leave_every_worker_bound_without_a_conflict(
    tmp_path: Path, remembers_masks: bool
) -> None:
    """kubernetes #66954: each rewrites the cpuset of everybody else, and before Linux 6.2 that resets their masks."""
    rig = Rig(tmp_path)
    rig.node.kernel.remembers_masks = remembers_masks
    workers = start(rig, *range(16))
    threads = sum(len(worker.threads) for worker in workers)
    for own in ("608-615", "616-623", "624-631"):
        rig.node.kubelet.add_pod(f"batch-{own}", own_cpus=CpuSet.parse(own), annotations={})
        rig.sweep(15)
        assert in_place(rig, *workers)
        assert rig.status["summary"]["bound"] == 16
        assert rig.condition("Degraded")["status"] == "False"
    assert CONFLICT not in {reason for reason, _ in rig.events()}
    found = detected(rig)
    assert found["thread"] == 0
    # Of NPU 15 the pool changed each time: that is a new binding, and no drift.
    assert found["cpuset"] == (0 if remembers_masks else 3 * threads * 15 // 16)


def test_a_reset_that_comes_in_pieces_while_cpusets_change_is_the_kernel_s(tmp_path: Path) -> None:
    """Passes that follow each other at once, as events cause them."""
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    container = worker.threads[0].cgroup
    for k in range(6):
        rig.node.kernel.write_cpuset(container, CpuSet.parse("0-599" if k % 2 else "0-639"))
        for _ in range(4):
            worker.drift(ELSEWHERE, 3)
            rig.sweep(0.4)
        rig.sweep(3.4)
    assert in_place(rig, worker)
    assert rig.condition("Degraded")["status"] == "False"
    # The first write gives the cpuset what it has.
    assert detected(rig) == {"thread": 12, "cpuset": 60, "irq": 0}


# Another writer


def test_a_writer_that_alternates_with_the_agent_is_backed_off_from_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """koordinator #1214: two agents rewriting each other for ever."""
    rig = Rig(tmp_path)
    contested, other = start(rig, 0, 5)
    before = rig.writes()
    with caplog.at_level(logging.WARNING, logger="agent"):
        for _ in range(120):  # ten minutes
            contested.drift(ELSEWHERE, 5)
            rig.sweep()
    # It was put back three times, and after each of 10, 20, 40, 80 and 160 s twice: to see whether it holds.
    assert rig.writes() - before == (3 + 5 * 2) * 5
    assert caplog.text.count(CONFLICT) == 6, "once for each time that is to pass"
    assert rig.npu(0)["state"] == "Partial"
    (entry,) = rig.npu(0)["workers"]
    assert (entry["state"], entry["reason"]) == ("Partial", CONFLICT)
    assert in_place(rig, other)
    assert rig.npu(5)["state"] == "Bound"
    for kind, status in (("Ready", "False"), ("Bound", "False"), ("Degraded", "True"), ("PlanValid", "True")):
        assert (rig.condition(kind)["status"], rig.condition(kind)["reason"]) == (
            status,
            "AsPlanned" if kind == "PlanValid" else CONFLICT,
        )
    told = rig.events()
    assert told.count((CONFLICT, "llm-0")) == 1
    assert told.count((CONFLICT, "")) == 1, "on the plan"
    assert not [event for event in told if event[1] == "llm-5"]


def test_the_event_on_the_pod_is_a_warning_that_says_which_process(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 3)
    fight(rig, worker)
    (event,) = [event for event in rig.told if event.reason.value == CONFLICT and event.pod]
    assert (event.warning, event.pod) == (True, "llm-3")
    assert event.message.startswith(
        f"process {worker.pid} on NPU 3 (irq 120-121, main 122-157, acl 158, release 159): "
    )
    assert f"process {worker.pid}: somebody else keeps moving its threads; left for 10 s" in event.message


def test_during_the_back_off_nothing_of_the_worker_is_written_not_even_new_threads(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    fight(rig, worker)
    worker.drift(ELSEWHERE, 5)
    grown = worker.grow(3, creator=worker.threads[0].tid)
    (release,) = (task for task in worker.threads if task.comm == "release_thread")
    child = worker.fork(creator=release.tid)
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes
    assert {str(task.mask) for task in [*worker.threads[:5], *grown]} == {str(ELSEWHERE)}
    assert child.mask == release.mask
    rig.sweep()
    assert in_place(rig, worker)
    assert str(child.mask) == rig.npu(0)["roles"]["main"], "it had inherited the release thread's CPU"


def test_a_worker_that_is_left_alone_by_the_other_writer_is_bound_again_after_a_minute(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    fight(rig, worker)
    rig.sweep(11)
    assert in_place(rig, worker)
    assert rig.npu(0)["state"] == "Partial", "whether it holds is not known yet"
    rig.events()
    documents = [rig.agent.plan_object()]
    for _ in range(11):
        rig.sweep()
        documents.append(rig.agent.plan_object())
    assert all(document == documents[0] for document in documents)
    rig.sweep()
    assert rig.npu(0)["state"] == "Bound"
    assert rig.condition("Degraded")["status"] == "False"
    assert rig.events() == [("CpuBound", "llm-0")]


def test_a_worker_in_conflict_that_opts_out_is_released_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, chooses=by_annotation)
    (worker,) = start(rig, 0)
    narrow(worker, "2-30")
    for _ in range(3):
        narrow(worker, "2-30")
        rig.sweep()
    assert rig.npu(0)["state"] == "Partial"
    assert worker.pod is not None
    annotate(rig, worker.pod, OUT)
    rig.sweep()
    assert is_free(worker)


def test_a_new_plan_is_carried_out_though_somebody_else_keeps_moving_the_worker(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    fight(rig, worker)
    rig.node.kubelet.add_pod("batch", own_cpus=CpuSet.parse("30-37"), annotations={})
    rig.sweep()
    assert in_place(rig, worker)
    assert rig.npu(0)["roles"]["main"] == "2-29"
    assert rig.npu(0)["state"] == "Partial"


def test_a_restart_of_the_agent_loses_no_binding_and_begins_to_count_anew(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    fight(rig, worker)
    worker.drift(ELSEWHERE, 5)
    rig.restart()
    rig.settle()
    assert in_place(rig, worker)
    assert rig.npu(0)["state"] == "Bound"
    fight(rig, worker)
    assert rig.npu(0)["state"] == "Partial"


def test_a_dry_run_counts_nothing_and_meets_no_conflict(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    rig.ask(mode="DryRun")
    for _ in range(5):
        worker.drift(ELSEWHERE, 5)
        rig.sweep()
    assert detected(rig) == {"thread": 0, "cpuset": 0, "irq": 0}
    assert rig.npu(0)["state"] == "Planned"
    assert rig.condition("Degraded")["status"] == "False"


# vLLM-Ascend's own binder


def bind_inside(worker: Worker, main: str, acl: str, release: str) -> None:
    """``taskset -acp`` of the process, then ``taskset -cp`` of two threads: as vLLM-Ascend does from inside, on what it
    takes for its CPUs, which is the mask that the process had just then."""
    narrow(worker, main)
    for name, cpus in (("acl_thread", acl), ("release_thread", release)):
        (task,) = (task for task in worker.threads if task.comm == name)
        worker.node.kernel.set_by_other(task.tid, CpuSet.parse(cpus))


SECOND_BINDERS: list[Callable[[Worker], None]] = [
    lambda worker: bind_inside(worker, "4-35", "36", "37"),  # within main
    lambda worker: bind_inside(worker, "402-437", "438", "439"),  # elsewhere
    lambda worker: narrow(worker, "2-11"),  # before it has named its role threads
]


@pytest.mark.parametrize("binder", SECOND_BINDERS)
def test_a_second_binder_inside_the_worker_is_undone_once_and_named_with_the_way_to_turn_it_off(
    tmp_path: Path, binder: Callable[[Worker], None], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    worker, other = start(rig, 0, 1)
    binder(worker)
    with caplog.at_level(logging.INFO, logger="agent"):
        rig.sweep()
    assert in_place(rig, worker, other)
    (event,) = rig.told
    assert (event.reason.value, event.warning, event.pod) == ("CpuBindingRepaired", False, "llm-0")
    count = len(worker.threads)
    assert event.message == f"process {worker.pid}: {count} threads (all at once, {VLLM_ASCEND}) put back"
    assert """--additional-config '{"enable_cpu_binding": false}'""" in event.message
    assert f"repaired {count} threads of process {worker.pid}, all at once, {VLLM_ASCEND}" in caplog.text
    rig.told.clear()
    for _ in range(20):
        rig.sweep()
    assert rig.events() == []
    assert rig.npu(0)["state"] == "Bound"


def test_a_second_binder_that_does_not_stop_is_a_conflict_that_names_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start(rig, 0)
    for _ in range(3):
        bind_inside(worker, "4-35", "36", "37")
        rig.sweep()
    assert rig.npu(0)["workers"][0]["reason"] == CONFLICT
    assert "enable_cpu_binding" in rig.npu(0)["workers"][0]["message"]


def test_what_a_pass_that_planned_again_had_found_first_is_told_with_it() -> None:
    process = ProcessId(7, 9)
    moved = Misplaced(7, "python3", Role.MAIN, ELSEWHERE, CpuSet.parse("2-37"))
    first = ActResult({process: WorkerOutcome(process, "Bound", drift=(moved,), at_once=True)})
    both = ActResult({process: WorkerOutcome(process, "Bound")}).after(first).outcomes[process]
    assert (both.repaired, both.at_once) == (1, True)
