"""What happens on a node that API server, kubelet and agent all have a part in, and what is seen of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.demo.fake_kernel import FakeTask
from agent.demo.fake_kubelet import VirtualContainer, VirtualPod
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet, union
from agent.node.host import EVERY_CPU
from tests.api.rig import KubeRig
from tests.cluster.cluster import Request

ENABLED = "cpubind.dev/enabled"
PLANS = "/apis/cpubind.dev/v1alpha1/cpubindingplans"
READS = frozenset({"get", "list", "watch"})
MEDDLED = CpuSet.parse("1")
"""Where somebody's `taskset` puts threads."""


def is_free(worker: Worker) -> bool:
    """Whether every thread has been given the mask of all ones, and so the whole cpuset of its container."""
    kernel = worker.node.kernel
    return all(t.asked == EVERY_CPU and t.mask == kernel.allowed(t.tid) for t in worker.threads)


def is_untouched(worker: Worker) -> bool:
    """Whether nobody ever set a mask in it."""
    return all(task.asked is None for task in worker.threads)


def masks(worker: Worker) -> CpuSet:
    """All CPUs that any of its threads may run on."""
    return union(task.mask for task in worker.threads)


def pool(rig: KubeRig, npu: int) -> CpuSet:
    """As the API server has it."""
    return CpuSet.parse(rig.npu(npu).get("pool", ""))


def is_bound(worker: Worker, rig: KubeRig) -> bool:
    """Whether its threads are within the pool of its NPU."""
    return masks(worker) <= pool(rig, worker.npu) and not is_untouched(worker)


def meddle(worker: Worker, count: int = 3) -> None:
    """Somebody moves threads of it."""
    worker.drift(MEDDLED, count)


def is_repaired(worker: Worker) -> bool:
    """Whether no thread is where `meddle` puts them."""
    return all(task.mask != MEDDLED for task in worker.threads)


def delete_by_force(rig: KubeRig, name: str, namespace: str = "prod") -> None:
    """`kubectl delete pod --force`: the pod is gone at once, and its processes run on."""
    rig.cluster.pods.delete(name, namespace, grace=0)


def wait_until_unknown(rig: KubeRig, name: str) -> None:
    """Until the agent knows that there is no pod of this name."""
    agent = rig.agent
    assert agent is not None
    rig.until(lambda: not agent.pods.uid("prod", name), "the agent sees that it is gone")


def statuses(containers: Sequence[VirtualContainer]) -> list[dict[str, Any]]:
    """What kubelet says of containers that run."""
    return [
        {
            "name": container.name,
            "containerID": f"containerd://{container.id}",
            "image": "image",
            "imageID": "image",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
        for container in containers
    ]


def restart_container(rig: KubeRig, pod: VirtualPod, name: str = "") -> VirtualPod:
    """kubelet starts a container again that has ended: another id, another cgroup. Returns the pod as it is then."""
    old = pod.container(name)
    id_ = hashlib.sha256(old.id.encode()).hexdigest()
    new = replace(old, id=id_, cgroup=old.cgroup.replace(old.id, id_))
    kubelet = rig.node.kubelet
    rig.node.kernel.cgroups.remove(old.cgroup)
    rig.node.kernel.cgroups.create(new.cgroup, new.own_cpus or kubelet.shared)
    after = replace(pod, containers=tuple(new if one is old else one for one in pod.containers))
    kubelet.pods[kubelet.pods.index(pod)] = after
    rig.cluster.pods.started(pod.name, {one.name: one.id for one in after.containers}, pod.namespace)
    return after


def requests(rig: KubeRig, since: float = 0.0) -> list[Request]:
    """What the agent asked of the API server, since a time.time(). The real one's audit log says it a moment later."""
    before, now = None, rig.cluster.requests(since)
    while now != before:
        time.sleep(0.05)
        before, now = now, rig.cluster.requests(since)
    return now


def writes_to_api(rig: KubeRig, since: float = 0.0) -> list[Request]:
    """What of that were writes."""
    return [request for request in requests(rig, since) if request.verb not in READS]


def writes_to_plans(rig: KubeRig, since: float = 0.0) -> list[Request]:
    return [request for request in writes_to_api(rig, since) if request.path.startswith(PLANS)]


def helper(rig: KubeRig, pod: VirtualPod, container: str, comm: str = "fluent-bit") -> FakeTask:
    """A process of a container that has nothing to do with NPUs."""
    return rig.node.kernel.start_process(comm, cgroup=pod.container(container).cgroup)
