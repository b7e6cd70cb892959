"""An agent that ends and starts: what is bound stays, what was said holds, and nothing is said twice."""

from __future__ import annotations

import time

from agent.model.cpuset import CpuSet
from tests.api.rig import KubeRig
from tests.api.scene import ENABLED, is_free, is_repaired, masks, meddle, writes_to_api, writes_to_plans
from tests.cluster.cluster import Object


def times(rig: KubeRig) -> dict[str, str]:
    """When each condition last changed."""
    return {condition["type"]: condition["lastTransitionTime"] for condition in rig.status["conditions"]}


def until_at_work(rig: KubeRig) -> None:
    """Until a new agent knows all there is to know, and has looked at the host with it."""
    agent = rig.agent
    assert agent is not None
    rig.until(lambda: agent.plan.open and agent.agent.last_act.outcomes, "the agent is at work")
    passes = agent.agent.passes
    rig.until(lambda: agent.agent.passes > passes + 2, "it has looked again")


def versions(events: list[Object]) -> list[tuple[str, str, str]]:
    """What was told, and whether it was told again."""
    return sorted((event["reason"], event["message"], event["metadata"]["resourceVersion"]) for event in events)


def wait_for_the_next_second() -> None:
    """Transition times are whole seconds: one that was renewed shall show."""
    time.sleep(1.05 - time.time() % 1)


def test_an_agent_that_restarts_on_an_unchanged_node_writes_nothing_and_tells_nothing(a2: KubeRig) -> None:
    a2.start()
    _, workers = a2.run_pod("llm-0", [0, 1])
    a2.run_pod("typo", [2], annotations={"cpubind.dev/enabled": "yes"})
    a2.run_pod("batch", [3], annotations={})
    a2.until_bound(workers)
    a2.until(lambda: a2.events("InvalidAnnotation") and a2.events("CpuBound"), "events")
    version, status, events, writes = a2.settle(0.6), a2.status, versions(a2.events()), a2.writes()
    a2.kill()
    wait_for_the_next_second()
    begun = time.time()
    a2.start()
    until_at_work(a2)
    a2.settle(0.6)
    assert versions(a2.events()) == events
    assert a2.version == version
    assert a2.status == status
    # That a warning was told before only the API server knows: it is asked to take it again, and does not.
    assert [(one.verb, one.code) for one in writes_to_api(a2, begun)] in ([], [("create", 409)])
    assert a2.writes() == writes


def test_an_agent_that_is_stopped_says_so_once_and_its_successor_takes_over(a2: KubeRig) -> None:
    a2.start(status_interval=60)  # the last word does not wait for its turn
    _, workers = a2.run_pod("llm-0", [0])
    a2.until(lambda: a2.events("CpuBound"), "bound")
    a2.stop()
    a2.start(status_interval=0.5)
    a2.until_bound(workers)
    a2.settle(0.6)
    before, status, writes = times(a2), a2.status, a2.writes()

    wait_for_the_next_second()
    begun = time.time()
    a2.stop()
    assert time.time() - begun < 2
    (last,) = writes_to_plans(a2, begun)
    assert last.code == 200
    ready = a2.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "AgentStopped")
    assert ready["lastTransitionTime"] > before["Ready"]
    assert {kind: at for kind, at in times(a2).items() if kind != "Ready"} == {
        kind: at for kind, at in before.items() if kind != "Ready"
    }
    assert {**a2.status, "conditions": None} == {**status, "conditions": None}

    wait_for_the_next_second()
    events = versions(a2.events())
    a2.start()
    a2.until(lambda: a2.condition("Ready")["status"] == "True", "Ready again")
    assert a2.condition("Ready")["lastTransitionTime"] > ready["lastTransitionTime"]
    after = times(a2)
    assert {kind: at for kind, at in after.items() if kind != "Ready"} == {
        kind: at for kind, at in before.items() if kind != "Ready"
    }
    assert versions(a2.events()) == events
    assert a2.writes() == writes


def test_bindings_outlast_the_agent_and_drift_meanwhile_is_repaired_by_the_next(a2: KubeRig) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    writes = a2.writes()
    a2.stop()
    assert a2.writes() == writes
    meddle(worker)
    a2.start()
    a2.until(lambda: is_repaired(worker), "repaired")
    assert a2.writes() == writes + 3
    a2.until_bound([worker])
    assert len(a2.events("CpuBound")) == 1


def test_what_people_asked_for_while_the_agent_was_away_is_done_at_its_start(a2: KubeRig) -> None:
    a2.start()
    _, (leaves,) = a2.run_pod("leaves", [0])
    _, (joins,) = a2.run_pod("joins", [1], annotations={})
    _, (stays,) = a2.run_pod("stays", [4])
    a2.until_bound([leaves, stays])
    a2.stop()
    a2.annotate("leaves", {ENABLED: "false"})
    a2.annotate("joins", {ENABLED: "true"})
    a2.edit({"reservedCpus": "0-3"})
    a2.start()
    a2.until_bound([joins, stays])
    a2.until(lambda: masks(stays) == CpuSet.parse("6-21") and is_free(leaves), "all of it is done")
    (event,) = a2.until(lambda: a2.events("CpuReleased"), "the event")
    assert event["involvedObject"]["name"] == "leaves"
    a2.stop()

    a2.edit({"mode": "Disabled"})
    a2.start()
    a2.until(lambda: a2.condition("Restored").get("status") == "True", "everything is given back")
    assert all(is_free(worker) for worker in (leaves, joins, stays))
