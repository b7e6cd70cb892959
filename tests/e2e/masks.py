"""Where the threads of a pod may run, as taskset says inside it, and where the plan says that they belong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from agent.model.cpuset import CpuSet
from tests.e2e.kubectl import Kubectl, Object
from tests.e2e.node import Shell
from tests.e2e.wait import patience
from tests.e2e.workload import Worker

Roles = Mapping[str, CpuSet]
"""CPUs by the name of a role."""

# taskset by its path: busybox's shell would take its own.
_LOOK = "cat /sys/fs/cgroup/cpuset.cpus.effective; grep -H . /proc/1/task/*/comm; /usr/bin/taskset -acp 1"

# Reads masks again and again from the host's side, until a file is there; prints each that it saw of each thread.
_WATCH = """
import json, os, sys, time
done, *pids = sys.argv[1:]
seen = {tid: [] for pid in pids for tid in os.listdir(f"/proc/{pid}/task")}
print("watching", flush=True)
while not os.path.exists(done):
    for tid, masks in seen.items():
        mask = sorted(os.sched_getaffinity(int(tid)))
        if mask not in masks:
            masks.append(mask)
    time.sleep(0.1)
print(json.dumps(seen))
"""


@dataclass(frozen=True)
class Threads:
    """Of the first process of a pod."""

    cpuset: CpuSet
    """Its container's, as the kernel has it."""
    names: Mapping[int, str]
    """By tid, as the pod counts."""
    masks: Mapping[int, CpuSet]
    """The same, as taskset says."""

    def as_planned(self, roles: Roles) -> bool:
        """Whether each is where its name belongs."""
        return self.masks == {tid: roles[_role(name)] for tid, name in self.names.items()}

    def let_go(self) -> bool:
        """Whether each has its cpuset and nothing else."""
        return set(self.masks.values()) == {self.cpuset}


def _role(name: str) -> str:
    return {"acl_thread": "acl", "release_thread": "release"}.get(name, "main")


def look(kubectl: Kubectl, worker: Worker) -> Threads:
    """Reads them inside the pod."""
    told = kubectl("exec", "-n", worker.namespace, worker.name, "--", "sh", "-c", _LOOK)
    names = {int(tid): name for tid, name in re.findall(r"^/proc/1/task/(\d+)/comm:(.*)$", told, re.MULTILINE)}
    found = re.findall(r"^pid (\d+)'s current affinity list: (\S+)$", told, re.MULTILINE)
    masks = {int(tid): CpuSet.parse(cpus) for tid, cpus in found}
    assert {"acl_thread", "release_thread"} < set(names.values()), told
    assert names.keys() == masks.keys(), told
    return Threads(CpuSet.parse(told.splitlines()[0]), names, masks)


def planned(plan: Object, worker: Worker) -> Roles:
    """The roles that a plan gives a worker. LookupError where it is not in there, or has none."""
    for npu in plan["status"]["npus"]:
        for entry in npu.get("workers", []):
            if entry["pid"] == worker.pid:
                roles = entry.get("roles") or npu["roles"]
                return {role: CpuSet.parse(cpus) for role, cpus in roles.items()}
    raise LookupError(f"process {worker.pid} is not in the plan")


@contextmanager
def watched(shell: Shell, *workers: Worker) -> Iterator[dict[int, list[CpuSet]]]:
    """Yields a dictionary that is filled when the block ends: all masks that each thread had meanwhile, by host tid."""
    seen: dict[int, list[CpuSet]] = {}
    done = "/tmp/watched-enough"
    shell(f"rm -f {done}")
    with shell.begin("python3", "-c", _WATCH, done, *(str(worker.pid) for worker in workers)) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "watching\n"
        try:
            yield seen
        finally:
            shell(f"touch {done}")
            told, _ = running.communicate(timeout=60 * patience())
    seen |= {int(tid): [CpuSet(mask) for mask in masks] for tid, masks in json.loads(told).items()}
