"""The same sentences about the small API server of this process and about the real one: what holds for one holds for
the other, or tests that run on the small one alone prove nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import urllib3

from tests.cluster.client import ApiError, eventually
from tests.cluster.cluster import NAMESPACE, Cluster, apply_status, our_crd
from tests.cluster.objects import PLANS

Object = dict[str, Any]


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


def test_pods_are_selected_by_node(cluster: Cluster) -> None:
    cluster.pods.run("here", node="a")
    cluster.pods.run("there", node="b")
    cluster.pods.run("nowhere")
    assert cluster.pods.names(fieldSelector="spec.nodeName=a") == ["here"]
    # From the watch cache, which hears of them a little later.
    cached = {"fieldSelector": "spec.nodeName=a", "resourceVersion": "0"}
    eventually(lambda: cluster.pods.names(**cached) == ["here"], "the watch cache has the pod")
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
        apply_status(cluster, "a", {"mode": "Enforce", "planHash": "0"})
    cluster.install_crd()
    assert apply_status(cluster, "a", {"mode": "Enforce", "planHash": "0"})["status"]["planHash"] == "0"


def test_discovery_names_what_there_is(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    assert agent.request("GET", "/version")["gitVersion"].startswith("v1.20.")
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
