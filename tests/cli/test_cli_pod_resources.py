"""What a command that only looks asks of kubelet: as much as the agent beside it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.cluster import pod_resources
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason
from agent.model.workload import PodResources
from tests.kube.podresources_server import PodResourcesServer, container, packed, pod


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodResourcesServer]:
    folder = tmp_path / "var/lib/kubelet/pod-resources"
    folder.mkdir(parents=True)
    server = PodResourcesServer(folder / "kubelet.sock", pod("prod", "llm-0", container("vllm", packed(3, 4, 5))))
    yield server
    server.stop()


def state(root: Path, text: str) -> None:
    (root / "var/lib/kubelet/cpu_manager_state").write_text(text)


@pytest.mark.parametrize("text", ["", json.dumps({"policyName": "static"}), "damaged"])
def test_a_look_asks_kubelet_once(tmp_path: Path, kubelet: PodResourcesServer, text: str) -> None:
    if text:
        state(tmp_path, text)
    expected = PodResources("prod", "llm-0", "vllm", CpuSet({4, 5}))
    assert pod_resources(tmp_path) == ((expected,), None)
    assert len(kubelet.requests) == 1


def test_a_look_does_not_ask_a_kubelet_that_gives_no_cpus_away(tmp_path: Path, kubelet: PodResourcesServer) -> None:
    state(tmp_path, json.dumps({"policyName": "none"}))
    assert pod_resources(tmp_path) == ((), None)
    assert kubelet.requests == []


def test_a_look_without_a_socket_goes_on(tmp_path: Path) -> None:
    assert pod_resources(tmp_path) == ((), None)


def test_a_look_at_a_kubelet_that_is_not_there_goes_on_and_says_so(tmp_path: Path, kubelet: PodResourcesServer) -> None:
    kubelet.stop()
    resources, problem = pod_resources(tmp_path)
    assert resources == ()
    assert problem is not None
    assert problem.reason is Reason.KUBELET_STATE_UNREADABLE
