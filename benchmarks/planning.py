"""Planning, whole plans: 640 CPUs with 16 NPUs, 4,096 with 64, and how it grows."""

from __future__ import annotations

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, Npu, NumaNode, Topology
from agent.model.plan import PlanInput
from agent.model.workload import Container, ProcessId, Worker
from agent.planning.plan import make_plan
from benchmarks.clock import cpu_ms, yardstick
from benchmarks.figures import Figure, figure, ratios

SIZES = ((160, 4), (640, 16), (4096, 64))
BUDGETS = {(640, 16): 2.0, (4096, 64): 20.0}
"""Milliseconds (design section 9)."""


def run(*, quick: bool) -> list[Figure]:
    """Both strategies; the slower one, that resolves affinity, is the one that is compared."""
    rounds = 9 if quick else 21
    figures = []
    by_size: dict[tuple[int, int], list[float]] = {}
    yard = []
    for device, strategy in ((DeviceType.A3, "GlobalSlice"), (DeviceType.A2, "TopoAffinity")):
        inputs = {size: _node(*size, 8, device) for size in SIZES}
        samples: dict[tuple[int, int], list[float]] = {size: [] for size in SIZES}
        for _ in range(rounds):
            yard.append(yardstick())
            for size, inp in inputs.items():
                samples[size].append(cpu_ms(lambda inp=inp: make_plan(inp)))  # type: ignore[misc]
        for (cpus, npus), budget in BUDGETS.items():
            name = f"{cpus} CPUs, {npus} NPUs, {strategy}"
            figures.append(figure(name, samples[cpus, npus], unit="ms", budget=budget))
        by_size = samples
    small, middle, large = (by_size[size] for size in SIZES)
    figures.append(figure("640 CPUs, 16 NPUs / a piece of plain Python", ratios(middle, yard[-rounds:]), compared=True))
    figures.append(figure("640 CPUs, 16 NPUs / 160 CPUs, 4 NPUs", ratios(middle, small), compared=True))
    figures.append(figure("4096 CPUs, 64 NPUs / 640 CPUs, 16 NPUs", ratios(large, middle), compared=True))
    return figures


def _node(cpus: int, npus: int, nodes: int, device: DeviceType) -> PlanInput:
    """A node with a worker on every NPU; neighbours share a NUMA node, so that affinity has something to resolve."""
    each = cpus // nodes
    every = CpuSet.span(0, cpus - 1)
    numa = tuple(NumaNode(n, CpuSet.span(n * each, n * each + each - 1)) for n in range(nodes))
    topology = Topology(every, every, numa, tuple(CpuSet([cpu]) for cpu in every))
    inventory = Inventory(tuple(Npu(n, affinity=numa[n * nodes // npus].cpus) for n in range(npus)), device)
    workers = tuple(Worker(ProcessId(1000 + n, n), (n,), "shared") for n in range(npus))
    return PlanInput(topology, inventory, (Container("shared", every),), workers)
