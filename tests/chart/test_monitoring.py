"""What the chart brings for Prometheus and Grafana: only what is asked for, and only where the cluster knows it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, Helm, Rendered, need_helm

need_helm()

POD_MONITOR = "monitoring.coreos.com/v1/PodMonitor"
PROMETHEUS_RULE = "monitoring.coreos.com/v1/PrometheusRule"
BOTH = (POD_MONITOR, PROMETHEUS_RULE)
ALL = {"metrics": {part: {"enabled": True} for part in ("podMonitor", "prometheusRule", "dashboard")}}
KINDS = ("PodMonitor", "PrometheusRule", "ConfigMap")
ALERTS: dict[str, Any] = yaml.safe_load((CHART / "files/alerts.yaml").read_text())


def made(rendered: Rendered) -> set[str]:
    return {kind for kind in KINDS if rendered.kinds(kind)}


def test_nothing_of_it_is_made_unasked(helm: Helm) -> None:
    assert made(helm.render(apis=BOTH)) == set()


@pytest.mark.parametrize(
    ("apis", "kinds"),
    [
        ((), {"ConfigMap"}),
        ((POD_MONITOR,), {"PodMonitor", "ConfigMap"}),
        ((PROMETHEUS_RULE,), {"PrometheusRule", "ConfigMap"}),
        (BOTH, {"PodMonitor", "PrometheusRule", "ConfigMap"}),
    ],
)
def test_what_the_cluster_does_not_know_is_left_out(helm: Helm, apis: tuple[str, ...], kinds: set[str]) -> None:
    assert made(helm.render(ALL, apis=apis)) == kinds


@pytest.mark.parametrize(("part", "kind"), list(zip(ALL["metrics"], KINDS, strict=True)))
def test_each_is_made_by_a_value_of_its_own(helm: Helm, part: str, kind: str) -> None:
    assert made(helm.render({"metrics": {part: {"enabled": True}}}, apis=BOTH)) == {kind}


def test_whoever_asked_for_what_the_cluster_does_not_know_is_told(helm: Helm) -> None:
    notes = helm.notes(ALL)
    for part, kind in zip(ALL["metrics"], KINDS[:2], strict=False):
        assert f"metrics.{part}.enabled made nothing: this cluster has no {kind}" in notes
    assert "made nothing" not in helm.notes()


def test_all_of_it_has_the_releases_name_namespace_and_labels_and_those_that_people_add(helm: Helm) -> None:
    values = {
        "metrics": {
            "podMonitor": {"enabled": True, "labels": {"release": "kps"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "kps"}},
            "dashboard": {"enabled": True, "namespace": "grafana", "annotations": {"grafana_folder": "NPU"}},
        }
    }
    rendered = helm.render(values, release="pool-b", apis=BOTH)
    places = {
        kind: (rendered.the(kind)["metadata"]["name"], rendered.the(kind)["metadata"]["namespace"]) for kind in KINDS
    }
    assert places == {
        "PodMonitor": ("pool-b-cpubind", "npu-system"),
        "PrometheusRule": ("pool-b-cpubind", "npu-system"),
        "ConfigMap": ("pool-b-cpubind-dashboard", "grafana"),
    }
    for kind, label in zip(KINDS, (("release", "kps"), ("release", "kps"), ("grafana_dashboard", "1")), strict=True):
        labels = rendered.the(kind)["metadata"]["labels"]
        assert label in labels.items()
        assert labels["app.kubernetes.io/instance"] == "pool-b"
    assert rendered.the("ConfigMap")["metadata"]["annotations"] == {"grafana_folder": "NPU"}


def endpoint(rendered: Rendered) -> dict[str, Any]:
    (only,) = rendered.the("PodMonitor")["spec"]["podMetricsEndpoints"]
    found: dict[str, Any] = only
    return found


def relabelled(rules: list[dict[str, Any]], labels: dict[str, str]) -> dict[str, str] | None:
    """As Prometheus does: None where the target is dropped."""
    labels = dict(labels)
    for rule in rules:
        value = ";".join(labels.get(name, "") for name in rule["sourceLabels"])
        found = re.fullmatch(rule.get("regex", "(.*)"), value)
        if rule.get("action") == "keep":
            if not found:
                return None
        elif found:
            labels[rule["targetLabel"]] = rule.get("replacement", "$1").replace("$1", found[1])
    return labels


@pytest.mark.parametrize(("ip", "address"), [("10.0.0.7", "10.0.0.7:9486"), ("fd00::7", "[fd00::7]:9486")])
def test_an_agents_pod_is_scraped_at_its_port_though_it_declares_none(helm: Helm, ip: str, address: str) -> None:
    rendered = helm.render(ALL, apis=BOTH)
    assert "ports" not in rendered.container
    scraped = endpoint(rendered)
    assert not {"port", "portNumber", "targetPort"} & scraped.keys(), "none of them would ever be found"
    pod = {"__meta_kubernetes_pod_ip": ip, "__meta_kubernetes_pod_node_name": "a3-0", "__address__": ip}
    agent = relabelled(
        scraped["relabelings"], pod | {"__meta_kubernetes_pod_container_name": rendered.container["name"]}
    )
    assert agent is not None
    assert (agent["__address__"], agent["node"]) == (address, "a3-0")
    sidecar = pod | {"__meta_kubernetes_pod_container_name": "istio-proxy", "__address__": f"{ip}:15090"}
    assert relabelled(scraped["relabelings"], sidecar) is None


def test_the_monitor_selects_the_pods_of_its_release(helm: Helm) -> None:
    rendered = helm.render(ALL, release="pool-b", apis=BOTH)
    spec, daemon = rendered.the("PodMonitor")["spec"], rendered.the("DaemonSet")["spec"]
    assert spec["selector"] == daemon["selector"]
    assert spec["namespaceSelector"] == {"matchNames": ["npu-system"]}
    for test in rendered.kinds("Pod"):
        assert rendered.container["name"] not in {one["name"] for one in test["spec"]["containers"]}


def test_how_often_and_by_which_certificate_is_said_by_values(helm: Helm) -> None:
    assert not {"interval", "scrapeTimeout", "scheme", "tlsConfig"} & endpoint(helm.render(ALL, apis=BOTH)).keys()
    trust = {"ca": {"secret": {"name": "ca", "key": "ca.crt"}}, "serverName": "cpubind"}
    monitor = {"enabled": True, "interval": "1m30s", "scrapeTimeout": "10s", "tlsConfig": trust}
    scraped = endpoint(
        helm.render({"metrics": {"port": 9999, "tls": {"secretName": "cert"}, "podMonitor": monitor}}, apis=BOTH)
    )
    assert (scraped["interval"], scraped["scrapeTimeout"]) == ("1m30s", "10s")
    assert (scraped["scheme"], scraped["tlsConfig"]) == ("https", trust)
    assert any(rule.get("replacement") == "$1:9999" for rule in scraped["relabelings"])


def test_in_the_hosts_network_the_monitor_needs_an_address(helm: Helm) -> None:
    values = {"hostNetwork": True, "metrics": {"address": "0.0.0.0", "podMonitor": {"enabled": True}}}
    assert helm.render(values, apis=BOTH).kinds("PodMonitor")


def test_the_rules_are_those_of_the_file(helm: Helm) -> None:
    assert helm.render(ALL, apis=BOTH).the("PrometheusRule")["spec"] == ALERTS


@pytest.mark.parametrize("url", ["https://wiki.example/cpubind", "https://wiki.example/cpubind/"])
def test_each_alert_leads_to_its_page_where_people_say_where_pages_are(helm: Helm, url: str) -> None:
    values = {"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": url}}}
    (group,) = helm.render(values, apis=BOTH).the("PrometheusRule")["spec"]["groups"]
    assert {rule["alert"]: rule["annotations"].pop("runbook_url") for rule in group["rules"]} == {
        rule["alert"]: f"https://wiki.example/cpubind/{rule['alert']}.md" for rule in group["rules"]
    }
    assert group["rules"] == ALERTS["groups"][0]["rules"]


@pytest.mark.parametrize(("sweep", "limit"), [(None, 120), (5, 120), (40, 120), (40.5, 122), (600, 1800)])
def test_a_loop_that_rests_for_long_has_longer(helm: Helm, sweep: float | None, limit: int) -> None:
    rendered = helm.render({**ALL, "sweepInterval": sweep}, apis=BOTH)
    (group,) = rendered.the("PrometheusRule")["spec"]["groups"]
    (stale,) = (rule["expr"] for rule in group["rules"] if rule["alert"] == "CpubindSweepStale")
    assert f"cpubind_last_sweep_timestamp_seconds) > {limit}\n" in stale


def test_the_dashboard_is_that_of_the_file(helm: Helm) -> None:
    data = helm.render(ALL).the("ConfigMap")["data"]
    assert {name: json.loads(text) for name, text in data.items()} == {
        "cpubind.json": json.loads((CHART / "dashboards/cpubind.json").read_text())
    }
