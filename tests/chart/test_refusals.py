"""Values that cannot work end the rendering with one sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, Helm, Refusal, find_helm, need_helm

need_helm()

SENTENCES: list[tuple[dict[str, Any], str]] = [
    ({"reservedCpus": "0,5-3"}, "reservedCpus: the range 5-3 runs backwards"),
    ({"reservedCpus": "010-9"}, "reservedCpus: the range 010-9 runs backwards"),
    ({"reservedCpus": "0-4096"}, "reservedCpus: CPU 4096 is beyond 4095"),
    (
        {"namespaces": ["prod", "test"], "excludeNamespaces": ["test"]},
        "test is in both namespaces and excludeNamespaces: no pod of it could be bound",
    ),
    (
        {"health": {"port": 9486}},
        "health.port and metrics.port are both 9486: each needs a port of its own",
    ),
    (
        {"metrics": {"tls": {"clientAuth": True}}},
        (
            "metrics.tls.clientAuth needs metrics.tls.secretName: without a certificate of its own the agent can ask "
            "nobody for one"
        ),
    ),
    (
        {"metrics": {"enabled": False, "podMonitor": {"enabled": True}}},
        "metrics.podMonitor.enabled needs metrics.enabled: there would be nothing to scrape",
    ),
    (
        {"hostNetwork": True, "metrics": {"podMonitor": {"enabled": True}}},
        (
            "metrics.podMonitor.enabled needs metrics.address: in the host's network metrics are on 127.0.0.1 alone "
            "unless it says otherwise"
        ),
    ),
    (
        {"metrics": {"tls": {"secretName": "cert"}, "podMonitor": {"enabled": True}}},
        (
            "metrics.podMonitor.tlsConfig is empty: with metrics.tls.secretName it has to say how Prometheus trusts "
            "the agents"
        ),
    ),
    (
        {"metrics": {"podMonitor": {"enabled": True, "interval": "30s", "scrapeTimeout": "1m"}}},
        (
            "metrics.podMonitor.scrapeTimeout 1m is longer than the interval 30s: "
            "the Prometheus operator would not take the PodMonitor"
        ),
    ),
    (
        {"metrics": {"podMonitor": {"enabled": True, "interval": "1m30s", "scrapeTimeout": "90s1ms"}}},
        (
            "metrics.podMonitor.scrapeTimeout 90s1ms is longer than the interval 1m30s: "
            "the Prometheus operator would not take the PodMonitor"
        ),
    ),
    (
        {"serviceAccount": {"create": False}},
        "serviceAccount.create is false: name the account to use in serviceAccount.name",
    ),
    (
        {"securityContext": {"privileged": False}},
        (
            "securityContext.privileged is false and capabilities.add lacks SYS_NICE: "
            "the agent could move no thread of another user"
        ),
    ),
    (
        {"profile": "restricted", "securityContext": {"privileged": True}},
        (
            "profile restricted and securityContext.privileged true exclude each other: "
            "set securityContext.privileged to null"
        ),
    ),
    (
        {"profile": "restricted", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
        (
            "securityContext.privileged is false and capabilities.add lacks SYS_NICE: "
            "the agent could move no thread of another user"
        ),
    ),
    (
        {"securityContext": {"allowPrivilegeEscalation": False}},
        "securityContext: privileged true and allowPrivilegeEscalation false exclude each other",
    ),
    (
        {"securityContext": {"runAsUser": 1000}},
        "securityContext.runAsUser is 1000: threads of other users and /proc/irq can be written by user 0 alone",
    ),
    (
        {"securityContext": {"runAsNonRoot": True}},
        "securityContext.runAsNonRoot is true: threads of other users and /proc/irq can be written by user 0 alone",
    ),
    (
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        (
            "updateStrategy.rollingUpdate.maxSurge must be 0: of two agents on a node the second waits for the lock of "
            "the first, so that neither would go on"
        ),
    ),
    (
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}},
        (
            "updateStrategy.rollingUpdate.maxUnavailable must be above 0: "
            "an agent is replaced by stopping the old one first"
        ),
    ),
    (
        {"driver": {"path": "/usr/local"}},
        "driver: the node's /usr/local would hide the image's own: name the driver's folder in it",
    ),
    (
        {"driver": {"extraPaths": ["/etc"]}},
        "driver: the node's /etc would hide the image's own: name the driver's folder in it",
    ),
    ({"driver": {"extraPaths": ["/opt/a", "/opt/a"]}}, "/opt/a is mounted twice"),
    ({"driver": {"path": "/usr/../etc"}}, "path /usr/../etc: write it as /etc"),
    ({"npuSmi": {"path": "/opt/../npu-smi"}}, "path /opt/../npu-smi: write it as /npu-smi"),
    ({"npuSmi": {"path": "/proc/npu-smi"}}, "/host/proc is mounted twice"),
    ({"kubelet": {"rootDir": "/var//lib"}}, "path /var//lib: write it as /var/lib"),
    (
        {"extraEnv": [{"name": "CPUBIND_LOG_LEVEL", "value": "debug"}]},
        "extraEnv: CPUBIND_LOG_LEVEL is set by the chart already",
    ),
    (
        {"extraEnv": [{"name": "CPUBIND_NODE_NAME", "value": "n"}]},
        "extraEnv: CPUBIND_NODE_NAME is set by the chart already",
    ),
    (
        {"podLabels": {"app.kubernetes.io/instance": "x"}},
        "podLabels: by app.kubernetes.io/instance the DaemonSet finds its pods, so that it is not yours to set",
    ),
    ({"extraVolumes": [{"name": "proc", "emptyDir": {}}]}, "extraVolumes: the chart has a volume called proc already"),
    (
        {"extraVolumeMounts": [{"name": "a", "mountPath": "/tmp"}]},
        "extraVolumeMounts: the chart mounts something at /tmp already",
    ),
]


@pytest.mark.parametrize(("values", "sentence"), SENTENCES, ids=lambda item: str(item)[:60])
def test_a_combination_that_cannot_work_is_refused_with_a_sentence(
    helm: Helm, values: dict[str, Any], sentence: str
) -> None:
    assert helm.refusal(values) == sentence


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("deviceType=950", "'/deviceType'"),
        ("reservedCpus=3", "'/reservedCpus'"),
        ("podSelection=All", "'/podSelection'"),
        ("mode=enforce", "'/mode'"),
        ("profile=baseline", "'/profile'"),
        ("npuSmi.path=npu-smi", "'/npuSmi/path'"),
        ("image.digest=sha256:12", "'/image/digest'"),
        ("namespaces={Prod}", "'/namespaces/0'"),
        ("hostPid=true", "'hostPid'"),
        ("metrics.podMonitor.interval=30s1m", "'/metrics/podMonitor/interval'"),
    ],
)
def test_a_value_that_is_not_of_its_form_is_refused_by_its_name(helm: Helm, typed: str, named: str) -> None:
    assert named in helm.refusal(None, typed)


def _paths(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield above + name
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{name}.")


@pytest.mark.parametrize("path", list(_paths(yaml.safe_load((CHART / "values.yaml").read_text()))))
def test_a_value_that_is_taken_away_is_refused_by_its_name_or_is_none(helm: Helm, path: str) -> None:
    """`podLabels:` with nothing behind it, say, or values of an older chart, which had none."""
    parts = ("podMonitor", "prometheusRule", "dashboard")
    everything = {"metrics": {part: {"enabled": True} for part in parts}}
    kinds = [f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "PrometheusRule")]
    said = ""
    try:
        helm.render(everything, f"{path}=null", apis=kinds)
    except Refusal as refused:
        said = str(refused)
    assert said == "" or f"missing property '{path.rpartition('.')[2]}'" in said


def test_an_older_cluster_than_1_20_is_refused(helm: Helm) -> None:
    with pytest.raises(Exception, match=r"1\.20\.0-0"):
        helm.render(kubernetes="1.19.16")


def test_values_of_an_older_chart_are_refused_with_the_names_of_what_they_lack(tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` gives the new chart the old one's values in place of its own."""
    older = tmp_path / "cpubind"
    shutil.copytree(CHART, older)
    values = yaml.safe_load((older / "values.yaml").read_text())
    del values["metrics"]["podMonitor"], values["kubelet"]
    (older / "values.yaml").write_text(yaml.safe_dump(values))
    program = find_helm()
    assert program is not None
    with pytest.raises(Refusal) as refused:
        Helm(program, tmp_path).run("template", "cpubind", str(older), "--set", "image.repository=registry/cpubind")
    assert re.search(r"at '': missing property 'kubelet'", str(refused.value))
    assert re.search(r"at '/metrics': missing property 'podMonitor'", str(refused.value))
