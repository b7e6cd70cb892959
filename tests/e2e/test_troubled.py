"""What the agent lacks for a while: it says so, waits, and goes on by itself when it is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object
from tests.e2e.release import AgentPod, Release
from tests.e2e.wait import throughout, until
from tests.e2e.workload import Workload


def test_a_second_agent_on_the_host_waits_not_ready_and_names_the_first(
    agent: AgentPod, release: Release, tmp_path: Path
) -> None:
    second = Release(release.cluster, tmp_path, "cpubind-second")
    waiting = AgentPod(second)
    try:
        second.begin(crds={"install": False}, health={"port": 18086}, metrics={"port": 19486})
        line = until(lambda: _line(waiting, "waiting: "), "it says that it waits", 30)
        until(lambda: _started(waiting), "its startup probe is content", 30)
        status, body = waiting.ask(18086, "readyz")
        assert status == 503
        for said in (line, body):
            assert re.search(rf"waiting: Locked: .*cpubind 0\..*node {release.cluster.node}", said)
        throughout(lambda: agent.is_ready() and not waiting.is_ready(), "the second became ready", 6)
        assert waiting.restarts() == 0
    finally:
        second.uninstall()


def _line(agent: AgentPod, text: str) -> str | None:
    return next((line for line in agent.logs().splitlines() if text in line), None)


def _started(agent: AgentPod) -> bool:
    return all(status.get("started") for status in agent.pod()["status"]["containerStatuses"])


def test_an_agent_without_rights_says_so_waits_and_recovers_by_itself(
    agent: AgentPod, release: Release, workload: Workload
) -> None:
    kubectl, name = release.cluster.kubectl, release.name
    kept = kubectl.get("clusterrolebinding", name)
    kept["metadata"] = {key: kept["metadata"][key] for key in ("name", "labels", "annotations")}
    worker = workload.start(0)
    workload.wait_entry(worker)
    kubectl("delete", "clusterrolebinding", name)
    try:
        gone = agent.delete()
        agent.wait_ready(other_than=gone)
        until(lambda: _line(agent, "list of pods: 403"), "it says that it may not list pods")
        until(lambda: _line(agent, "list of cpubindingplans: 403"), "it says that it may not list plans")
    finally:
        kubectl.create(kept)
    # The pauses between attempts have grown meanwhile.
    until(lambda: _line(agent, "no longer so: PodsUnknown"), "it knows the pods again", 60)
    entry = workload.wait_entry(worker)
    assert entry["pod"] == worker.name


def test_a_node_that_is_deleted_and_registered_again_gets_its_plan_again(
    agent: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    kubectl = cluster.kubectl
    worker = workload.start(0)
    workload.wait_entry(worker)
    kubectl("patch", "cbp", cluster.node, "--type", "merge", "-p", '{"spec":{"rebalance":"OnGrow"}}')
    before = until(lambda: _observed(cluster, 2), "the agent follows the spec")
    running, node = agent.name, kubectl.get("node", cluster.node)
    kubectl("delete", "node", cluster.node)
    try:
        until(lambda: kubectl.items("cbp") == [], "what the Node owned goes with it", 10)
    finally:
        # kubelet registers once, at its start, and is content with a Node that somebody else made.
        for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
            node["metadata"].pop(field, None)
        kubectl.create(node)
    plan = until(lambda: _observed(cluster, 1), "the plan comes back", 60)
    (owner,) = plan["metadata"]["ownerReferences"]
    assert owner["uid"] == kubectl.get("node", cluster.node)["metadata"]["uid"]
    assert owner["uid"] != before["metadata"]["ownerReferences"][0]["uid"]
    assert plan["metadata"]["uid"] != before["metadata"]["uid"]
    assert plan["spec"] == {"rebalance": "OnGrow"}
    assert plan["status"]["planHash"] == before["status"]["planHash"]
    assert workload.entry(worker)
    assert agent.name == running
    kubectl("patch", "cbp", cluster.node, "--type", "merge", "-p", '{"spec":{"rebalance":null}}')
    until(lambda: _observed(cluster, 2), "the agent follows the spec")


def _observed(cluster: Cluster, generation: int) -> Object | None:
    plan = cluster.kubectl.get("cbp", cluster.node)
    return plan if plan.get("status", {}).get("observedGeneration") == generation else None
