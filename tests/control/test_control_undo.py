"""Taking bindings back, and leaving them alone: opting out, `mode: Disabled`, dry runs, pods that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.control.observe import Candidate, Choice
from agent.demo.fake_kernel import FakeTask
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.spec import Mode, Spec
from tests.control.pods import IN, OUT, annotate, by_annotation, by_container, delete, free, is_free
from tests.control.rig import Rig, masks, narrow


def bound(rig: Rig, worker: Worker) -> bool:
    """Whether a worker's threads are where the published plan says."""
    roles = rig.npu(worker.npu)["roles"]
    names = {"main": "main", "acl_thread": "acl", "release_thread": "release"}
    return masks(worker) == {name: {roles[names[name]]} for name in masks(worker)}


def start(rig: Rig, npu: int, name: str = "llm-0") -> Worker:
    """A worker in a pod of its own that opted in."""
    worker = Worker.start(rig.node, npu, rig.node.kubelet.add_pod(name), threads=6)
    worker.add_role_threads()
    return worker


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, "a2", chooses=by_annotation)


# Opting out


def test_a_pod_that_opts_out_gets_its_cpus_back_with_its_children_and_nobody_else_does(rig: Rig) -> None:
    worker, other = start(rig, 0, "out"), start(rig, 1, "stays")
    rig.settle()
    child, theirs = worker.fork(), other.fork()
    grandchild = rig.node.kernel.start_process("ccec", parent=child.tid)
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.events()
    rig.sweep()
    assert is_free(worker)
    assert free(child, grandchild)
    assert bound(rig, other)
    assert str(theirs.mask) == rig.npu(1)["roles"]["main"]
    assert (rig.npu(0)["state"], rig.npu(0)["reason"]) == ("Idle", "NotOptedIn")
    assert rig.events() == [("CpuReleased", "out")]
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes
    assert rig.events() == []


def test_threads_that_were_given_back_follow_their_cpuset(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.sweep()
    rig.node.kernel.write_cpuset(worker.pod.container().cgroup, CpuSet.parse("100-120"))
    rig.node.kernel.write_cpuset(worker.pod.container().cgroup, CpuSet.parse("50-150"))
    assert set().union(*masks(worker).values()) == {"50-150"}


def test_a_child_that_is_forked_while_its_parent_is_given_back_is_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(rig, 0)
    rig.settle()
    born: list[FakeTask] = []
    write = rig.node.kernel.set_affinity

    def fork_first(tid: int, cpus: CpuSet) -> None:
        if not born:
            born.append(worker.fork(creator=worker.threads[-1].tid))
        write(tid, cpus)

    monkeypatch.setattr(rig.node.kernel, "set_affinity", fork_first)
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.sweep()
    assert is_free(worker)
    assert free(*born)


def test_children_move_with_a_worker_whose_cpus_are_cut_anew(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    child = worker.fork()
    rig.sweep(400)
    rig.ask(reservedCpus="144-150")
    rig.sweep()
    grandchild = rig.node.kernel.start_process("ccec", parent=child.tid)
    rig.sweep(11)
    main = rig.npu(0)["roles"]["main"]
    assert bound(rig, worker)
    assert [str(task.mask) for task in (child, grandchild)] == [main, main]
    # Later it is a child's own choice, on the old CPUs as on any.
    later = worker.fork()
    rig.node.kernel.set_by_other(later.tid, CpuSet.parse("160"))
    rig.sweep()
    assert str(later.mask) == "160"
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.sweep()
    assert free(child, grandchild)


def test_a_pod_that_opts_in_again_is_bound_again_as_for_the_first_time(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    assert worker.pod
    pod = annotate(rig, worker.pod, OUT)
    rig.sweep()
    narrow(worker, rig.npu(0)["pool"].partition("-")[0])  # what a first binding does not respect
    annotate(rig, pod, IN)
    rig.events()
    rig.sweep()
    assert bound(rig, worker)
    assert rig.events() == [("CpuBound", "llm-0")]


def test_a_pod_that_opts_out_and_in_between_two_looks_is_bound(rig: Rig) -> None:
    """Undoing takes two looks: the second finds what was forked during the first."""
    worker = start(rig, 0)
    rig.settle()
    answers = [Choice.RELEASE]
    rig.agent.parts.observer._chooses = lambda _: answers.pop() if answers else Choice.BIND
    rig.sweep()
    assert bound(rig, worker)


def test_opting_out_in_a_dry_run_writes_nothing_until_the_plan_is_enforced(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    rig.ask(mode="DryRun")
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.events()
    writes, before = rig.writes(), masks(worker)
    for _ in range(2):
        rig.sweep()
        rig.restart()
        rig.settle()
    assert (rig.writes(), masks(worker)) == (writes, before)
    assert rig.events() == []
    rig.ask(mode="Enforce")
    rig.sweep()
    assert is_free(worker)
    assert rig.events() == [("CpuReleased", "llm-0")]


def test_a_thread_that_cannot_be_given_back_is_said_and_tried_again(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    stuck = worker.threads[2]
    rig.node.kernel.denied = {stuck.tid}
    assert worker.pod
    annotate(rig, worker.pod, OUT)
    rig.events()
    for _ in range(3):
        rig.sweep()
    assert rig.condition("Degraded")["reason"] == "PermissionDenied"
    assert str(worker.pid) in rig.condition("Degraded")["message"]
    assert rig.events() == [("CpuReleased", "llm-0"), ("PermissionDenied", "")]
    assert not free(stuck)
    rig.restart()
    rig.settle()
    rig.node.kernel.denied = set()
    rig.sweep()
    assert is_free(worker)
    assert rig.condition("Degraded")["status"] == "False"


def test_a_worker_whose_plan_fails_is_given_back_with_its_children(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    child = worker.fork()
    assert worker.pod
    few = CpuSet(list(CpuSet.parse(rig.npu(0)["roles"]["main"]))[:3])
    rig.node.kernel.write_cpuset(worker.pod.container().cgroup, few)
    rig.events()
    rig.sweep()
    assert rig.npu(0)["reason"] == "InsufficientCpus"
    # Those of acl and release, whose CPUs are gone, have the whole cpuset already.
    assert free(child, *worker.threads[:6])
    assert rig.events() == [("CpuBindingFailed", "llm-0"), ("CpuReleased", "llm-0"), ("InsufficientCpus", "")]
    assert rig.agent.planner.journal.workers == ()


def test_threads_of_an_owner_of_cpus_are_told_once_though_they_have_all_of_its_pool_before_and_after(rig: Rig) -> None:
    pod = rig.node.kubelet.add_pod("own", own_cpus=CpuSet.parse("2-17"))
    worker = Worker.start(rig.node, 0, pod, threads=6)
    rig.settle()
    rig.sweep(11)
    assert bound(rig, worker)
    rig.node.kernel.denied = {worker.threads[2].tid}
    annotate(rig, pod, OUT)
    rig.events()
    for _ in range(3):
        rig.sweep()
    (released,) = [happening for happening in rig.told if happening.reason == "CpuReleased"]
    assert released.message == f"process {worker.pid}: 5 threads given back to their cpuset"
    rig.node.kernel.denied = set()
    rig.sweep()
    assert is_free(worker)
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes
    assert rig.agent.planner.journal.workers == ()


# mode: Disabled


def test_disabled_undoes_everything_and_is_restored_then(rig: Rig) -> None:
    workers = [start(rig, npu, f"llm-{npu}") for npu in range(3)]
    rig.settle()
    child = workers[1].fork()
    rig.ask(mode="Disabled")
    rig.events()
    rig.sweep()
    assert all(map(is_free, workers))
    assert free(child)
    assert rig.condition("Restored")["status"] == "True"
    assert (rig.condition("Ready")["status"], rig.condition("Ready")["reason"]) == ("True", "Disabled")
    assert rig.events() == [("CpuReleased", f"llm-{npu}") for npu in range(3)]
    assert rig.agent.planner.journal.workers == ()
    writes = rig.writes()
    rig.sweep()
    rig.settle()
    assert rig.writes() == writes


def test_a_plan_is_not_restored_while_a_thread_cannot_be_given_back(rig: Rig) -> None:
    worker, other = start(rig, 0), start(rig, 1, "llm-1")
    rig.settle()
    child = worker.fork()
    rig.node.kernel.denied = {child.tid}
    rig.ask(mode="Disabled")
    rig.events()
    for _ in range(2):
        rig.sweep()
        restored = rig.condition("Restored")
        assert (restored["status"], restored["reason"]) == ("False", "PermissionDenied")
        assert "not given back: 1 worker: " in restored["message"]
        assert (rig.condition("Ready")["status"], rig.condition("Ready")["reason"]) == ("False", "PermissionDenied")
    assert is_free(worker)
    assert is_free(other)
    assert rig.events() == [("CpuReleased", "llm-0"), ("CpuReleased", "llm-1")]
    rig.restart()
    rig.settle()
    assert rig.condition("Restored")["status"] == "False"
    rig.node.kernel.denied = set()
    rig.sweep()
    assert free(child)
    assert rig.condition("Restored")["status"] == "True"


@pytest.mark.parametrize("hangs", [False, True])
def test_an_agent_that_starts_under_disabled_undoes_with_children_whether_npu_smi_answers_or_not(
    rig: Rig, hangs: bool
) -> None:
    """As after `helm upgrade --set mode=Disabled`."""
    worker = start(rig, 0)
    rig.settle()
    child = worker.fork()
    rig.events()
    if hangs:
        rig.node.npu_smi.hang()
    rig.restart(spec=Spec(mode=Mode.DISABLED))
    rig.agent.step()
    assert is_free(worker)
    assert free(child)
    rig.settle()
    assert rig.condition("Restored")["status"] == "True"
    # Without a look nobody knows whose process it was.
    assert rig.events() == ([("NpuSmiHung", "")] if hangs else [("CpuReleased", "llm-0")])


def test_disabled_reaches_those_that_are_not_chosen_any_more(rig: Rig) -> None:
    """An agent that was started with another --select."""
    worker = start(rig, 0)
    rig.settle()

    def nobody(_: Candidate) -> Choice:
        return Choice.LEAVE

    rig.restart(chooses=nobody)
    rig.settle()
    rig.sweep()
    assert not is_free(worker)
    rig.ask(mode="Disabled")
    rig.sweep()
    assert is_free(worker)
    assert rig.condition("Restored")["status"] == "True"


def test_after_disabled_enforce_binds_again(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    rig.ask(mode="Disabled")
    rig.sweep()
    rig.ask(mode="Enforce")
    rig.events()
    rig.sweep()
    assert bound(rig, worker)
    assert rig.events() == [("CpuBound", "llm-0")]
    assert "Restored" not in {condition["type"] for condition in rig.status["conditions"]}


def test_a_dry_run_after_disabled_binds_nobody(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    rig.ask(mode="Disabled")
    rig.sweep()
    rig.ask(mode="DryRun")
    rig.sweep()
    assert is_free(worker)
    assert rig.npu(0)["state"] == "Planned"


# Nothing known


def test_a_pod_that_is_gone_keeps_its_worker_bound_and_repaired_until_that_ends(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    assert worker.pod
    delete(rig, worker.pod)
    writes = rig.writes()
    for again in range(2):
        rig.settle()
        assert rig.writes() == writes, again
        rig.restart()
    rig.settle()
    assert rig.npu(0)["state"] == "Bound"
    worker.drift(CpuSet.parse("100"), 3)
    rig.sweep()
    assert bound(rig, worker)
    worker.end()
    rig.sweep()
    assert rig.npu(0)["state"] == "Idle"
    assert rig.agent.planner.journal.workers == ()


def test_a_worker_whose_pod_was_never_seen_is_not_bound(rig: Rig) -> None:
    worker = start(rig, 0)
    assert worker.pod
    delete(rig, worker.pod)
    rig.settle()
    rig.settle()
    assert rig.writes() == 0
    assert (rig.npu(0)["state"], rig.npu(0)["reason"]) == ("Idle", "NotOptedIn")


@pytest.mark.parametrize("mode", ["DryRun", "Disabled"])
def test_a_worker_whose_pod_went_before_it_was_bound_is_not_bound_later(rig: Rig, mode: str) -> None:
    worker = start(rig, 0)
    rig.ask(mode=mode)
    rig.settle()
    assert worker.pod
    delete(rig, worker.pod)
    rig.ask(mode="Enforce")
    rig.sweep()
    rig.sweep()
    assert rig.writes() == 0


def test_a_bound_pod_whose_annotation_turns_invalid_is_left_as_it_is(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    assert worker.pod
    pod = annotate(rig, worker.pod, {"cpubind.dev/enabled": "yes"})
    rig.events()
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes
    assert rig.events() == [("InvalidAnnotation", "llm-0")]
    assert rig.npu(0)["state"] == "Bound"
    annotate(rig, pod, OUT)
    rig.sweep()
    assert is_free(worker)


def test_a_container_whose_name_is_not_known_yet_is_bound_once_it_is(tmp_path: Path) -> None:
    """kubelet reports a container's id after its processes have begun."""
    rig = Rig(tmp_path, "a2", chooses=by_container)
    pod = rig.node.kubelet.add_pod("llm-0", containers=("vllm", "proxy"))
    worker = Worker.start(rig.node, 0, pod, container="vllm", threads=4)
    named = rig.agent.parts.observer._pods
    nameless = [pod.model()]
    object.__setattr__(nameless[0], "containers", ())
    rig.agent.parts.observer._pods = lambda: nameless
    rig.settle()
    assert rig.writes() == 0
    rig.agent.parts.observer._pods = named
    rig.sweep()
    assert bound(rig, worker)
    rig.agent.parts.observer._pods = lambda: nameless
    writes = rig.writes()
    rig.sweep()
    assert (rig.writes(), rig.npu(0)["state"]) == (writes, "Bound")
