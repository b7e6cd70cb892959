"""Absence never acts on the host: a plan, a CRD or a Node that is gone changes no mask, and the plan comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.demo.workload import Worker
from tests.api.rig import KubeRig
from tests.api.scene import is_repaired, is_untouched, masks, meddle
from tests.cluster.cluster import Object

SPEC = {"reservedCpus": "144-145"}


@pytest.fixture
def worker(a2: KubeRig) -> Worker:
    """Bound, under a plan that the agent made and a person edited."""
    a2.start()
    _, (one,) = a2.run_pod("llm-0", [0])
    a2.until_bound([one])
    a2.edit(SPEC)
    a2.until(lambda: a2.status.get("observedGeneration") == 2 and a2.bound() == {one.pid}, "the edit is followed")
    a2.settle(0.6)
    return one


@contextmanager
def untouched(rig: KubeRig, worker: Worker, repaired: int = 0) -> Iterator[None]:
    """Nothing is written to the host meanwhile, but to the threads that somebody moved."""
    writes, cpus = rig.writes(), masks(worker)
    yield
    assert rig.writes() == writes + repaired
    assert masks(worker) == cpus


def back(rig: KubeRig, before: Object) -> Object:
    """The plan, once it is another one with a report."""

    def come() -> bool:
        plan = rig.plan()
        return plan.get("metadata", {}).get("uid", "") not in ("", before["metadata"]["uid"]) and "status" in plan

    rig.until(come, "the plan is back")
    return rig.plan()


def owner(plan: Object) -> str:
    uid: str = plan["metadata"]["ownerReferences"][0]["uid"]
    return uid


def test_a_plan_that_is_deleted_comes_back_with_its_spec(a2: KubeRig, worker: Worker) -> None:
    before = a2.plan()
    with untouched(a2, worker):
        a2.cluster.plans.delete(a2.name)
        after = back(a2, before)
        assert after["spec"] == SPEC
        assert owner(after) == owner(before)
        assert after["status"]["observedGeneration"] == after["metadata"]["generation"]
    assert len(a2.events("CpuBound")) == 2, "at the start and after the edit: not again for the new plan"


def test_a_node_that_is_registered_again_owns_a_new_plan_with_the_same_spec(a2: KubeRig, worker: Worker) -> None:
    before = a2.plan()
    with untouched(a2, worker):
        a2.cluster.nodes.delete(a2.name)
        assert a2.cluster.gc() == [a2.name]
        a2.settle(0.5)
        assert a2.plan() == {}, "a plan without a Node would have no owner"
        uid = a2.register()
        after = back(a2, before)
    assert owner(after) == uid != owner(before)
    assert after["spec"] == SPEC


@pytest.mark.parametrize("away", [True, False], ids=["while it is away", "while it runs"])
def test_a_stale_owner_is_left_to_the_garbage_collector(a2: KubeRig, worker: Worker, away: bool) -> None:
    """The Node was registered again while the agent was away; the collector comes before the agent does, or later."""
    before = a2.plan()
    a2.kill()
    a2.cluster.nodes.delete(a2.name)
    uid = a2.register()
    with untouched(a2, worker, repaired=3):
        meddle(worker)
        if away:
            assert a2.cluster.gc() == [a2.name]
        a2.start()
        a2.until(lambda: is_repaired(worker), "the agent is at work")
        if not away:
            a2.settle(0.6)
            assert owner(a2.plan()) == owner(before), "owner references are not the agent's to change"
            assert a2.cluster.gc() == [a2.name]
        after = back(a2, before)
    assert owner(after) == uid
    assert after["spec"] == SPEC


@pytest.mark.parametrize("spec", [{"mode": "DryRun"}, {"reservedCpus": "0-3"}], ids=str)
def test_a_plan_of_a_person_that_is_deleted_is_followed_by_one_that_asks_for_nothing(
    a2: KubeRig, spec: dict[str, str]
) -> None:
    before = a2.cluster.plans.named(a2.name, spec=spec)
    a2.start()
    a2.until(lambda: "status" in a2.plan(), "it is reported on")
    a2.settle(0.6)
    a2.cluster.plans.delete(a2.name)
    after = back(a2, before)
    assert after["spec"] == {}
    assert owner(after)


def test_a_resource_that_is_removed_and_installed_again_brings_the_plan_back(a2: KubeRig, worker: Worker) -> None:
    """Meanwhile what is bound is kept, and pods are served."""
    before = a2.plan()
    with untouched(a2, worker, repaired=3):
        a2.cluster.remove_crd()
        meddle(worker)
        a2.until(lambda: is_repaired(worker), "it is kept bound")
    _, (another,) = a2.run_pod("llm-1", [1])
    a2.until(lambda: not is_untouched(another), "pods are served")
    with untouched(a2, worker):
        a2.cluster.install_crd()
        after = back(a2, before)
    a2.until_bound([another])
    assert after["spec"] == SPEC


def test_a_resource_that_is_removed_sets_nobody_to_work_whom_a_person_had_stopped(a2: KubeRig) -> None:
    a2.cluster.plans.named(a2.name, spec={"mode": "Disabled"})
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until(lambda: a2.status.get("summary", {}).get("workers") == 1, "the worker is seen")
    a2.cluster.remove_crd()
    agent = a2.agent
    assert agent is not None
    a2.until(lambda: agent.plan.known and not agent.plan.read(), "the agent knows that the plan is gone")
    passes = agent.agent.passes
    a2.until(lambda: agent.agent.passes > passes + 2, "it has looked at the host since")
    assert is_untouched(worker)
