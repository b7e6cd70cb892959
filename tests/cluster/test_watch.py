"""Watches of the small API server and of the real one."""

from __future__ import annotations

import time

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.objects import PLANS

ON_NODE_A = {"fieldSelector": "spec.nodeName=a"}


def test_a_watch_tells_what_happens_after_its_version(cluster: Cluster) -> None:
    cluster.plans.named("before")
    with cluster.admin.watch(PLANS.path(), {"resourceVersion": cluster.plans.version()}) as watch:
        cluster.plans.named("a")
        cluster.plans.merge_patch("a", {"spec": {"mode": "DryRun"}})
        cluster.plans.merge_patch("a", {"spec": {"mode": "DryRun"}})  # changes nothing, so nothing is told
        cluster.plans.delete("a")
        gone = watch.wait_for("DELETED", "a")
        assert watch.seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in watch.events]
        assert versions == sorted(set(versions))
        assert (gone["object"]["kind"], gone["object"]["spec"]) == ("CpuBindingPlan", {"mode": "DryRun"})


def test_a_watch_without_a_version_begins_with_all_there_is(cluster: Cluster) -> None:
    cluster.pods.run("p", node="a")
    for query in ({}, {"resourceVersion": "0"}):
        with cluster.admin.watch("/api/v1/pods", query) as watch:
            assert watch.wait_for("ADDED", "p")["object"]["kind"] == "Pod"


def test_a_watch_of_one_node_sees_pods_come_and_go_there(cluster: Cluster) -> None:
    with cluster.as_service_account().watch(
        "/api/v1/pods", {**ON_NODE_A, "resourceVersion": cluster.pods.version()}
    ) as watch:
        cluster.pods.run("elsewhere", node="b")
        cluster.pods.run("p")
        cluster.pods.bind("p", "a")
        cluster.pods.annotate("p", {"cpubind.dev/enabled": "true"})
        cluster.pods.delete("p")
        cluster.pods.delete("p", grace=0)
        watch.wait_for("DELETED", "p")
        # Being deleted, by kubelet's leave, and gone.
        assert watch.seen == [("ADDED", "p"), *[("MODIFIED", "p")] * 3, ("DELETED", "p")]


def test_what_ceases_to_fit_a_selector_is_deleted_for_its_watch(cluster: Cluster) -> None:
    cluster.pods.create(
        {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    query = {"labelSelector": "app=x", "resourceVersion": cluster.pods.version()}
    with cluster.admin.watch("/api/v1/pods", query) as watch:
        patched = cluster.pods.merge_patch("p", {"metadata": {"labels": {"app": "y"}}})
        gone = watch.wait_for("DELETED", "p")["object"]["metadata"]
        assert gone["labels"] == {"app": "x"}
        assert gone["resourceVersion"] == patched["metadata"]["resourceVersion"]


def test_a_watch_ends_with_its_time_after_a_bookmark(cluster: Cluster) -> None:
    cluster.pods.run("p", node="b")
    query = {**ON_NODE_A, "allowWatchBookmarks": "true", "timeoutSeconds": "4"}
    began = time.monotonic()
    with cluster.admin.watch("/api/v1/pods", {**query, "resourceVersion": cluster.pods.version()}) as watch:
        cluster.pods.run("q", node="b")
        watch.wait_for_end()
        assert 3.5 < time.monotonic() - began < 7
        assert {event["type"] for event in watch.events} == {"BOOKMARK"}
        mark = watch.events[-1]["object"]
    assert mark["kind"] == "Pod"
    assert mark["metadata"]["resourceVersion"] == cluster.pods.get("q")["metadata"]["resourceVersion"]


def test_no_bookmarks_come_of_what_has_never_changed(fake_cluster: FakeApiServer) -> None:
    """As from a kube-apiserver, whose agents' plans stay as they are after it came up anew."""
    fake_cluster.bookmark_interval = 0.1
    query = {"allowWatchBookmarks": "true", "timeoutSeconds": "1"}
    with fake_cluster.admin.watch(PLANS.path(), query) as watch:
        watch.wait_for_end()
        assert watch.events == []


def test_no_bookmarks_come_unasked(cluster: Cluster) -> None:
    with cluster.admin.watch("/api/v1/pods", {"timeoutSeconds": "3"}) as watch:
        watch.wait_for_end()
        assert watch.events == []


def test_a_watch_from_the_future_waits(cluster: Cluster) -> None:
    query = {"resourceVersion": str(int(cluster.pods.version()) + 1000), "timeoutSeconds": "1"}
    with cluster.admin.watch("/api/v1/pods", query) as watch:
        cluster.pods.run("p")
        watch.wait_for_end()
        assert watch.events == []


def test_bookmarks_of_the_small_server_come_as_often_as_a_test_wants(fake_cluster: FakeApiServer) -> None:
    fake_cluster.bookmark_interval = 0.1
    fake_cluster.pods.run("p", node="a")
    with fake_cluster.admin.watch("/api/v1/pods", {"allowWatchBookmarks": "true"}) as watch:
        watch.wait_for("BOOKMARK", timeout=2)


@pytest.mark.parametrize("old", ["1"])
def test_a_version_that_was_never_known_is_too_old(cluster: Cluster, old: str) -> None:
    with cluster.admin.watch(PLANS.path(), {"resourceVersion": old}) as watch:
        assert watch.wait_for("ERROR")["object"]["code"] == 410
