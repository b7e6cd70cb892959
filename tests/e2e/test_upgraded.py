"""`helm upgrade`: values and the CRD reach the agents that run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object
from tests.e2e.release import CHART, AgentPod, Release, conditions
from tests.e2e.wait import until


def test_a_value_that_is_upgraded_reaches_the_plan_and_keeps_its_spec(agent: AgentPod, release: Release) -> None:
    cluster = release.cluster
    before = until(lambda: _with_mode(cluster, "Enforce"), "a plan with a status")
    release.install(mode="DryRun", reservedCpus="0")
    plan = until(lambda: _with_mode(cluster, "DryRun"), "the plan follows the chart's values")
    assert plan["spec"] == {}
    assert plan["metadata"]["uid"] == before["metadata"]["uid"]
    assert plan["status"]["topology"]["reservedCpus"] == "0"
    assert plan["status"]["planHash"] != before["status"]["planHash"]
    assert all("0" not in npu.get("pool", "").split(",") for npu in plan["status"]["npus"])


def _with_mode(cluster: Cluster, mode: str) -> Object | None:
    plan = cluster.kubectl.get("cbp", cluster.node)
    return plan if plan["status"]["mode"] == mode else None


@pytest.fixture
def older_chart(tmp_path: Path) -> Path:
    """The chart as it may have been before two fields of the status were thought of."""
    folder = tmp_path / "cpubind"
    shutil.copytree(CHART, folder)
    path = folder / "files" / "cpubindingplans.yaml"
    crd = yaml.safe_load(path.read_text())
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["architecture"]
    del status["npus"]["items"]["properties"]["numaNodes"]
    path.write_text(yaml.safe_dump(crd))
    return folder


def test_an_agent_that_is_newer_than_its_crd_says_so_and_an_upgrade_of_the_chart_mends_it(
    installed: Release, older_chart: Path
) -> None:
    release, cluster = installed, installed.cluster
    release.uninstall()
    cluster.kubectl("delete", "crd", "cpubindingplans.cpubind.dev", "--ignore-not-found")
    release.install(chart=older_chart)
    plan = until(lambda: _degraded(cluster, "SchemaOutdated"), "the agent says SchemaOutdated", 30)
    status, message = plan["status"], conditions(plan)["Degraded"]["message"]
    assert "architecture" in message
    assert "npus.numaNodes" in message
    assert "architecture" not in status
    assert [npu["id"] for npu in status["npus"]] == [0, 1]
    assert status["planHash"]

    uid = plan["metadata"]["uid"]
    release.install(log={"level": "debug"})  # a new version would replace the agent, too
    mended = until(lambda: _degraded(cluster, "AsPlanned"), "the upgraded CRD takes everything", 30)
    assert mended["metadata"]["uid"] == uid
    assert mended["status"]["architecture"]
    assert mended["status"]["npus"][0]["numaNodes"] == [0]


def _degraded(cluster: Cluster, reason: str) -> Object | None:
    plan = cluster.kubectl.get("cbp", cluster.node)
    return plan if conditions(plan).get("Degraded", {}).get("reason") == reason else None
