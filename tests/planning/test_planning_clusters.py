"""Ascend 950 (design 4.5): clusters of eight whole cores, failure by node, CPUs for the UVB threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType, Inventory
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.spec import Spec
from tests.planning import hosts
from tests.planning.hosts import cpus
from tests.planning.reading import planned, pools, reasons


def test_one_thread_a_core_is_clusters_of_eight_cpus() -> None:
    plan = planned(hosts.ascend_950_single().serving())
    assert pools(plan) == {
        0: "0-7",
        1: "8-15",
        2: "48-55",
        3: "56-63",
        4: "96-103",
        5: "104-111",
        6: "144-151",
        7: "152-159",
    }


def test_two_threads_a_core_are_clusters_of_eight_cores_with_both_their_threads() -> None:
    plan = planned(hosts.ascend_950_smt(384).serving())
    assert pools(plan) == {
        0: "0-7,192-199",
        1: "8-15,200-207",
        2: "16-23,208-215",
        3: "24-31,216-223",
        4: "96-103,288-295",
        5: "104-111,296-303",
        6: "112-119,304-311",
        7: "120-127,312-319",
    }


def test_siblings_with_adjacent_numbers_are_plain_cpu_order() -> None:
    layout = hosts.even_nodes(2, 64)
    cores = [CpuSet([cpu, cpu + 1]) for cpu in range(0, 128, 2)]
    made = hosts.machine(layout, ["0-63", "0-63", "64-127"], DeviceType.ASCEND_950, cores)
    assert pools(planned(made.serving())) == {0: "0-15", 1: "16-31", 2: "64-79"}


def test_main_is_the_whole_cluster_and_there_are_no_other_roles() -> None:
    plan = planned(hosts.ascend_950_single().serving())
    npu = plan.npu(1)
    assert npu is not None
    assert npu.allotment.roles == Roles(main=cpus("8-15"))


def test_clusters_are_taken_in_id_order_idle_npus_included() -> None:
    made = hosts.ascend_950_single()
    assert pools(planned(made.serving([1, 6]))) == pools(planned(made.serving()))


def test_a_part_of_a_node_is_affinity_to_the_whole_node() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), ["16-19", "0-3"], DeviceType.ASCEND_950)
    assert pools(planned(made.serving())) == {0: "0-7", 1: "8-15"}


def test_a_core_of_which_not_all_threads_are_allowed_is_left_out() -> None:
    plan = planned(hosts.ascend_950_smt(384).serving(allowed="0-2,4-191,192-383"))  # CPU 3 is not: core 3,195 is out
    assert pools(plan)[0] == "0-2,4-8,192-194,196-200"
    assert pools(plan)[4] == "96-103,288-295"


def test_a_core_with_a_thread_offline_is_whole_with_the_other() -> None:
    made = hosts.ascend_950_smt(384)
    host = made.topology
    gone = CpuSet([195])
    cut = replace(
        host,
        online=host.online - gone,
        root=host.root - gone,
        nodes=tuple(replace(node, cpus=node.cpus - gone) for node in host.nodes),
        cores=tuple(core - gone for core in host.cores),
    )
    plan = planned(replace(made, topology=cut).serving())
    assert pools(plan)[0] == "0-7,192-194,196-199"
    assert pools(plan)[1] == "8-15,200-207"


@pytest.mark.parametrize("threads", [3, 4, 8])
def test_cores_of_more_than_two_threads_fail_their_node_alone(threads: int) -> None:
    layout = {0: CpuSet.span(0, 8 * threads * 2 - 1), 1: CpuSet.span(200, 231)}
    cores = [CpuSet.span(first, first + threads - 1) for first in range(0, 8 * threads * 2, threads)]
    cores += [CpuSet([cpu]) for cpu in layout[1]]
    made = hosts.machine(layout, [layout[0], layout[1]], DeviceType.ASCEND_950, cores)
    plan = planned(made.serving())
    assert reasons(plan) == {0: Reason.UNSUPPORTED_SMT, 1: None}
    assert pools(plan)[1] == "200-207"


def test_affinity_to_several_nodes_fails_that_npu_alone() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), ["0-31", "0-63", "0-31"], DeviceType.ASCEND_950)
    plan = planned(made.serving())
    assert reasons(plan) == {0: None, 1: Reason.AFFINITY_SPANS_NODES, 2: None}
    assert (pools(plan)[0], pools(plan)[2]) == ("0-7", "8-15")


def test_affinity_to_several_nodes_of_which_one_is_allowed_is_affinity_to_that_one() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), ["0-63"], DeviceType.ASCEND_950)
    assert pools(planned(made.serving(allowed="32-63"))) == {0: "32-39"}


def test_no_affinity_row_fails_that_npu_alone_and_falls_back_to_nothing() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), [None, "0-31"], DeviceType.ASCEND_950)
    assert reasons(planned(made.serving())) == {0: Reason.NO_AFFINITY, 1: None}
    none = hosts.machine(hosts.even_nodes(2, 32), [None, None], DeviceType.ASCEND_950)
    assert set(reasons(planned(none.serving())).values()) == {Reason.NO_AFFINITY}


def test_affinity_outside_the_cpuset_fails_that_npu_alone() -> None:
    plan = planned(hosts.ascend_950_single().serving([0, 6], "48-191"))
    assert reasons(plan)[0] is Reason.AFFINITY_OUTSIDE_CPUSET
    assert pools(plan)[6] == "144-151"


def test_too_few_clusters_fail_all_npus_of_that_node_and_no_other() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), ["0-31"] * 5 + ["32-63"], DeviceType.ASCEND_950)
    plan = planned(made.serving())
    assert reasons(plan) == dict.fromkeys(range(5), Reason.INSUFFICIENT_CLUSTERS) | {5: None}
    assert pools(plan)[5] == "32-39"


def test_seven_cores_are_no_cluster() -> None:
    made = hosts.machine(hosts.even_nodes(1, 32), ["0-31"], DeviceType.ASCEND_950)
    assert reasons(planned(made.serving(allowed="0-6"))) == {0: Reason.INSUFFICIENT_CLUSTERS}
    assert pools(planned(made.serving(allowed="1-8"))) == {0: "1-8"}


def test_clusters_are_cut_once_from_all_shared_cpusets_together() -> None:
    made = hosts.machine(hosts.even_nodes(1, 48), ["0-47"] * 2, DeviceType.ASCEND_950)
    wide, narrow = hosts.shared("wide", "0-47"), hosts.shared("narrow", "0-11")
    plan = planned(made.running([wide, narrow], [hosts.worker(1, 0, "narrow"), hosts.worker(2, 1, "wide")]))
    by_pid = {each.worker.process.pid: each.allotment for each in plan.workers}
    assert (str(by_pid[1].pool), str(by_pid[2].pool)) == ("0-7", "8-15")
    other = planned(made.running([wide, narrow], [hosts.worker(1, 1, "narrow"), hosts.worker(2, 0, "wide")]))
    by_pid = {each.worker.process.pid: each.allotment for each in other.workers}
    assert str(by_pid[2].pool) == "0-7"
    assert by_pid[1].problem is not None  # it may use 8-11 of its NPU's cluster 8-15
    assert by_pid[1].problem.reason is Reason.INSUFFICIENT_CLUSTERS


def test_an_exclusive_container_is_cut_by_itself() -> None:
    made = hosts.machine(hosts.even_nodes(2, 48), ["0-47"] * 3, DeviceType.ASCEND_950)
    own = hosts.exclusive("own", "4-19", [1])
    plan = planned(
        made.running(
            [own, hosts.shared("llm", "0-3,20-95")], [hosts.worker(1, 1, "own"), *hosts.workers_on([0], "llm")]
        )
    )
    assert pools(plan) == {0: "0-3,20-23", 1: "4-11", 2: "24-31"}


# --- UVB --------------------------------------------------------------------------------------------------------------


def test_uvb_threads_get_what_the_clusters_leave_of_node_0() -> None:
    plan = planned(hosts.ascend_950_single().serving())
    assert plan.uvb == cpus("16-47")
    assert plan.uvb_problem is None


def test_uvb_threads_do_not_get_cpu_0() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), ["32-63"], DeviceType.ASCEND_950)
    assert planned(made.serving()).uvb == cpus("1-31")


def test_uvb_threads_get_neither_exclusive_nor_reserved_nor_isolated_cpus() -> None:
    made = hosts.machine(hosts.even_nodes(2, 32), ["32-63"], DeviceType.ASCEND_950)
    made = replace(made, topology=replace(made.topology, isolated=cpus("8-9")))
    inp = made.running([hosts.exclusive("own", "2-5")], spec=Spec(reserved_cpus=cpus("6-7")))
    assert planned(inp).uvb == cpus("1,10-31")


def test_where_clusters_take_all_of_node_0_uvb_threads_are_left_alone_and_everybody_is_bound() -> None:
    made = hosts.machine(hosts.even_nodes(2, 16), ["0-15"] * 2, DeviceType.ASCEND_950)
    plan = planned(made.serving())
    assert plan.uvb == EMPTY
    assert plan.uvb_problem is not None
    assert plan.uvb_problem.reason is Reason.NO_UVB_CPUS
    assert reasons(plan) == {0: None, 1: None}


def test_a_host_without_node_0_has_no_uvb_cpus() -> None:
    made = hosts.machine({1: CpuSet.span(0, 31)}, ["0-31"], DeviceType.ASCEND_950)
    plan = planned(made.serving())
    assert plan.uvb_problem is not None
    assert plan.uvb_problem.reason is Reason.NO_UVB_CPUS
    assert pools(plan) == {0: "0-7"}


def test_other_devices_have_no_uvb_threads() -> None:
    for made in (hosts.a3(320), hosts.a2_far_pairs()):
        plan = planned(made.serving())
        assert (plan.uvb, plan.uvb_problem) == (EMPTY, None)


def test_clusters_follow_cores_where_nodes_and_cpu_numbers_are_sparse() -> None:
    host = hosts.topology({3: cpus("10-25"), 9: cpus("100-115")})
    made = hosts.Machine(host, Inventory(hosts.npus(["100-115", "10-25", "10-25"]), DeviceType.ASCEND_950))
    assert pools(planned(made.serving())) == {0: "100-107", 1: "10-17", 2: "18-25"}
