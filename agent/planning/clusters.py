"""Ascend 950 (design 4.5): clusters of eight whole cores, and the pool of the UVB threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.model.cpuset import CpuSet, union
from agent.model.node import Inventory, Topology
from agent.model.reason import Problem, Reason
from agent.planning.slices import Slice

CORES_PER_CLUSTER = 8


def cluster_slices(topology: Topology, inventory: Inventory, cpus: CpuSet, npus: Sequence[int]) -> dict[int, Slice]:
    """A cluster for each NPU, from the NUMA node on which its affine CPUs lie; failure is by NPU or by node."""
    slices: dict[int, Slice] = {}
    by_node: dict[int, list[int]] = {}
    for npu in sorted(npus):
        node = _home_node(topology, inventory, cpus, npu)
        if isinstance(node, Problem):
            slices[npu] = Slice(problem=node)
        else:
            by_node.setdefault(node, []).append(npu)
    for node, members in by_node.items():
        slices.update(_of_node(topology, cpus, node, members))
    return {npu: slices[npu] for npu in npus}


def uvb_cpus(topology: Topology, node_cpus: CpuSet, exclusive: CpuSet, clusters: Iterable[CpuSet]) -> CpuSet:
    """CPUs for the UVB threads: those of NUMA node 0 without CPU 0, exclusive CPUs and every NPU's cluster.

    vLLM-Ascend takes this pool before the clusters, so that NPUs on node 0 get none; here it comes after them.
    """
    return topology.cpus_of(0) & node_cpus - CpuSet([0]) - exclusive - union(clusters)


def _home_node(topology: Topology, inventory: Inventory, cpus: CpuSet, npu: int) -> int | Problem:
    found = inventory.get(npu)
    if found is None or found.affinity is None:
        return Problem(Reason.NO_AFFINITY, f"npu-smi info -t topo shows no CPU affinity for NPU {npu}")
    home = found.affinity & cpus
    if not home:
        message = f"affine CPUs {found.affinity} have none in common with the allowed CPUs {cpus}"
        return Problem(Reason.AFFINITY_OUTSIDE_CPUSET, message)
    nodes = topology.nodes_of(home)
    if len(nodes) > 1:
        names = ", ".join(map(str, nodes))
        return Problem(Reason.AFFINITY_SPANS_NODES, f"affine CPUs {home} lie on NUMA nodes {names}; one is needed")
    return nodes[0]


def _of_node(topology: Topology, cpus: CpuSet, node: int, npus: list[int]) -> dict[int, Slice]:
    local = topology.cpus_of(node)
    cores = [core for core in topology.cores if not core.isdisjoint(local)]
    threads = max((len(core & local) for core in cores), default=0)
    if threads not in (1, 2):
        message = f"NUMA node {node} has {threads} threads per core; 1 and 2 are known"
        return dict.fromkeys(npus, Slice(problem=Problem(Reason.UNSUPPORTED_SMT, message)))
    whole = [core for core in cores if core <= cpus]
    count = len(whole) // CORES_PER_CLUSTER
    if count < len(npus):
        message = (
            f"NUMA node {node} has {len(whole)} whole allowed cores, that is {count} clusters of {CORES_PER_CLUSTER}, "
            f"for {len(npus)} NPUs"
        )
        return dict.fromkeys(npus, Slice(problem=Problem(Reason.INSUFFICIENT_CLUSTERS, message)))
    return {
        npu: Slice(union(whole[rank * CORES_PER_CLUSTER : (rank + 1) * CORES_PER_CLUSTER]))
        for rank, npu in enumerate(npus)
    }
