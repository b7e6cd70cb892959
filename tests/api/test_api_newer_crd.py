"""A CRD that is newer than the agent: `helm rollback`, or a release beside it that brought its own."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.crds import newer_crd
from tests.api.rig import KubeRig
from tests.api.scene import masks, writes_to_plans
from tests.cluster.cluster import Cluster, apply_status


@pytest.fixture
def older(cluster: Cluster, tmp_path: Path) -> Iterator[KubeRig]:
    """An A2 node whose agent is older than the CRD."""
    cluster.install_crd(newer_crd())
    with KubeRig(cluster, tmp_path, "a2", status_interval=0.3) as made:
        made.register()
        yield made
    cluster.install_crd()


def test_an_agent_older_than_the_crd_works_as_ever(older: KubeRig) -> None:
    older.start()
    _, workers = older.run_pod("llm-0", [0, 1])
    older.until_bound(workers)
    older.edit({"reservedCpus": "0-3"})
    older.until(lambda: older.status["topology"].get("reservedCpus") == "0-3", "it follows what it knows")
    older.until(lambda: older.condition("Degraded")["status"] == "False", "nothing is missing")
    assert not [one for one in writes_to_plans(older) if one.code >= 400]


@pytest.mark.parametrize(
    ("spec", "said"),
    [({"quiet": True}, "spec.quiet is not known"), ({"strategy": "Random"}, "spec.strategy: 'Random'")],
)
def test_what_only_a_newer_agent_understands_is_named_and_the_last_valid_spec_stays_in_force(
    older: KubeRig, spec: dict[str, object], said: str
) -> None:
    older.start()
    _, (worker,) = older.run_pod("llm-0", [0])
    older.until_bound([worker])
    before, writes = masks(worker), older.writes()
    older.edit(spec)
    older.until(lambda: older.condition("PlanValid").get("reason") == "InvalidSpec", "it says so")
    assert said in older.condition("PlanValid")["message"]
    older.settle(0.6)
    assert (masks(worker), older.writes()) == (before, writes)
    _, more = older.run_pod("llm-1", [1])
    older.until_bound([worker, *more])
    older.edit(dict.fromkeys(spec))
    older.until(lambda: older.condition("PlanValid")["status"] == "True", "it heals")


def test_what_a_newer_agent_had_reported_goes_and_threads_stay(older: KubeRig) -> None:
    older.start()
    _, workers = older.run_pod("llm-0", [0, 4])
    older.until_bound(workers)
    older.stop()
    newer = copy.deepcopy(older.status)
    newer["weather"] = "fine"
    for npu in newer["npus"]:
        npu["temperature"] = 40
    apply_status(older.cluster, older.name, newer)
    assert older.status["weather"] == "fine"
    writes, begun = older.writes(), time.time()
    older.start()
    older.until(lambda: "weather" not in older.status, "the older agent reports what it knows")
    older.until(lambda: older.condition("Ready")["status"] == "True", "it is at work")
    older.settle(0.6)
    assert all("temperature" not in npu for npu in older.status["npus"])
    assert older.writes() == writes
    assert {one.code for one in writes_to_plans(older, begun)} == {200}
    assert len(writes_to_plans(older, begun)) == 1


def test_when_the_crd_goes_back_too_what_it_does_not_know_is_gone_from_spec_and_the_rest_holds(older: KubeRig) -> None:
    """`helm rollback` brings the CRD of that release back."""
    older.start()
    _, (worker,) = older.run_pod("llm-0", [0])
    older.until_bound([worker])
    older.edit({"reservedCpus": "0-3", "quiet": True})
    older.until(lambda: older.condition("PlanValid").get("reason") == "InvalidSpec", "it says so")
    older.stop()
    older.cluster.install_crd()
    older.start()
    older.edit({"irqBinding": False})
    older.until(lambda: older.condition("PlanValid").get("status") == "True", "the spec can be used")
    older.until(lambda: older.status["topology"].get("reservedCpus") == "0-3", "and is followed")
    assert older.plan()["spec"] == {"reservedCpus": "0-3", "irqBinding": False}
