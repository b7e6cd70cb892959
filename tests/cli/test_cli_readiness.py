"""What ``/readyz`` says of a plan: read and planned, or not applicable, is ready (docs/kubernetes.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.cli.run import judge
from agent.demo.workload import Worker
from agent.telemetry.health import Health
from tests.control.rig import Rig


def judged(document: dict[str, Any]) -> tuple[bool, str]:
    health = Health(5)
    judge(document, health.ready, health.not_ready)
    return health.readiness()


def test_before_npu_smi_has_answered_it_is_not() -> None:
    assert judged({}) == (False, "npu-smi has not answered yet")


def test_a_plan_makes_it_ready_whether_or_not_anybody_is_bound(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    rig.settle()
    assert judged(rig.agent.plan_object()) == (True, "plan computed: AsPlanned")
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    assert judged(rig.agent.plan_object()) == (True, "plan computed: AsPlanned")


@pytest.mark.parametrize("mode", ["DryRun", "Disabled"])
def test_nor_is_it_a_matter_of_whether_anything_is_to_be_bound(tmp_path: Path, mode: str) -> None:
    rig = Rig(tmp_path, "a2")
    rig.ask(mode=mode)
    rig.settle()
    assert judged(rig.agent.plan_object())[0]


def test_a_node_that_is_not_for_binding_is_ready(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", architecture="x86_64")
    rig.settle()
    assert judged(rig.agent.plan_object()) == (True, "plan computed: UnsupportedArchitecture")


def test_without_npu_smi_it_is_degraded_and_waits_and_the_loop_turns_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    rig.node.npu_smi.fail("", 127)
    rig.settle()
    ready, said = judged(rig.agent.plan_object())
    assert (ready, said.split(":")[0]) == (False, "NpuSmiNotFound")
    assert (rig.condition("Degraded")["status"], rig.condition("Degraded")["reason"]) == ("True", "NpuSmiNotFound")
    passes = rig.agent.passes
    rig.sweep()
    assert rig.agent.passes > passes
    rig.node.npu_smi.recover()
    rig.settle(100)
    assert judged(rig.agent.plan_object())[0]
    assert rig.condition("Degraded")["status"] == "False"


def test_npu_smi_that_is_lost_later_leaves_it_ready_and_degraded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    rig.settle()
    rig.node.npu_smi.fail("", 127)
    rig.settle()
    assert judged(rig.agent.plan_object())[0]
    assert (rig.condition("Degraded")["status"], rig.condition("Degraded")["reason"]) == ("True", "NpuSmiNotFound")
