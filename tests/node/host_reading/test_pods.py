"""Pods from manifests, whole, trimmed and odd."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.pods import manifest_of, milli, pod_from_manifest
from agent.model.workload import Pod, PodContainer

ID = "0123456789abcdef" * 4
WHOLE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "llm-0",
        "namespace": "prod",
        "uid": "12345678-1234-1234-1234-123456789abc",
        "annotations": {"cpubind.dev/enabled": "true", "kubernetes.io/config.hash": "0a1b2c3d4e5f60718293a4b5c6d7e8f9"},
    },
    "spec": {
        "initContainers": [{"name": "fetch", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}],
        "containers": [
            {"name": "vllm", "resources": {"limits": {"cpu": "16", "memory": "64Gi", "huawei.com/Ascend910": "1"}}},
            {"name": "sidecar", "resources": {}},
        ],
        "ephemeralContainers": [{"name": "debug"}],
    },
    "status": {
        "qosClass": "Burstable",
        "containerStatuses": [
            {"name": "sidecar", "containerID": f"containerd://{ID[::-1]}"},
            {"name": "vllm", "containerID": f"containerd://{ID}"},
        ],
        "initContainerStatuses": [{"name": "fetch", "containerID": "cri-o://" + "a" * 64}],
        "ephemeralContainerStatuses": [{"name": "debug", "containerID": ""}],
    },
}


def test_a_pod_is_boiled_down_to_what_placement_needs() -> None:
    assert pod_from_manifest(WHOLE) == Pod(
        uid="12345678-1234-1234-1234-123456789abc",
        namespace="prod",
        name="llm-0",
        qos="Burstable",
        annotations={"cpubind.dev/enabled": "true"},
        containers=(
            PodContainer("vllm", ID, 16_000),
            PodContainer("sidecar", ID[::-1]),
            PodContainer("fetch", "a" * 64, 500),
            PodContainer("debug"),
        ),
        config_hash="0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    )


def test_a_trimmed_pod_may_have_a_status_alone() -> None:
    pod = pod_from_manifest(
        {"metadata": {"name": "a"}, "status": {"containerStatuses": WHOLE["status"]["containerStatuses"]}}
    )
    assert [container.name for container in pod.containers] == ["sidecar", "vllm"]
    assert (pod.name, pod.qos) == ("a", "")


# QoS, by the rule of Kubernetes


def container(
    limits: Mapping[str, object] | None = None, requests: Mapping[str, object] | None = None
) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits, "requests": requests}}


FULL = {"cpu": "16", "memory": "64Gi"}


@pytest.mark.parametrize(
    ("spec", "qos"),
    [
        ({"containers": [container()]}, "BestEffort"),
        ({"containers": [{"name": "c"}]}, "BestEffort"),
        ({"containers": [container(requests={"cpu": "0"})]}, "BestEffort"),
        ({"containers": [container(limits={"huawei.com/Ascend910": "1"})]}, "BestEffort"),
        ({"containers": [container(FULL)]}, "Guaranteed"),
        ({"containers": [container(FULL, FULL)]}, "Guaranteed"),
        ({"containers": [container(FULL, {"cpu": "16000m", "memory": 64 * 2**30})]}, "Guaranteed"),
        ({"containers": [container(FULL, {"cpu": "8", "memory": "64Gi"})]}, "Burstable"),
        ({"containers": [container(FULL, {"cpu": "0"})]}, "Burstable"),
        ({"containers": [container({"cpu": "16"})]}, "Burstable"),
        ({"containers": [container(requests=FULL)]}, "Burstable"),
        ({"containers": [container(FULL), container()]}, "Burstable"),
        ({"containers": [container(FULL)], "initContainers": [container()]}, "Burstable"),
        ({"containers": [container(FULL)], "initContainers": [container(FULL)]}, "Guaranteed"),
        ({"containers": [container(FULL)], "ephemeralContainers": [container()]}, "Guaranteed"),
        ({"containers": [container()], "resources": {"limits": FULL, "requests": FULL}}, "Guaranteed"),
        ({"containers": [container(FULL)], "resources": {"requests": {"cpu": "1"}}}, "Burstable"),
    ],
)
def test_without_a_qos_class_it_is_computed(spec: Mapping[str, Any], qos: str) -> None:
    assert pod_from_manifest({"spec": spec}).qos == qos
    assert pod_from_manifest({"spec": spec, "status": {"qosClass": "Whatever"}}).qos == qos
    assert pod_from_manifest({"spec": spec, "status": {"qosClass": "Guaranteed"}}).qos == "Guaranteed"


# Quantities


@pytest.mark.parametrize(
    ("quantity", "thousandths"),
    [
        ("16", 16_000),
        ("16000m", 16_000),
        ("1.6e1", 16_000),
        ("1.6E1", 16_000),
        ("160e-1", 16_000),
        ("0.5", 500),
        (".5", 500),
        ("5.", 5_000),
        ("+2", 2_000),
        ("1k", 1_000_000),
        ("1Ki", 1_024_000),
        ("1E", 10**21),
        ("1Mi", 1_048_576_000),
        ("0", 0),
        ("0.0001", 1),  # Kubernetes rounds up
        ("100u", 1),
        ("1500000000n", 1_500),
        (16, 16_000),
        (1.5, 1_500),
        (1e-07, 1),
        (0, 0),
        ("9" * 40, (2**63 - 1) * 1000),
        (10**30, (2**63 - 1) * 1000),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(quantity: object, thousandths: int) -> None:
    assert milli(quantity) == thousandths


@pytest.mark.parametrize(
    "quantity",
    [
        *("", ".", "m", "x", "1x", "1 ", " 1", "1e", "e1", "1ee1", "1mi", "1K", "--1", "-1", "1_0", "٣", "1e9999"),
        *("9" * 99, None, True, False, -1, math.nan, math.inf, [], {}, b"1"),
    ],
)
def test_what_is_no_quantity_is_none(quantity: object) -> None:
    assert milli(quantity) is None


@given(st.integers(0, 10**9), st.sampled_from(["m", "", "k"]))
def test_a_whole_quantity_is_exact(number: int, suffix: str) -> None:
    assert milli(f"{number}{suffix}") == number * {"m": 1, "": 1000, "k": 10**6}[suffix]


@given(st.integers(0, 10**9))
def test_a_decimal_quantity_is_rounded_up(millionths: int) -> None:
    assert milli(f"{millionths // 10**6}.{millionths % 10**6:06}") == -(-millionths // 1000)


# Odd manifests

json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "metadata",
    "spec",
    "status",
    "containers",
    "resources",
    "limits",
    "cpu",
    "name",
    "annotations",
    "containerStatuses",
]
manifest = st.recursive(
    json_value,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), manifest))
def test_whatever_a_manifest_holds_there_is_a_pod(odd: Mapping[str, Any]) -> None:
    pod = pod_from_manifest(odd)
    assert all(isinstance(value, str) for value in (pod.uid, pod.namespace, pod.name, pod.qos, pod.config_hash))
    assert all(isinstance(value, str) for value in pod.annotations.values())


@pytest.mark.parametrize("odd", [None, [], "pod", 3])
def test_what_is_no_manifest_at_all_is_an_empty_pod(odd: Any) -> None:
    assert pod_from_manifest(odd) == Pod("", "", "")


def test_wrong_types_are_taken_as_absent() -> None:
    pod = pod_from_manifest(
        {
            "metadata": {
                "name": 3,
                "uid": None,
                "annotations": {"cpubind.dev/a": 1, "cpubind.dev/b": "x", "": "y", "b": "z"},
            },
            "spec": {"containers": [{"name": "c", "resources": {"limits": "16"}}, "text", {"name": None}]},
            "status": {"containerStatuses": {"name": "c"}, "qosClass": 7},
        }
    )
    assert pod == Pod("", "", "", "BestEffort", {"cpubind.dev/b": "x"}, (PodContainer("c"),))


# And back


def test_a_pod_survives_being_written_and_read() -> None:
    pod = pod_from_manifest(WHOLE)
    assert pod_from_manifest(manifest_of(pod)) == pod


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), manifest))
def test_so_does_any_other(odd: Mapping[str, Any]) -> None:
    pod = pod_from_manifest(odd)
    assert pod_from_manifest(manifest_of(pod)) == pod
