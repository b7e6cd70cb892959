"""Containers that own their CPUs (design 4.1, 4.4): kubelet's static CPU manager beside shared pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.model.cpuset import CpuSet, union
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.spec import Spec
from agent.model.workload import Worker
from tests.planning import hosts
from tests.planning.hosts import cpus
from tests.planning.reading import allotment_of, planned, pools

# --- A3 ---------------------------------------------------------------------------------------------------------------


def test_one_npu_gets_all_cpus_that_its_container_owns() -> None:
    own = hosts.exclusive("own", "2-17", [3])
    plan = planned(hosts.a3().running([own], [hosts.worker(1, 3, "own")]))
    assert allotment_of(plan, 1).roles == Roles(irq=cpus("2-3"), main=cpus("4-15"), acl=cpus("16"), release=cpus("17"))
    npu = plan.npu(3)
    assert npu is not None
    assert npu.exclusive


def test_a_second_exclusive_container_and_a_shared_pod_keep_clear_of_the_first() -> None:
    first, second = hosts.exclusive("first", "2-17", [3]), hosts.exclusive("second", "18-33", [4])
    pod = hosts.shared("pod", "0-1,34-639")
    plan = planned(
        hosts.a3().running(
            [first, second, pod], [hosts.worker(1, 3, "first"), hosts.worker(2, 4, "second"), hosts.worker(3, 0, "pod")]
        )
    )
    assert str(allotment_of(plan, 1).pool) == "2-17"
    assert str(allotment_of(plan, 2).pool) == "18-33"
    # 608 CPUs are left for 14 NPUs: 44 for the first six of them, 43 for the others, however few run.
    assert str(allotment_of(plan, 3).pool) == "0-1,34-75"
    assert union(npu.allotment.pool for npu in plan.npus if not npu.exclusive) == cpus("0-1,34-639")


def test_a_shared_pod_keeps_clear_of_granted_cpus_even_where_its_cpuset_has_them_still() -> None:
    own, pod = hosts.exclusive("own", "2-17", [3]), hosts.shared("pod", "0-639")
    plan = planned(hosts.a3().running([own, pod], [hosts.worker(1, 3, "own"), hosts.worker(2, 0, "pod")]))
    assert allotment_of(plan, 2).pool.isdisjoint(cpus("2-17"))


def test_granted_cpus_count_while_the_containers_cpuset_is_still_wide() -> None:
    own = hosts.exclusive("own", "2-17", [3], effective="0-639")
    plan = planned(hosts.a3().running([own], [hosts.worker(1, 3, "own")]))
    assert str(allotment_of(plan, 1).pool) == "2-17"


def test_a_role_never_leaves_the_cpuset_that_is_in_force() -> None:
    own = hosts.exclusive("own", "2-17", [3], effective="8-40")  # kubelet has written the grant, not yet the cgroup
    plan = planned(hosts.a3().running([own], [hosts.worker(1, 3, "own")]))
    assert allotment_of(plan, 1).pool <= cpus("8-17")


def test_an_exclusive_container_that_never_runs_a_worker_keeps_its_cpus_and_npus() -> None:
    own, pod = hosts.exclusive("own", "2-17", [3]), hosts.shared("pod", "0-639")
    idle = planned(hosts.a3().running([own, pod], [hosts.worker(2, 0, "pod")]))
    busy = planned(hosts.a3().running([own, pod], [hosts.worker(1, 3, "own"), hosts.worker(2, 0, "pod")]))
    assert pools(idle) == pools(busy)
    assert pools(idle)[3] == "2-17"


def test_an_exclusive_container_without_npus_keeps_its_cpus() -> None:
    plan = planned(
        hosts.a3().running(
            [hosts.exclusive("batch", "0-15"), hosts.shared("pod", "0-639")], hosts.workers_on([0], "pod")
        )
    )
    assert pools(plan)[0] == "16-54"  # 624 CPUs for all 16 NPUs
    assert plan.exclusive_cpus == cpus("0-15")


def test_every_npu_of_a_node_may_belong_to_one_exclusive_container() -> None:
    own = hosts.exclusive("own", "0-319", range(16))
    made = hosts.a3()
    alone = planned(made.running([own], hosts.workers_on(range(16), "own")))
    assert pools(alone) == {npu: f"{npu * 20}-{npu * 20 + 19}" for npu in range(16)}
    for spare in (hosts.shared("pod", "320-639"), hosts.shared("pod", "0-639")):
        beside = planned(made.running([own, spare], hosts.workers_on(range(16), "own")))
        assert pools(beside) == pools(alone)


def test_a_worker_outside_an_exclusive_container_is_not_bound_to_its_npu() -> None:
    own, pod = hosts.exclusive("own", "2-17", [3]), hosts.shared("pod", "0-639")
    plan = planned(hosts.a3().running([own, pod], [hosts.worker(1, 3, "own"), hosts.worker(2, 3, "pod")]))
    assert str(allotment_of(plan, 1).pool) == "2-17"
    problem = allotment_of(plan, 2).problem
    assert problem is not None
    assert problem.reason is Reason.NPU_NOT_IN_DOMAIN


def test_running_npus_stand_in_where_nothing_says_which_are_allocated() -> None:
    own, pod = hosts.exclusive("own", "2-17"), hosts.shared("pod", "0-1,18-639")
    plan = planned(hosts.a3().running([own, pod], [hosts.worker(1, 3, "own"), hosts.worker(2, 0, "pod")]))
    assert str(allotment_of(plan, 1).pool) == "2-17"
    assert len(allotment_of(plan, 2).pool) == 42  # 624 CPUs for 15 NPUs, the first nine of which get one more


def test_running_npus_that_have_just_changed_are_waited_for() -> None:
    own = replace(hosts.exclusive("own", "2-17"), settled=False)
    plan = planned(hosts.a3().running([own], [hosts.worker(1, 3, "own")]))
    problem = allotment_of(plan, 1).problem
    assert problem is not None
    assert problem.reason is Reason.NPUS_CHANGING


def test_too_few_owned_cpus_fail_that_container_alone() -> None:
    own, pod = hosts.exclusive("own", "2-5", [3]), hosts.shared("pod", "0-1,6-639")
    plan = planned(hosts.a3().running([own, pod], [hosts.worker(1, 3, "own"), hosts.worker(2, 0, "pod")]))
    problem = allotment_of(plan, 1).problem
    assert problem is not None
    assert problem.reason is Reason.INSUFFICIENT_CPUS
    assert allotment_of(plan, 2).problem is None


def test_isolated_cpus_that_a_container_owns_are_its_own() -> None:
    made = hosts.a3()
    made = replace(made, topology=replace(made.topology, isolated=cpus("0-19")))
    plan = planned(made.running([hosts.exclusive("own", "2-17", [3])], [hosts.worker(1, 3, "own")]))
    assert str(allotment_of(plan, 1).pool) == "2-17"
    assert plan.node_cpus == CpuSet.span(20, 639)


def test_reserved_cpus_are_not_an_exclusive_containers_either() -> None:
    inp = hosts.a3().running(
        [hosts.exclusive("own", "2-17", [3])], [hosts.worker(1, 3, "own")], spec=Spec(reserved_cpus=cpus("0-3"))
    )
    assert str(allotment_of(planned(inp), 1).pool) == "4-17"


@pytest.mark.parametrize("alongside", [[], hosts.workers_on([5], "other")], ids=["without a worker", "with a worker"])
def test_a_second_container_with_the_whole_node_makes_nobody_exclusive_or_not(alongside: list[Worker]) -> None:
    other = hosts.shared("other", "0-639")
    own = hosts.exclusive("own", "2-17", [3])
    made = hosts.a3()
    alone = planned(made.running([own], [hosts.worker(1, 3, "own")]))
    beside = planned(made.running([own, other], [hosts.worker(1, 3, "own"), *alongside]))
    assert allotment_of(beside, 1) == allotment_of(alone, 1)
    narrow = hosts.shared("narrow", "100-199")
    by_itself = planned(made.running([narrow], [hosts.worker(1, 3, "narrow")]))
    assert not any(domain.exclusive for domain in by_itself.domains)
    both = planned(made.running([narrow, other], [hosts.worker(1, 3, "narrow"), *alongside]))
    assert not any(domain.exclusive for domain in both.domains)


# --- tensor parallel in one exclusive container -----------------------------------------------------------------------


@pytest.mark.parametrize("made", [hosts.a3(), hosts.a2_far_pairs()], ids=["A3", "A2"])
def test_the_first_worker_of_eight_gets_its_final_pool_at_once(made: hosts.Machine) -> None:
    own = hosts.exclusive("tp8", "8-135", range(8))
    final = pools(planned(made.running([own], hosts.workers_on(range(8), "tp8"))))
    assert union(cpus(final[npu]) for npu in range(8)) == cpus("8-135")
    for started in range(1, 9):
        plan = planned(made.running([own], hosts.workers_on(range(started), "tp8")))
        assert {each.worker.npus[0]: str(each.allotment.pool) for each in plan.workers} == {
            npu: final[npu] for npu in range(started)
        }


# --- A2, where affinity matters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", ["2-17", "140-155", "144-159"])
def test_one_npu_gets_all_owned_cpus_near_it_or_not(owned: str) -> None:
    plan = planned(hosts.a2_far_pairs().running([hosts.exclusive("own", owned, [0])], [hosts.worker(1, 0, "own")]))
    assert str(allotment_of(plan, 1).pool) == owned
    assert allotment_of(plan, 1).note is None  # OffAffinity speaks of several NPUs among which CPUs are divided


def test_several_npus_of_which_one_has_no_home_are_dealt_slices() -> None:
    plan = planned(
        hosts.a2_far_pairs().running([hosts.exclusive("own", "0-31", [0, 1])], hosts.workers_on([0, 1], "own"))
    )
    assert {npu: pools(plan)[npu] for npu in (0, 1)} == {0: "0-15", 1: "16-31"}
    for pid in (100, 101):
        note = allotment_of(plan, pid).note
        assert note is not None
        assert note.reason is Reason.OFF_AFFINITY


def test_several_npus_with_homes_follow_the_rule_and_every_cpu_is_used() -> None:
    # NPU 1 is at home on 0-23 and NPU 5 on 48-71. 100-103 is nobody's: two more for each.
    own = hosts.exclusive("own", "0-15,30-33,48-63,100-103", [1, 5])
    plan = planned(hosts.a2_far_pairs().running([own], hosts.workers_on([1, 5], "own")))
    one, five = allotment_of(plan, 101), allotment_of(plan, 105)
    assert one.pool | five.pool == cpus("0-15,30-33,48-63,100-103")
    assert cpus("0-15,30-33") <= one.pool
    assert cpus("48-63") <= five.pool
    assert (len(one.pool), len(five.pool)) == (22, 18)
    assert one.note is None


def test_a_pair_that_shares_a_home_is_split_within_its_own_cpus() -> None:
    own = hosts.exclusive("own", "144-175", [0, 2])
    plan = planned(hosts.a2_far_pairs().running([own], hosts.workers_on([0, 2], "own")))
    assert (pools(plan)[0], pools(plan)[2]) == ("144-159", "160-175")


def test_npus_without_any_affinity_row_fail_in_no_exclusive_container() -> None:
    made = hosts.a2_far_pairs()
    rows = [None, "0-23", None, "0-23", "96-119", "48-71", "96-119", "48-71"]
    made = replace(made, inventory=replace(made.inventory, npus=hosts.npus(rows)))
    plan = planned(made.running([hosts.exclusive("own", "0-31", [0, 1])], hosts.workers_on([0, 1], "own")))
    assert (pools(plan)[0], pools(plan)[1]) == ("0-15", "16-31")


def test_shared_npus_of_an_a2_node_go_on_with_what_is_left() -> None:
    own, pod = hosts.exclusive("own", "144-159", [0]), hosts.shared("pod", "0-143,160-191")
    plan = planned(
        hosts.a2_far_pairs().running([own, pod], [hosts.worker(1, 0, "own"), *hosts.workers_on(range(1, 8), "pod")])
    )
    assert pools(plan)[0] == "144-159"
    assert pools(plan)[2] == "160-191"
    assert pools(plan)[1] == "0-23"
