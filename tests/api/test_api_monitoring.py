"""What the chart brings for Prometheus, on a cluster that learns of the Prometheus operator's resources later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.test_api_chart import CHART, NAME, NAMESPACE, Release, release
from tests.cluster.client import eventually
from tests.monitoring.test_alerts import ALERTS

__all__ = ["release"]

pytestmark = pytest.mark.api

GROUP = "monitoring.coreos.com"
KINDS = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
ON = [f"metrics.{part}.enabled=true" for part in ("podMonitor", "prometheusRule", "dashboard")]


def crd(kind: str) -> dict[str, Any]:
    """The operator's, without its schema."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{KINDS[kind]}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": KINDS[kind], "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


def served(release: Release, plural: str) -> bool:
    return release.cluster.admin.ask("GET", f"/apis/{GROUP}/v1/{plural}").code == 200


def test_monitor_and_alerts_come_with_the_upgrade_after_the_operator(release: Release, tmp_path: Path) -> None:
    release.install(CHART, *ON)
    shown = release.tools.get("configmap", f"{NAME}-dashboard", "--namespace", NAMESPACE)
    assert json.loads(shown["data"]["cpubind.json"])["title"] == "cpubind"
    assert release.cluster.admin.ask("GET", f"/apis/{GROUP}").code == 404
    definitions = tmp_path / "operator.yaml"
    definitions.write_text(yaml.safe_dump_all(crd(kind) for kind in KINDS))
    release.tools.kubectl("apply", "-f", str(definitions))
    try:
        eventually(lambda: all(served(release, plural) for plural in KINDS.values()), "they are served", 20)
        release.install(CHART, *ON)
        monitor = release.tools.get("podmonitors", NAME, "--namespace", NAMESPACE)
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": [NAMESPACE]}
        rule = release.tools.get("prometheusrules", NAME, "--namespace", NAMESPACE)
        assert [one["alert"] for one in rule["spec"]["groups"][0]["rules"]] == list(ALERTS)
        release.install(CHART, "metrics.podMonitor.enabled=false")
        assert release.tools.get("podmonitors", "--namespace", NAMESPACE)["items"] == []
    finally:
        release.tools.kubectl("delete", "-f", str(definitions), "--wait")
