"""Interrupts of NPUs follow the bound workers of a node (design 6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from tests.control.pods import IN, OUT, annotate, by_annotation, pods_not_listed
from tests.control.rig import Rig
from tests.control.steps import MAILBOX, all_irqs, effects, irqs, journal, mask, moved

LEAVE_IRQS = {"cpubind.dev/irq-binding": "false"}


def with_worker(folder: Path, profile: str = "a2", npu: int = 1) -> tuple[Rig, Worker]:
    """An annotated pod with a worker on one NPU, bound."""
    rig = Rig(folder, profile, chooses=by_annotation, interrupts=True)
    worker = Worker.start(rig.node, npu, rig.node.kubelet.add_pod("llm-0"), threads=4)
    rig.settle()
    assert rig.npu(npu)["state"] == "Bound"
    return rig, worker


def ends(rig: Rig, npu: int) -> tuple[str, str]:
    """The first two CPUs of an NPU's pool."""
    first, second, *_ = CpuSet.parse(rig.npu(npu)["pool"])
    return str(first), str(second)


def in_place(rig: Rig, npu: int) -> bool:
    """Whether exactly this NPU's interrupts were moved, and are where they belong."""
    return moved(rig) == {npu} and irqs(rig, npu) == ends(rig, npu)


@pytest.mark.parametrize("profile", ["a2", "a3", "atlas300i"])
def test_submissions_go_to_the_first_cpu_of_a_pool_and_completions_to_the_second(tmp_path: Path, profile: str) -> None:
    rig = Rig(tmp_path, profile, interrupts=True)
    pod = rig.node.kubelet.add_pod("llm-0")
    busy = (0, 3)
    for npu in busy:
        Worker.start(rig.node, npu, pod, threads=4)
    rig.settle()
    for npu in busy:
        assert rig.npu(npu)["irq"] == "Bound"
        assert irqs(rig, npu) == ends(rig, npu)
        (mailbox,) = (irq.number for irq in rig.node.irqs if irq.npu == npu and irq.action.startswith(MAILBOX))
        assert mask(rig, mailbox) == str(rig.node.profile.cpus)
    assert moved(rig) == set(busy)
    assert [entry["id"] for entry in rig.status["npus"] if "irq" in entry] == list(busy)
    assert (rig.condition("Ready")["status"], rig.condition("Degraded")["status"]) == ("True", "False")


def test_nobody_bound_means_that_no_interrupt_is_touched(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", chooses=by_annotation, interrupts=True)
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("other", annotations={}))
    rig.settle()
    rig.settle()
    assert effects(rig) == dict.fromkeys(effects(rig), 0)
    assert all("irq" not in entry for entry in rig.status["npus"])


def test_they_go_back_when_the_last_worker_of_the_npu_is_gone(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    other = Worker.start(rig.node, 1, worker.pod, threads=2, memory_mib=900)
    rig.settle()
    other.end()
    rig.settle()
    assert in_place(rig, 1)
    worker.end()
    rig.settle()
    assert moved(rig) == set()
    assert "irq" not in rig.npu(1)
    assert journal(rig).irqs == ()


def test_a_worker_that_npu_smi_loses_for_a_while_moves_nothing_back_and_forth(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    written = effects(rig)
    rig.node.npu_smi.set_rows([])
    rig.node.kernel.proc.set_fds(worker.pid, [(0, 1, 3)])
    for _ in range(3):
        rig.settle()
    assert in_place(rig, 1)
    rig.restart()
    for _ in range(3):
        rig.settle()
    assert in_place(rig, 1), "also of an agent that has not seen him there"
    rig.node.hold(worker.pid, [(1, 9000)], "python3")
    rig.settle()
    assert rig.npu(1)["irq"] == "Bound"
    assert effects(rig) == written


def test_a_pod_that_opts_out_gets_them_put_back(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    assert worker.pod is not None
    pod = annotate(rig, worker.pod, OUT)
    rig.sweep()
    assert (moved(rig), journal(rig).taken) == (set(), "")
    annotate(rig, pod, IN)
    rig.sweep()
    assert in_place(rig, 1)


def test_a_pod_can_ask_for_its_interrupts_to_be_left_alone(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    assert worker.pod is not None
    pod = annotate(rig, worker.pod, IN | LEAVE_IRQS)
    rig.sweep()
    assert moved(rig) == set()
    entry = rig.npu(1)
    assert (entry["state"], entry["irq"], entry["irqReason"]) == ("Bound", "Skipped", "SwitchedOff")
    assert rig.condition("Degraded")["status"] == "False"
    annotate(rig, pod, IN)
    rig.sweep()
    assert in_place(rig, 1)
    rig.ask(irqBinding=False)
    rig.sweep()
    assert (moved(rig), rig.npu(1)["irqReason"]) == (set(), "SwitchedOff")


@pytest.mark.parametrize("asked", [{}, LEAVE_IRQS], ids=["moved", "left"])
def test_what_a_pod_asks_for_is_not_guessed_while_pods_are_not_listed(tmp_path: Path, asked: dict[str, str]) -> None:
    """Absence never acts on the host (design 7): neither in a running agent nor in one that starts then."""
    rig, worker = with_worker(tmp_path)
    assert worker.pod is not None
    annotate(rig, worker.pod, IN | asked)
    rig.sweep()
    before, written = all_irqs(rig), effects(rig)
    with pods_not_listed(rig):
        rig.settle()
        rig.restart()
        rig.settle()
        rig.settle()
        assert (all_irqs(rig), effects(rig)) == (before, written)
    rig.sweep()
    assert (all_irqs(rig), effects(rig)) == (before, written)


def test_a_pod_whose_annotation_cannot_be_read_keeps_what_it_has(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    assert worker.pod is not None
    pod = annotate(rig, worker.pod, IN | LEAVE_IRQS)
    rig.sweep()
    pod = annotate(rig, pod, IN | {"cpubind.dev/irq-binding": "nope"})
    rig.sweep()
    assert moved(rig) == set()
    pod = annotate(rig, pod, IN)
    rig.sweep()
    pod = annotate(rig, pod, IN | {"cpubind.dev/irq-binding": "nope"})
    rig.sweep()
    assert in_place(rig, 1)


def test_under_disabled_everything_is_put_back_and_the_plan_says_so(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.ask(mode="Disabled")
    rig.sweep()
    assert moved(rig) == set()
    assert rig.condition("Restored")["status"] == "True"
    assert journal(rig).taken == ""
    assert "irq" not in rig.npu(1)
    rig.restart()
    rig.ask(mode="Enforce")
    rig.settle()
    assert in_place(rig, 1)


def test_interrupts_that_cannot_be_put_back_keep_the_plan_from_being_restored(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.node.kernel.irq_errors = dict.fromkeys(rig.node.irqs_of(1), 30)
    rig.ask(mode="Disabled")
    rig.sweep()
    condition = rig.condition("Restored")
    assert (condition["status"], condition["reason"]) == ("False", "IrqReadOnly")
    assert "17 interrupts" in condition["message"]
    rig.node.kernel.irq_errors = {}
    rig.sweep(11)
    assert rig.condition("Restored")["status"] == "True"
    assert moved(rig) == set()


def test_a_dry_run_shows_what_would_be_and_writes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-0"), threads=4)
    rig.ask(mode="DryRun")
    rig.settle()
    rig.sweep()
    assert (rig.npu(1)["state"], rig.npu(1)["irq"]) == ("Planned", "Planned")
    assert effects(rig) == dict.fromkeys(effects(rig), 0)
    assert journal(rig).taken == ""


def test_a_dry_run_after_enforce_freezes_what_is_placed(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    before, written, taken = all_irqs(rig), effects(rig), journal(rig).taken
    rig.ask(mode="DryRun")
    rig.sweep()
    assert rig.npu(1)["irq"] == "Planned"
    Worker.start(rig.node, 2, worker.pod, threads=4)
    rig.settle()
    assert rig.npu(2)["irq"] == "Planned"
    worker.end()
    rig.settle()
    assert (all_irqs(rig), effects(rig), journal(rig).irqs != ()) == (before, written, taken != "")
    rig.ask(mode="Enforce")
    rig.sweep()
    assert in_place(rig, 2)


def test_a_cpuset_that_changes_does_not_send_them_there_and_back(tmp_path: Path) -> None:
    """The container loses the CPUs of its NPU, and gets others within the same pass (kubernetes #138731)."""
    rig = Rig(tmp_path, "a2", interrupts=True)
    pod = rig.node.kubelet.add_pod("own", own_cpus=CpuSet.parse("144-163"))
    Worker.start(rig.node, 0, pod, threads=4)
    rig.settle()
    rig.settle()
    assert irqs(rig, 0) == ("144", "145")
    written = effects(rig)["smp_affinity_list"]
    rig.node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("150-155"))
    rig.sweep()
    assert irqs(rig, 0) == ends(rig, 0)
    assert effects(rig)["smp_affinity_list"] - written <= 17


def test_one_that_is_moved_away_is_put_back_in_the_next_sweep_and_told_to_the_pod(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.events()
    rig.node.set_irq(rig.node.irqs_of(1)[5], CpuSet.parse("7"))
    rig.sweep()
    assert in_place(rig, 1)
    assert rig.events() == [("CpuBindingRepaired", "llm-0")]
    rig.sweep()
    assert rig.events() == []
    assert rig.condition("Degraded")["status"] == "False"
