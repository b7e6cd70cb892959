"""kubelet's own records."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.reason import Reason, Refused
from agent.model.workload import ExclusiveGrant, PodResources
from agent.node.kubelet import STATE, document_of, parse_pod_resources, read_cpu_manager_state

from .conftest import Tree

UID = "12345678-1234-1234-1234-123456789abc"


def read(tree: Tree, text: str) -> tuple[str, tuple[ExclusiveGrant, ...]]:
    return read_cpu_manager_state(tree({STATE: text}))


def test_the_entries_of_the_static_policy_are_grants(tree: Tree) -> None:
    text = (
        '{"policyName":"static","defaultCpuSet":"0,12-191",'
        f'"entries":{{"{UID}":{{"vllm":"1-2,4-11","side":"3"}}}},"checksum":1353318690}}'
    )
    assert read(tree, text) == (
        "static",
        (ExclusiveGrant(UID, "vllm", CpuSet.parse("1-2,4-11")), ExclusiveGrant(UID, "side", CpuSet({3}))),
    )


def test_the_policy_none_has_no_grants(tree: Tree) -> None:
    assert read(tree, '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}') == ("none", ())


def test_a_node_without_kubelet_has_neither(tree: Tree) -> None:
    assert read_cpu_manager_state(tree({})) == ("", ())


def test_entries_by_container_id_of_old_kubelets_are_left_out(tree: Tree) -> None:
    text = f'{{"policyName":"static","defaultCpuSet":"0","entries":{{"{"a" * 64}":"1-3","{UID}":{{"c":"4"}}}}}}'
    assert read(tree, text) == ("static", (ExclusiveGrant(UID, "c", CpuSet({4})),))


def test_an_entry_without_cpus_is_no_grant(tree: Tree) -> None:
    assert read(tree, f'{{"policyName":"static","entries":{{"{UID}":{{"c":""}}}}}}') == ("static", ())
    assert read(tree, '{"policyName":"static","entries":null}') == ("static", ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"static"',
        '{"policyName":3}',
        '{"entries":[]}',
        '{"entries":{"u":[]}}',
        '{"entries":{"u":{"c":3}}}',
        '{"entries":{"u":{"c":"3-x"}}}',
        '{"entries":{"u":{"c":"0-99999"}}}',
        '{"entries":{"u":{"c":' + "[" * 500 + "]" * 500 + "}}}",
        '{"entries":' + "[" * 100_000,
        '{"entries":' + "9" * 5000 + "}",
    ],
)
def test_a_damaged_state_is_refused(tree: Tree, text: str) -> None:
    with pytest.raises(Refused) as refused:
        read(tree, text)
    assert refused.value.reason is Reason.KUBELET_STATE_UNREADABLE
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 256


@given(end=st.integers(0, 200))
def test_a_state_cut_anywhere_is_refused_and_nothing_else(tree: Tree, end: int) -> None:
    text = f'{{"policyName":"static","defaultCpuSet":"0","entries":{{"{UID}":{{"vllm":"1-2,4-11"}}}},"checksum":1}}'
    with suppress(Refused):
        assert read(tree, text[:end])[0] == "static"


# pod-resources

RESOURCES = {
    "pod_resources": [
        {
            "name": "llm-0",
            "namespace": "prod",
            "containers": [
                {
                    "name": "vllm",
                    "devices": [
                        {
                            "resource_name": "huawei.com/Ascend910",
                            "device_ids": ["Ascend910-3"],
                            "topology": {"nodes": []},
                        },
                        {"resource_name": "nvidia.com/gpu", "device_ids": ["GPU-1"]},
                        {"resource_name": "huawei.com/Ascend910", "device_ids": ["Ascend910-4"]},
                    ],
                    "cpu_ids": ["1", "2", "4"],
                },
                {"name": "side"},
            ],
        }
    ]
}


def test_containers_are_listed_with_their_cpus_and_ascend_devices() -> None:
    assert parse_pod_resources(RESOURCES) == (
        PodResources("prod", "llm-0", "vllm", CpuSet({1, 2, 4}), ("Ascend910-3", "Ascend910-4")),
        PodResources("prod", "llm-0", "side", EMPTY),
    )


def test_camel_case_and_plain_numbers_read_the_same() -> None:
    text = json.dumps(RESOURCES)
    for snake, camel in (("pod_res", "podRes"), ("resource_n", "resourceN"), ("device_ids", "deviceIds")):
        text = text.replace(snake, camel)
    text = text.replace('"cpu_ids": ["1", "2", "4"]', '"cpuIds": [1, 2, 4]')
    assert "_" not in text
    assert parse_pod_resources(json.loads(text)) == parse_pod_resources(RESOURCES)


NO_CPUS: list[object] = [-1, 4096, "x", "", "-1", "1_0", "٣", True, None, 1.5, [], "9" * 5000]


@pytest.mark.parametrize("document", [{}, {"pod_resources": None}, {"podResources": []}])
def test_no_pods_are_no_resources(document: object) -> None:
    assert parse_pod_resources(document) == ()


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"pod_resources": {}},
        {"pod_resources": [3]},
        {"pod_resources": [{"containers": ["c"]}]},
        {"pod_resources": [{"name": 3, "containers": [{}]}]},
        {"pod_resources": [{"containers": [{"devices": [{"resource_name": "huawei.com/A", "device_ids": [3]}]}]}]},
        *({"pod_resources": [{"containers": [{"cpu_ids": [cpu]}]}]} for cpu in NO_CPUS),
    ],
)
def test_damaged_resources_are_refused(document: object) -> None:
    with pytest.raises(Refused) as refused:
        parse_pod_resources(document)
    assert refused.value.reason is Reason.KUBELET_STATE_UNREADABLE
    assert refused.value.message.isprintable()


json_value: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["pod_resources", "podResources", "containers", "devices", "device_ids", "cpu_ids", "name"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=15,
)


@given(document=json_value)
@example(document={"pod_resources": [{"containers": [{"cpu_ids": [10**30]}]}]})
def test_whatever_resources_hold_nothing_but_refused_is_raised(document: object) -> None:
    with suppress(Refused):
        parse_pod_resources(document)


def test_resources_survive_being_written_and_read() -> None:
    resources = parse_pod_resources(RESOURCES)
    assert parse_pod_resources(json.loads(json.dumps(document_of(resources)))) == resources
