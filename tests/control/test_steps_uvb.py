"""UVB threads of an Ascend 950 node, and helpers of containers, in the whole agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.demo.fake_kernel import FakeTask
from agent.demo.fake_kubelet import VirtualPod
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet, union
from tests.control.pods import IN, OUT, annotate, by_annotation, delete, free, pods_not_listed
from tests.control.rig import Rig, masks
from tests.control.steps import effects, journal, uvb_thread

CONFINE = {"cpubind.dev/helpers": "Confine"}


def apart(rig: Rig) -> CpuSet:
    """The CPUs that the published plan sets apart."""
    roles = [entry["roles"] for entry in rig.status["npus"] if "roles" in entry]
    return union(CpuSet.parse(own.get(role, "")) for own in roles for role in ("irq", "acl", "release"))


# UVB threads


@pytest.fixture
def rig950(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path, "ascend950")
    rig.settle()
    return rig


def test_uvb_threads_are_on_the_cpus_that_the_plan_has_for_them_and_interrupts_are_nobody_s(rig950: Rig) -> None:
    Worker.start(rig950.node, 0, rig950.node.kubelet.add_pod("llm-0"), threads=2)
    rig950.settle()
    uvb = rig950.status["uvb"]
    assert (uvb["state"], uvb["threads"]) == ("Bound", 1)
    assert str(uvb_thread(rig950).mask) == uvb["cpus"]
    assert all("irq" not in entry for entry in rig950.status["npus"])
    assert effects(rig950)["smp_affinity_list"] == 0
    assert [taken.thread.tid for taken in journal(rig950).uvb] == [uvb_thread(rig950).tid]
    assert rig950.condition("Degraded")["status"] == "False"


def test_one_that_was_moved_away_is_put_back(rig950: Rig) -> None:
    rig950.node.kernel.set_by_other(uvb_thread(rig950).tid, CpuSet.parse("3"))
    rig950.sweep()
    assert str(uvb_thread(rig950).mask) == rig950.status["uvb"]["cpus"]


def test_a_next_agent_writes_nothing_to_them(rig950: Rig) -> None:
    written, status = effects(rig950), rig950.status
    rig950.restart()
    rig950.settle()
    rig950.sweep()
    assert (effects(rig950), rig950.status) == (written, status)


def test_under_disabled_they_are_given_back(rig950: Rig) -> None:
    rig950.ask(mode="Disabled")
    rig950.sweep()
    assert free(uvb_thread(rig950))
    assert (rig950.status["uvb"]["state"], rig950.status["uvb"]["reason"]) == ("Skipped", "Disabled")
    assert rig950.condition("Restored")["status"] == "True"
    assert journal(rig950).taken == ""
    rig950.sweep()
    assert rig950.condition("Ready")["status"] == "True"


def test_switched_off_they_are_given_back_and_on_again_placed(rig950: Rig) -> None:
    rig950.ask(uvbBinding=False)
    rig950.sweep()
    assert free(uvb_thread(rig950))
    assert (rig950.status["uvb"]["state"], rig950.status["uvb"]["reason"]) == ("Skipped", "SwitchedOff")
    assert rig950.condition("Degraded")["status"] == "False"
    assert journal(rig950).taken == ""
    rig950.ask()
    rig950.sweep()
    assert rig950.status["uvb"]["state"] == "Bound"


def test_a_dry_run_says_how_many_there_are_and_moves_none(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "ascend950")
    rig.ask(mode="DryRun")
    rig.settle()
    rig.sweep()
    assert (rig.status["uvb"]["state"], rig.status["uvb"]["threads"]) == ("Planned", 1)
    assert effects(rig) == dict.fromkeys(effects(rig), 0)
    assert journal(rig).taken == ""


def test_on_an_architecture_that_is_not_bound_they_stay(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "ascend950", architecture="x86_64")
    rig.settle()
    rig.sweep()
    assert effects(rig) == dict.fromkeys(effects(rig), 0)


def test_those_that_must_not_be_moved_are_missing_and_nothing_else(rig950: Rig) -> None:
    thread = uvb_thread(rig950)
    rig950.node.kernel.set_by_other(thread.tid, CpuSet.parse("3"))
    rig950.node.kernel.denied.add(thread.tid)
    Worker.start(rig950.node, 0, rig950.node.kubelet.add_pod("llm-0"), threads=2)
    rig950.events()
    rig950.settle()
    assert (rig950.status["uvb"]["state"], rig950.status["uvb"]["reason"]) == ("Failed", "PermissionDenied")
    assert rig950.npu(0)["state"] == "Bound"
    assert (rig950.condition("Degraded")["reason"], rig950.condition("Ready")["status"]) == ("PermissionDenied", "True")
    assert sorted(rig950.events()) == [("CpuBound", "llm-0"), ("PermissionDenied", "")]
    rig950.ask(mode="Disabled")
    rig950.sweep()
    assert rig950.condition("Restored")["status"] == "True", "somebody else has moved it since"


# Helpers


def confined(folder: Path, **spec: str) -> tuple[Rig, Worker, FakeTask]:
    """A worker, and a helper in its container, whose pod or plan asks for Confine."""
    rig = Rig(folder, "a2", chooses=by_annotation)
    rig.ask(**spec)
    pod = rig.node.kubelet.add_pod("llm-0", annotations=IN | ({} if spec else CONFINE))
    worker = Worker.start(rig.node, 1, pod, threads=2)
    worker.add_role_threads()
    helper = start_helper(rig, pod)
    rig.settle()
    return rig, worker, helper


def start_helper(rig: Rig, pod: VirtualPod) -> FakeTask:
    return rig.node.kernel.start_process("api_server", cgroup=pod.container().cgroup)


def is_bound(rig: Rig, worker: Worker) -> bool:
    roles = rig.npu(worker.npu)["roles"]
    found = masks(worker)
    return found["main"] == {roles["main"]} and found.get("acl_thread", {roles["acl"]}) == {roles["acl"]}


@pytest.mark.parametrize("spec", [{}, {"helpers": "Confine"}], ids=["annotation", "spec"])
def test_helpers_are_kept_off_the_cpus_that_are_set_apart_on_the_node(tmp_path: Path, spec: dict[str, str]) -> None:
    rig, worker, helper = confined(tmp_path, **spec)
    whole = rig.node.kernel.online
    assert helper.mask == whole - apart(rig)
    child = worker.fork(creator=worker.threads[2].tid)  # begins with the mask of the ACL thread
    late = start_helper(rig, worker.pod) if worker.pod else None
    rig.sweep()
    assert is_bound(rig, worker)
    assert str(child.mask) == rig.npu(1)["roles"]["main"]
    assert late is not None
    assert late.mask == whole - apart(rig)
    assert rig.condition("Degraded")["status"] == "False"
    assert len(journal(rig).confined) >= 1


def test_an_annotation_that_is_taken_off_gives_them_back(tmp_path: Path) -> None:
    rig, worker, helper = confined(tmp_path)
    assert worker.pod is not None
    annotate(rig, worker.pod, IN)
    rig.sweep()
    assert free(helper)
    assert is_bound(rig, worker)
    assert journal(rig).confined == ()


@pytest.mark.parametrize("how", ["opting out", "Disabled", "the worker's end"])
def test_they_are_given_back_with_the_worker(tmp_path: Path, how: str) -> None:
    rig, worker, helper = confined(tmp_path)
    assert worker.pod is not None
    if how == "opting out":
        annotate(rig, worker.pod, OUT)
    elif how == "Disabled":
        rig.ask(mode="Disabled")
    else:
        worker.end()
    rig.settle()
    rig.sweep()
    assert free(helper)
    assert journal(rig).taken == ""


def test_they_stay_confined_while_nothing_is_known_of_the_pod(tmp_path: Path) -> None:
    rig, worker, helper = confined(tmp_path)
    before, written = helper.mask, effects(rig)
    with pods_not_listed(rig):
        rig.settle()
        rig.restart()
        rig.settle()
    assert worker.pod is not None
    delete(rig, worker.pod)
    rig.sweep()
    assert (helper.mask, effects(rig)) == (before, written)


def test_a_worker_that_begins_in_a_confined_container_is_bound_as_any_other(tmp_path: Path) -> None:
    """It begins with a helper's mask; that is nothing of its own, to be given back one day."""
    rig, worker, helper = confined(tmp_path)
    leader = rig.node.kernel.start_process("VLLM::Worker_TP", parent=helper.tid)
    late = Worker(rig.node, 2, worker.pod, leader)
    late.grow(2)
    rig.sweep()
    rig.node.hold(late.pid, [(2, 9000)], leader.comm)
    rig.settle()
    assert rig.npu(2)["state"] == "Bound"
    assert is_bound(rig, late)
    assert all(not bound.masks for bound in journal(rig).workers)
    rig.ask(mode="Disabled")
    rig.sweep()
    rig.sweep()
    assert free(*late.threads, *worker.threads, helper)


def test_helpers_with_no_other_cpu_are_left_and_that_is_said(tmp_path: Path) -> None:
    rig, worker, helper = confined(tmp_path)
    rig.node.kernel.set_by_other(helper.tid, CpuSet.parse("0-1"))
    rig.sweep()
    degraded = rig.condition("Degraded")
    assert (degraded["reason"], str(helper.mask)) == ("NotConfined", "0-1")
    assert is_bound(rig, worker)
    assert rig.condition("Ready")["status"] == "True"


def test_a_dry_run_confines_nobody_and_gives_nothing_back(tmp_path: Path) -> None:
    rig, worker, helper = confined(tmp_path)
    assert worker.pod is not None
    before, written = helper.mask, effects(rig)
    rig.ask(mode="DryRun")
    rig.sweep()
    late = start_helper(rig, worker.pod)
    annotate(rig, worker.pod, IN)
    rig.sweep()
    assert (helper.mask, late.mask, effects(rig)) == (before, rig.node.kernel.online, written)
    assert len(journal(rig).confined) >= 1
