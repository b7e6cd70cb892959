"""A CRD that is older than the agent, and its upgrade."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.crds import older_crd
from tests.api.rig import KubeRig
from tests.api.scene import is_untouched, writes_to_plans
from tests.cluster.client import ApiError
from tests.cluster.cluster import Cluster


@pytest.fixture
def outdated(cluster: Cluster, tmp_path: Path) -> Iterator[KubeRig]:
    """An Ascend 950 node, which has UVB threads, under the older CRD."""
    cluster.install_crd(older_crd())
    with KubeRig(cluster, tmp_path, "ascend950") as made:
        made.register()
        yield made


def test_an_agent_newer_than_the_crd_goes_on_with_the_fields_that_are_known(
    outdated: KubeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.kube.publisher.RETRY_SCHEMA_SECONDS", 3600.0)
    pod, _ = outdated.run_pod("llm-0")
    workers = [outdated.start_worker(0, pod, threads=1) for _ in range(17)]
    outdated.start()
    outdated.until(lambda: outdated.condition("Degraded").get("reason") == "SchemaOutdated", "it says so")
    message = outdated.condition("Degraded")["message"]
    left_out, what_to_do = message.split("; ")
    assert left_out == "status fields left out: bases, npus.workersOmitted, uvb"
    assert what_to_do == "kubectl apply -f crds/cpubindingplans.yaml"
    outdated.until(lambda: outdated.status["summary"]["bound"] == 17, "everything else is as ever")
    assert len(outdated.npu(0)["workers"]) == 16
    assert not {"bases", "uvb"} & outdated.status.keys()
    assert outdated.condition("Ready")["status"] == "True"
    assert not any(map(is_untouched, workers))
    (event,) = outdated.until(lambda: outdated.events("SchemaOutdated"), "the event")
    assert event["message"] == message

    # Each field is refused once, not with every write.
    outdated.settle(0.6)
    refused = [one for one in writes_to_plans(outdated) if one.code == 500]
    assert 1 <= len(refused) <= 3
    begun = time.time()
    workers.pop().end()
    outdated.until(lambda: outdated.status["summary"]["bound"] == 16, "a change is written")
    assert {one.code for one in writes_to_plans(outdated, begun)} == {200}
    with pytest.raises(ApiError, match="strategy"):
        outdated.edit({"strategy": "NumaSlice"})

    # `helm upgrade` brings the CRD of the chart.
    outdated.start_worker(0, pod, threads=1)
    monkeypatch.setattr("agent.kube.publisher.RETRY_SCHEMA_SECONDS", 0.5)
    outdated.cluster.install_crd()
    outdated.until(lambda: outdated.condition("Degraded")["status"] == "False", "it heals")
    outdated.until(lambda: outdated.npu(0).get("workersOmitted") == 1, "all fields are written")
    assert outdated.status["uvb"]["cpus"]
    assert outdated.status["bases"]
    begun = time.time()
    outdated.settle(1.2)
    assert not writes_to_plans(outdated, begun + 0.6), "nothing is tried again any more"
    outdated.edit({"strategy": "GlobalSlice", "helpers": "Leave"})
    assert outdated.plan()["spec"] == {"strategy": "GlobalSlice", "helpers": "Leave"}


def test_a_plan_outlives_an_upgrade_of_its_crd(cluster: Cluster, tmp_path: Path) -> None:
    cluster.install_crd(older_crd())
    with KubeRig(cluster, tmp_path, "a2") as rig:
        rig.register()
        rig.start()
        _, workers = rig.run_pod("llm-0", [0])
        rig.until_bound(workers)
        rig.edit({"reservedCpus": "0-1"})
        rig.until(lambda: rig.status["observedGeneration"] == 2, "the edit is followed")
        before, writes = rig.plan(), rig.writes()
        cluster.install_crd()
        rig.settle(0.6)
        assert rig.plan()["metadata"]["uid"] == before["metadata"]["uid"]
        assert rig.plan()["spec"] == {"reservedCpus": "0-1"}
        assert rig.writes() == writes
        _, more = rig.run_pod("llm-1", [1])
        rig.until_bound([*workers, *more])
