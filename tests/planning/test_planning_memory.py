"""Which NUMA node the memory of a worker belongs to, and when it stays where it is."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import NumaNode, Topology
from agent.model.reason import Reason
from agent.planning.memory import objection, target_node


def topology(nodes: dict[int, str], *, memory: set[int] | None = None, online: str = "") -> Topology:
    """NUMA nodes with these CPUs; all of them have memory unless told which."""
    listed = [NumaNode(k, CpuSet.parse(cpus), memory is None or k in memory) for k, cpus in sorted(nodes.items())]
    cpus = CpuSet.parse(online or ",".join(text for text in nodes.values() if text))
    return Topology(cpus, cpus, tuple(listed), tuple(CpuSet({cpu}) for cpu in cpus))


TWO = {0: "0-7", 1: "8-15"}
SPARSE = {0: "0-7", 4: "8-15", 9: "", 130: "16-23"}


@pytest.mark.parametrize(
    ("main", "pool", "home", "node"),
    [
        ("2-5", "0-7", "", 0),
        ("10-13", "8-15", "", 4),
        ("6-9,10", "4-12", "", 4),
        ("6-9", "4-11", "", 0),  # as many on either: the node of the pool's first CPU
        ("6-9", "8-11,4-7", "", 0),  # the first CPU, not the first that was listed
        ("6-9", "4-11", "8-15", 4),  # the NPU's own node comes before
        ("6-9", "4-11", "0-15", 0),  # an NPU that is near both says nothing
        ("6-9", "4-11", "16-23", 0),  # nor does one that is near neither
        ("8-9,16-17", "2-20", "", 4),  # the pool begins on a node without main CPUs: the lowest of the others
        ("6-8,16-23", "6-23", "0-7", 130),  # most of main is more than near
    ],
)
def test_memory_goes_where_most_main_cpus_are_then_near_the_npu_then_where_the_pool_begins(
    main: str, pool: str, home: str, node: int
) -> None:
    assert target_node(topology(SPARSE), *map(CpuSet.parse, (main, pool, home))) == node


def test_the_target_is_never_a_node_with_fewer_main_cpus_than_another_whatever_the_rest_says() -> None:
    """All of it: every main, pool and home of two nodes of three CPUs."""
    small = topology({3: "0-2", 5: "3-5"})
    sets = [CpuSet(chosen) for size in range(7) for chosen in combinations(range(6), size)]
    for main, (pool, home) in product(sets[1:], product((*sets[:8], sets[-1]), repeat=2)):
        node = target_node(small, main, pool, home)
        counts = {each.id: len(main & each.cpus) for each in small.nodes}
        assert counts[node] == max(counts.values())
        if counts[3] == counts[5]:
            near = {each.id: len(home & each.cpus) for each in small.nodes}
            if near[3] != near[5]:
                assert near[node] == max(near.values())
            else:
                assert node == (5 if pool and pool.first > 2 else 3)


def test_a_cpu_that_no_node_lists_counts_as_node_0s() -> None:
    assert target_node(topology(TWO, online="0-31"), CpuSet.parse("16-20"), CpuSet.parse("16-20")) == 0


def test_a_worker_without_main_cpus_has_no_target() -> None:
    with pytest.raises(ValueError, match="no node"):
        target_node(topology(TWO), EMPTY, EMPTY)


@pytest.mark.parametrize(
    ("memory", "node", "enabled", "npus", "reason"),
    [
        ({0, 1}, 1, True, 1, None),
        ({0, 1}, 1, False, 1, Reason.SWITCHED_OFF),
        ({0, 1}, 1, True, 2, Reason.MULTIPLE_NPUS),
        ({0}, 0, True, 1, Reason.ONE_NUMA_NODE),
        ({0}, 1, True, 1, Reason.ONE_NUMA_NODE),
        (set(), 0, True, 1, Reason.ONE_NUMA_NODE),
        ({0, 2}, 1, True, 1, Reason.TARGET_HAS_NO_MEMORY),
        ({0}, 1, False, 3, Reason.SWITCHED_OFF),
    ],
)
def test_memory_stays_where_moving_it_is_off_or_has_no_one_target(
    memory: set[int], node: int, enabled: bool, npus: int, reason: Reason | None
) -> None:
    found = objection(topology(TWO | {2: ""}, memory=memory), node, enabled=enabled, npus=npus)
    assert (found and found.reason) == reason
