"""CpuBindingPlan objects for pictures: a large node, a little one, an odd one, and what hostile pods make of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.demo.profiles import Profile, small
from agent.demo.workload import Worker
from tests.control.rig import Rig

KINDS: tuple[str, ...] = ("a3", "a2", "ascend950", "small")
"""Virtual nodes: 640 CPUs and 16 NPUs; 192 and 8; 256 in two threads a core and 8; 16 and 2."""

PLAIN = {"status": "True", "reason": "AsPlanned", "message": "fine"}


def npu(number: int, pool: tuple[int, int], node: int, **more: Any) -> dict[str, Any]:
    first, last = pool
    roles = {
        "irq": f"{first}-{first + 1}",
        "main": f"{first + 2}-{last - 2}",
        "acl": str(last - 1),
        "release": str(last),
    }
    worker = {"pid": 4711 + number, "namespace": "prod", "pod": f"llm-{number}", "container": "vllm", "state": "Bound"}
    entry = {"id": number, "pool": f"{first}-{last}", "numaNodes": [node], "roles": roles, "state": "Bound"}
    return {**entry, "workers": [worker], **more}


def plan(npus: list[dict[str, Any]], cpus: int, nodes: int, **more: Any) -> dict[str, Any]:
    size = cpus // nodes
    topology = {
        "cpus": f"0-{cpus - 1}",
        "numaNodes": [{"id": n, "cpus": f"{n * size}-{n * size + size - 1}"} for n in range(nodes)],
    }
    bound = sum(entry["state"] == "Bound" for entry in npus)
    status = {
        "mode": "Enforce",
        "deviceType": "A3",
        "strategy": "GlobalSlice",
        "architecture": "aarch64",
        "planHash": "6f1c09ab12cd",
        "topology": topology,
        "summary": {"npus": len(npus), "workers": bound, "bound": bound, "failed": 0, "skipped": 0},
        "npus": npus,
        "conditions": [{"type": kind, **PLAIN} for kind in ("Ready", "TopologyDiscovered", "PlanValid", "Bound")],
        **more,
    }
    return {
        "apiVersion": "cpubind.dev/v1alpha1",
        "kind": "CpuBindingPlan",
        "metadata": {"name": "a3-0"},
        "status": status,
    }


def large() -> dict[str, Any]:
    return plan([npu(k, (40 * k, 40 * k + 39), k // 2) for k in range(16)], 640, 8)


def little() -> dict[str, Any]:
    idle = npu(1, (8, 15), 1, state="Idle", workers=[])
    return plan([npu(0, (0, 7), 0), idle], 16, 2)


def odd() -> dict[str, Any]:
    """All that is not plain at once: CPUs that nobody may use, an NPU without any, threads that somebody moves."""
    doc = plan([npu(0, (2, 9), 0), npu(1, (16, 25), 1), {"id": 2, "state": "Failed", "roles": {}}], 48, 3)
    status = doc["status"]
    status["topology"] |= {"cpus": "0-43", "reservedCpus": "0-1", "isolatedCpus": "24-27"}
    status["topology"]["numaNodes"][2] = {"id": 2, "cpus": "32-43", "offlineCpus": "44-47"}
    status["uvb"] = {"cpus": "12-13", "state": "Failed", "reason": "PermissionDenied", "message": "no CAP_SYS_NICE"}
    workers = status["npus"][1]["workers"]
    workers[0] |= {"state": "Partial", "reason": "CpuBindingConflict", "message": "somebody else keeps moving it"}
    workers += [
        {**workers[0], "pid": 5000 + k, "pod": "a-deployment-with-quite-a-name-7d9c4b5f6-x2k8p"} for k in range(3)
    ]
    status["npus"][1] |= {"state": "Partial", "workersOmitted": 2}
    status["npus"][2] |= {"reason": "InsufficientCpus", "message": "4 CPUs, and 5 are needed: 2 for interrupts, and 3"}
    status["conditions"][0] |= {"status": "False", "reason": "InsufficientCpus", "message": "NPU 2: 4 CPUs"}
    return doc


def virtual(folder: Path, kind: str) -> dict[str, Any]:
    """What an agent reports of a virtual node with a worker on every NPU but the last, each in a pod of its own."""
    profile: Profile | str = small() if kind == "small" else kind
    rig = Rig(folder, profile)
    for one in rig.node.inventory.ids[:-1]:
        Worker.start(rig.node, one, rig.node.kubelet.add_pod(f"qwen3-decode-7d9c4b5f6-x2k{one}"))
    rig.settle()
    rig.settle()
    return rig.agent.plan_object()


HOSTILE = "evil\x1b[31m\n[red]pod[/red]\u202e[/bold"


def hostile(name: str) -> dict[str, Any]:
    """The little node, with this wherever a text is that a pod, a process or somebody who writes plans may choose."""
    doc = little()
    doc["metadata"]["name"] = name
    status = doc["status"]
    for key in ("deviceType", "strategy", "planHash", "mode", "architecture"):
        status[key] = name
    worker = status["npus"][0]["workers"][0]
    worker |= dict.fromkeys(("namespace", "pod", "container", "state", "memory", "reason", "message"), name)
    status["npus"][0] |= {"reason": name, "message": name, "irq": name, "irqReason": name, "irqMessage": name}
    status["npus"][1] |= {"state": name, "pool": name, "numaNodes": [name]}
    status["conditions"] = [{"type": name, "status": "False", "reason": name, "message": name}]
    status["uvb"] = {"cpus": name, "state": name, "reason": name, "message": name}
    return doc


def mangled(value: Any, replacement: Any) -> list[dict[str, Any]]:
    """The object, with each of its values in turn replaced by one of another kind."""
    found = []

    def walk(part: Any, path: list[Any]) -> None:
        for key, item in part.items() if isinstance(part, Mapping) else enumerate(part):
            found.append([*path, key])
            if isinstance(item, (dict, list)):
                walk(item, [*path, key])

    walk(value, [])
    made = []
    for path in found:
        copy = little()
        target: Any = copy
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = replacement
        made.append(copy)
    return made
