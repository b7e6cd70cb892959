"""The rule that vLLM-Ascend applies inside each worker, written down as plainly as it can be.

It is what design 4.3, 4.4 (steps 1 to 4) and 4.5 restate, *without* what cpubind adds on purpose: no resolver for
pools that overlap, no base, no exclusive containers, no whole cores, no failure by node, no UVB pool. Every candidate
counts as running. CPU by CPU, with lists and dicts, and nothing shared with the planner, so that it can be checked by
reading. The planner must agree wherever these pools do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NodeOf = Mapping[int, int]
"""The NUMA node of every online CPU; a CPU that no node lists is on node 0."""


def global_slice(allowed: Sequence[int], npus: Sequence[int]) -> dict[int, list[int]] | None:
    """4.3: the allowed CPUs in order, as evenly as possible, the first NPUs one more. None: fewer than 5 each."""
    if len(allowed) // len(npus) < 5:
        return None
    rest = sorted(allowed)
    pools: dict[int, list[int]] = {}
    for rank, npu in enumerate(sorted(npus)):
        size = len(allowed) // len(npus)
        if rank < len(allowed) % len(npus):
            size += 1
        pools[npu] = rest[:size]
        rest = rest[size:]
    return pools


def topo_affinity(
    node_of: NodeOf, allowed: Sequence[int], affinity: Mapping[int, Sequence[int] | None]
) -> dict[int, list[int]]:
    """4.4: home, extended to the next node, split among those with the same pool. Pools may overlap.

    NPUs without a home (no affinity row, none of it allowed) have no pool.
    """
    pools: dict[int, list[int]] = {}
    for npu in sorted(affinity):
        row = affinity[npu]
        home = [cpu for cpu in sorted(allowed) if row is not None and cpu in row]
        if home:
            pools[npu] = extended(node_of, allowed, home)

    split: dict[int, list[int]] = {}
    for npu, pool in pools.items():
        sharers = [other for other in sorted(pools) if pools[other] == pool]
        share = len(pool) // len(sharers)
        place = sharers.index(npu)
        if npu == sharers[-1]:
            split[npu] = pool[place * share :]
        else:
            split[npu] = pool[place * share : (place + 1) * share]
    return split


def extended(node_of: NodeOf, allowed: Sequence[int], home: Sequence[int]) -> list[int]:
    homes = {node_of[cpu] for cpu in home}
    if len(homes) != 1:
        return sorted(home)
    nodes_with_cpus = sorted(set(node_of.values()))
    place = nodes_with_cpus.index(homes.pop())
    next_node = nodes_with_cpus[(place + 1) % len(nodes_with_cpus)]
    extension = [cpu for cpu in allowed if node_of[cpu] == next_node]
    return sorted({*home, *extension})


def clusters(
    node_of: NodeOf,
    siblings_of: Mapping[int, Sequence[int]],
    allowed: Sequence[int],
    affinity: Mapping[int, Sequence[int]],
) -> dict[int, list[int]] | None:
    """4.5: each NPU takes the next cluster of its node, in plain CPU order. None: something fails, so all do."""
    pools: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for npu in sorted(affinity):
        homes = {node_of[cpu] for cpu in affinity[npu] if cpu in allowed}
        if len(homes) != 1:
            return None
        node = homes.pop()
        threads = max(len(siblings_of[cpu]) for cpu in node_of if node_of[cpu] == node)
        if threads not in (1, 2):
            return None
        size = 8 * threads
        start = used.get(node, 0)
        cluster = [cpu for cpu in sorted(allowed) if node_of[cpu] == node][start : start + size]
        if len(cluster) < size:
            return None
        pools[npu] = cluster
        used[node] = start + size
    return pools
