"""The plan as a resource: made by the agent, `spec` edited by people, `status` written by the agent alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent.model.cpuset import CpuSet
from tests.api.rig import KubeRig
from tests.api.scene import PLANS, is_bound, is_free, is_untouched, masks, meddle, writes_to_plans
from tests.cluster.client import ApiError
from tests.cluster.fake_apiserver import FakeApiServer

AN_HOUR = "2026-01-01T01:00:00Z"


def test_the_agent_makes_the_plan_of_its_node_once_and_then_writes_its_status_alone(a2: KubeRig) -> None:
    uid = a2.cluster.nodes.get(a2.name)["metadata"]["uid"]
    a2.start()
    _, workers = a2.run_pod("llm-0", [0])
    a2.until_bound(workers)
    a2.edit({"reservedCpus": "144-145"})
    a2.until(lambda: a2.status.get("observedGeneration") == 2, "the edit is followed")
    plan = a2.plan()
    assert plan["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": a2.name, "uid": uid}]
    assert plan["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "cpubind"}
    assert plan["spec"] == {"reservedCpus": "144-145"}
    assert not plan["metadata"].get("finalizers")
    first, *others = writes_to_plans(a2)
    assert (first.verb, first.path) == ("create", PLANS)
    assert {(one.verb, one.path) for one in others} == {("patch", f"{PLANS}/{a2.name}/status")}
    assert {one.query["fieldManager"] for one in others} == {"cpubind-agent"}


def test_the_first_report_of_a_new_plan_is_of_that_plan(a2: KubeRig) -> None:
    """The pause between two writes is too long to begin with a report that was made before it was there."""
    a2.start(status_interval=60)
    a2.until(lambda: a2.status, "the first report")
    assert a2.status["observedGeneration"] == 1
    assert a2.condition("Ready")["status"] == "True"
    assert a2.condition("Bound")["reason"] == "NoWorkers"


def test_an_edit_of_spec_is_followed_within_a_second(a2: KubeRig) -> None:
    a2.speed = 1
    a2.start(sweep_interval=5)
    _, (worker,) = a2.run_pod("llm-0", [4])
    a2.until_bound([worker])
    a2.settle(0.6)
    acted, told = [], []
    for generation, (reserved, main) in enumerate({"0-3": "6-21", "0-5": "8-21", "": "2-21"}.items(), 2):
        begun = time.monotonic()
        a2.edit({"reservedCpus": reserved})
        a2.until(lambda main=main: masks(worker) == CpuSet.parse(main), f"the threads are on {main}")  # type: ignore[misc]
        acted.append(time.monotonic() - begun)
        a2.until(lambda number=generation: a2.status["observedGeneration"] == number, "the plan says so")  # type: ignore[misc]
        told.append(time.monotonic() - begun)
    print(f"from an edit to the masks {max(acted):.3f} s, to the status {max(told):.3f} s")
    limit = 1.0 if isinstance(a2.cluster, FakeApiServer) else 2.0
    assert max(acted) < limit
    assert max(told) < limit + a2.settings["status_interval"]


@pytest.mark.parametrize(
    "spec",
    [
        {"strategy": "Fastest"},
        {"deviceType": 950},
        {"mode": "Off"},
        {"reservedCpus": "all"},
        {"reservedCpus": 3},
        {"threadRules": [{"prefix": "ucm_", "role": "irq"}]},
    ],
    ids=str,
)
def test_a_spec_of_the_wrong_form_is_refused_by_the_server(cluster: Any, spec: dict[str, Any]) -> None:
    cluster.plans.named("a2-0", spec={"reservedCpus": "0-3"})
    with pytest.raises(ApiError, match=next(iter(spec))) as refused:
        cluster.plans.merge_patch("a2-0", {"spec": spec})
    assert refused.value.code == 422
    assert cluster.plans.get("a2-0")["spec"] == {"reservedCpus": "0-3"}


def test_a_spec_that_cannot_be_used_leaves_the_last_valid_plan_in_force(a2: KubeRig) -> None:
    complaints = {
        "5-3": "5-3",
        "0-4,1000": "spec.reservedCpus 0-4,1000: CPUs 1000 do not exist on this node (0-191)",
        "0-191": "spec.reservedCpus 0-191 leaves no CPU to plan with",
    }
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [4])
    a2.until_bound([worker])
    a2.edit({"reservedCpus": "0-3"})
    a2.until(lambda: masks(worker) == CpuSet.parse("6-21"), "a valid one is in force")
    a2.settle(0.6)
    valid, writes = a2.status, a2.writes()
    for reserved, complaint in complaints.items():
        a2.edit({"reservedCpus": reserved})
        a2.until(lambda: complaint in a2.condition("PlanValid").get("message", ""), complaint)  # noqa: B023
        assert a2.condition("PlanValid")["reason"] == "InvalidSpec"
        assert "spec.reservedCpus" in a2.condition("PlanValid")["message"]
        assert (a2.condition("Ready")["status"], a2.condition("Ready")["reason"]) == ("False", "InvalidSpec")
        assert a2.status["observedGeneration"] == a2.plan()["metadata"]["generation"]
        assert {key: a2.status[key] for key in ("npus", "topology", "planHash")} == {
            key: valid[key] for key in ("npus", "topology", "planHash")
        }
    # An agent that starts anew has the last accepted spec from its journal.
    a2.kill()
    a2.start()
    meddle(worker)
    a2.until(lambda: masks(worker) == CpuSet.parse("6-21"), "that plan is still kept")
    assert a2.writes() - writes == 3, "the three threads that somebody moved"

    a2.edit({"reservedCpus": "0-3"})
    a2.until(lambda: a2.condition("Ready")["status"] == "True", "a valid one is valid again")
    assert a2.writes() - writes == 3


def test_a_field_that_nobody_knows_is_dropped_by_the_server(a2: KubeRig) -> None:
    a2.start()
    a2.until(lambda: a2.status, "a report")
    a2.edit({"reservedCpu": "0-3"})
    assert a2.plan()["spec"] == {}
    assert a2.plan()["metadata"]["generation"] == 1


def test_a_plan_that_a_person_made_keeps_its_node_off_and_is_never_adopted(a2: KubeRig) -> None:
    made = a2.cluster.plans.named(a2.name, spec={"mode": "Disabled"})
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until(lambda: a2.status.get("summary", {}).get("workers") == 1, "the worker is seen")
    assert (a2.condition("Ready")["status"], a2.condition("Ready")["reason"]) == ("True", "Disabled")
    assert a2.condition("Restored")["status"] == "True"
    assert is_untouched(worker)

    a2.cluster.nodes.delete(a2.name)
    assert a2.cluster.gc() == []
    a2.register()
    a2.settle(0.6)
    plan = a2.plan()
    assert plan["metadata"]["uid"] == made["metadata"]["uid"]
    assert "ownerReferences" not in plan["metadata"]
    assert plan["spec"] == {"mode": "Disabled"}
    assert {one.verb for one in writes_to_plans(a2)} == {"patch"}
    assert is_untouched(worker)

    a2.edit({"mode": None})
    a2.until_bound([worker])


def test_what_others_write_to_a_plan_is_put_right_where_it_is_the_agents_and_left_where_it_is_not(a2: KubeRig) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    a2.settle(0.6)
    # Labels and annotations are people's.
    begun = time.time()
    a2.cluster.plans.annotate(a2.name, {"team": "serving"})
    a2.settle(0.6)
    assert writes_to_plans(a2, begun) == []

    a2.cluster.plans.merge_patch(a2.name, {"status": {"mode": "Asleep", "npus": []}}, subresource="status")
    a2.until(lambda: a2.status["mode"] == "Enforce" and a2.bound() == {worker.pid}, "it is the agent's again")

    # A condition of another controller's stays, and is no reason to write again and again.
    foreign = {"type": "Patched", "status": "True", "reason": "ByOthers", "message": "", "lastTransitionTime": AN_HOUR}
    conditions = [*a2.status["conditions"], foreign]
    a2.cluster.plans.merge_patch(a2.name, {"status": {"conditions": conditions}}, subresource="status")
    a2.settle(0.6)
    assert a2.condition("Patched") == foreign
    begun = time.time()
    a2.settle(0.6)
    assert writes_to_plans(a2, begun) == []
    a2.edit({"reservedCpus": "144"})
    a2.until(lambda: a2.status["observedGeneration"] == 2, "the edit is followed")
    assert a2.condition("Patched") == foreign
    assert a2.plan()["metadata"]["annotations"] == {"team": "serving"}


def test_disabled_gives_everything_back_and_a_dry_run_freezes_it(a2: KubeRig) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    cpus = masks(worker)

    a2.edit({"mode": "DryRun"})
    a2.until(lambda: a2.status["mode"] == "DryRun", "the plan says so")
    before = a2.writes()
    meddle(worker)
    worker.grow(2)
    a2.settle(0.6)
    assert a2.npu(0)["workers"][0]["state"] == "Planned"
    assert a2.condition("Bound")["reason"] == "NotEnforced"
    assert a2.writes() == before

    a2.edit({"mode": "Enforce"})
    a2.until(lambda: masks(worker) == cpus, "bound again")
    a2.until_bound([worker])
    assert not a2.condition("Restored")

    a2.edit({"mode": "Disabled"})
    a2.until(lambda: a2.condition("Restored").get("status") == "True", "Restored")
    assert is_free(worker)
    assert a2.condition("Bound")["reason"] == "Disabled"
    assert a2.status["summary"]["bound"] == 0
    a2.until(lambda: a2.events("CpuReleased"), "the event")

    a2.edit({"mode": "Enforce"})
    a2.until_bound([worker])
    assert is_bound(worker, a2)
