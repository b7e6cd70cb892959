"""A node with bound workers, recorded so that a later release can take it over: what is on its disk, and its masks.

``python -m tests.control.recorded FILE`` records it with the release whose source is on PYTHONPATH; this module uses
nothing that the first releases did not have. tests/fixtures/journals has one for each format of the journal that there
was.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from tests.control.rig import Rig

SPEC = {"reservedCpus": "0-3"}


def play(rig: Rig) -> list[Worker]:
    """Three workers in two pods begin; nobody binds them yet."""
    rig.state_file.write_text(json.dumps({"spec": SPEC}))
    first, second = rig.node.kubelet.add_pod("llm-0"), rig.node.kubelet.add_pod("llm-1")
    workers = [Worker.start(rig.node, npu, pod, threads=6) for npu, pod in ((0, first), (1, first), (4, second))]
    for worker in workers:
        worker.add_role_threads()
    return workers


def record() -> dict[str, Any]:
    """What this release leaves: journal and plan as it wrote them, and each thread of the workers, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder), "a2")
        workers = play(rig)
        rig.settle()
        rig.settle()
        threads = [
            [task.tid, task.start_time, task.comm, str(task.mask)] for worker in workers for task in worker.threads
        ]
        return {
            "threads": threads,
            "journal": json.loads(rig.journal_file.read_text()),
            "plan": rig.state_file.read_text(),
        }


def replay(rig: Rig, recorded: dict[str, Any]) -> list[Worker]:
    """The same on this node, as the release that was recorded left it. Its pids, start times and boot id become those
    of this node's."""
    workers = play(rig)
    tasks = [task for worker in workers for task in worker.threads]
    assert [task.comm for task in tasks] == [comm for _, _, comm, _ in recorded["threads"]]
    starts, pids = {}, {}
    for task, (tid, start_time, _, mask) in zip(tasks, recorded["threads"], strict=True):
        rig.node.kernel.set_by_other(task.tid, CpuSet.parse(mask))
        pids[tid], starts[tid, start_time] = task.tid, task.start_time
    journal = recorded["journal"]
    for entry in journal["workers"]:
        entry["pid"], entry["startTime"] = pids[entry["pid"]], starts[entry["pid"], entry["startTime"]]
    journal["bootId"] = (rig.node.root / "proc/sys/kernel/random/boot_id").read_text().strip()
    containers = {entry["pid"]: entry for entry in journal["workers"]}
    for worker in workers:
        assert worker.pod is not None
        entry = containers[worker.pid]
        if entry.get("container"):
            entry["container"] = worker.pod.container("").id
    rig.journal_file.write_text(json.dumps(journal))
    rig.state_file.write_text(recorded["plan"])
    return workers


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=1) + "\n")
