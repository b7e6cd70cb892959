"""What holds of a plan and the next: bases, workers that come and go, cards that fail (design 4.9, 4.10)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import DeviceType, Npu
from agent.model.plan import DEFAULT_DOMAIN, Base, Plan, PlanInput
from agent.model.reason import Reason
from agent.model.workload import Worker
from agent.planning.plan import make_plan
from tests.planning import hosts, reading
from tests.planning.hosts import host_sized
from tests.planning.invariants import assert_sound, exclusive_cpus, node_cpus


@host_sized
@given(hosts.busy(), st.randoms(use_true_random=False))
def test_the_order_of_recorded_bases_is_nobodys_business(inp: PlanInput, order: random.Random) -> None:
    again = replace(inp, bases=make_plan(inp).bases)
    assert make_plan(hosts.shuffled(again, order)) == make_plan(again)


@host_sized
@given(hosts.busy(), st.data())
def test_a_workers_coming_or_going_moves_no_other_worker(inp: PlanInput, data: st.DataObject) -> None:
    with_all = make_plan(inp)
    shared_keys = {container.key for container in inp.containers if container.owned is None}
    assume(len(inp.workers) > 1)
    leaving = data.draw(st.sampled_from(inp.workers))
    without = make_plan(
        replace(inp, workers=tuple(worker for worker in inp.workers if worker != leaving), bases=with_all.bases)
    )
    _assert_nobody_moved(with_all, without, leaving, shared_keys)
    back = make_plan(replace(inp, bases=without.bases))
    _assert_nobody_moved(without, back, leaving, shared_keys)


def _assert_nobody_moved(before: Plan, after: Plan, other: Worker, shared_keys: set[str]) -> None:
    base_before = {base.domain: base for base in before.bases}
    base_after = {base.domain: base for base in after.bases}
    pools = {each.worker.process: each.allotment for each in after.workers}
    for each in before.workers:
        if each.worker == other or each.worker.container not in shared_keys:
            continue
        if base_before.get(each.domain) == base_after.get(each.domain):
            assert pools[each.worker.process] == each.allotment


@host_sized
@given(hosts.plain(), st.data())
def test_a_missing_card_keeps_its_pool_and_moves_no_other(inp: PlanInput, data: st.DataObject) -> None:
    before = make_plan(inp)
    assume(before.problem is None)
    gone = data.draw(st.sampled_from(inp.inventory.ids))
    after = make_plan(_with_npus(inp, [replace(npu, missing=npu.id == gone) for npu in inp.inventory.npus]))
    for old, new in zip(before.npus, after.npus, strict=True):
        if new.id == gone:
            assert new.allotment.problem is not None
            assert new.allotment.problem.reason is Reason.NPU_MISSING
            assert new.allotment.pool == old.allotment.pool
        else:
            assert new == old


@host_sized
@given(hosts.plain().filter(lambda inp: inp.inventory.device_type is not DeviceType.A3), st.data())
def test_an_npu_that_fails_touches_no_other(inp: PlanInput, data: st.DataObject) -> None:
    bad = data.draw(st.sampled_from(inp.inventory.npus))
    others = [npu for npu in inp.inventory.npus if npu != bad]
    assume(any(npu.affinity is not None for npu in others))
    row = data.draw(st.sampled_from([None, EMPTY, inp.topology.possible - inp.topology.online]))
    with_it = make_plan(_with_npus(inp, [*others, replace(bad, affinity=row)]))
    assume(with_it.problem is None)
    alone = _with_npus(inp, others)
    assume(bool(alone.workers) == bool(inp.workers))  # without any worker it would be the node's CPUs that are cut
    without = make_plan(alone)
    assert reading.reason(with_it, bad.id) in (Reason.NO_AFFINITY, Reason.AFFINITY_OUTSIDE_CPUSET)
    assert [npu for npu in with_it.npus if npu.id != bad.id] == list(without.npus)


@host_sized
@given(st.one_of(hosts.busy(), hosts.busy(device_type=DeviceType.ASCEND_950)), st.data())
def test_a_card_that_goes_missing_on_a_busy_host_moves_no_other(inp: PlanInput, data: st.DataObject) -> None:
    """Several shared domains, exclusive containers, every strategy."""
    before = make_plan(inp)
    assume(before.problem is None)
    gone = data.draw(st.sampled_from(inp.inventory.ids))
    lost = tuple(replace(npu, missing=npu.missing or npu.id == gone) for npu in inp.inventory.npus)
    after = make_plan(replace(inp, inventory=replace(inp.inventory, npus=lost), bases=before.bases))
    assert_sound(replace(inp, inventory=replace(inp.inventory, npus=lost)), after)
    event(f"{before.device_type}: {len({each.domain for each in before.npus})} domains")
    assert after.bases == before.bases
    assert [npu for npu in after.npus if npu.id != gone] == [npu for npu in before.npus if npu.id != gone]
    assert [each for each in after.workers if gone not in each.worker.npus] == [
        each for each in before.workers if gone not in each.worker.npus
    ]


def _with_npus(inp: PlanInput, npus: Iterable[Npu]) -> PlanInput:
    found = tuple(sorted(npus, key=lambda npu: npu.id))
    workers = tuple(worker for worker in inp.workers if set(worker.npus) <= {npu.id for npu in found})
    return replace(inp, inventory=replace(inp.inventory, npus=found), workers=workers)


@st.composite
def shrinking(draw: st.DrawFn) -> tuple[PlanInput, PlanInput]:
    """A host that serves, and the same with fewer CPUs: granted to another container, out of its cpuset, reserved."""
    device_type = draw(st.sampled_from([None, DeviceType.A3, DeviceType.A3]))
    before = draw(st.one_of(hosts.plain(device_type), hosts.nodes_apart(), hosts.whole_cores()))
    lost = draw(hosts.parts(before.topology.online, draw(st.integers(1, 2))))
    if draw(st.booleans()):  # a few CPUs rather than a large part: what a small pod takes
        lost = lost.take(draw(st.integers(0, 16)))
    pod = before.containers[0]
    narrower = replace(pod, cpus=pod.cpus - lost)
    match draw(st.sampled_from(["grant", "grant and cpuset", "cpuset", "reserved"])):
        case "grant":
            return before, replace(before, containers=(pod, hosts.exclusive("batch", lost)))
        case "grant and cpuset":
            return before, replace(before, containers=(narrower, hosts.exclusive("batch", lost)))
        case "cpuset":
            return before, replace(before, containers=(narrower,))
        case _:
            return before, replace(before, spec=replace(before.spec, reserved_cpus=lost))


@settings(host_sized, max_examples=120)
@given(shrinking())
def test_fewer_cpus_shrink_pools_or_a_new_base_is_taken(both: tuple[PlanInput, PlanInput]) -> None:
    before, after = both
    serving = make_plan(before)
    assume(serving.problem is None)
    bound = reading.bound(serving)
    assume(bound)
    allowed = node_cpus(after) & after.containers[0].cpus - exclusive_cpus(after)
    old = {npu.id: npu.allotment.pool for npu in serving.npus if npu.allotment.problem is None}
    whole = serving.device_type is DeviceType.ASCEND_950
    enough = {npu for npu, pool in old.items() if (pool <= allowed if whole else len(pool & allowed) >= 5)}
    kept = reading.readable({npu: old[npu] & allowed for npu in enough})
    moved = make_plan(replace(after, bases=serving.bases))
    fresh = make_plan(after)
    assert_sound(after, moved)
    if bound <= enough and bound >= reading.bound(fresh):  # nobody loses by the old base or wins by a new one
        event("pools shrink")
        assert moved.bases == serving.bases
        assert reading.given_pools(moved) == kept
    elif bound - reading.bound(fresh) < bound - enough:
        event("a new base helps")
        assert moved == fresh
    else:
        event("a new base helps nobody")
        assert moved == fresh or (moved.bases, reading.given_pools(moved)) == (serving.bases, kept)


@host_sized
@given(shrinking())
def test_cpus_that_come_back_move_nobody(both: tuple[PlanInput, PlanInput]) -> None:
    wide, narrow = both
    serving = make_plan(narrow)
    assume(serving.problem is None)
    assume(reading.bound(serving) == {worker.npus[0] for worker in narrow.workers} != set())
    grown = make_plan(replace(wide, bases=serving.bases))
    assert_sound(wide, grown)
    assert grown.bases == serving.bases
    assert reading.given_pools(grown) == reading.given_pools(serving)


@host_sized
@given(shrinking())
def test_cpus_that_go_and_come_back_are_given_to_whom_they_belonged(both: tuple[PlanInput, PlanInput]) -> None:
    before, after = both
    serving = make_plan(before)
    moved = make_plan(replace(after, bases=serving.bases))
    assume(serving.workers)
    assume(moved.bases == serving.bases)
    assert make_plan(replace(before, bases=moved.bases)) == serving


@host_sized
@given(st.one_of(hosts.plain(DeviceType.A3), hosts.plain(DeviceType.A2), hosts.nodes_apart()), st.data())
def test_cpus_that_go_offline_shrink_slices_like_any_others(inp: PlanInput, data: st.DataObject) -> None:
    serving = make_plan(inp)
    assume(serving.problem is None)
    assume(reading.bound(serving) == {worker.npus[0] for worker in inp.workers} != set())
    gone = data.draw(hosts.parts(union(node.cpus for node in inp.topology.nodes), 1))
    assume(all(node.cpus - gone or not node.cpus for node in inp.topology.nodes))  # else another node is the next
    made = hosts.without(hosts.Machine(inp.topology, inp.inventory), gone)
    after = replace(inp, topology=made.topology, bases=serving.bases)
    kept = {npu.id: npu.allotment.pool - gone for npu in serving.npus if npu.allotment.problem is None}
    moved = make_plan(after)
    assert_sound(after, moved)
    if all(len(kept[npu]) >= 5 for npu in reading.bound(serving)):
        enough = {npu: pool for npu, pool in kept.items() if len(pool) >= 5}
        assert reading.given_pools(moved) == reading.readable(enough)


@host_sized
@given(hosts.busy(), st.data())
def test_a_recorded_base_is_no_way_to_other_peoples_cpus(inp: PlanInput, data: st.DataObject) -> None:
    recorded = make_plan(inp).bases
    assume(recorded)
    wide = CpuSet.span(0, 1000)
    ids = tuple(sorted(data.draw(st.sets(st.sampled_from(inp.inventory.ids), min_size=1))))
    bases = tuple(Base(base.domain, wide, ids) for base in recorded)
    assert_sound(inp, make_plan(replace(inp, bases=bases)))


def test_a_worker_that_never_had_cpus_takes_no_new_base_from_others() -> None:
    # NPU 1 may use two CPUs of its home: it fails from the beginning. Then these go, with two of NPU 0's.
    made = hosts.machine(hosts.even_nodes(4, 16), ["0-15", "32-47", "0-15"], DeviceType.A2)
    inp = made.serving(allowed="0-33")
    serving = reading.planned(inp)
    assert reading.given_pools(serving) == {0: "0-15", 2: "16-31"}
    shrunk = replace(inp, containers=(hosts.shared("llm", "2-31"),), bases=serving.bases)
    after = reading.planned(shrunk)
    assert after.bases == serving.bases
    assert reading.given_pools(after) == {0: "2-15", 2: "16-31"}


def test_a_missing_card_is_missing_even_where_the_base_has_no_cpus_for_it() -> None:
    made = hosts.a3(320)
    gone = tuple(replace(npu, missing=npu.id == 3) for npu in made.inventory.npus)
    bases = (Base(DEFAULT_DOMAIN, made.topology.online, tuple(npu for npu in range(16) if npu != 3)),)
    inp = replace(made, inventory=replace(made.inventory, npus=gone)).serving([0, 1])
    plan = reading.planned(replace(inp, bases=bases))
    assert reading.reason(plan, 3) is Reason.NPU_MISSING
