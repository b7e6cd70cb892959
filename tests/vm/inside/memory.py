"""Memory that lies on another NUMA node than its worker is to run on."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from agent.demo.standin import StandIn
from tests.vm.inside.agent_run import SWEEP
from tests.vm.inside.scene import Facts, Scene

MIB = 64
FILE_MIB = 16

BALANCING = Path("/proc/sys/kernel/numa_balancing")
"""Off here: it moves pages by itself, and on Linux 6.1 to 6.5 it hides them from move_pages(2)."""


def far_away() -> Facts:
    """A worker that began on node 0 is bound to nodes 2 and 3, and node 2 is its NPU's: memory of every kind on node 0,
    some of it shared with a process on node 1."""
    BALANCING.write_text("0")
    with Scene("memory", "a2", ["8-11"]) as scene:
        worker = scene.worker(0, "0-15")
        other, _ = scene.bystander("0-15")
        file = scene.folder / "mapped"
        os.sched_setaffinity(0, {0})  # the page cache, too, is where it was written from
        file.write_bytes(bytes(FILE_MIB << 20))
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        shared = scene.folder / "shared"
        shared.write_bytes(b"")
        os.truncate(shared, MIB << 20)
        run_on(worker, 0)
        run_on(other, 4)
        maps = {
            "private": worker.map("private", MIB),
            "shared": worker.map("shared", MIB),
            "shared with another": worker.map("shared-file", MIB, shared),
            "file": worker.map("private-file", FILE_MIB, file),
        }
        of_other = other.map("shared-file", MIB, shared)
        before = {name: pages(worker.pid, address) for name, address in maps.items()}
        # Its threads may go where they like again, until the agent comes.
        run_on(worker, None)
        worker.pace(maps["private"])
        scene.agent.fork()
        facts = scene.settle(_moved)
        facts |= {"pace": worker.pace_end(), "before": before}
        print(f"  longest stall of a thread that touches what is moved: {facts['pace']['longest_ms']} ms", flush=True)
        facts["after"] = {name: pages(worker.pid, address) for name, address in maps.items()}
        facts["after"]["of the other"] = pages(other.pid, of_other)
        # A worker's memory is moved once: what lies elsewhere later is none of the agent's business.
        run_on(worker, 0)
        late = worker.map("private", 8)
        drifted = pages(worker.pid, late)
        time.sleep(2 * SWEEP)
        facts["later"] = scene.settle(_moved) | {"drifted": drifted, "pages": pages(worker.pid, late)}
        return facts


def memory_only() -> Facts:
    """Nodes 2 and 3 have memory and no CPUs. The one NPU is at home on node 1, after which comes node 0."""
    BALANCING.write_text("0")
    with Scene("memory-only", "a2", ["8-15"]) as scene:
        worker = scene.worker(0, "0-15")
        run_on(worker, 0)
        private = worker.map("private", MIB)
        before = pages(worker.pid, private)
        run_on(worker, None)
        scene.agent.fork()
        bound = scene.settle(_moved)
        return {"bound": bound, "before": before, "after": pages(worker.pid, private)}


def run_on(process: StandIn, cpu: int | None) -> None:
    """Lets every thread of a process run on one CPU, or on all: what it touches first is allocated on its node."""
    cpus = range(os.cpu_count() or 1) if cpu is None else {cpu}
    for tid in os.listdir(f"/proc/{process.pid}/task"):
        os.sched_setaffinity(int(tid), cpus)


def pages(pid: int, address: int) -> dict[str, int]:
    """NUMA node -> pages of 4 KiB there, of the mapping with this address, as the kernel counts them in numa_maps.

    A mapping that the kernel has joined with its neighbours is counted whole.
    """
    starts = sorted(int(line.split("-")[0], 16) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    start = max(s for s in starts if s <= address)
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if int(line.split()[0], 16) == start:
            return {node: int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)}
    return {}


def _moved(status: Facts) -> bool:
    """Whether every worker has said what came of its memory."""
    told = [w.get("memory", "Pending") for npu in status.get("npus", ()) for w in npu.get("workers", ())]
    return "Pending" not in told
