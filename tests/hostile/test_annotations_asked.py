"""Annotations that ask for what is not theirs to ask, that are huge, and names that look like flags."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agent.demo.workload import Worker
from agent.model.pods import pod_from_manifest
from agent.model.reason import Reason
from agent.planning.optin import invalid_annotation, opted_in
from tests.cli.conftest import Cpubind, cpubind, snapshot_of  # noqa: F401 - a fixture
from tests.control.pods import IN, by_annotation
from tests.control.rig import Rig, masks

MIB = 1 << 20
LIMIT = 256 << 10
"""Bytes of all annotations of an object, for an API server (TotalAnnotationSizeLimitB)."""

HUGE = {
    "true": "true " * (MIB // 5),
    "blanks": "a" + " " * MIB + "!",
    "names": "a," * (MIB // 2) + "!",
    "dashes": "a-" * (MIB // 2),
    "one name": "a" * MIB + "!",
    "escapes": "\x1b[2J\n" * (MIB // 5),
}


def manifest(annotations: dict[str, str], number: int = 0) -> dict[str, Any]:
    return {
        "metadata": {"name": f"p{number}", "namespace": "prod", "uid": f"u{number}", "annotations": annotations},
        "spec": {"containers": [{"name": "vllm"}]},
        "status": {},
    }


@pytest.mark.parametrize("key", ["enabled", "containers", "helpers", "memory-migration.vllm"])
@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_a_mebibyte_is_refused_at_once_and_in_one_short_line(key: str, value: str) -> None:
    begun = time.thread_time()
    pod = pod_from_manifest(manifest({f"cpubind.dev/{key}": value}))
    problem = invalid_annotation(pod)
    assert time.thread_time() - begun < 1.0
    assert problem is not None
    assert problem.reason is Reason.INVALID_ANNOTATION
    assert len(problem.message) < 256
    assert problem.message.isprintable()
    assert opted_in(pod, "vllm") is None


def test_of_annotations_of_others_nothing_is_kept() -> None:
    texts = {f"example.com/{number}": "x" * 1000 for number in range(LIMIT // 1000)}
    manifests = [manifest({**texts, **IN}, number) for number in range(110)]
    tracemalloc.start()
    try:
        pods = [pod_from_manifest(each) for each in manifests]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [pod.annotations for pod in pods] == [IN] * 110
    assert kept < MIB


def test_a_node_full_of_pods_with_all_the_annotations_they_may_have_costs_a_pass_a_moment(tmp_path: Path) -> None:
    rig = Rig(tmp_path, chooses=by_annotation)
    asked = {f"cpubind.dev/enabled.{number:05}": "false" for number in range(LIMIT // 35)}
    for number in range(109):
        rig.node.kubelet.add_pod(f"p{number}", annotations=asked)
    worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm"), threads=3)
    rig.settle()
    begun = time.thread_time()
    rig.sweep()
    assert time.thread_time() - begun < 2.0
    assert masks(worker)["main"] == {rig.npu(0)["roles"]["main"]}


@pytest.mark.parametrize(
    "asked",
    [
        {"cpubind.dev/cpus": "0-639"},
        {"cpubind.dev/pool": "600-639", "cpubind.dev/npu": "7"},
        {"cpubind.dev/roles.vllm": '{"main": "0-639"}'},
        {"cpubind.dev/helpers": "Leave", "cpubind.dev/irq-binding": "true", "cpubind.dev/memory-migration": "true"},
        {"cpubind.dev/enabled.other": "true"},
    ],
)
def test_no_annotation_asks_for_other_cpus(tmp_path: Path, asked: dict[str, str]) -> None:
    pools = []
    for number, said in enumerate([IN, {**IN, **asked}]):
        rig = Rig(tmp_path / str(number), chooses=by_annotation)
        worker = Worker.start(rig.node, 3, rig.node.kubelet.add_pod("llm", annotations=said), threads=3)
        worker.add_role_threads()
        rig.settle()
        pools.append((rig.pools(), masks(worker), rig.npu(3)["state"]))
    assert pools[0] == pools[1]
    assert pools[0][2] == "Bound"


@pytest.mark.parametrize("name", ["--help", "-o", "--host-root=/", "npu:0", "1", "a/b/c", "*", "$(id)"])
def test_a_pod_or_a_container_named_like_a_flag_is_a_name(
    cpubind: Cpubind,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    rig = Rig(tmp_path, "a2")
    worker = Worker.start(rig.node, 2, rig.node.kubelet.add_pod(name, containers=(name,)))
    rig.settle()
    assert rig.npu(2)["workers"][0]["pod"] == name
    snapshot = snapshot_of(rig.node, tmp_path / "snapshot")
    plan = cpubind("plan", "--snapshot", snapshot, "-o", "json")
    assert plan.npu(2)["workers"][0]["container"] == name
    explained = cpubind("explain", "--snapshot", snapshot, "--", f"prod/{name}")
    assert (explained.status, f"Process {worker.pid}" in explained.out) == (0, True), explained.err
