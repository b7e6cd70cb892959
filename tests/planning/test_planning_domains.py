"""Several shared domains on one node (design 4.7): docker --cpuset-cpus, slices, and kubelet half-way through."""

from __future__ import annotations

from dataclasses import replace

from agent.model.cpuset import union
from agent.model.reason import Reason
from agent.model.spec import Spec, Strategy
from tests.planning import hosts
from tests.planning.hosts import cpus
from tests.planning.reading import planned, pools, pools_by_pid


def test_what_two_domains_claim_for_two_npus_is_dealt_once() -> None:
    made = hosts.a3(128, 2, 2)
    wide, narrow = hosts.shared("wide", "0-127"), hosts.shared("narrow", "32-63")
    plan = planned(made.running([wide, narrow], [hosts.worker(1, 0, "wide"), hosts.worker(2, 1, "narrow")]))
    # NPU 0 claims 0-63 and, in the narrow one, 32-47; NPU 1 claims 64-127 and 48-63. Both claim 48-63.
    assert pools_by_pid(plan) == {1: "0-55", 2: "56-63"}


def test_cpusets_that_do_not_overlap_are_cut_each_for_all_npus() -> None:
    made = hosts.a3(320, 4)
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    plan = planned(made.running([left, right], [hosts.worker(1, 0, "left"), hosts.worker(2, 3, "right")]))
    assert pools_by_pid(plan) == {1: "0-39", 2: "280-319"}


def test_a_worker_outside_its_npus_first_domain_has_a_pool_of_its_own() -> None:
    made = hosts.a3(320, 4)
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    plan = planned(made.running([left, right], [hosts.worker(1, 2, "left"), hosts.worker(2, 2, "right")]))
    assert pools_by_pid(plan) == {1: "80-119", 2: "240-279"}
    assert sorted(each.own for each in plan.workers) == [False, True]
    entry = plan.npu(2)
    first = next(each for each in plan.workers if not each.own)
    assert entry is not None
    assert (entry.domain, entry.allotment) == (first.domain, first.allotment)


def test_containers_with_one_cpuset_are_one_domain() -> None:
    made = hosts.a3(320)
    one, two = hosts.shared("one", "0-319"), hosts.shared("two", "0-319")
    plan = planned(made.running([one, two], [hosts.worker(1, 0, "one"), hosts.worker(2, 1, "two")]))
    assert [domain.containers for domain in plan.domains] == [("one", "two")]
    assert pools_by_pid(plan) == {1: "0-19", 2: "20-39"}
    assert not any(each.own for each in plan.workers)


def test_cpusets_that_differ_only_in_cpus_that_nobody_may_use_are_one_domain() -> None:
    # Kubelet takes a grant's CPUs out of the shared cpusets one container after the other.
    made = hosts.a3(320)
    own, done, to_do = (
        hosts.exclusive("own", "0-15"),
        hosts.shared("done", "16-299"),
        hosts.shared("to-do", "0-299"),
    )
    reserved = hosts.shared("reserved", "16-303")
    inp = made.running(
        [own, done, to_do, reserved],
        [hosts.worker(1, 0, "done"), hosts.worker(2, 1, "to-do"), hosts.worker(3, 2, "reserved")],
        spec=Spec(reserved_cpus=cpus("300-319")),
    )
    plan = planned(inp)
    assert [domain.containers for domain in plan.domains if not domain.exclusive] == [("done", "reserved", "to-do")]
    assert len(plan.bases) == 1


def test_a_container_without_a_worker_claims_nothing() -> None:
    made = hosts.a3(320)
    busy, idle = hosts.shared("busy", "0-319"), hosts.shared("idle", "7-99")
    with_it = planned(made.running([busy, idle], hosts.workers_on(range(16), "busy")))
    without = planned(made.running([busy], hosts.workers_on(range(16), "busy")))
    assert pools(with_it) == pools(without)
    assert pools_by_pid(with_it) == pools_by_pid(without)


def test_while_no_domain_holds_a_worker_the_nodes_own_cpus_are_shown_divided() -> None:
    made = hosts.a3(320)
    containers = [hosts.shared("one", "7-99"), hosts.shared("two", "50-60"), hosts.exclusive("own", "0-15")]
    plan = planned(made.running(containers))
    assert pools(plan) == {npu: f"{16 + npu * 19}-{16 + npu * 19 + 18}" for npu in range(16)}
    assert pools(planned(made.running())) == {npu: f"{npu * 20}-{npu * 20 + 19}" for npu in range(16)}


def test_as_soon_as_a_domain_holds_a_worker_idle_npus_show_their_pools_there() -> None:
    plan = planned(hosts.a3(320, 4).running([hosts.shared("one", "0-159")], hosts.workers_on([1], "one")))
    assert pools(plan) == {0: "0-39", 1: "40-79", 2: "80-119", 3: "120-159"}


def test_a_process_on_several_npus_gets_main_cpus_of_its_own_domain() -> None:
    made = hosts.a3(320, 4)
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    plan = planned(made.running([left, right], [hosts.worker(1, [0, 1], "right"), hosts.worker(2, 0, "left")]))
    both = next(each.allotment for each in plan.workers if each.worker.process.pid == 1)
    assert both.roles is not None
    assert both.roles.main == cpus("162-197,202-237")


def test_domains_that_leave_a_worker_fewer_than_five_cpus_fail_it_alone() -> None:
    made = hosts.a3(128, 2, 2)
    wide, narrow = hosts.shared("wide", "0-127"), hosts.shared("narrow", "48-63")
    plan = planned(made.running([wide, narrow], [hosts.worker(1, 0, "wide"), hosts.worker(2, 1, "narrow")]))
    # Both claim 56-63: NPU 1 gets 60-63 of it, four CPUs.
    assert pools_by_pid(plan)[1] == "0-59"
    problem = plan.workers[1].allotment.problem
    assert problem is not None
    assert problem.reason is Reason.INSUFFICIENT_CPUS


def test_pools_of_two_npus_never_meet_whatever_the_strategy_and_the_cpusets() -> None:
    cpusets = ["0-191", "0-95", "48-150", "20-30,100-170"]
    for strategy in Strategy:
        containers = [hosts.shared(f"c{index}", allowed) for index, allowed in enumerate(cpusets)]
        workers = [hosts.worker(10 * npu + index, npu, f"c{index}") for npu in range(8) for index in range(4)]
        inp = hosts.a2_far_pairs().running(containers, workers, spec=Spec(strategy=strategy))
        plan = planned(inp)  # assert_sound compares them all
        assert any(each.allotment.problem is None for each in plan.workers)


def test_exclusive_cpus_are_out_of_every_shared_domain() -> None:
    made = hosts.a3(320, 4)
    own = hosts.exclusive("own", "100-199", [3])
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    plan = planned(
        made.running(
            [own, left, right], [hosts.worker(1, 0, "left"), hosts.worker(2, 2, "right"), hosts.worker(3, 3, "own")]
        )
    )
    assert pools_by_pid(plan) == {1: "0-33", 2: "280-319", 3: "100-199"}


def test_owners_of_the_same_cpus_do_not_share_them() -> None:
    # Evidence that contradicts itself: two containers, each said to own 0-31.
    made = hosts.a3(320, 4)
    one, two = hosts.exclusive("one", "0-31", [0]), hosts.exclusive("two", "0-31", [1])
    plan = planned(made.running([one, two], [hosts.worker(1, 0, "one"), hosts.worker(2, 1, "two")]))
    assert union(each.allotment.pool for each in plan.workers) <= cpus("0-31")


def test_recorded_bases_of_several_domains_are_found_again() -> None:
    made = hosts.a3(320, 4)
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    inp = made.running([left, right], [hosts.worker(1, 0, "left"), hosts.worker(2, 3, "right")])
    before = planned(inp)
    shrunk = replace(inp, containers=(left, replace(right, cpus=cpus("160-309"))), bases=before.bases)
    after = planned(shrunk)
    assert pools_by_pid(after) == {1: "0-39", 2: "280-309"}
    assert after.bases == before.bases
