"""Scenarios of Ascend 950: clusters of eight whole cores, and UVB threads on what is left of node 0."""

from __future__ import annotations

from tests.vm.inside.scene import Facts, Scene, taskset

UVB = "uvb_poll_window_thread"


def one_thread() -> Facts:
    """4 nodes of 8 cores; NPUs 0 and 1 are at home on nodes 1 and 2, and so leave node 0 to UVB threads."""
    with Scene("ascend950", "ascend950", ["8-15", "16-23"]) as scene:
        for npu in range(2):
            scene.worker(npu, "0-31")
        host, _ = scene.bystander(None)
        pod, _ = scene.bystander("0-31")
        for process in (host, pod):
            process.spawn(UVB)
        scene.agent.fork()
        facts: Facts = {"bound": scene.settle(), "host": taskset(host.pid), "pod": taskset(pod.pid)}
        scene.agent.set_spec(mode="Disabled")
        scene.agent.wait(restored)
        return facts | {"disabled": scene.look() | {"host": taskset(host.pid)}}


def restored(status: Facts) -> bool:
    """Whether the agent says that it has given everything back."""
    return any(c["type"] == "Restored" and c["status"] == "True" for c in status.get("conditions", ()))


def two_threads() -> Facts:
    """2 nodes of 8 cores with 2 threads each: a cluster is a whole node, and nothing is left for UVB threads."""
    with Scene("ascend950-smt", "ascend950", ["0-15", "16-31"]) as scene:
        for npu in range(2):
            scene.worker(npu, "0-31")
        host, _ = scene.bystander(None)
        host.spawn(UVB)
        scene.agent.fork()
        return {"bound": scene.settle(), "host": taskset(host.pid)}
