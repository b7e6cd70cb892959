"""The worked examples of shared domains: slices, affinity, roles, what fails and what is refused (design 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import DeviceType, Inventory, Npu
from agent.model.plan import PlanInput, Roles
from agent.model.reason import Reason
from agent.model.spec import Spec, Strategy
from tests.planning import hosts
from tests.planning.hosts import cpus
from tests.planning.reading import allotment, planned, pools, reason, reasons

# --- GlobalSlice (4.3) ------------------------------------------------------------------------------------------------


def test_an_a3_node_of_640_cpus_gives_each_of_16_npus_forty() -> None:
    plan = planned(hosts.a3().serving())
    assert plan.strategy is Strategy.GLOBAL_SLICE
    assert pools(plan) == {npu: f"{npu * 40}-{npu * 40 + 39}" for npu in range(16)}
    assert allotment(plan, 0).roles == Roles(irq=cpus("0-1"), main=cpus("2-37"), acl=cpus("38"), release=cpus("39"))


def test_an_a3_node_of_320_cpus_gives_each_of_16_npus_twenty() -> None:
    plan = planned(hosts.a3(320).serving())
    assert pools(plan) == {npu: f"{npu * 20}-{npu * 20 + 19}" for npu in range(16)}


def test_slices_do_not_depend_on_which_workers_run() -> None:
    everybody, one, nobody = (hosts.a3().serving(npu_ids) for npu_ids in (range(16), [9], []))
    assert pools(planned(everybody)) == pools(planned(one)) == pools(planned(nobody))


def test_seventeen_cpus_for_three_npus_are_six_six_and_five() -> None:
    made = hosts.machine(hosts.even_nodes(1, 17), [None] * 3, DeviceType.A3)
    assert pools(planned(made.serving())) == {0: "0-5", 1: "6-11", 2: "12-16"}


def test_slices_are_consecutive_among_the_allowed_cpus_not_by_number() -> None:
    made = hosts.a3(64, 2, 2)
    plan = planned(made.serving(allowed="0-9,20-24,40-46"))
    assert pools(plan) == {0: "0-9,20", 1: "21-24,40-46"}


def test_five_cpus_each_are_one_main_cpu_each() -> None:
    made = hosts.machine(hosts.even_nodes(1, 15), [None] * 3, DeviceType.A3)
    plan = planned(made.serving())
    assert allotment(plan, 1).roles == Roles(irq=cpus("5-6"), main=cpus("7"), acl=cpus("8"), release=cpus("9"))


def test_fewer_than_five_cpus_each_are_too_few_for_all() -> None:
    made = hosts.machine(hosts.even_nodes(1, 14), [None] * 3, DeviceType.A3)  # 5, 5 and 4
    plan = planned(made.serving())
    assert set(reasons(plan).values()) == {Reason.INSUFFICIENT_CPUS}
    assert all(each.allotment.problem is not None for each in plan.workers)


# --- TopoAffinity (4.4) -----------------------------------------------------------------------------------------------


def test_an_a2_node_gives_each_pair_its_node_and_the_next() -> None:
    plan = planned(hosts.a2_far_pairs().serving())
    assert plan.strategy is Strategy.TOPO_AFFINITY
    assert pools(plan) == {
        0: "144-167",
        1: "0-23",
        2: "168-191",
        3: "24-47",
        4: "96-119",
        5: "48-71",
        6: "120-143",
        7: "72-95",
    }


def test_adjacent_pairs_are_split_in_id_order() -> None:
    plan = planned(hosts.a2_adjacent_pairs().serving())
    assert pools(plan) == {
        0: "144-167",
        1: "168-191",
        2: "96-119",
        3: "120-143",
        4: "0-23",
        5: "24-47",
        6: "48-71",
        7: "72-95",
    }


def test_a_group_of_three_shares_fourteen_cpus_as_four_four_and_six() -> None:
    made = hosts.machine(hosts.even_nodes(1, 14), ["0-13"] * 3, DeviceType.A2)
    plan = planned(made.serving())
    assert str(allotment(plan, 2).pool) == "8-13"
    assert reasons(plan) == {0: Reason.INSUFFICIENT_CPUS, 1: Reason.INSUFFICIENT_CPUS, 2: None}


def test_a_group_of_three_gives_what_is_left_over_to_the_last() -> None:
    made = hosts.machine(hosts.even_nodes(1, 20), ["0-19"] * 3, DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "0-5", 1: "6-11", 2: "12-19"}


@pytest.mark.parametrize("homes", [["0-63", "64-127"], ["64-127", "0-63"]])
def test_two_nodes_that_are_each_others_next_are_one_group(homes: list[str]) -> None:
    made = hosts.machine(hosts.even_nodes(2, 64), homes, DeviceType.A2)
    assert pools(planned(made.serving(allowed="8-127"))) == {0: "8-67", 1: "68-127"}


def test_where_every_node_is_somebodys_home_everybody_stays_at_home() -> None:
    made = hosts.machine(hosts.even_nodes(4, 16), ["0-15", "16-31", "32-47", "48-63"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}


def test_an_extension_gives_way_to_a_home_and_keeps_the_rest() -> None:
    # NPU 0 extends to node 1, of which NPU 1 calls the first half home; NPU 1 extends to node 2, nobody's home.
    made = hosts.machine(hosts.even_nodes(4, 16), ["0-15", "16-23"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "0-15,24-31", 1: "16-23,32-47"}


def test_what_several_homes_claim_is_shared_in_id_order() -> None:
    # Homes of 16 and 12 CPUs that overlap in 8: four for each; node 1 is the extension of both.
    made = hosts.machine(hosts.even_nodes(3, 16), ["0-15", "4-11,32-35"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "0-7,12-31", 1: "8-11,32-35"}


def test_a_home_on_several_nodes_is_not_extended() -> None:
    made = hosts.machine(hosts.even_nodes(4, 16), ["8-23"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "8-23"}


def test_the_last_node_extends_to_the_first() -> None:
    made = hosts.machine(hosts.even_nodes(4, 16), ["48-63"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "0-15,48-63"}


def test_a_next_node_of_which_nothing_is_allowed_is_no_extension() -> None:
    made = hosts.machine(hosts.even_nodes(4, 16), ["0-15"], DeviceType.A2)
    assert pools(planned(made.serving(allowed="0-15,32-63"))) == {0: "0-15"}


def test_the_next_of_sparse_nodes_is_the_next_id_that_has_cpus() -> None:
    layout = {2: cpus("0-7"), 3: cpus("8-31"), 5: cpus("32-39"), 6: cpus("40-47"), 7: cpus("48-95")}
    made = hosts.machine(layout, ["8-31", "48-95"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "8-39", 1: "0-7,48-95"}


def test_a_node_without_cpus_is_nobodys_next() -> None:
    layout = {0: cpus("0-15"), 1: EMPTY, 2: cpus("16-31"), 3: EMPTY}
    made = hosts.machine(layout, ["0-15"], DeviceType.A2)
    assert pools(planned(made.serving())) == {0: "0-31"}


def test_a_cpu_that_no_node_lists_counts_as_node_0() -> None:
    host = hosts.topology({0: cpus("0-7"), 1: cpus("8-15")}, unlisted=cpus("16-19"))
    made = hosts.Machine(host, Inventory(hosts.npus(["8-15"]), DeviceType.A2))
    assert pools(planned(made.serving())) == {0: "0-19"}


def test_npus_without_affinity_fail_and_move_nobody() -> None:
    made = hosts.a2_far_pairs()
    rows = [npu.affinity for npu in made.inventory.npus]
    rows[2] = None
    without = hosts.Machine(made.topology, Inventory(hosts.npus(rows), DeviceType.A2))
    plan = planned(without.serving())
    assert reasons(plan) == {npu: Reason.NO_AFFINITY if npu == 2 else None for npu in range(8)}
    assert str(allotment(plan, 0).pool) == "144-191"
    assert str(allotment(plan, 1).pool) == "0-23"


def test_a_running_npu_with_its_home_outside_the_cpuset_fails_alone() -> None:
    plan = planned(hosts.a2_far_pairs().serving([0, 1], "96-191"))
    assert reason(plan, 1) is Reason.AFFINITY_OUTSIDE_CPUSET
    assert str(allotment(plan, 0).pool) == "144-167"
    assert [each.allotment.problem is None for each in plan.workers] == [True, False]


def test_idle_npus_keep_their_share() -> None:
    assert str(allotment(planned(hosts.a2_far_pairs().serving([2])), 2).pool) == "168-191"


def test_a_pool_of_fewer_than_five_cpus_fails_that_npu_alone() -> None:
    plan = planned(hosts.a2_far_pairs().serving(allowed="0-47,144-147"))
    assert reason(plan, 0) is Reason.INSUFFICIENT_CPUS  # NPUs 0 and 2 share four CPUs
    assert str(allotment(plan, 1).pool) == "0-23"


# --- which strategy (4.2) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device_type", "affinity", "strategy"),
    [
        (DeviceType.A3, None, Strategy.GLOBAL_SLICE),
        (DeviceType.A3, "0-31", Strategy.GLOBAL_SLICE),
        (DeviceType.A2, "0-31", Strategy.TOPO_AFFINITY),
        (DeviceType.ATLAS_300I, "0-31", Strategy.TOPO_AFFINITY),
        (DeviceType.UNKNOWN, "0-31", Strategy.TOPO_AFFINITY),
        (DeviceType.A2, None, Strategy.GLOBAL_SLICE),
        (DeviceType.ATLAS_300I, None, Strategy.GLOBAL_SLICE),
        (DeviceType.UNKNOWN, None, Strategy.GLOBAL_SLICE),
        (DeviceType.ASCEND_950, "0-31", Strategy.TOPO_AFFINITY),
        (DeviceType.ASCEND_950, None, Strategy.TOPO_AFFINITY),
    ],
)
def test_the_strategy_follows_from_the_device(
    device_type: DeviceType, affinity: str | None, strategy: Strategy
) -> None:
    plan = planned(hosts.machine(hosts.even_nodes(2, 32), [affinity], device_type).serving())
    assert plan.strategy is strategy
    assert plan.device_type is device_type


def test_spec_may_choose_another_strategy_or_device_type() -> None:
    inp = hosts.a2_far_pairs().serving()
    sliced = planned(replace(inp, spec=Spec(strategy=Strategy.GLOBAL_SLICE)))
    assert pools(sliced) == {npu: f"{npu * 24}-{npu * 24 + 23}" for npu in range(8)}
    as_a3 = planned(replace(inp, spec=Spec(device_type=DeviceType.A3)))
    assert (as_a3.device_type, as_a3.strategy) == (DeviceType.A3, Strategy.GLOBAL_SLICE)
    assert pools(as_a3) == pools(sliced)


# --- beyond the upstream rules (4.8) ----------------------------------------------------------------------------------


def _nodes_of_pools(inp: PlanInput) -> list[int]:
    return [len(inp.topology.nodes_of(npu.allotment.pool)) for npu in planned(inp).npus]


def test_global_slice_straddles_nodes_once_cpus_are_reserved_and_numa_slice_does_not() -> None:
    inp = replace(hosts.a3(320).serving(), spec=Spec(reserved_cpus=cpus("0-3")))
    assert sum(count > 1 for count in _nodes_of_pools(inp)) == 7
    by_node = replace(inp, spec=replace(inp.spec, strategy=Strategy.NUMA_SLICE))
    assert set(_nodes_of_pools(by_node)) == {1}
    assert pools(planned(by_node)) == {0: "4-21", 1: "22-39"} | {
        npu: f"{npu * 20}-{npu * 20 + 19}" for npu in range(2, 16)
    }


def test_numa_slice_spreads_few_npus_over_the_nodes() -> None:
    inp = replace(hosts.a3(320, 3).serving(), spec=Spec(strategy=Strategy.NUMA_SLICE))
    assert pools(planned(inp)) == {0: "0-39", 1: "80-119", 2: "200-239"}  # nodes 0, 8 // 3 and 16 // 3


def test_numa_slice_counts_only_nodes_with_allowed_cpus() -> None:
    inp = replace(hosts.a3(320, 4).serving(allowed="80-159"), spec=Spec(strategy=Strategy.NUMA_SLICE))
    assert pools(planned(inp)) == {0: "80-99", 1: "100-119", 2: "120-139", 3: "140-159"}


def test_numa_slice_gives_what_is_left_over_to_the_first_of_a_node() -> None:
    inp = replace(hosts.a3(34, 6, 2).serving(), spec=Spec(strategy=Strategy.NUMA_SLICE))
    assert pools(planned(inp)) == {0: "0-5", 1: "6-11", 2: "12-16", 3: "17-22", 4: "23-28", 5: "29-33"}


def test_numa_slice_fails_by_node() -> None:
    inp = replace(hosts.a3(40, 4, 2).serving(allowed="0-8,20-39"), spec=Spec(strategy=Strategy.NUMA_SLICE))
    plan = planned(inp)
    assert reasons(plan) == {0: Reason.INSUFFICIENT_CPUS, 1: Reason.INSUFFICIENT_CPUS, 2: None, 3: None}
    assert str(allotment(plan, 2).pool) == "20-29"


def test_reserved_cpus_are_in_no_pool() -> None:
    inp = replace(hosts.a3(320).serving(), spec=Spec(reserved_cpus=cpus("0-3,160")))
    plan = planned(inp)
    assert union(npu.allotment.pool for npu in plan.npus) == cpus("4-159,161-319")
    assert plan.node_cpus == cpus("4-159,161-319")


def test_cpus_outside_the_root_cpuset_are_in_no_pool() -> None:
    made = hosts.a3(320)
    inp = replace(made, topology=replace(made.topology, root=cpus("0-159"))).serving(allowed="0-319")
    assert union(npu.allotment.pool for npu in planned(inp).npus) == cpus("0-159")


# --- processes and the whole node -------------------------------------------------------------------------------------


def test_a_process_on_several_npus_gets_the_main_cpus_of_all_and_no_role_threads() -> None:
    made = hosts.a3(320)
    inp = made.running([hosts.shared("llm", "0-319")], [hosts.worker(7, [2, 5], "llm"), hosts.worker(8, 2, "llm")])
    plan = planned(inp)
    by_pid = {each.worker.process.pid: each for each in plan.workers}
    both = by_pid[7]
    assert both.allotment.roles == Roles(main=cpus("42-57,102-117"))
    assert both.own
    assert both.allotment.note is not None
    assert both.allotment.note.reason is Reason.MULTIPLE_NPUS
    assert by_pid[8].allotment.roles == Roles(irq=cpus("40-41"), main=cpus("42-57"), acl=cpus("58"), release=cpus("59"))


def test_workers_come_in_order_of_npu_then_process() -> None:
    inp = hosts.a3(320).running(
        [hosts.shared("llm", "0-319")],
        [hosts.worker(9, 1, "llm"), hosts.worker(30, 0, "llm"), hosts.worker(4, 0, "llm"), hosts.worker(2, 3, "llm")],
    )
    assert [each.worker.process.pid for each in planned(inp).workers] == [4, 30, 9, 2]


def test_two_processes_on_one_npu_share_its_pool() -> None:
    inp = hosts.a3(320).running([hosts.shared("llm", "0-319")], [hosts.worker(1, 3, "llm"), hosts.worker(2, 3, "llm")])
    assert {str(each.allotment.pool) for each in planned(inp).workers} == {"60-79"}


def test_a_missing_card_is_said_and_keeps_its_pool() -> None:
    made = hosts.a3(320)
    gone = replace(made.inventory, npus=tuple(replace(npu, missing=npu.id == 5) for npu in made.inventory.npus))
    before, after = planned(made.serving()), planned(replace(made, inventory=gone).serving())
    assert pools(after) == pools(before)
    assert reasons(after) == {npu: Reason.NPU_MISSING if npu == 5 else None for npu in range(16)}


def test_a_missing_card_on_a_topology_with_affinity_moves_nobody() -> None:
    made = hosts.a2_far_pairs()
    gone = replace(made.inventory, npus=tuple(replace(npu, missing=npu.id == 0) for npu in made.inventory.npus))
    plan = planned(replace(made, inventory=gone).serving(range(1, 8)))
    assert pools(plan) == pools(planned(made.serving()))
    assert reason(plan, 0) is Reason.NPU_MISSING


@pytest.mark.parametrize("architecture", ["x86_64", "riscv64", ""])
def test_other_architectures_are_not_planned_for(architecture: str) -> None:
    inp = hosts.a3(320).serving()
    elsewhere = replace(inp, topology=replace(inp.topology, architecture=architecture))
    plan = planned(elsewhere)
    assert plan.problem is not None
    assert plan.problem.reason is Reason.UNSUPPORTED_ARCHITECTURE
    allowed = planned(replace(elsewhere, spec=Spec(allow_any_architecture=True)))
    assert pools(allowed) == pools(planned(inp))


def test_everything_reserved_is_a_problem_of_the_whole_plan() -> None:
    for made in (hosts.a3(320), hosts.a2_far_pairs(), hosts.ascend_950_smt()):
        inp = replace(made.serving(), spec=Spec(reserved_cpus=made.topology.online))
        plan = planned(inp)
        assert plan.problem is not None
        assert plan.problem.reason in (Reason.NO_CPUS, Reason.INVALID_SPEC)


def test_a_node_without_npus_has_no_plan() -> None:
    made = hosts.a3(320)
    plan = planned(replace(made, inventory=replace(made.inventory, npus=())).serving())
    assert plan.problem is not None
    assert plan.problem.reason is Reason.NO_NPUS


def test_a_worker_of_a_container_that_nobody_knows_is_left_unbound() -> None:
    inp = hosts.a3(320).running([hosts.shared("llm", "0-319")], [hosts.worker(1, 3, "llm"), hosts.worker(2, 4, "gone")])
    plan = planned(inp)
    assert [each.allotment.problem is None for each in plan.workers] == [True, False]


def test_a_worker_on_an_npu_that_nobody_knows_is_left_unbound() -> None:
    inp = hosts.a3(320).running([hosts.shared("llm", "0-319")], [hosts.worker(1, 3, "llm"), hosts.worker(2, 99, "llm")])
    plan = planned(inp)
    assert [each.allotment.problem is None for each in plan.workers] == [True, False]


def test_every_npu_is_planned_by_rank_where_ids_are_sparse() -> None:
    made = hosts.a3(320, 4)
    found = tuple(Npu(id=npu, card=npu) for npu in (3, 8, 20, 21))
    plan = planned(replace(made, inventory=Inventory(found, DeviceType.A3)).serving())
    assert pools(plan) == {3: "0-79", 8: "80-159", 20: "160-239", 21: "240-319"}


def test_the_plan_says_which_cpus_it_was_cut_from() -> None:
    plan = planned(hosts.a3(320).serving(allowed="0-199"))
    [domain] = plan.domains
    assert (domain.name, domain.cpus, domain.base, domain.exclusive) == (
        "default",
        CpuSet.span(0, 199),
        CpuSet.span(0, 199),
        False,
    )
    assert domain.containers == ("llm",)
    assert domain.npus == tuple(range(16))
    [base] = plan.bases
    assert (base.domain, base.cpus, base.npus) == ("default", CpuSet.span(0, 199), tuple(range(16)))
