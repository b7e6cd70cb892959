"""Interrupts of an NPU that somebody else keeps moving, such as an irqbalance that cannot be told."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.outcome import IrqOutcome
from agent.model.reason import Problem, Reason
from agent.node.host import DryRunHost
from tests.control.irq_rig import CQ, SQ, IrqRig, cpus
from tests.control.rig import Rig

ELSEWHERE = cpus("90-95")


@pytest.fixture
def rig(tmp_path: Path) -> IrqRig:
    rig = IrqRig(tmp_path / "root")
    rig.step(0, 1)
    return rig


def move(rig: IrqRig, count: int = 3, npu: int = 0) -> None:
    """Somebody else moves so many completion interrupts of an NPU."""
    for irq in rig.node.irqs_of(npu, CQ)[:count]:
        rig.node.set_irq(irq, ELSEWHERE)


def fight(rig: IrqRig) -> list[IrqOutcome]:
    """He does so in each of three passes."""
    outcomes = []
    for _ in range(3):
        move(rig)
        outcomes.append(rig.step(0, 1)[0])
    return outcomes


def counted(rig: IrqRig) -> tuple[int, dict[str, int]]:
    """How many were detected, and what came of them."""
    drift = rig.interrupts.drift
    results = {str(result): count for (kind, result), count in drift.repaired.items() if kind == "irq"}
    return drift.detected["irq"], results


def test_after_the_third_time_within_a_minute_they_are_left_and_the_npu_is_partial(rig: IrqRig) -> None:
    outcomes = fight(rig)
    assert [(outcome.state, outcome.written, outcome.drift) for outcome in outcomes] == [
        ("Bound", 3, 3),
        ("Bound", 3, 3),
        ("Partial", 3, 3),
    ]
    text = "NPU 0: somebody else keeps moving its interrupts; left for 10 s, then put back again"
    assert outcomes[2].problem == Problem(Reason.CPU_BINDING_CONFLICT, text)
    move(rig)
    writes = rig.writes()
    outcome = rig.step(0, 1)[0]
    assert (outcome.state, outcome.problem, outcome.written) == ("Partial", outcomes[2].problem, 0)
    assert rig.writes() == writes


def test_the_other_npus_are_kept_in_place_meanwhile(rig: IrqRig) -> None:
    fight(rig)
    move(rig, npu=1)
    outcome = rig.step(0, 1)[1]
    assert (outcome.state, outcome.drift) == ("Bound", 3)
    assert rig.masks(1, CQ) == {"25"}


def test_they_are_put_back_after_ten_seconds_then_twenty_up_to_five_minutes(rig: IrqRig) -> None:
    fight(rig)
    before = rig.writes()
    for _ in range(3600):
        move(rig, 1)
        assert rig.step(0, 1, seconds=1)[0].state == "Partial"
    # An hour: after 10, 20, 40, 80, 160 s and then every 300 s, each time twice: to see whether it holds.
    assert rig.writes() - before == 2 * (5 + (3600 - 310) // 301)


def test_where_it_holds_for_a_minute_all_is_well_again(rig: IrqRig) -> None:
    fight(rig)
    move(rig)
    states = [rig.step(0, 1)[0].state for _ in range(15)]
    assert states == ["Partial"] * 13 + ["Bound"] * 2
    assert rig.masks(0, CQ) == {"1"}


def test_new_cpus_are_given_to_them_all_the_same(rig: IrqRig) -> None:
    fight(rig)
    move(rig)
    npu = rig.node.npu(0)
    rig.survey({npu: cpus("60-61")})
    outcome = rig.interrupts.act({npu: cpus("60-61")})[0]
    assert (rig.masks(0, SQ), rig.masks(0, CQ)) == ({"60"}, {"61"})
    assert (outcome.state, outcome.drift) == ("Partial", 0)


def test_they_are_given_back_when_the_last_worker_goes_and_the_next_begins_anew(rig: IrqRig) -> None:
    fight(rig)
    rig.step(1)
    assert rig.masks(0, CQ) == {"0-191"}
    assert rig.step(0, 1)[0].state == "Bound"


def test_all_are_counted_by_what_came_of_them(rig: IrqRig) -> None:
    fight(rig)
    move(rig, 4)
    rig.step(0, 1)  # left
    assert counted(rig) == (13, {"repaired": 9, "left": 4, "failed": 0})
    rig.step(0, 1)
    assert counted(rig) == (13, {"repaired": 13, "left": 4, "failed": 0})
    move(rig, 2, npu=1)
    rig.node.kernel.irq_errors[rig.node.irqs_of(1, CQ)[0]] = errno.EIO
    for _ in range(3):
        assert rig.step(0, 1)[1].state == "Partial"
    assert counted(rig) == (15, {"repaired": 14, "left": 4, "failed": 1})


def test_a_rehearsal_counts_nothing_and_meets_no_conflict(rig: IrqRig) -> None:
    rig.restart(DryRunHost(rig.node.kernel))
    move(rig)
    for _ in range(5):
        assert rig.step(0, 1)[0].state == "Bound"
    assert counted(rig) == (0, {"repaired": 0, "left": 0, "failed": 0})


def test_the_plan_is_degraded_and_says_so_at_the_npu_while_its_worker_stays_bound(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    (irq,) = rig.node.irqs_of(0, SQ)
    rig.events()
    for _ in range(3):
        rig.node.set_irq(irq, CpuSet.parse("90"))
        rig.sweep()
    assert (rig.npu(0)["state"], rig.npu(0)["irq"], rig.npu(0)["irqReason"]) == (
        "Bound",
        "Partial",
        "CpuBindingConflict",
    )
    degraded = rig.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "CpuBindingConflict")
    assert degraded["message"].startswith("NPU 0: somebody else keeps moving its interrupts")
    assert rig.condition("Ready")["status"] == "True"
    repaired = ("CpuBindingRepaired", "llm-0")
    assert rig.events() == [repaired, repaired, repaired, ("CpuBindingConflict", "")]
    assert rig.agent.drift().repaired["irq", "repaired"] == 3
