"""What happens is told where people look: on the pod, and on the plan what concerns the node."""

from __future__ import annotations

from typing import Any

from tests.api.rig import KubeRig
from tests.api.scene import is_free


def of(rig: KubeRig, reason: str, count: int = 1) -> list[dict[str, Any]]:
    """The events with this reason, once there are so many."""
    rig.until(lambda: len(rig.events(reason)) >= count, f"{count} events {reason}")
    return rig.events(reason)


def test_one_event_tells_of_all_workers_of_a_pod(a2: KubeRig) -> None:
    pod, workers = a2.run_pod("llm-0", [0, 1, 2])
    a2.start()
    (event,) = of(a2, "CpuBound")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "prod",
        "name": "llm-0",
        "uid": pod.uid,
    }
    assert event["metadata"]["namespace"] == "prod"
    assert (event["type"], event["count"]) == ("Normal", 1)
    assert event["source"] == {"component": "cpubind-agent", "host": a2.name}
    assert event["message"].startswith("3 workers: process ")
    for worker in workers:
        assert f"process {worker.pid} on NPU {worker.npu} (irq " in event["message"]


def test_what_happens_again_is_counted_and_what_happens_all_the_time_is_not_told_each_time(a2: KubeRig) -> None:
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.start()
    of(a2, "CpuBound")
    whole = a2.node.kubelet.shared
    for count in (3, 3, 4, 4, 5, 6, 7, 8):
        worker.drift(whole, count)  # as the kernel does: others are left alone after the third time
        a2.until(lambda: all(task.mask != whole for task in worker.threads), "repaired")
    of(a2, "CpuBindingRepaired", 3)
    a2.settle(0.5)
    events = a2.events("CpuBindingRepaired")
    told = {event["message"].partition(": ")[2]: event["count"] for event in events}
    texts = [f"{count} threads ({count} by their cpuset) put back" for count in (3, 4, 5)]
    assert told == dict(zip(texts, (2, 2, 1), strict=True)), "five, then one in 10 min"
    assert all(event["firstTimestamp"] <= event["lastTimestamp"] for event in events)


def test_a_worker_that_loses_its_cpus_is_told_with_the_reason_and_given_back(a2: KubeRig) -> None:
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.start()
    a2.until_bound([worker])
    a2.edit({"reservedCpus": "2-191"})
    a2.until(lambda: is_free(worker), "it is given back")
    (failed,) = of(a2, "CpuBindingFailed")
    assert failed["type"] == "Warning"
    assert failed["involvedObject"]["name"] == "llm-0"
    assert f"process {worker.pid} on NPU 0: " in failed["message"]
    (released,) = of(a2, "CpuReleased")
    assert "it has no plan any more" in released["message"]
    a2.until(lambda: a2.condition("Ready")["reason"] == "InsufficientCpus", "the plan says so, too")
    a2.edit({"reservedCpus": ""})
    a2.until_bound([worker])
    a2.until(lambda: a2.events("CpuBound")[0]["count"] == 2, "it is told again")


def test_what_concerns_the_node_is_told_on_the_plan_once_and_counted_when_it_comes_back(a2: KubeRig) -> None:
    a2.start()
    a2.until(lambda: a2.status, "a report")
    for count in (1, 2):
        a2.edit({"reservedCpus": "5-3"})
        of(a2, "InvalidSpec")
        a2.until(lambda number=count: a2.events("InvalidSpec")[0]["count"] == number, "it is counted")  # type: ignore[misc]
        a2.until(lambda: a2.condition("PlanValid")["status"] == "False", "the plan says so, too")
        a2.edit({"reservedCpus": "3-5"})
        a2.until(lambda: a2.condition("PlanValid")["status"] == "True", "the spec can be used")
    (event,) = a2.events()
    assert event["metadata"]["namespace"] == "default", "where `kubectl describe cbp` looks for it"
    assert (event["type"], event["reason"]) == ("Warning", "InvalidSpec")
    assert event["involvedObject"] == {
        "apiVersion": "cpubind.dev/v1alpha1",
        "kind": "CpuBindingPlan",
        "name": a2.name,
        "uid": a2.plan()["metadata"]["uid"],
    }
    assert "spec.reservedCpus" in event["message"]
    assert "5-3" in event["message"]
