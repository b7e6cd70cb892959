"""Bases (design 4.9): serving workers stay where they are while kubelet's shared pool shrinks and grows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.model.plan import DEFAULT_DOMAIN, Base, PlanInput
from agent.model.reason import Reason
from tests.planning import hosts
from tests.planning.hosts import cpus
from tests.planning.reading import planned, pools, pools_by_pid


def with_grant(inp: PlanInput, owned: str, npus: list[int] | None = None) -> PlanInput:
    """The same host after kubelet gave CPUs to a Guaranteed container and took them out of the shared cpusets."""
    shrunk = tuple(
        replace(container, cpus=container.cpus - cpus(owned)) if container.owned is None else container
        for container in inp.containers
    )
    return replace(inp, containers=(*shrunk, hosts.exclusive("grant", owned, npus)))


def test_without_a_base_a_pod_of_sixteen_cpus_moves_everybody() -> None:
    inp = hosts.a3(320).serving()
    before, after = planned(inp), planned(with_grant(inp, "0-15"))
    assert sum(pools(before)[npu] != pools(after)[npu] for npu in range(16)) == 16


@pytest.mark.parametrize("owned", ["0-13", "100-113", "306-319", "15-24"])
def test_with_a_base_a_grant_takes_its_cpus_and_moves_nobody(owned: str) -> None:
    inp = hosts.a3(320).serving()
    before = planned(inp)
    after = planned(replace(with_grant(inp, owned), bases=before.bases))
    assert after.bases == before.bases
    assert pools(after) == {npu: str(cpus(pool) - cpus(owned)) for npu, pool in pools(before).items()}


def test_a_grant_of_an_idle_npus_cpus_moves_no_worker() -> None:
    inp = hosts.a3(320).serving(range(1, 16))
    before = planned(inp)
    after = planned(replace(with_grant(inp, "0-15"), bases=before.bases))
    assert after.bases == before.bases
    assert pools_by_pid(after) == pools_by_pid(before)
    idle = after.npu(0)
    assert idle is not None
    assert idle.allotment.problem is not None  # 16-19 are left, four CPUs
    assert idle.allotment.problem.reason is Reason.INSUFFICIENT_CPUS


def test_a_grant_that_leaves_a_bound_npu_fewer_than_five_cpus_takes_a_new_base() -> None:
    inp = hosts.a3(320).serving()
    before = planned(inp)
    shrunk = with_grant(inp, "0-15")
    after = planned(replace(shrunk, bases=before.bases))
    assert after == planned(shrunk)
    assert [base.cpus for base in after.bases] == [cpus("16-319")]
    assert pools(after)[0] == "16-34"


def test_exactly_five_cpus_are_no_reason_for_a_new_base() -> None:
    inp = hosts.a3(320).serving()
    before = planned(inp)
    after = planned(replace(with_grant(inp, "0-14"), bases=before.bases))
    assert after.bases == before.bases
    assert pools(after)[0] == "15-19"


def test_a_bound_cluster_that_lost_a_cpu_takes_a_new_base() -> None:
    inp = hosts.ascend_950_single().serving([0, 2])
    before = planned(inp)
    spared = planned(replace(with_grant(inp, "8-15,60-63"), bases=before.bases))  # of idle NPUs 1 and 3
    assert pools_by_pid(spared) == pools_by_pid(before)
    assert spared.bases == before.bases
    shrunk = with_grant(inp, "7")
    after = planned(replace(shrunk, bases=before.bases))
    assert after == planned(shrunk)
    assert pools_by_pid(after) == {100: "0-6,8", 102: "48-55"}


def test_a_guaranteed_pod_with_an_npu_moves_no_other_worker() -> None:
    inp = hosts.a3(320).serving([npu for npu in range(16) if npu != 3])
    before = planned(inp)
    after = planned(replace(with_grant(inp, "20-33", [3]), bases=before.bases))
    assert after.bases == before.bases
    expected = dict(pools_by_pid(before))
    expected[101] = "34-39"
    assert pools_by_pid(after) == expected
    assert pools(after)[3] == "20-33"


def test_cpus_that_come_back_go_to_whom_they_belonged() -> None:
    inp = hosts.a3(320).serving()
    before = planned(inp)
    during = planned(replace(with_grant(inp, "100-113"), bases=before.bases))
    assert planned(replace(inp, bases=during.bases)) == before


def test_cpus_beyond_the_base_move_nobody() -> None:
    inp = with_grant(hosts.a3(320).serving(), "0-15")
    before = planned(inp)
    grown = replace(hosts.a3(320).serving(), bases=before.bases)
    assert pools(planned(grown)) == pools(before)


def test_bases_count_for_nothing_while_nobody_is_bound() -> None:
    inp = hosts.a3(320).running([hosts.shared("llm", "0-319")])
    bases = (Base(DEFAULT_DOMAIN, cpus("16-319"), tuple(range(16))),)
    assert pools(planned(replace(inp, bases=bases))) == pools(planned(inp))


def test_workers_come_and_go_without_moving_others_under_a_base() -> None:
    everybody = with_grant(hosts.a2_far_pairs().serving(), "0-3,146-149")
    bases = planned(hosts.a2_far_pairs().serving()).bases
    full = pools_by_pid(planned(replace(everybody, bases=bases)))
    for only in range(8):
        few = replace(everybody, workers=everybody.workers[only : only + 1], bases=bases)
        assert pools_by_pid(planned(few)) == {100 + only: full[100 + only]}


def test_a_worker_that_fails_anyway_takes_no_new_base() -> None:
    # NPU 2 has no affinity row: no base whatsoever would help it, and the others must stay where they are.
    made = hosts.a2_far_pairs()
    rows = ["144-167", "0-23", None, "0-23", "96-119", "48-71", "96-119", "48-71"]
    made = replace(made, inventory=replace(made.inventory, npus=hosts.npus(rows)))
    inp = made.serving()
    before = planned(inp)
    after = planned(replace(with_grant(inp, "24-31"), bases=before.bases))
    assert after.bases == before.bases
    assert pools(after) == {npu: str(cpus(pool) - cpus("24-31")) for npu, pool in pools(before).items()}


def test_a_worker_on_an_npu_that_the_base_was_not_cut_for_takes_a_new_base() -> None:
    inp = hosts.a3(320).serving([0, 3])
    bases = (Base(DEFAULT_DOMAIN, CpuSet.span(0, 319), tuple(npu for npu in range(16) if npu != 3)),)
    idle = planned(replace(inp, workers=inp.workers[:1], bases=bases))
    assert idle.bases == bases
    assert pools_by_pid(idle) == {100: "0-21"}  # 320 for 15: 22 for the first five
    assert planned(replace(inp, bases=bases)) == planned(inp)


def test_one_domains_new_base_leaves_another_domains_as_it_is() -> None:
    made = hosts.a3(320, 4)
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    inp = made.running([left, right], [hosts.worker(1, 1, "left"), hosts.worker(2, 3, "right")])
    before = planned(inp)
    assert pools_by_pid(before) == {1: "40-79", 2: "280-319"}
    shrunk = (replace(left, cpus=cpus("8-159")), replace(right, cpus=cpus("160-282")))
    after = planned(replace(inp, containers=shrunk, bases=before.bases))
    assert pools_by_pid(after)[1] == "40-79"  # nothing was taken from NPU 1 where it is
    assert pools_by_pid(after)[2] == "253-282"  # 123 CPUs for four NPUs


def test_a_base_whose_domain_is_empty_shows_nobody_elses_cpus() -> None:
    # The worker of `left` has ended; a Guaranteed container was given CPUs of its base and an NPU.
    made = hosts.a3(320, 4)
    left, right = hosts.shared("left", "0-159"), hosts.shared("right", "160-319")
    bases = planned(made.running([left, right], [hosts.worker(1, 0, "left"), hosts.worker(2, 3, "right")])).bases
    own = hosts.exclusive("own", "0-31", [1])
    inp = made.running([own, left, right], [hosts.worker(2, 3, "right"), hosts.worker(3, 1, "own")], bases=bases)
    planned(inp)  # assert_sound: no pool that is shown for an idle NPU meets the exclusive one


def test_a_domain_without_any_cpu_is_planned_the_same_again() -> None:
    made = hosts.machine(hosts.even_nodes(2, 16), ["0-15", "16-31"], DeviceType.A2)
    inp = made.running([hosts.shared("nowhere", "")], hosts.workers_on([0], "nowhere"))
    plan = planned(inp)
    assert plan.workers[0].allotment.problem is not None
    assert planned(replace(inp, bases=plan.bases)) == plan
