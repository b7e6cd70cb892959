"""The agent of an earlier release on its own virtual node, as a process: run with that release's source on PYTHONPATH.

    python -P earlier_release.py FOLDER HOST:PORT ACCOUNT PODS

PODS is JSON: name, uid and NPUs of each pod. It binds their workers until a line comes: `stop` ends it as SIGTERM does,
`kill` as SIGKILL does. Then it prints as JSON what it leaves: every thread of the workers, and the journal.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from agent.demo.fake_kubelet import OPT_IN
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.kube.access import Access
from agent.kube.retry import Backoffs
from agent.kube.service import ClusterAgent, Ties
from agent.settings import load_settings

SPEED = 10.0


def main(folder: Path, server: str, account: Path, pods: str) -> None:
    node = VirtualNode(folder / "root", "a2", interrupts=False)
    made = [
        (node.kubelet.add_pod(name, namespace="prod", annotations=OPT_IN, uid=uid), npus)
        for name, uid, npus in json.loads(pods)
    ]
    workers = [Worker.start(node, npu, pod, threads=6) for pod, npus in made for npu in npus]
    settings = load_settings(
        {
            "node_name": node.name,
            "host_root": node.root,
            "architecture": "aarch64",
            "sweep_interval": 0.2,
            "status_interval": 0.3,
            "irq_binding": False,
        }
    )
    ties = Ties(
        Access(f"https://{server}", account),
        node.npu_smi,
        node.kernel,
        journal=folder / "journal.json",
        backoffs=Backoffs(0.1, 0.5),
        clock=lambda: time.monotonic() * SPEED,
    )
    agent = ClusterAgent(settings, settings.spec(), ties)
    runs = threading.Thread(target=agent.run, daemon=True)
    runs.start()
    word = sys.stdin.readline().strip()
    if word == "stop":
        agent.stop()
        runs.join(20)
    threads = [[task.tid, task.start_time, task.comm, str(task.mask)] for w in workers for task in w.threads]
    print(json.dumps({"threads": threads, "journal": json.loads((folder / "journal.json").read_text())}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
