"""The agent's settings: the chart sets environment variables, and the agent knows every one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.model.spec import Mode, Strategy
from agent.settings import OTHER_FLAGS, Settings, load_settings
from tests.chart.helm import Helm, Rendered, need_helm

need_helm()

OF_THE_PROCESS = {"HOME"}

EVERYTHING: dict[str, Any] = {
    "mode": "DryRun",
    "strategy": "NumaSlice",
    "deviceType": "A3",
    "reservedCpus": "0-3,96",
    "includeIsolatedCpus": True,
    "rebalance": "OnGrow",
    "irqBinding": False,
    "memoryMigration": False,
    "uvbBinding": False,
    "helpers": "Confine",
    "threadRules": [{"prefix": "ucm_", "role": "main"}, {"prefix": "$hccl=", "role": "acl"}],
    "allowAnyArchitecture": False,
    "podSelection": "AllNpuPods",
    "namespaces": ["prod", "test"],
    "excludeNamespaces": ["kube-system"],
    "sweepInterval": 0.5,
    "statusInterval": 20,
    "apiJitter": 0,
    "log": {"level": "debug", "format": "json"},
    "npuSmi": {"timeout": 30},
    "metrics": {"address": "10.0.0.7", "perPod": True, "tls": {"secretName": "cpubind-tls", "clientAuth": True}},
}


def known() -> set[str]:
    return {f"CPUBIND_{name.upper()}" for name in ({*Settings.model_fields} - {"flags"}) | OTHER_FLAGS}


def test_without_values_only_what_a_pod_needs_is_set(plain: Rendered) -> None:
    assert plain.env == {
        "CPUBIND_NODE_NAME": "spec.nodeName",
        "CPUBIND_HOST_ROOT": "/host",
        "CPUBIND_NPU_SMI": "/host/usr/local/sbin/npu-smi",
        "CPUBIND_POD_SELECTION": "Annotated",
        "CPUBIND_HEALTH_ADDRESS": ":8086",
        "CPUBIND_METRICS_ADDRESS": ":9486",
        "CPUBIND_LOG_LEVEL": "info",
        "CPUBIND_LOG_FORMAT": "text",
        "HOME": "/tmp",
        "CPUBIND_NPU_SMI_LIBRARY_PATH": "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/driver/lib64/common",
    }


def test_every_value_arrives_as_the_agent_reads_it(helm: Helm) -> None:
    env = helm.render(EVERYTHING).env
    assert {name: value for name, value in env.items() if name not in OF_THE_PROCESS} == {
        "CPUBIND_NODE_NAME": "spec.nodeName",
        "CPUBIND_HOST_ROOT": "/host",
        "CPUBIND_NPU_SMI": "/host/usr/local/sbin/npu-smi",
        "CPUBIND_NPU_SMI_LIBRARY_PATH": "/usr/local/Ascend/driver/lib64/driver:/usr/local/Ascend/driver/lib64/common",
        "CPUBIND_NPU_SMI_TIMEOUT": "30",
        "CPUBIND_POD_SELECTION": "AllNpuPods",
        "CPUBIND_NAMESPACES": "prod,test",
        "CPUBIND_EXCLUDE_NAMESPACES": "kube-system",
        "CPUBIND_HEALTH_ADDRESS": ":8086",
        "CPUBIND_METRICS_ADDRESS": "10.0.0.7:9486",
        "CPUBIND_METRICS_PER_POD": "true",
        "CPUBIND_METRICS_TLS_CERT": "/etc/cpubind/metrics-tls/tls.crt",
        "CPUBIND_METRICS_TLS_KEY": "/etc/cpubind/metrics-tls/tls.key",
        "CPUBIND_METRICS_TLS_CLIENT_CA": "/etc/cpubind/metrics-tls/ca.crt",
        "CPUBIND_SWEEP_INTERVAL": "0.5",
        "CPUBIND_STATUS_INTERVAL": "20",
        "CPUBIND_API_JITTER": "0",
        "CPUBIND_LOG_LEVEL": "debug",
        "CPUBIND_LOG_FORMAT": "json",
        "CPUBIND_MODE": "DryRun",
        "CPUBIND_STRATEGY": "NumaSlice",
        "CPUBIND_DEVICE_TYPE": "A3",
        "CPUBIND_RESERVED_CPUS": "0-3,96",
        "CPUBIND_INCLUDE_ISOLATED_CPUS": "true",
        "CPUBIND_REBALANCE": "OnGrow",
        "CPUBIND_IRQ_BINDING": "false",
        "CPUBIND_MEMORY_MIGRATION": "false",
        "CPUBIND_UVB_BINDING": "false",
        "CPUBIND_HELPERS": "Confine",
        "CPUBIND_THREAD_RULE": "ucm_=main,$$hccl==acl",
        "CPUBIND_ALLOW_ANY_ARCHITECTURE": "false",
    }


def test_every_variable_of_a_spec_field_is_one_that_the_agent_knows(helm: Helm) -> None:
    env = {name for name in helm.render(EVERYTHING).env if name not in OF_THE_PROCESS}
    assert env - known() == set()


def test_the_agent_takes_what_the_chart_sets(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in helm.render(EVERYTHING).env.items():
        if name.startswith("CPUBIND_"):
            monkeypatch.setenv(name, value.replace("$$", "$"))  # as kubelet does
    settings = load_settings({})
    spec = settings.spec()
    assert (spec.mode, spec.strategy, str(spec.reserved_cpus)) == (Mode.DRY_RUN, Strategy.NUMA_SLICE, "0-3,96")
    assert [(rule.prefix, rule.role) for rule in spec.thread_rules] == [("ucm_", "main"), ("$hccl=", "acl")]
    assert spec.irq_binding is spec.allow_any_architecture is False
    assert settings.sweep_interval == 0.5
    assert (settings.metrics_per_pod, settings.metrics_tls_client_ca) == (True, Path("/etc/cpubind/metrics-tls/ca.crt"))


def test_false_is_set_and_null_is_not(helm: Helm) -> None:
    assert helm.render({"irqBinding": False}).env["CPUBIND_IRQ_BINDING"] == "false"
    assert "CPUBIND_IRQ_BINDING" not in helm.render({"irqBinding": None}).env


def test_values_typed_on_the_command_line_arrive_too(helm: Helm) -> None:
    env = helm.render(None, "reservedCpus=0-3", "irqBinding=false", "sweepInterval=2", "namespaces={a,b}").env
    assert env["CPUBIND_RESERVED_CPUS"] == "0-3"
    assert env["CPUBIND_IRQ_BINDING"] == "false"
    assert env["CPUBIND_SWEEP_INTERVAL"] == "2"
    assert env["CPUBIND_NAMESPACES"] == "a,b"


def test_metrics_can_be_off(helm: Helm) -> None:
    rendered = helm.render({"metrics": {"enabled": False, "perPod": True, "tls": {"secretName": "cpubind-tls"}}})
    assert {name: value for name, value in rendered.env.items() if "METRICS" in name} == {
        "CPUBIND_METRICS_ADDRESS": "off"
    }
    assert "cpubind-tls" not in rendered.text


def test_in_the_hosts_network_metrics_are_where_they_are_told_to_be_and_probes_stay_at_home(helm: Helm) -> None:
    env = helm.render({"hostNetwork": True, "metrics": {"address": "[fd00::7]"}}).env
    assert (env["CPUBIND_METRICS_ADDRESS"], env["CPUBIND_HEALTH_ADDRESS"]) == ("[fd00::7]:9486", "127.0.0.1:8086")


def test_the_certificate_is_a_folder_that_only_the_agent_reads(helm: Helm) -> None:
    rendered = helm.render({"metrics": {"tls": {"secretName": "cpubind-tls"}}})
    assert "CPUBIND_METRICS_TLS_CLIENT_CA" not in rendered.env
    (volume,) = (volume for volume in rendered.pod["volumes"] if volume["name"] == "metrics-tls")
    assert volume["secret"] == {"secretName": "cpubind-tls", "defaultMode": 0o400}
    (mount,) = (mount for mount in rendered.container["volumeMounts"] if mount["name"] == "metrics-tls")
    assert mount == {"name": "metrics-tls", "mountPath": "/etc/cpubind/metrics-tls", "readOnly": True}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "scheme" not in rendered.container[name]["httpGet"], "probes are in the clear"


def test_a_service_called_cpubind_sets_no_variable_in_the_pod(plain: Rendered) -> None:
    assert plain.pod["enableServiceLinks"] is False
