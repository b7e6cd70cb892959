"""Scenarios of binding itself: a node of each kind, real workers, and what kubelet does to them."""

from __future__ import annotations

import time

from tests.vm.inside.agent_run import SWEEP
from tests.vm.inside.scene import Facts, Scene, taskset

ALL = "0-31"


def a2() -> Facts:
    """4 NUMA nodes of 8 CPUs; NPUs 0 and 1 are at home on node 0, NPU 2 on node 2. Then kubelet comes."""
    with Scene("a2", "a2", ["0-7", "0-7", "16-23"]) as scene:
        for npu in range(3):
            scene.worker(npu, ALL)
        bystander, other = scene.bystander(ALL, "--threads", "4")
        assert other is not None
        scene.agent.start()
        facts: Facts = {"bound": scene.settle()}
        first = scene.workers[0]
        child = first.fork(first.threads["acl_thread"][0])
        late = first.spawn("acl_thread_2")
        facts["later"] = scene.settle() | {"child": taskset(child[0]), "late": late}

        before = scene.threads()
        for cpus in ("0-3", "4-31", "8-11", ALL, "0-30"):
            other.write(cpus)
            time.sleep(SWEEP)
        facts["other"] = scene.look() | {"before": before, "bystander": taskset(bystander.pid)}

        for name, cpus in (("shrunk", "2-31"), ("widened", ALL)):
            for container in scene.containers.values():
                container.write(cpus)
            facts[name] = scene.settle()

        scene.agent.set_spec(mode="Disabled")
        scene.agent.wait(lambda status: status.get("mode") == "Disabled")
        time.sleep(3 * SWEEP)
        facts["disabled"] = scene.look() | {"child": taskset(child[0])}
        for name, cpus in (("disabled_shrunk", "8-31"), ("disabled_widened", ALL)):
            for container in scene.containers.values():
                container.write(cpus)
            time.sleep(2 * SWEEP)
            facts[name] = scene.look()
        return facts


def a3() -> Facts:
    """Six dies of three cards share 32 CPUs; workers are on four of them."""
    with Scene("a3", "a3", [None] * 6) as scene:
        for npu in (5, 0, 3, 1):
            scene.worker(npu, ALL)
        scene.agent.fork()
        return {"bound": scene.settle()}
