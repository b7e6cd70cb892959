"""The same sentences about the small API server of this process and about the real one: what holds for one holds for
the other, or tests that run on the small one alone prove nothing."""

from __future__ import annotations

import base64
import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.cluster.client import MERGE_PATCH, ApiError, eventually
from tests.cluster.cluster import FIELD_MANAGER, NAMESPACE, USER, Cluster, Request, our_crd
from tests.cluster.objects import PLANS

Object = dict[str, Any]

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AsExpected",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def apply(cluster: Cluster, name: str, status: Object, **more: Any) -> Object:
    """What the agent does, with its rights."""
    body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": name}, "status": status, **more}
    return cluster.as_service_account().apply(PLANS.path(name, subresource="status"), body, manager=FIELD_MANAGER)


def version(thing: Object) -> str:
    text: str = thing["metadata"]["resourceVersion"]
    return text


# Objects


def test_a_new_object_gets_a_uid_a_version_and_a_time(cluster: Cluster) -> None:
    node = cluster.nodes.named("a")
    assert len(node["metadata"]["uid"]) == 36
    assert node["metadata"]["resourceVersion"].isdecimal()
    assert node["metadata"]["creationTimestamp"].endswith("Z")


def test_the_same_name_again_is_a_conflict(cluster: Cluster) -> None:
    cluster.nodes.named("a")
    with pytest.raises(ApiError, match='nodes "a" already exists') as refused:
        cluster.nodes.named("a")
    assert (refused.value.code, refused.value.status["reason"]) == (409, "AlreadyExists")


def test_what_is_not_there_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match=r'cpubindingplans\.cpubind\.dev "a" not found') as refused:
        cluster.plans.get("a")
    assert refused.value.code == 404
    assert cluster.plans.find("a") is None


def test_an_old_version_is_not_written_over_a_newer_one(cluster: Cluster) -> None:
    old = cluster.plans.named("a")
    cluster.plans.merge_patch("a", {"spec": {"mode": "DryRun"}})
    with pytest.raises(ApiError, match="the object has been modified") as refused:
        cluster.plans.replace({**old, "spec": {"mode": "Disabled"}})
    assert refused.value.code == 409


def test_an_owner_without_a_uid_is_refused(cluster: Cluster) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "a"}
    with pytest.raises(ApiError, match="uid must not be empty") as refused:
        cluster.plans.create({"metadata": {"name": "a", "ownerReferences": [owner]}})
    assert refused.value.code == 422


def test_the_garbage_collector_takes_plans_whose_node_is_gone_and_no_others(cluster: Cluster) -> None:
    node = cluster.nodes.named("a")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": node["metadata"]["uid"]}
    cluster.plans.create({"metadata": {"name": "a", "ownerReferences": [owner]}})
    cluster.plans.named("of-a-person")
    assert cluster.gc() == []
    cluster.nodes.delete("a")
    cluster.nodes.named("a")  # registered again, with another uid
    assert cluster.gc() == ["a"]
    assert cluster.plans.names() == ["of-a-person"]


def test_a_finalizer_keeps_an_object_until_it_is_taken_off(cluster: Cluster) -> None:
    cluster.plans.create({"metadata": {"name": "a", "finalizers": ["example.com/wait"]}})
    cluster.plans.delete("a")
    assert "deletionTimestamp" in cluster.plans.get("a")["metadata"]
    cluster.plans.merge_patch("a", {"metadata": {"finalizers": None}})
    assert cluster.plans.find("a") is None


# Pods


def test_the_server_says_a_new_pods_phase_and_qos_class(cluster: Cluster) -> None:
    whole = {"cpu": "16", "memory": "1Gi"}
    containers: list[Object] = [{"name": "c", "image": "i", "resources": {"limits": whole}}]
    pod = cluster.pods.run("guaranteed", containers=containers)
    assert pod["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}
    assert pod["spec"]["containers"][0]["resources"]["requests"] == whole
    containers[0]["resources"] = {"requests": {"cpu": "2000m"}}
    pod = cluster.pods.run("burstable", containers=containers)
    assert pod["status"]["qosClass"] == "Burstable"
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}
    assert cluster.pods.run("best-effort")["status"]["qosClass"] == "BestEffort"


def test_a_pods_status_changes_by_its_subresource_alone(cluster: Cluster) -> None:
    cluster.pods.run("p", node="a")
    cluster.pods.merge_patch("p", {"status": {"phase": "Failed"}, "metadata": {"annotations": {"a": "b"}}})
    assert cluster.pods.get("p")["status"]["phase"] == "Pending"
    cluster.pods.started("p", {"main": "0123abcd"})
    pod = cluster.pods.get("p")
    assert pod["status"]["containerStatuses"][0]["containerID"] == "containerd://0123abcd"
    assert pod["metadata"]["annotations"] == {"a": "b"}


def test_a_pod_stays_where_it_was_bound(cluster: Cluster) -> None:
    cluster.pods.run("p")
    cluster.pods.bind("p", "a")
    assert cluster.pods.get("p")["spec"]["nodeName"] == "a"
    with pytest.raises(ApiError, match="pod updates may not change fields"):
        cluster.pods.merge_patch("p", {"spec": {"nodeName": "b"}})
    with pytest.raises(ApiError, match='already assigned to node "a"'):
        cluster.pods.bind("p", "b")


def test_a_pod_goes_when_kubelet_says_so_or_by_force(cluster: Cluster) -> None:
    cluster.pods.run("p", node="a")
    cluster.pods.delete("p")
    metadata = cluster.pods.get("p")["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 30
    cluster.pods.delete("p", grace=0)
    assert cluster.pods.find("p") is None


def test_a_pod_that_was_never_bound_goes_at_once(cluster: Cluster) -> None:
    cluster.pods.run("p")
    cluster.pods.delete("p")
    assert cluster.pods.find("p") is None


def test_pods_are_in_namespaces_that_exist(cluster: Cluster) -> None:
    cluster.ensure_namespace("prod")
    cluster.pods.run("p", namespace="prod")
    assert cluster.pods.get("p", "prod")["metadata"]["namespace"] == "prod"
    with pytest.raises(ApiError, match='namespaces "nowhere" not found') as refused:
        cluster.pods.run("p", namespace="nowhere")
    assert refused.value.code == 404


def test_an_annotation_key_of_more_than_63_characters_is_refused(cluster: Cluster) -> None:
    cluster.pods.run("p", annotations={f"cpubind.dev/{'x' * 63}": "true"})
    with pytest.raises(ApiError, match="must be no more than 63 characters"):
        cluster.pods.annotate("p", {f"cpubind.dev/{'x' * 64}": "true"})


# Selectors


def test_pods_are_selected_by_node(cluster: Cluster) -> None:
    cluster.pods.run("here", node="a")
    cluster.pods.run("there", node="b")
    cluster.pods.run("nowhere")
    assert cluster.pods.names(fieldSelector="spec.nodeName=a") == ["here"]
    assert cluster.pods.names(fieldSelector="spec.nodeName=a", resourceVersion="0") == ["here"]
    assert cluster.pods.names(fieldSelector="spec.nodeName!=a,metadata.namespace=default") == ["nowhere", "there"]


def test_plans_are_selected_by_name_and_by_nothing_else(cluster: Cluster) -> None:
    cluster.plans.named("a")
    cluster.plans.named("b")
    assert cluster.plans.names(fieldSelector="metadata.name=b") == ["b"]
    with pytest.raises(ApiError, match=r"field label not supported: spec\.mode") as refused:
        cluster.plans.names(fieldSelector="spec.mode=Enforce")
    assert refused.value.code == 400


def test_a_list_comes_in_pieces_where_that_is_asked_for(cluster: Cluster) -> None:
    for name in "abc":
        cluster.pods.run(name)
    first = cluster.admin.request("GET", "/api/v1/pods", query={"limit": "2"})
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    rest = {"limit": "2", "continue": first["metadata"]["continue"]}
    second = cluster.admin.request("GET", "/api/v1/pods", query=rest)
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
    assert "continue" not in second["metadata"]


# Plans


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
    assert apply(cluster, "a", {"mode": "DryRun"})["metadata"]["generation"] == 1
    assert cluster.plans.merge_patch("a", {"spec": {"mode": "Enforce"}})["metadata"]["generation"] == 2
    assert cluster.plans.merge_patch("a", {"spec": {"mode": "Enforce"}})["metadata"]["generation"] == 2


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


# Server-side apply


def test_applying_the_same_status_again_changes_nothing(cluster: Cluster) -> None:
    cluster.plans.named("a")
    status = {"mode": "Enforce", "npus": [{"id": 0, "pool": "0-39"}], "conditions": [READY]}
    first = apply(cluster, "a", status)
    with cluster.admin.watch(PLANS.path(), {"resourceVersion": version(first)}) as watch:
        time.sleep(1.1)  # times are in seconds
        assert version(apply(cluster, "a", status)) == version(first)
        cluster.plans.named("b")
        watch.wait_for("ADDED", "b")
        assert watch.seen == [("ADDED", "b")]


def test_a_field_that_is_applied_no_more_is_removed(cluster: Cluster) -> None:
    cluster.plans.named("a")
    bound = {**READY, "type": "Bound"}
    apply(cluster, "a", {"mode": "Enforce", "planHash": "0", "npus": [{"id": 0}], "conditions": [READY, bound]})
    plan = apply(cluster, "a", {"mode": "DryRun", "conditions": [bound]})
    assert plan["status"] == {"mode": "DryRun", "conditions": [bound]}


def test_conditions_keep_their_order_whatever_the_order_in_which_they_are_applied(cluster: Cluster) -> None:
    cluster.plans.named("a")
    bound = {**READY, "type": "Bound"}
    first = apply(cluster, "a", {"conditions": [READY, bound]})
    assert version(apply(cluster, "a", {"conditions": [bound, READY]})) == version(first)


def test_an_applied_status_leaves_spec_and_labels_alone(cluster: Cluster) -> None:
    cluster.plans.create({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"mode": "DryRun"}})
    plan = apply(cluster, "a", {"mode": "Enforce"}, spec={"mode": "Enforce"})
    assert (plan["spec"], plan["metadata"]["labels"]) == ({"mode": "DryRun"}, {"x": "y"})


def test_what_somebody_else_wrote_to_the_status_stays_when_it_is_not_applied(cluster: Cluster) -> None:
    cluster.plans.named("a")
    apply(cluster, "a", {"mode": "Enforce"})
    cluster.plans.set_status("a", {"planHash": "0"})
    assert apply(cluster, "a", {"mode": "DryRun"})["status"] == {"mode": "DryRun", "planHash": "0"}


def test_what_somebody_else_owns_is_taken_by_force_alone(cluster: Cluster) -> None:
    cluster.plans.named("a")
    apply(cluster, "a", {"mode": "Enforce"})
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
        apply(cluster, "a", status)
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
        apply(cluster, "a", status)
    assert why in refused.value.message
    assert refused.value.code == 422


def test_an_applier_cannot_give_up_all_conditions(cluster: Cluster) -> None:
    # Not what anybody would want, but so is v1.20: what is left of a list map is null, which the schema refuses.
    cluster.plans.named("a")
    apply(cluster, "a", {"mode": "Enforce", "conditions": [READY]})
    with pytest.raises(ApiError, match=r"status\.conditions in body must be of type array"):
        apply(cluster, "a", {"mode": "Enforce"})


def test_an_apply_needs_a_field_manager_and_a_plan(cluster: Cluster) -> None:
    body = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "status": {}}
    with pytest.raises(ApiError, match="fieldManager: Required value: is required for apply patch"):
        cluster.admin.apply(PLANS.path("a", subresource="status"), body, manager="")
    with pytest.raises(ApiError, match="not found"):
        cluster.admin.apply(PLANS.path("a", subresource="status"), body, manager="x")


# Events


def test_events_on_plans_belong_into_the_default_namespace(cluster: Cluster) -> None:
    plan = {"kind": "CpuBindingPlan", "name": "a"}
    cluster.events.named("e", involvedObject=plan, reason="CpuBound", type="Normal")
    event = cluster.events.merge_patch("e", {"count": 2})
    assert (event["count"], event["reason"]) == (2, "CpuBound")
    with pytest.raises(ApiError, match=r"does not match event\.namespace") as refused:
        cluster.events.create({"metadata": {"name": "e", "namespace": NAMESPACE}, "involvedObject": plan})
    assert refused.value.code == 422


def test_an_event_gets_a_name_made_from_its_prefix(cluster: Cluster) -> None:
    event = cluster.events.create({"metadata": {"generateName": "a."}, "involvedObject": {"name": "a"}})
    assert event["metadata"]["name"].startswith("a.")
    assert len(event["metadata"]["name"]) == 7


# Rights


def test_the_service_account_may_do_what_the_agent_does(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    cluster.nodes.named("a")
    agent.request("GET", "/api/v1/pods")
    agent.request("GET", "/api/v1/nodes/a")
    agent.request(
        "POST", PLANS.path(), {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "a"}}
    )
    apply(cluster, "a", {"mode": "Enforce"})
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "name": "p"}}
    agent.request("POST", "/api/v1/namespaces/default/events", event)
    agent.request("PATCH", "/api/v1/namespaces/default/events/e", {"count": 2}, content_type=MERGE_PATCH)


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/api/v1/namespaces/default/pods/p", 'get resource "pods" in API group "" in the namespace "default"'),
        ("PATCH", "/api/v1/namespaces/default/pods/p", 'patch resource "pods" in API group ""'),
        ("DELETE", "/api/v1/namespaces/default/pods/p", 'delete resource "pods" in API group ""'),
        ("GET", "/api/v1/nodes", 'list resource "nodes" in API group "" at the cluster scope'),
        ("PATCH", PLANS.path("a"), 'patch resource "cpubindingplans" in API group "cpubind.dev" at the cluster scope'),
        ("PUT", PLANS.path("a"), 'update resource "cpubindingplans" in API group "cpubind.dev"'),
        ("DELETE", PLANS.path("a"), 'delete resource "cpubindingplans" in API group "cpubind.dev"'),
        ("GET", PLANS.path("a", subresource="status"), 'get resource "cpubindingplans/status"'),
    ],
)
def test_the_service_account_may_do_no_more(cluster: Cluster, method: str, path: str, what: str) -> None:
    body: Object | None = {} if method in ("PATCH", "PUT") else None
    with pytest.raises(ApiError) as refused:
        cluster.as_service_account().request(method, path, body, content_type=MERGE_PATCH)
    assert f'User "{USER}" cannot {what}' in refused.value.message
    assert (refused.value.code, refused.value.status["reason"]) == (403, "Forbidden")


def test_rights_can_be_taken_and_given_back(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    cluster.set_rules([])
    assert agent.ask("GET", "/api/v1/pods").code == 403
    assert agent.ask("GET", "/api/v1").code == 200  # discovery is for everybody
    cluster.set_rules()
    assert agent.ask("GET", "/api/v1/pods").code == 200


def test_a_rule_may_name_one_object(cluster: Cluster) -> None:
    rule = {"apiGroups": ["cpubind.dev"], "resources": ["cpubindingplans"], "resourceNames": ["a"], "verbs": ["list"]}
    cluster.set_rules([rule])
    agent = cluster.as_service_account()
    assert agent.ask("GET", PLANS.path()).code == 403
    assert agent.ask("GET", PLANS.path(), query={"fieldSelector": "metadata.name=a"}).code == 200
    assert agent.ask("GET", PLANS.path(), query={"fieldSelector": "metadata.name=b"}).code == 403


def test_a_new_token_replaces_the_old_one(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.service_account_dir(tmp_path / "account")
    assert (folder / "namespace").read_text() == NAMESPACE
    assert (folder / "ca.crt").read_text() == cluster.ca
    assert (folder / "token").read_text() == cluster.token
    before = cluster.as_service_account()
    assert before.ask("GET", "/api/v1/pods").code == 200
    assert cluster.rotate_token(folder) == (folder / "token").read_text() == cluster.token
    assert cluster.as_service_account().ask("GET", "/api/v1/pods").code == 200
    eventually(lambda: before.ask("GET", "/api/v1/pods").code == 401, "the old token is refused", 15)


def test_a_token_says_when_it_expires(cluster: Cluster) -> None:
    part = cluster.token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert claims["sub"] == USER
    assert claims["exp"] > time.time() + 600


# What was asked


def test_every_request_is_told_with_its_query(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    agent.ask("GET", "/api/v1/pods", query={"fieldSelector": "spec.nodeName=a", "resourceVersion": "0"})
    between = time.time()
    agent.ask("GET", "/api/v1/secrets")
    query = {"fieldSelector": "metadata.name=a", "allowWatchBookmarks": "true"}
    with agent.watch(PLANS.path(), query):
        told = [(one.verb, one.path, one.code, one.user) for one in cluster.requests()]
        assert told == [
            ("list", "/api/v1/pods", 200, USER),
            ("list", "/api/v1/secrets", 403, USER),
            ("watch", PLANS.path(), 200, USER),
        ]
        assert cluster.requests()[0].query == {"fieldSelector": "spec.nodeName=a", "resourceVersion": "0"}
        assert cluster.requests()[2].query == {"watch": "true", "timeoutSeconds": "60", **query}
        assert [one.path for one in cluster.requests(between)] == ["/api/v1/secrets", PLANS.path()]


def test_requests_of_others_are_not_told(cluster: Cluster) -> None:
    cluster.pods.names()
    assert cluster.requests() == []


def test_a_body_does_not_hide_a_request(cluster: Cluster) -> None:
    cluster.plans.named("a")
    apply(cluster, "a", {"mode": "Enforce"})
    told: list[Request] = cluster.requests()
    assert [(one.verb, one.path) for one in told] == [("patch", PLANS.path("a", subresource="status"))]
    assert told[0].query == {"fieldManager": FIELD_MANAGER, "force": "true"}


# The server itself


def test_a_server_that_was_stopped_comes_back_with_all_it_had(cluster: Cluster) -> None:
    cluster.plans.named("a", spec={"mode": "DryRun"})
    before = cluster.plans.get("a")
    port = cluster.port
    with cluster.admin.watch(PLANS.path()) as watch:
        watch.wait_for("ADDED", "a")
        cluster.stop()
        watch.wait_for_end()
    with pytest.raises(urllib3.exceptions.HTTPError):
        cluster.admin.ask("GET", "/version")
    cluster.start()
    assert (cluster.port, cluster.plans.get("a")) == (port, before)
    assert cluster.as_service_account().ask("GET", "/api/v1/pods").code == 200


def test_versions_from_before_a_compaction_are_too_old_to_watch_from(cluster: Cluster) -> None:
    cluster.pods.run("p", node="a")
    cluster.plans.named("a")
    versions = {"/api/v1/pods": cluster.pods.version(), PLANS.path(): cluster.plans.version()}
    with cluster.admin.watch("/api/v1/pods", {"resourceVersion": versions["/api/v1/pods"]}) as open_watch:
        cluster.compact()
        open_watch.wait_for_end()
        assert open_watch.events == []
    for path, old in versions.items():
        with cluster.admin.watch(path, {"resourceVersion": old}) as watch:
            error = watch.wait_for("ERROR")["object"]
            assert (error["kind"], error["code"], error["reason"]) == ("Status", 410, "Expired")
            assert error["message"].startswith(f"too old resource version: {old} (")
            watch.wait_for_end()
    assert cluster.pods.names() == ["p"]
    with cluster.admin.watch("/api/v1/pods", {"resourceVersion": cluster.pods.version()}) as watch:
        cluster.pods.run("q", node="a")
        watch.wait_for("ADDED", "q")


def test_plans_are_served_while_their_crd_is_there(cluster: Cluster) -> None:
    cluster.plans.named("a")
    agent = cluster.as_service_account()
    with agent.watch(PLANS.path(), {"resourceVersion": cluster.plans.version()}) as watch:
        cluster.remove_crd()
        watch.wait_for("DELETED", "a")
        watch.wait_for_end()
    answer = agent.ask("GET", PLANS.path())
    assert (answer.code, answer.text) == (404, "404 page not found\n")
    assert agent.ask("GET", PLANS.prefix).code == 404
    groups = agent.request("GET", "/apis")["groups"]
    assert PLANS.group not in [group["name"] for group in groups]
    cluster.install_crd()
    assert cluster.plans.names() == []
    assert agent.request("GET", PLANS.prefix)["resources"][0]["name"] == "cpubindingplans"


def test_a_newer_crd_keeps_the_plans_and_knows_more(cluster: Cluster) -> None:
    older = copy.deepcopy(our_crd())
    status = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["planHash"]
    cluster.install_crd(older)
    cluster.plans.named("a")
    with pytest.raises(ApiError, match=r"\.status\.planHash: field not declared in schema"):
        apply(cluster, "a", {"mode": "Enforce", "planHash": "0"})
    cluster.install_crd()
    assert apply(cluster, "a", {"mode": "Enforce", "planHash": "0"})["status"]["planHash"] == "0"


def test_discovery_names_what_there_is(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    assert agent.request("GET", "/version")["gitVersion"] == "v1.20.2"
    assert agent.request("GET", "/api")["versions"] == ["v1"]
    core = {one["name"]: one for one in agent.request("GET", "/api/v1")["resources"]}
    assert {"pods", "pods/status", "nodes", "nodes/status", "events"} <= set(core)
    assert (core["pods"]["kind"], core["pods"]["namespaced"]) == ("Pod", True)
    (group,) = [one for one in agent.request("GET", "/apis")["groups"] if one["name"] == PLANS.group]
    assert group["preferredVersion"]["groupVersion"] == PLANS.api_version
    plans = agent.request("GET", PLANS.prefix)["resources"][0]
    assert (plans["singularName"], plans["shortNames"]) == ("cpubindingplan", ["cbp"])


@pytest.mark.parametrize(("token", "code"), [("nobody's", 401), (None, 403)])
def test_strangers_are_sent_away(cluster: Cluster, token: str | None, code: int) -> None:
    stranger = type(cluster.admin)(cluster.host, cluster.port, cluster.ca, token)
    answer = stranger.ask("GET", "/api/v1/pods")
    stranger.close()
    assert (answer.code, answer.document["kind"]) == (code, "Status")


def test_a_server_is_known_by_its_ca_alone(cluster: Cluster) -> None:
    with pytest.raises(urllib3.exceptions.SSLError):
        urllib3.request("GET", f"https://{cluster.host}:{cluster.port}/version", retries=False)
