"""Rights that are missing, for a while or from the start, and Nodes and resources that are not there yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.demo.workload import Worker
from tests.api.outage import Outage, hurry
from tests.api.scene import is_bound, is_untouched
from tests.cluster.cluster import AGENT_RULES, Cluster
from tests.cluster.fault_proxy import FaultProxy

ON_THE_REAL_ONE = pytest.mark.parametrize("cluster", ["real"], indirect=True)
"""Where tests/kube has the same of the small one."""


@pytest.fixture
def outage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """An A2 node that is not registered, without an agent as yet, and everybody in a hurry."""
    hurry(monkeypatch)
    with FaultProxy(cluster) as proxy, Outage(cluster, tmp_path, proxy) as made:
        yield made


def forbid(outage: Outage, *resources: str, verbs: Sequence[str] = ()) -> None:
    """Takes from the agent the right to these resources, or these verbs of it."""
    rules: list[dict[str, Any]] = []
    for rule in AGENT_RULES:
        left = [verb for verb in rule["verbs"] if verbs and verb not in verbs]
        if not set(resources) & set(rule["resources"]):
            rules.append(dict(rule))
        elif left:
            rules.append({**rule, "verbs": left})
    outage.cluster.set_rules(rules)


def allow(outage: Outage) -> None:
    outage.cluster.set_rules(AGENT_RULES)


def worker_of(outage: Outage, npu: int = 0) -> Worker:
    _, (worker,) = outage.run_pod(f"llm-{npu}", [npu])
    return worker


def degraded(outage: Outage) -> str:
    """The reason of Degraded; empty where it is not."""
    condition = outage.condition("Degraded")
    return condition["reason"] if condition.get("status") == "True" else ""


def test_without_the_right_to_list_pods_nobody_is_bound_and_the_plan_says_so(outage: Outage) -> None:
    outage.register()
    forbid(outage, "pods")
    worker = worker_of(outage)
    line = outage.hear("PodsUnknown", outage.start)
    assert 'cannot list resource "pods"' in line
    outage.until(lambda: degraded(outage) == "PodsUnknown", "the plan says so")
    assert is_untouched(worker)
    allow(outage)
    outage.until_bound([worker])
    outage.until(lambda: degraded(outage) == "", "it is over")
    assert outage.lines() == [line]


def test_a_right_to_pods_that_is_taken_away_for_a_while_costs_two_writes_and_nobody_a_cpu(outage: Outage) -> None:
    outage.register()
    (worker,) = outage.start_with(0)
    patches = len([one for one in outage.proxy.seen if one.verb == "patch"])
    forbid(outage, "pods")
    assert degraded(outage) == "", "the open watch goes on"
    line = outage.hear("pods: ApiRefused", outage.proxy.cut)
    assert 'cannot watch resource "pods"' in line
    outage.until(lambda: degraded(outage) == "ApiRefused", "it lasts, and the plan says so")
    outage.keeps(worker)
    new = worker_of(outage, 1)
    allow(outage)
    outage.until(lambda: degraded(outage) == "", "it is over")
    outage.until_bound([worker, new])
    outage.settle(0.6)
    # Degraded and not any more, then the new worker; events are told by patches only when they come again.
    assert len([one for one in outage.proxy.seen if one.verb == "patch" and "status" in one.path]) - patches <= 4
    assert is_bound(worker, outage)


@ON_THE_REAL_ONE
@pytest.mark.api
def test_a_moment_without_the_right_to_pods_is_not_written(outage: Outage) -> None:
    outage.register()
    (worker,) = outage.start_with(0)
    version = outage.version
    outage.proxy.answer(403, path="/pods$", times=1)
    outage.proxy.cut()
    outage.until(lambda: any(one.code == 403 for one in outage.proxy.seen), "it is refused")
    outage.until_quiet()
    assert outage.version == version
    outage.keeps(worker)


def test_without_the_right_to_plans_bindings_are_kept_by_what_was_in_force_last(outage: Outage) -> None:
    outage.register()
    (worker,) = outage.start_with(0)
    version = outage.version
    outage.kill()
    forbid(outage, "cpubindingplans", verbs=("list", "watch"))
    line = outage.hear("plan: ApiRefused", outage.start)
    assert 'cannot list resource "cpubindingplans"' in line
    outage.keeps(worker)
    new = worker_of(outage, 1)
    outage.until(lambda: not is_untouched(new), "who opts in is bound: the spec that was in force is known")
    assert outage.version == version
    allow(outage)
    outage.until_bound([worker, new])


def test_without_the_right_to_status_everything_else_is_done(outage: Outage) -> None:
    outage.register()
    forbid(outage, "cpubindingplans/status")
    worker = worker_of(outage)
    line = outage.hear("writes:", outage.start)
    assert 'cannot patch resource "cpubindingplans/status"' in line
    outage.until(lambda: outage.events("CpuBound"), "it is bound, and told")
    assert not is_untouched(worker)
    assert outage.status == {}
    allow(outage)
    outage.until_bound([worker])


@ON_THE_REAL_ONE
@pytest.mark.api
def test_without_the_right_to_events_everything_else_is_done(outage: Outage) -> None:
    outage.register()
    forbid(outage, "events")
    worker = worker_of(outage)
    line = outage.hear("events:", outage.start)
    assert 'cannot create resource "events"' in line
    outage.until_bound([worker])
    outage.keeps(worker)
    allow(outage)
    outage.until(lambda: outage.events("CpuBound"), "it is told when it may be")


@ON_THE_REAL_ONE
@pytest.mark.api
def test_without_the_right_to_nodes_pods_are_bound_and_the_plan_is_made_later(outage: Outage) -> None:
    outage.register()
    forbid(outage, "nodes")
    worker = worker_of(outage)
    line = outage.hear("writes:", outage.start)
    assert 'cannot get resource "nodes"' in line
    outage.until(lambda: not is_untouched(worker), "it is bound")
    assert outage.plan() == {}
    allow(outage)
    outage.until_bound([worker])
    assert outage.plan()["metadata"]["ownerReferences"][0]["name"] == outage.name


def test_without_any_right_it_waits_says_what_is_missing_and_asks_rarely(outage: Outage) -> None:
    outage.register()
    outage.cluster.set_rules([])
    worker = worker_of(outage)
    outage.hear("plan:", outage.start)
    outage.until(lambda: any("PodsUnknown" in line for line in outage.lines()), "it is told")
    before = len(outage.proxy.seen)
    time.sleep(1.0)
    print(len(outage.proxy.seen) - before, "requests by two watches that pause for 0.33 to 0.5 s")
    assert len(outage.proxy.seen) - before <= 7
    assert (outage.writes(), len(outage.lines())) == (0, 2)
    allow(outage)
    outage.until_bound([worker])


def test_a_node_that_does_not_exist_gets_its_plan_when_it_registers(outage: Outage) -> None:
    worker = worker_of(outage)
    assert outage.hear("writes:", outage.start).startswith(f"writes: NodeNotFound: no Node {outage.name}; ")
    outage.until(lambda: not is_untouched(worker), "it is bound")
    outage.keeps(worker)
    assert outage.plan() == {}
    uid = outage.register()
    outage.until_bound([worker])
    assert [owner["uid"] for owner in outage.plan()["metadata"]["ownerReferences"]] == [uid]
    outage.until(lambda: "writes: well again" in outage.lines(logging.INFO), "it is told")


def test_a_resource_that_is_installed_later_is_found(outage: Outage) -> None:
    outage.register()
    outage.cluster.remove_crd()
    worker = worker_of(outage)
    line = outage.hear("plan:", outage.start)
    assert line.startswith("plan: PlanResourceMissing: no resource cpubindingplans of cpubind.dev/v1alpha1: ")
    before = len(outage.proxy.seen)
    time.sleep(1.0)
    assert len(outage.proxy.seen) - before <= 5, "one watch that pauses for 0.33 to 0.5 s"
    assert len(outage.lines()) == 1
    outage.cluster.install_crd()
    outage.until_bound([worker])
    outage.until(lambda: "plan: well again" in outage.lines(logging.INFO), "it is told")


def test_pods_are_served_while_the_resource_is_missing_by_what_was_in_force_last(outage: Outage) -> None:
    outage.register()
    (worker,) = outage.start_with(0)
    outage.kill()
    outage.cluster.remove_crd()
    outage.hear("PlanResourceMissing", outage.start)
    outage.keeps(worker)
    new = worker_of(outage, 1)
    outage.until(lambda: not is_untouched(new), "it is bound")
    outage.annotate("llm-0", {"cpubind.dev/enabled": None})
    outage.until(lambda: outage.writes() and not is_bound_now(worker), "it is given back")
    outage.cluster.install_crd()
    outage.until_bound([new])
    assert outage.bound() == {new.pid}


def is_bound_now(worker: Worker) -> bool:
    """Whether its threads are held to less than the container's cpuset."""
    kernel = worker.node.kernel
    return any(thread.mask != kernel.allowed(thread.tid) for thread in worker.threads)
