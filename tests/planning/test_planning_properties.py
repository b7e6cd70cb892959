"""What holds of the plan of any host (design 4.10), and that it is upstream's wherever upstream's is sound."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType
from agent.model.plan import PlanInput
from agent.model.reason import Reason
from agent.model.spec import Strategy
from agent.planning.plan import make_plan
from tests.planning import hosts, reading, reference_design, reference_upstream
from tests.planning.hosts import host_sized
from tests.planning.invariants import assert_sound, node_cpus, pools_by_npu

# --- as upstream ------------------------------------------------------------------------------------------------------


def _assume_sound(pools: Mapping[int, Sequence[int]]) -> None:
    assume(pools)
    assume(all(len(pool) >= 5 for pool in pools.values()))
    assume(all(set(a).isdisjoint(b) for a, b in combinations(pools.values(), 2)))


@host_sized
@given(hosts.plain(DeviceType.A3))
def test_global_slice_is_upstreams(inp: PlanInput) -> None:
    allowed = reading.allowed(inp)
    assume(allowed)
    expected = reference_upstream.global_slice(allowed, inp.inventory.ids)
    plan = make_plan(inp)
    assert plan.strategy is Strategy.GLOBAL_SLICE
    assert reading.given_pools(plan) == reading.readable(expected or {})
    if expected is None:
        assert {reading.reason(plan, npu) for npu in inp.inventory.ids} == {Reason.INSUFFICIENT_CPUS}


@host_sized
@given(st.one_of(hosts.nodes_apart(), hosts.nodes_apart(DeviceType.ATLAS_300I), hosts.plain(DeviceType.A2)))
def test_topo_affinity_is_upstreams_where_upstreams_pools_do_not_overlap(inp: PlanInput) -> None:
    affinity = reading.affinity(inp)
    expected = reference_upstream.topo_affinity(reading.node_of(inp), reading.allowed(inp), affinity)
    _assume_sound(expected)
    event(f"{len(expected)} of {len(affinity)} NPUs")
    plan = make_plan(inp)
    assert plan.strategy is Strategy.TOPO_AFFINITY
    assert reading.given_pools(plan) == reading.readable(expected)
    for npu, row in affinity.items():
        if npu not in expected:
            assert reading.reason(plan, npu) is (Reason.NO_AFFINITY if row is None else Reason.AFFINITY_OUTSIDE_CPUSET)


@host_sized
@given(hosts.whole_cores())
def test_clusters_are_upstreams_where_that_binds_everybody_to_whole_cores(inp: PlanInput) -> None:
    siblings_of = {cpu: list(core) for core in inp.topology.cores for cpu in core}
    rows = {npu.id: list(npu.affinity or EMPTY) for npu in inp.inventory.npus}
    expected = reference_upstream.clusters(reading.node_of(inp), siblings_of, reading.allowed(inp), rows)
    assume(expected is not None)
    assert reading.given_pools(make_plan(inp)) == reading.readable(expected or {})


# --- what cpubind adds ------------------------------------------------------------------------------------------------


@host_sized
@given(hosts.plain(DeviceType.A2))
def test_overlapping_pools_are_dealt_by_the_resolver(inp: PlanInput) -> None:
    affinity = reading.affinity(inp)
    assume(any(row is not None for row in affinity.values()))
    allowed = reading.allowed(inp)
    assume(allowed)
    shares = reference_design.topo_affinity(reading.node_of(inp), allowed, affinity)
    plan = make_plan(inp)
    assert reading.given_pools(plan) == reading.readable(
        {npu: share for npu, share in shares.items() if len(share) >= 5}
    )
    for npu, share in shares.items():
        if len(share) < 5:
            assert reading.reason(plan, npu) is Reason.INSUFFICIENT_CPUS


@host_sized
@given(hosts.plain(DeviceType.ASCEND_950))
def test_clusters_are_whole_cores_and_fail_by_node(inp: PlanInput) -> None:
    allowed = reading.allowed(inp)
    assume(allowed)
    cores = [list(core) for core in inp.topology.cores]
    expected = reference_design.clusters(reading.node_of(inp), cores, allowed, reading.affinity(inp))
    plan = make_plan(inp)
    assert reading.given_pools(plan) == reading.readable(
        {npu: each for npu, each in expected.items() if not isinstance(each, str)}
    )
    for npu, reason in expected.items():
        if isinstance(reason, str):
            assert reading.reason(plan, npu) == reason
    left = node_cpus(inp) & inp.topology.cpus_of(0) - CpuSet([0])
    for _, pool in pools_by_npu(plan):
        left -= pool
    assert plan.uvb == left
    assert (plan.uvb_problem and plan.uvb_problem.reason) is (None if left else Reason.NO_UVB_CPUS)


@st.composite
def hosts_of_many_cpusets(draw: st.DrawFn) -> PlanInput:
    """An A3 host with up to three shared cpusets that differ, each with a worker."""
    size = draw(st.integers(20, 160))
    count = draw(st.integers(1, 8))
    made = hosts.a3(size * 2, count, 2)
    cpusets = draw(st.lists(hosts.parts(made.topology.online, 2).filter(bool), min_size=1, max_size=3, unique=True))
    containers = [hosts.shared(f"pod-{index}", allowed) for index, allowed in enumerate(cpusets)]
    some = st.lists(st.sampled_from(made.inventory.ids), min_size=1, max_size=4)
    workers = [
        hosts.worker(100 * index + place, npu, f"pod-{index}")
        for index in range(len(cpusets))
        for place, npu in enumerate(draw(some), start=1)
    ]
    return made.running(containers, workers)


@host_sized
@given(hosts_of_many_cpusets())
def test_shares_of_several_domains_are_dealt_once_per_npu(inp: PlanInput) -> None:
    ids = inp.inventory.ids
    domains = {container.key: list(container.cpus) for container in inp.containers}
    assume(all(len(domain) // len(ids) >= 5 for domain in domains.values()))
    shares = reference_design.shares_of_domains(domains.values(), ids)
    plan = make_plan(inp)
    assert_sound(inp, plan)
    for each in plan.workers:
        expected = CpuSet(shares[each.worker.npus[0]]) & CpuSet(domains[each.worker.container])
        if len(expected) >= 5:
            assert (str(each.allotment.pool), each.allotment.problem) == (str(expected), None)
        else:
            assert each.allotment.problem is not None
            assert each.allotment.problem.reason is Reason.INSUFFICIENT_CPUS


# --- of one plan ------------------------------------------------------------------------------------------------------


@host_sized
@given(st.one_of(hosts.plain(), hosts.nodes_apart(), hosts.busy(domains=1)))
def test_a_plan_with_one_shared_domain_is_sound(inp: PlanInput) -> None:
    plan = make_plan(inp)
    event(f"{plan.strategy}: {'no plan' if plan.problem else 'planned'}")
    assert_sound(inp, plan)


@host_sized
@given(hosts.busy())
def test_a_plan_with_several_domains_is_sound(inp: PlanInput) -> None:
    assert_sound(inp, make_plan(inp))


@settings(host_sized, max_examples=120)
@given(hosts.weird())
def test_planning_raises_for_no_input(inp: PlanInput) -> None:
    plan = make_plan(inp)
    again = make_plan(replace(inp, bases=plan.bases))
    for made in (plan, again):
        owner: dict[int, int] = {}
        for npu, pool in pools_by_npu(made):
            assert all(owner.setdefault(cpu, npu) == npu for cpu in pool)


@host_sized
@given(hosts.busy(), st.randoms(use_true_random=False))
def test_the_same_input_in_any_order_gives_the_same_plan(inp: PlanInput, order: random.Random) -> None:
    plan = make_plan(inp)
    assert make_plan(inp) == plan
    assert make_plan(hosts.shuffled(inp, order)) == plan
