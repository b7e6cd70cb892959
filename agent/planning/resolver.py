"""One rule for CPUs that several NPUs claim (design 4.4): contiguous shares in id order."""

from __future__ import annotations

from collections.abc import Mapping

from agent.model.cpuset import EMPTY, CpuSet, union


def share_evenly(cpus: CpuSet, npus: list[int]) -> dict[int, CpuSet]:
    """Consecutive shares in id order: ``len // k`` CPUs each, the remainder to the last (14 over 3: 4, 4, 6)."""
    each = len(cpus) // len(npus)
    sizes = [each] * (len(npus) - 1) + [len(cpus) - each * (len(npus) - 1)]
    return dict(zip(sorted(npus), cpus.cut(sizes), strict=True))


def resolve(claims: Mapping[int, CpuSet]) -> dict[int, CpuSet]:
    """Disjoint pools out of claims that may overlap: CPUs with the same claimants are shared evenly among these."""
    if sum(map(len, claims.values())) == len(union(claims.values())):
        return dict(claims)  # nobody claims what somebody else does
    classes: list[tuple[CpuSet, list[int]]] = []
    for npu in sorted(claims):
        rest = claims[npu]
        split = []
        for cpus, claimants in classes:
            both = cpus & rest
            if both:
                split.append((both, [*claimants, npu]))
            if alone := cpus - both:
                split.append((alone, claimants))
            rest -= both
        if rest:
            split.append((rest, [npu]))
        classes = split
    pools = dict.fromkeys(sorted(claims), EMPTY)
    for cpus, claimants in classes:
        for npu, share in share_evenly(cpus, claimants).items():
            pools[npu] |= share
    return pools
