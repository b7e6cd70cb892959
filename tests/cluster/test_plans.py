"""Plans as both API servers have them: spec and status apart, checked, and applied to."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.client import MERGE_PATCH, ApiError
from tests.cluster.cluster import FIELD_MANAGER, Cluster, apply_status
from tests.cluster.objects import PLANS

Object = dict[str, Any]

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AsExpected",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def version(thing: Object) -> str:
    text: str = thing["metadata"]["resourceVersion"]
    return text


def test_a_status_that_comes_with_a_new_plan_is_dropped(cluster: Cluster) -> None:
    plan = cluster.plans.named("a", spec={"mode": "DryRun"}, status={"mode": "DryRun"})
    assert plan["spec"] == {"mode": "DryRun"}
    assert "status" not in plan


def test_status_and_spec_are_written_apart(cluster: Cluster) -> None:
    cluster.plans.named("a", spec={"mode": "DryRun"})
    cluster.plans.merge_patch("a", {"spec": {"mode": "Enforce"}, "status": {"mode": "x"}})
    cluster.plans.merge_patch("a", {"spec": {"mode": "Disabled"}, "status": {"mode": "y"}}, subresource="status")
    plan = cluster.plans.get("a")
    assert (plan["spec"]["mode"], plan["status"]) == ("Enforce", {"mode": "y"})


def test_the_generation_counts_changes_of_spec_alone(cluster: Cluster) -> None:
    assert cluster.plans.named("a", spec={"mode": "DryRun"})["metadata"]["generation"] == 1
    assert cluster.plans.annotate("a", {"x": "y"})["metadata"]["generation"] == 1
    assert apply_status(cluster, "a", {"mode": "DryRun"})["metadata"]["generation"] == 1
    assert cluster.plans.merge_patch("a", {"spec": {"mode": "Enforce"}})["metadata"]["generation"] == 2
    assert cluster.plans.merge_patch("a", {"spec": {"mode": "Enforce"}})["metadata"]["generation"] == 2


def test_fields_come_in_the_order_of_their_names(cluster: Cluster) -> None:
    cluster.plans.named("a", spec={"strategy": "Auto", "mode": "DryRun", "deviceType": "A3"})
    for plan in (cluster.plans.get("a"), cluster.plans.list()[0]):
        assert list(plan["spec"]) == ["deviceType", "mode", "strategy"]
    with cluster.admin.watch(PLANS.path()) as watch:
        assert list(watch.wait_for("ADDED", "a")["object"]["spec"]) == ["deviceType", "mode", "strategy"]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"mode": "Enforced"}, 'spec.mode: Unsupported value: "Enforced": supported values: "Enforce", "DryRun"'),
        ({"deviceType": 950}, "spec.deviceType in body must be of type string"),
        ({"reservedCpus": "0-x"}, "spec.reservedCpus in body should match"),
        ({"threadRules": [{"prefix": "ucm_", "role": "main"}] * 65}, "should have at most 64 items"),
        ({"threadRules": [{"prefix": "ucm_"}]}, "spec.threadRules.role: Required value"),
    ],
)
def test_a_spec_that_the_schema_does_not_take_is_refused(cluster: Cluster, spec: Object, why: str) -> None:
    with pytest.raises(ApiError) as refused:
        cluster.plans.named("a", spec=spec)
    assert why in refused.value.message
    assert (refused.value.code, refused.value.status["reason"]) == (422, "Invalid")


def test_a_field_that_the_schema_does_not_have_is_dropped_from_a_spec(cluster: Cluster) -> None:
    assert cluster.plans.named("a", spec={"mode": "DryRun", "colour": "red"})["spec"] == {"mode": "DryRun"}
    patched = cluster.plans.merge_patch("a", {"spec": {"colour": "red"}})
    assert patched["spec"] == {"mode": "DryRun"}


def test_applying_the_same_status_again_changes_nothing(cluster: Cluster) -> None:
    cluster.plans.named("a")
    status = {"mode": "Enforce", "npus": [{"id": 0, "pool": "0-39"}], "conditions": [READY]}
    first = apply_status(cluster, "a", status)
    with cluster.admin.watch(PLANS.path(), {"resourceVersion": version(first)}) as watch:
        time.sleep(1.1)  # times are in seconds
        assert version(apply_status(cluster, "a", status)) == version(first)
        cluster.plans.named("b")
        watch.wait_for("ADDED", "b")
        assert watch.seen == [("ADDED", "b")]


def test_a_field_that_is_applied_no_more_is_removed(cluster: Cluster) -> None:
    cluster.plans.named("a")
    bound = {**READY, "type": "Bound"}
    apply_status(cluster, "a", {"mode": "Enforce", "planHash": "0", "npus": [{"id": 0}], "conditions": [READY, bound]})
    plan = apply_status(cluster, "a", {"mode": "DryRun", "conditions": [bound]})
    assert plan["status"] == {"mode": "DryRun", "conditions": [bound]}


def test_conditions_keep_their_order_whatever_the_order_in_which_they_are_applied(cluster: Cluster) -> None:
    cluster.plans.named("a")
    bound = {**READY, "type": "Bound"}
    first = apply_status(cluster, "a", {"conditions": [READY, bound]})
    assert version(apply_status(cluster, "a", {"conditions": [bound, READY]})) == version(first)


def test_an_applied_status_leaves_spec_and_labels_alone(cluster: Cluster) -> None:
    cluster.plans.create({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"mode": "DryRun"}})
    plan = apply_status(cluster, "a", {"mode": "Enforce"}, spec={"mode": "Enforce"})
    assert (plan["spec"], plan["metadata"]["labels"]) == ({"mode": "DryRun"}, {"x": "y"})


def test_what_somebody_else_wrote_to_the_status_stays_when_it_is_not_applied(cluster: Cluster) -> None:
    cluster.plans.named("a")
    apply_status(cluster, "a", {"mode": "Enforce"})
    cluster.plans.set_status("a", {"planHash": "0"})
    assert apply_status(cluster, "a", {"mode": "DryRun"})["status"] == {"mode": "DryRun", "planHash": "0"}


def test_what_somebody_else_owns_is_taken_by_force_alone(cluster: Cluster) -> None:
    cluster.plans.named("a")
    apply_status(cluster, "a", {"mode": "Enforce"})
    query = {"fieldManager": "kubectl-edit"}
    path = PLANS.path("a", subresource="status")
    cluster.admin.request("PATCH", path, {"status": {"mode": "x"}}, content_type=MERGE_PATCH, query=query)
    body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "status": {"mode": "Enforce"}}
    with pytest.raises(ApiError, match=r'1 conflict: conflict with "kubectl-edit" .*: \.status\.mode') as refused:
        cluster.admin.apply(path, body, manager=FIELD_MANAGER, force=False)
    assert refused.value.code == 409
    assert cluster.admin.apply(path, body, manager=FIELD_MANAGER)["status"] == {"mode": "Enforce"}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"foo": 1}, ".status.foo: field not declared in schema"),
        ({"npus": [{"id": 0, "foo": 1}]}, ".status.npus[0].foo: field not declared in schema"),
        ({"conditions": [{**READY, "foo": 1}]}, '.status.conditions[type="Ready"].foo: field not declared in schema'),
        ({"conditions": [READY, READY]}, '.status.conditions: duplicate entries for key [type="Ready"]'),
        ({"mode": 1}, ".status.mode: expected string, got &value.valueUnstructured{Value:1}"),
    ],
)
def test_a_status_that_does_not_fit_the_schema_cannot_be_applied(cluster: Cluster, status: Object, why: str) -> None:
    cluster.plans.named("a")
    with pytest.raises(ApiError) as refused:
        apply_status(cluster, "a", status)
    assert refused.value.message == f"failed to create typed patch object: {why}"
    assert refused.value.code == 500


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"planHash": "x" * 65}, "status.planHash in body should be at most 64 chars long"),
        ({"observedGeneration": -1}, "status.observedGeneration in body should be greater than or equal to 0"),
        ({"npus": [{}]}, "status.npus.id: Required value"),
        ({"conditions": [{**READY, "lastTransitionTime": "today"}]}, "must be of type date-time"),
        ({"mode": None}, 'status.mode in body must be of type string: "null"'),
    ],
)
def test_an_applied_status_is_checked(cluster: Cluster, status: Object, why: str) -> None:
    cluster.plans.named("a")
    with pytest.raises(ApiError) as refused:
        apply_status(cluster, "a", status)
    assert why in refused.value.message
    assert refused.value.code == 422


def test_an_applier_cannot_give_up_all_conditions(cluster: Cluster) -> None:
    # Not what anybody would want, but so is v1.20: what is left of a list map is null, which the schema refuses.
    cluster.plans.named("a")
    apply_status(cluster, "a", {"mode": "Enforce", "conditions": [READY]})
    with pytest.raises(ApiError, match=r"status\.conditions in body must be of type array"):
        apply_status(cluster, "a", {"mode": "Enforce"})


def test_an_apply_needs_a_field_manager_and_a_plan(cluster: Cluster) -> None:
    body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "status": {}}
    with pytest.raises(ApiError, match="fieldManager: Required value: is required for apply patch"):
        cluster.admin.apply(PLANS.path("a", subresource="status"), body, manager="")
    with pytest.raises(ApiError, match="not found"):
        cluster.admin.apply(PLANS.path("a", subresource="status"), body, manager="x")
