"""What else runs in a bound container, with ``spec.helpers: Confine``."""

from __future__ import annotations

import yaml

from tests.vm.inside.interrupts import until
from tests.vm.inside.scene import Facts, Scene, taskset


def confined() -> Facts:
    """A process beside a worker in its container, another in a container of its own; then ``helpers: Leave``."""
    with Scene("helpers", "a2", ["0-3", "8-11"]) as scene:
        for npu in range(2):
            scene.worker(npu, "0-15")
        helper, _ = scene.bystander(None, "--threads", "3")
        scene.containers[0].add(helper.pid)
        other, _ = scene.bystander("0-15", "--threads", "3")
        state = {
            "apiVersion": "cpubind.dev/v1alpha1",
            "kind": "CpuBindingPlan",
            "metadata": {"name": "node-arm"},
            "spec": {"helpers": "Confine"},
        }
        scene.agent.state_file.write_text(yaml.safe_dump(state))
        free = {fact["mask"] for fact in taskset(helper.pid)}
        scene.agent.fork()
        scene.settle()
        until(lambda: not free & {fact["mask"] for fact in taskset(helper.pid)})
        facts: Facts = {"bound": scene.settle() | {"helper": taskset(helper.pid), "other": taskset(other.pid)}}
        scene.agent.set_spec(helpers="Leave")
        until(lambda: {fact["mask"] for fact in taskset(helper.pid)} == free)
        facts["left"] = scene.settle() | {"helper": taskset(helper.pid)}
        return facts
