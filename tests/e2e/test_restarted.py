"""What an agent that goes and one that comes leave of the plan."""

from __future__ import annotations

from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object
from tests.e2e.release import AgentPod, conditions, workers
from tests.e2e.wait import throughout, until
from tests.e2e.workload import Workload


def settled(cluster: Cluster) -> Object:
    """The plan, once what is in it is not about to change."""
    seen: list[Object] = []

    def same_twice() -> bool:
        seen.append(cluster.kubectl.get("cbp", cluster.node))
        # Longer than between two writes of the agent.
        return len(seen) > 4 and seen[-1] == seen[-5]

    until(same_twice, "the plan has settled")
    assert conditions(seen[-1])["Ready"]["reason"] != "AgentStopped"
    return seen[-1]


def events(cluster: Cluster) -> dict[str, int]:
    """Counts of all events of the agent, by name."""
    found = cluster.kubectl.items("events", "-A", "--field-selector", "source=cpubind-agent")
    return {event["metadata"]["name"]: event["count"] for event in found}


def same_but_for_ready(before: Object, after: Object) -> None:
    """Nothing changed but when Ready did: an agent that stops says so there."""
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    old, new = conditions(before), conditions(after)
    old.pop("Ready")["lastTransitionTime"], new.pop("Ready")["lastTransitionTime"]
    assert new == old
    assert conditions(after)["Ready"]["reason"] == conditions(before)["Ready"]["reason"]
    for plan in (before, after):
        plan["status"].pop("conditions")
    assert after["status"] == before["status"]


def test_an_agent_that_restarts_finds_all_as_it_was_and_tells_nothing_twice(
    agent: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    worker = workload.start(0)
    workload.wait_entry(worker)
    until(lambda: workload.events(worker, "CpuBindingFailed") or cluster.cpus >= 10, "the pod has an event")
    before, told = settled(cluster), events(cluster)
    gone = agent.delete()
    stopped = until(lambda: _ready_because(cluster, "AgentStopped"), "the agent says that it stops", 10)
    assert stopped["status"] == "Unknown"
    agent.wait_ready(other_than=gone)
    until(lambda: _ready_because(cluster, conditions(before)["Ready"]["reason"]), "the new agent says how it is")
    same_but_for_ready(before, settled(cluster))
    assert events(cluster) == told


def test_an_agent_that_is_deleted_by_force_is_replaced_and_the_plan_stays(
    agent: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    worker = workload.start(1)
    workload.wait_entry(worker)
    before, told = settled(cluster), events(cluster)
    gone = agent.delete("--grace-period=0", "--force")
    agent.wait_ready(other_than=gone)
    until(lambda: _ready_because(cluster, conditions(before)["Ready"]["reason"]), "the new agent says how it is")
    same_but_for_ready(before, settled(cluster))
    assert events(cluster) == told


def _ready_because(cluster: Cluster, reason: str) -> Object | None:
    ready = conditions(cluster.kubectl.get("cbp", cluster.node))["Ready"]
    return ready if ready["reason"] == reason else None


def test_nothing_is_written_while_nothing_changes(agent: AgentPod, workload: Workload, cluster: Cluster) -> None:
    workload.wait_entry(workload.start(0))
    before = settled(cluster)["metadata"]["resourceVersion"]

    def untouched() -> bool:
        return bool(cluster.kubectl.get("cbp", cluster.node)["metadata"]["resourceVersion"] == before)

    # Six sweeps, six times as long as between two writes.
    throughout(untouched, "the plan was written to", 6)


def _with_mode(cluster: Cluster, mode: str) -> Object | None:
    plan = cluster.kubectl.get("cbp", cluster.node)
    return plan if plan["status"]["mode"] == mode else None


def test_pods_namespaces_and_plans_go_at_once_while_there_is_no_agent(
    agent: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    kubectl, namespace = cluster.kubectl, "cpubind-e2e-gone"
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    worker = workload.start(0, namespace=namespace)
    workload.wait_entry(worker)
    with agent.away():
        found = kubectl.get("pod", "-n", namespace, worker.name)["metadata"]
        assert "finalizers" not in found
        assert set(found["annotations"]) == {"cpubind.dev/enabled"}
        kubectl("delete", "namespace", namespace, "--timeout=30s")
        plan = kubectl.get("cbp", cluster.node)
        assert "finalizers" not in plan["metadata"]
        assert workers(plan), "there is no agent that could have changed it"
        kubectl("delete", "cbp", cluster.node, "--timeout=5s")
    plan = until(lambda: _with_mode(cluster, "Enforce"), "the plan comes back")
    assert workers(plan) == []
