"""docs/choosing.md: its pictures and figures are what the planner makes, and what it says beside them is so."""

from __future__ import annotations

import pytest

from agent.control.settling import SETTLE_SECONDS as NPUS_SETTLE_SECONDS
from agent.model.cpuset import CpuSet, union
from agent.model.node import DeviceType
from agent.model.reason import Reason
from agent.model.spec import Strategy
from agent.planning.bases import INTERVAL_SECONDS, SETTLE_SECONDS
from agent.planning.clusters import CORES_PER_CLUSTER
from agent.planning.roles import MIN_POOL
from tests.docs import choosing
from tests.docs.choosing import EXAMPLES, PAGE, written
from tests.docs.pages import code, one_line, sections, table
from tests.planning import hosts
from tests.planning.hosts import cpus, even_nodes, machine
from tests.planning.reading import planned

SECTIONS = sections(PAGE)


@pytest.mark.parametrize(("at", "name"), list(enumerate(EXAMPLES)), ids=list(EXAMPLES))
def test_an_example_of_the_page_is_what_the_planner_makes(at: int, name: str) -> None:
    assert written(PAGE.read_text())[at] == EXAMPLES[name](), "make docs"


def test_the_page_has_each_example_and_no_figures_of_its_own() -> None:
    assert len(written(PAGE.read_text())) == len(EXAMPLES)
    assert PAGE.read_text().count("```") == 2 * len(EXAMPLES)


def test_the_strategies_on_the_page_are_those_that_devices_have() -> None:
    rows = {row[0]: code(row[1]) for row in table(SECTIONS["Which slice for each"])}
    for device, name in ((DeviceType.A3, "A3"), (DeviceType.ASCEND_950, "Ascend 950")):
        assert [planned(machine(even_nodes(2, 32), ["0-31"], device).serving()).strategy] == rows[name]
    for device in (DeviceType.A2, DeviceType.ATLAS_300I, DeviceType.UNKNOWN):
        chosen = [planned(machine(even_nodes(2, 32), [home], device).serving()).strategy for home in ("0-31", None)]
        assert chosen == rows["A2, Atlas 300I, others"]
    assert {name for name in SECTIONS if name in list(Strategy)} == set(Strategy)


def test_with_cpus_reserved_global_slice_straddles_and_numa_slice_does_not() -> None:
    for strategy, straddling in ((None, [1]), (Strategy.NUMA_SLICE, [])):
        inp = choosing.a3(strategy, reserved="0-1")
        found = [n.id for n in planned(inp).npus if len(inp.topology.nodes_of(n.allotment.pool)) > 1]
        assert found == straddling


def test_the_owner_of_cpus_has_just_these_and_nobody_else_has_any() -> None:
    plan = planned(choosing.guaranteed())
    pools = [npu.allotment.pool for npu in plan.npus]
    assert union(pools[:2]) == cpus("8-23")
    assert union(pools[2:]) == cpus("0-7,24-47")


def test_the_base_costs_one_pool_and_a_new_cut_all() -> None:
    before = choosing.pools(choosing.a3())
    held, anew = (choosing.pools(choosing.owner("4-7", bases=bases)) for bases in (True, False))
    assert [npu for npu in before if held[npu] != before[npu]] == [0]
    assert [npu for npu in before if anew[npu] != before[npu]] == [0, 1, 2, 3]
    assert len(CpuSet.parse(before[0]) - cpus("2-9")) == 4 < MIN_POOL
    assert all(CpuSet.parse(pool) for pool in choosing.pools(choosing.owner("2-9")).values())


def test_a_pool_of_four_cpus_fails_as_the_page_says() -> None:
    plan = planned(hosts.a3(MIN_POOL - 1, 1, 1).serving())
    problem = plan.npus[0].allotment.problem
    assert problem is not None
    assert problem.reason is Reason.INSUFFICIENT_CPUS
    assert "A pool of fewer than five CPUs" in one_line(SECTIONS["What each CPU is for"])


def test_the_numbers_in_its_sentences_are_the_codes() -> None:
    assert (MIN_POOL, CORES_PER_CLUSTER) == (5, 8)
    assert (SETTLE_SECONDS, INTERVAL_SECONDS, NPUS_SETTLE_SECONDS) == (10, 300, 10)
    assert "ten quiet seconds, and happen at most once in five minutes" in one_line(SECTIONS["What moves a pool"])
    assert "have used unchanged for ten seconds" in one_line(SECTIONS["For which NPUs"])
    assert "eight whole cores" in one_line(SECTIONS["Clusters"])


def test_vllm_ascend_gives_cpus_twice_where_the_page_says_so() -> None:
    host = choosing.neighbours()
    theirs = {npu: CpuSet.parse(pool) for npu, pool in choosing.upstream_affinity(host).items()}
    assert str(theirs[0] & theirs[1]) == "12-23"
    assert "gives CPUs 12 to 23 to both of them" in one_line(PAGE.read_text())
    apart = choosing.far_pairs()
    assert choosing.upstream_affinity(apart) == choosing.pools(apart.serving()), "the same where it gives none twice"


def test_by_number_of_cpus_two_npus_of_an_ascend_950_share_cores() -> None:
    host = choosing.ascend_950()
    theirs = [CpuSet.parse(pool) for pool in choosing.upstream_clusters(host).values()]
    assert any(not core.isdisjoint(theirs[0]) and not core.isdisjoint(theirs[1]) for core in host.topology.cores)


def test_too_few_clusters_on_one_node_leave_the_npus_of_others_theirs() -> None:
    host = choosing.ascend_950()
    inp = host.serving(allowed=host.topology.online - cpus("0-7"))
    assert choosing.pools(inp) == {
        0: "InsufficientClusters",
        1: "InsufficientClusters",
        2: "20-27,60-67",
    }


def test_where_an_npu_is_far_from_the_domain_the_others_have_theirs() -> None:
    inp = choosing.far_pairs().serving(allowed="0-23")
    assert choosing.pools(inp) == {
        0: "0-11",
        1: "12-23",
        2: "AffinityOutsideCpuset",
        3: "AffinityOutsideCpuset",
    }
