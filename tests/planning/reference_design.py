"""What cpubind adds to the upstream rule, written down as plainly as it can be from the design's text.

The resolver for overlapping pools (4.4), clusters of whole cores (4.5) and shares of several shared domains (4.7, for
GlobalSlice). CPU by CPU, with lists and dicts, and nothing shared with the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.planning.reference_upstream import NodeOf, extended, global_slice


def deal(claims: Mapping[int, Iterable[int]]) -> dict[int, list[int]]:
    """CPUs with the same claimants are cut into contiguous shares in id order: floor each, the rest to the last."""
    claimed = {npu: set(of_npu) for npu, of_npu in claims.items()}
    pieces: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(set().union(*claimed.values())):
        claimants = tuple(sorted(npu for npu in claimed if cpu in claimed[npu]))
        pieces.setdefault(claimants, []).append(cpu)
    shares: dict[int, list[int]] = {npu: [] for npu in claimed}
    for claimants, piece in pieces.items():
        share = len(piece) // len(claimants)
        for place, npu in enumerate(claimants):
            end = len(piece) if npu == claimants[-1] else (place + 1) * share
            shares[npu] += piece[place * share : end]
    return {npu: sorted(share) for npu, share in shares.items()}


def topo_affinity(
    node_of: NodeOf, allowed: Sequence[int], affinity: Mapping[int, Sequence[int] | None]
) -> dict[int, list[int]]:
    """4.4 with its resolver: in a component of several groups extensions give way to homes first."""
    home: dict[int, list[int]] = {}
    for npu, row in affinity.items():
        near = [cpu for cpu in allowed if row is not None and cpu in row]
        if near:
            home[npu] = near
    wide = {npu: set(extended(node_of, allowed, near)) for npu, near in home.items()}

    claims: dict[int, set[int]] = {}
    for npu, pool in wide.items():
        component = {npu}
        while more := {o for o in wide if o not in component and any(wide[o] & wide[c] for c in component)}:
            component |= more
        homes = {cpu for member in component for cpu in home[member]}
        if all(wide[member] == pool for member in component):  # one group: it is split as it is
            claims[npu] = pool
        else:
            claims[npu] = {cpu for cpu in pool if cpu in home[npu] or cpu not in homes}
    return deal(claims) if claims else {}


def clusters(
    node_of: NodeOf,
    cores: Iterable[Sequence[int]],
    allowed: Sequence[int],
    affinity: Mapping[int, Sequence[int] | None],
) -> dict[int, list[int] | str]:
    """4.5: a cluster of eight whole cores for each NPU, or the name of the reason why not."""
    result: dict[int, list[int] | str] = {}
    waiting: dict[int, list[int]] = {}
    for npu in sorted(affinity):
        row = affinity[npu]
        near = {node_of[cpu] for cpu in allowed if row is not None and cpu in row}
        if row is None:
            result[npu] = "NoAffinity"
        elif not near:
            result[npu] = "AffinityOutsideCpuset"
        elif len(near) > 1:
            result[npu] = "AffinitySpansNodes"
        else:
            waiting.setdefault(near.pop(), []).append(npu)
    for node, npus in waiting.items():
        local = sorted([sorted(core) for core in cores if node_of[min(core)] == node])
        whole = [core for core in local if all(cpu in allowed for cpu in core)]
        groups = [whole[start : start + 8] for start in range(0, len(whole) // 8 * 8, 8)]
        for rank, npu in enumerate(npus):
            if max((len(core) for core in local), default=0) not in (1, 2):
                result[npu] = "UnsupportedSmt"
            elif len(groups) < len(npus):
                result[npu] = "InsufficientClusters"
            else:
                result[npu] = sorted(cpu for core in groups[rank] for cpu in core)
    return result


def shares_of_domains(domains: Iterable[Sequence[int]], npus: Sequence[int]) -> dict[int, list[int]]:
    """4.7: the claimants of a CPU are the NPUs whose slice of any of these domains holds it."""
    claims: dict[int, set[int]] = {npu: set() for npu in npus}
    for domain in domains:
        for npu, piece in (global_slice(domain, npus) or {}).items():
            claims[npu] |= set(piece)
    return deal(claims)
