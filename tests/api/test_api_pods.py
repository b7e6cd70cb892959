"""Pods that opt in are bound, those that opt out are given back."""

from __future__ import annotations

from tests.api.rig import KubeRig


def test_an_annotated_pod_is_bound_and_reported(rig: KubeRig) -> None:
    rig.start()
    _, workers = rig.run_pod("llm-0", [0, 3])
    rig.until_bound(workers)
    assert rig.npu(3)["workers"] == [
        {"pid": workers[1].pid, "namespace": "prod", "pod": "llm-0", "container": "vllm", "state": "Bound"}
    ]
    (event,) = rig.until(lambda: rig.events("CpuBound"), "the event")
    assert event["involvedObject"]["name"] == "llm-0"
    assert "on NPU 0 (irq 0-1, main 2-37, acl 38, release 39)" in event["message"]


def test_a_pod_without_the_annotation_is_left_alone(rig: KubeRig) -> None:
    rig.start()
    rig.run_pod("batch-0", [0], annotations={})
    rig.until(lambda: rig.npu(0).get("reason") == "NotOptedIn", "it is seen")
    assert rig.writes() == 0
