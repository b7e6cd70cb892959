"""Where the memory of a worker belongs, and why it may be left where it is (design section 6)."""

from __future__ import annotations

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import Topology
from agent.model.reason import Problem, Reason


def target_node(topology: Topology, main: CpuSet, pool: CpuSet, home: CpuSet = EMPTY) -> int:
    """The NUMA node that a worker's memory belongs to: the one that holds most of `main`.

    Of several that hold as much it is the one that holds most of `home`, the CPUs near its NPU; then that of the first
    CPU of `pool`; then the lowest. A CPU that no node lists counts as node 0's. ValueError for an empty `main`.
    """
    if not main:
        raise ValueError("a worker without main CPUs has no node")
    first = CpuSet({pool.first}) if pool else EMPTY

    def rank(node: int) -> tuple[int, int, int, int]:
        cpus = topology.cpus_of(node)
        return (-len(main & cpus), -len(home & cpus), -len(first & cpus), node)

    return min(topology.nodes_of(main), key=rank)


def objection(topology: Topology, node: int, *, enabled: bool, npus: int) -> Problem | None:
    """Why a worker's memory is not to be moved to `node`, as far as the plan knows; None where nothing is against it.

    `enabled` is what spec, settings and annotation come to; `npus` how many the worker uses.
    """
    if not enabled:
        return Problem(Reason.SWITCHED_OFF, "memory migration is switched off")
    if npus > 1:
        return Problem(Reason.MULTIPLE_NPUS, f"the process uses {npus} NPUs")
    with_memory = [each.id for each in topology.nodes if each.has_memory]
    if len(with_memory) <= 1:
        return Problem(Reason.ONE_NUMA_NODE, "all memory is on one NUMA node")
    if node not in with_memory:
        return Problem(Reason.TARGET_HAS_NO_MEMORY, f"NUMA node {node} has no memory")
    return None
