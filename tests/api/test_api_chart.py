"""The chart, installed by helm, and the agent with what the chart gives it: its account, its rights, its settings."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.crds import older_crd
from tests.api.forbidden import FORBIDDEN, answers
from tests.api.rig import KubeRig
from tests.api.scene import is_bound, is_free
from tests.api.tools import ToolError, Tools, tool
from tests.cli.conftest import Cpubind, cpubind
from tests.cluster.client import ApiClient, eventually
from tests.cluster.objects import PLANS
from tests.cluster.real_apiserver import RealApiServer
from tests.cluster.service_account import write_service_account

__all__ = ["cpubind"]

pytestmark = pytest.mark.api

CHART = Path(__file__).parents[2] / "charts/cpubind"
NAMESPACE, RELEASE, NAME = "npu-system", "npu", "npu-cpubind"


class Release:
    """A release of the chart, in a cluster that had no resource of ours before."""

    def __init__(self, cluster: RealApiServer, tools: Tools) -> None:
        self.cluster = cluster
        self.tools = tools

    def install(self, chart: Path = CHART, *sets: str) -> None:
        """Or upgrade."""
        flags = [flag for one in sets for flag in ("--set", one)]
        where = ("--namespace", NAMESPACE, "--create-namespace")
        self.tools.helm("upgrade", "--install", RELEASE, str(chart), *where, *flags)
        eventually(lambda: self.cluster.admin.ask("GET", PLANS.path()).code == 200, "plans are served", 20)

    def uninstall(self) -> str:
        return self.tools.helm("uninstall", RELEASE, "--namespace", NAMESPACE)

    def token(self) -> str:
        """What kubelet would mount into the agent's pod."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
        token: str = self.cluster.admin.request("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        return token

    def environment(self) -> dict[str, str]:
        """The variables that the DaemonSet sets, but those of which kubelet fills in the value."""
        daemon_set = self.tools.get("daemonset", NAME, "--namespace", NAMESPACE)
        (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
        assert daemon_set["spec"]["template"]["spec"]["serviceAccountName"] == NAME
        return {item["name"]: item["value"] for item in container["env"] if "value" in item}

    def remove_everything(self) -> None:
        with contextlib.suppress(ToolError):
            self.uninstall()
        self.tools.kubectl("delete", "crd", "cpubindingplans.cpubind.dev", "--ignore-not-found", "--wait")
        eventually(lambda: self.cluster.admin.ask("GET", f"/apis/{PLANS.group}").code == 404, "no group", 20)


@pytest.fixture
def release(real_cluster: RealApiServer, tmp_path: Path) -> Iterator[Release]:
    if not (tool("helm") and tool("kubectl")):
        pytest.skip("no helm and kubectl: put them on PATH, or into the folder that KUBEBUILDER_ASSETS names")
    real_cluster.remove_crd()
    made = Release(real_cluster, Tools(real_cluster, tmp_path / "tools"))
    yield made
    made.remove_everything()


@pytest.fixture
def older_chart(tmp_path: Path) -> Path:
    """The chart as it was with an older CRD."""
    copy = shutil.copytree(CHART, tmp_path / "cpubind")
    (copy / "files/cpubindingplans.yaml").write_text(yaml.safe_dump(older_crd()))
    return copy


class Node(KubeRig):
    """A node whose agent has what the chart gives it."""

    def __init__(self, release: Release, folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
        super().__init__(release.cluster, folder, "a2", **how)
        self._release = release
        self._environment = monkeypatch

    def start(self, **settings: Any) -> Any:
        """A new pod of the DaemonSet. What it mounts from the host is the virtual node's."""
        account = self.folder / "chart-account"
        token, ca = self._release.token(), self.cluster.ca
        self.service_account = write_service_account(account, token=token, ca=ca, namespace=NAMESPACE)
        for name, value in self._release.environment().items():
            self._environment.setenv(name, value)
        return super().start(**settings)


@pytest.fixture
def node(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(release, tmp_path, monkeypatch)
    with made:
        made.register()
        yield made


def test_the_agent_does_all_it_must_with_the_charts_account_and_nothing_else_can_be_done_with_it(
    release: Release, node: Node, cpubind: Cpubind, monkeypatch: pytest.MonkeyPatch
) -> None:
    release.install()
    node.cluster.set_rules([])  # what the harness gives its own account is of no help here
    node.start()
    _, (worker,) = node.run_pod("llm-0", [0])
    node.run_pod("typo", [1], annotations={"cpubind.dev/enabled": "yes"})
    node.until_bound([worker])
    node.until(lambda: node.events("CpuBound") and node.events("InvalidAnnotation"), "events are posted")
    assert node.plan()["metadata"]["ownerReferences"][0]["kind"] == "Node"

    host, port = node.address
    assert answers(ApiClient(host, port, node.cluster.ca, release.token())) == dict.fromkeys(FORBIDDEN, 403)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    checked = cpubind("doctor", "--cluster", "--service-account-dir", node.service_account)
    assert checked.status == 0, checked.out


def test_an_upgrade_brings_the_newer_crd_and_moves_nobody(
    release: Release, node: Node, older_chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release.install(older_chart)
    node.start()
    _, (worker,) = node.run_pod("llm-0", [0])
    node.until_bound([worker])
    node.until(lambda: node.condition("Degraded")["reason"] == "SchemaOutdated", "the agent says so")
    node.edit({"reservedCpus": "144"})
    node.until(lambda: node.status["observedGeneration"] == 2 and node.bound() == {worker.pid}, "it goes on")
    uid, writes = node.plan()["metadata"]["uid"], node.writes()

    monkeypatch.setattr("agent.kube.publisher.RETRY_SCHEMA_SECONDS", 0.5)
    release.install()
    node.until(lambda: node.condition("Degraded")["status"] == "False", "it heals without a restart", 30)
    assert node.status["bases"]
    assert (node.plan()["metadata"]["uid"], node.plan()["spec"]) == (uid, {"reservedCpus": "144"})
    assert node.writes() == writes
    node.stop()
    node.start()
    node.until_bound([worker])
    assert node.writes() == writes


def test_removal_as_documented_gives_everything_back_and_leaves_what_is_said(release: Release, node: Node) -> None:
    release.install(CHART, "reservedCpus=144-145", "podSelection=AllNpuPods")
    node.start()
    _, (worker,) = node.run_pod("llm-0", [0], annotations={})
    node.until_bound([worker])
    assert is_bound(worker, node)
    assert node.status["topology"]["reservedCpus"] == "144-145"
    assert node.plan()["spec"] == {}, "a setting of the chart is no spec"

    release.tools.helm(
        "upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, "--reuse-values", "--set=mode=Disabled"
    )
    node.stop()  # the DaemonSet replaces its pods
    node.start()
    release.tools.kubectl("wait", "cbp", "--all", "--for=condition=Restored", "--timeout=20s")
    assert is_free(worker)
    node.stop()
    assert "cpubindingplans.cpubind.dev" in release.uninstall()
    assert [plan["metadata"]["name"] for plan in release.tools.get("cbp")["items"]] == [node.name]
    left = release.tools.get("serviceaccount,daemonset,clusterrole,clusterrolebinding", "--all-namespaces")["items"]
    assert not [one["metadata"]["name"] for one in left if one["metadata"]["name"].startswith(NAME)]
    release.tools.kubectl("delete", "crd", "cpubindingplans.cpubind.dev")
