"""TopoAffinity (design 4.4): pools from each NPU's affine CPUs and the next NUMA node, made disjoint."""

from __future__ import annotations

from collections.abc import Sequence

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import Inventory, Topology
from agent.model.reason import Problem, Reason
from agent.planning.resolver import resolve, share_evenly
from agent.planning.slices import Slice, global_slice


def topo_affinity(topology: Topology, inventory: Inventory, cpus: CpuSet, npus: Sequence[int]) -> dict[int, Slice]:
    """Slices of a shared domain. An NPU without affinity in it gets its problem, and no other is touched by that.

    The candidates of the rule are the running NPUs and the idle ones whose affinity meets the domain; a running one
    whose affinity does not meet it fails and claims nothing, so that both are told by the affinity alone.
    """
    slices: dict[int, Slice] = {}
    homes: dict[int, CpuSet] = {}
    for npu in npus:
        found = inventory.get(npu)
        affinity = found.affinity if found else None
        if affinity is None:
            message = f"npu-smi info -t topo shows no CPU affinity for NPU {npu}"
            slices[npu] = Slice(problem=Problem(Reason.NO_AFFINITY, message))
        elif home := affinity & cpus:
            homes[npu] = home
        else:
            message = f"affine CPUs {affinity} have none in common with the allowed CPUs {cpus}"
            slices[npu] = Slice(problem=Problem(Reason.AFFINITY_OUTSIDE_CPUSET, message))
    slices.update({npu: Slice(part) for npu, part in claim(topology, cpus, homes).items()})
    return {npu: slices[npu] for npu in npus}


def exclusive_affinity(topology: Topology, inventory: Inventory, cpus: CpuSet, npus: Sequence[int]) -> dict[int, Slice]:
    """Slices of a container that owns its CPUs: every CPU is used, and no NPU fails for affinity."""
    affinities = {npu: found.affinity if (found := inventory.get(npu)) else None for npu in npus}
    homes = {npu: affinity & cpus for npu, affinity in affinities.items() if affinity is not None}
    if len(homes) == len(npus) and all(homes.values()):
        pools = claim(topology, cpus, homes)
        left = cpus - union(pools.values())
        return {npu: Slice(pools[npu] | dealt) for npu, dealt in share_evenly(left, list(npus)).items()}
    astray = next(npu for npu in npus if not homes.get(npu))
    note = Problem(
        Reason.OFF_AFFINITY, f"the container's CPUs {cpus} hold none near NPU {astray}: divided evenly over its NPUs"
    )
    return {npu: Slice(part.cpus, part.problem, note) for npu, part in global_slice(cpus, npus).items()}


def extend(topology: Topology, cpus: CpuSet, home: CpuSet) -> CpuSet:
    """A home on one NUMA node, with the allowed CPUs of the next node: the next id, wrapping, that has online CPUs."""
    # A base may hold CPUs that went offline since, and not every kernel says where these were.
    nodes = topology.nodes_of(home & topology.online or home)
    if len(nodes) != 1:
        return home
    ids = topology.nodes_of(topology.online)
    following = next((node for node in ids if node > nodes[0]), ids[0] if ids else nodes[0])
    return home | topology.cpus_of(following) & cpus


def claim(topology: Topology, cpus: CpuSet, homes: dict[int, CpuSet]) -> dict[int, CpuSet]:
    """Disjoint pools for the NPUs with these homes.

    NPUs with identical extended pools form a group, which alone is split evenly (vLLM-Ascend's rule, and disjoint).
    Where different groups overlap, extensions give way to the homes of everyone in that overlap, and what several
    still claim is resolved. So the result differs from vLLM-Ascend's only where that one hands a CPU out twice.
    """
    groups: dict[CpuSet, list[int]] = {}
    for npu in sorted(homes):
        groups.setdefault(extend(topology, cpus, homes[npu]), []).append(npu)
    pools: dict[int, CpuSet] = {}
    for component in _overlapping(list(groups)):
        if len(component) == 1:
            pools.update(share_evenly(component[0], groups[component[0]]))
            continue
        members = [(npu, pool) for pool in component for npu in groups[pool]]
        taken = union(homes[npu] for npu, _ in members)
        pools.update(resolve({npu: homes[npu] | (pool - taken) for npu, pool in members}))
    return pools


def _overlapping(pools: list[CpuSet]) -> list[list[CpuSet]]:
    """Connected components of pools that share CPUs."""
    components: list[tuple[CpuSet, list[CpuSet]]] = []
    for pool in pools:
        cover, members, apart = pool, [pool], []
        for other, theirs in components:
            if other.isdisjoint(pool):
                apart.append((other, theirs))
            else:
                cover, members = cover | other, theirs + members
        components = [*apart, (cover, members)]
    return [members for cover, members in components if cover != EMPTY]
