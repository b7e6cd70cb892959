"""Planning, whole plans: 640 CPUs with 16 NPUs, 4,096 with 64, and how it grows. Median of several rounds, in ms."""

from __future__ import annotations

import statistics
import time

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, Npu, NumaNode, Topology
from agent.model.plan import PlanInput
from agent.model.workload import Container, ProcessId, Worker
from agent.planning.plan import make_plan

ROUNDS = 21
BUDGETS = {(640, 16): 2.0, (4096, 64): 20.0}
"""Design section 9, in ms on the machine that the design was measured on."""


def node(cpus: int, npus: int, nodes: int, device: DeviceType) -> PlanInput:
    """A node with a worker on every NPU; neighbours share a NUMA node, so that affinity has something to resolve."""
    each = cpus // nodes
    every = CpuSet.span(0, cpus - 1)
    numa = tuple(NumaNode(n, CpuSet.span(n * each, n * each + each - 1)) for n in range(nodes))
    topology = Topology(every, every, numa, tuple(CpuSet([cpu]) for cpu in every))
    inventory = Inventory(tuple(Npu(n, affinity=numa[n * nodes // npus].cpus) for n in range(npus)), device)
    workers = tuple(Worker(ProcessId(1000 + n, n), (n,), "shared") for n in range(npus))
    return PlanInput(topology, inventory, (Container("shared", every),), workers)


def median_ms(inp: PlanInput) -> float:
    samples = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        make_plan(inp)
        samples.append(1000 * (time.perf_counter() - start))
    return statistics.median(samples)


def main() -> None:
    print(f"{'CPUs':>6} {'NPUs':>5} {'GlobalSlice':>12} {'TopoAffinity':>13}   budget")
    for cpus, npus in ((160, 4), (320, 8), (640, 16), (1280, 32), (4096, 64)):
        by_slice = median_ms(node(cpus, npus, 8, DeviceType.A3))
        by_affinity = median_ms(node(cpus, npus, 8, DeviceType.A2))
        budget = BUDGETS.get((cpus, npus))
        print(f"{cpus:>6} {npus:>5} {by_slice:>12.2f} {by_affinity:>13.2f}   {f'{budget:g} ms' if budget else ''}")


if __name__ == "__main__":
    main()
