"""Strategies that slice the allowed CPUs without regard to affinity: GlobalSlice (design 4.3), NumaSlice (4.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import Topology
from agent.model.reason import Problem, Reason
from agent.planning.roles import MIN_POOL


@dataclass(frozen=True, slots=True)
class Slice:
    """What a strategy cuts for one NPU: CPUs, or the problem that leaves it without."""

    cpus: CpuSet = EMPTY
    problem: Problem | None = None
    note: Problem | None = None


def divide(cpus: CpuSet, npus: Sequence[int]) -> dict[int, CpuSet]:
    """``divmod``: the k-th NPU gets ``base`` CPUs, one more when k < extra, consecutively (17 over 3: 6, 6, 5)."""
    base, extra = divmod(len(cpus), len(npus))
    return dict(zip(npus, cpus.cut(base + (k < extra) for k in range(len(npus))), strict=True))


def global_slice(cpus: CpuSet, npus: Sequence[int]) -> dict[int, Slice]:
    """All CPUs divided over all NPUs of the domain, in id order; too few for one is too few for all.

    For ids 0..n-1 this is vLLM-Ascend's ``build_global_slice_cpu_pool``; sparse ids are ranked.
    """
    if len(cpus) // max(len(npus), 1) < MIN_POOL:
        return dict.fromkeys(npus, Slice(problem=_too_few(cpus, npus, "")))
    return {npu: Slice(part) for npu, part in divide(cpus, npus).items()}


def numa_slice(topology: Topology, cpus: CpuSet, npus: Sequence[int]) -> dict[int, Slice]:
    """The NPU of rank k of n goes to node k*N//n of the N nodes with allowed CPUs, and shares that node evenly."""
    nodes = topology.nodes_of(cpus)
    homes: dict[int, list[int]] = {}
    for rank, npu in enumerate(npus):
        if nodes:
            homes.setdefault(nodes[rank * len(nodes) // len(npus)], []).append(npu)
    slices = dict.fromkeys(npus, Slice(problem=_too_few(cpus, npus, "")))
    for node, members in homes.items():
        local = topology.cpus_of(node) & cpus
        if len(local) // len(members) < MIN_POOL:
            slices.update(dict.fromkeys(members, Slice(problem=_too_few(local, members, f" on NUMA node {node}"))))
        else:
            slices.update({npu: Slice(part) for npu, part in divide(local, members).items()})
    return slices


def _too_few(cpus: CpuSet, npus: Sequence[int], where: str) -> Problem:
    needed = MIN_POOL * len(npus)
    return Problem(
        Reason.INSUFFICIENT_CPUS, f"{len(cpus)} allowed CPUs{where} for {len(npus)} NPUs, at least {needed} are needed"
    )
