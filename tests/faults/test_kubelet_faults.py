"""kubelet's pod-resources with all that can become of a call: what it said last stands, and nobody is moved."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kube import service
from agent.kube.pod_resources import PodResourcesPoll
from agent.model.cpuset import CpuSet
from tests.api.rig import KubeRig
from tests.api.scene import is_bound, masks
from tests.cluster.fake_apiserver import FakeApiServer
from tests.faults.kubelet_rows import ROWS, KubeletRow
from tests.kube.podresources_server import PodResourcesServer, container, device, packed, pod

OWN = CpuSet.parse("40-59")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeRig]:
    """An A2 node whose kubelet is asked often."""
    monkeypatch.setattr(service, "PodResourcesPoll", functools.partial(PodResourcesPoll, interval=0.1, deadline=0.5))
    server = FakeApiServer()
    with KubeRig(server, tmp_path, "a2", status_interval=0.3) as made:
        made.register()
        yield made
    server.close()


@pytest.fixture
def kubelet(rig: KubeRig) -> Iterator[PodResourcesServer]:
    """It gave CPUs to one pod."""
    path = rig.node.root / service.SOCKET
    path.parent.mkdir(parents=True, exist_ok=True)
    own = pod("prod", "own", container("vllm", device("huawei.com/Ascend910", "Ascend910-1"), packed(3, *OWN)))
    server = PodResourcesServer(path, own)
    yield server
    server.stop()


def degraded(rig: KubeRig) -> str:
    condition = rig.condition("Degraded")
    return condition["reason"] if condition.get("status") == "True" else ""


@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
def test_a_call_of_kubelets_that_fails_costs_nobody_a_cpu(
    rig: KubeRig, kubelet: PodResourcesServer, row: KubeletRow
) -> None:
    right = kubelet.answer
    rig.start()
    shared, (one,) = rig.run_pod("llm-0", [0])
    _, (own,) = rig.run_pod("own", [1], own_cpus=OWN)
    rig.until_bound([one, own])
    rig.until(lambda: degraded(rig) == "", "all is well")
    rig.settle(0.4)
    before = masks(one), masks(own)
    assert before[1] <= OWN
    assert not before[0] & OWN

    end = row.begin(kubelet)
    assert row.reason is not None
    rig.until(lambda: degraded(rig) == row.reason, "the plan says so")
    asked = len(kubelet.requests)
    late = rig.start_worker(2, shared)
    rig.until_bound([late])
    assert (masks(one), masks(own)) == before
    assert not masks(late) & OWN
    rig.settle(0.5)
    assert len(kubelet.requests) - asked < 100, "it is asked ten times a second at most"

    kubelet.answer = right
    end()
    rig.until(lambda: degraded(rig) == "", "it is over")
    assert (masks(one), masks(own)) == before
    assert all(is_bound(worker, rig) for worker in (one, own, late))
