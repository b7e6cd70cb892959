"""When bases are cut anew, and how NPUs that vanish are kept."""

from __future__ import annotations

from dataclasses import replace

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, Npu, NumaNode, Topology
from agent.model.plan import Base, PlanInput
from agent.model.spec import Cutting, Rebalance, Spec, Strategy
from agent.model.workload import Container, ProcessId, Worker
from agent.planning.bases import BaseKeeper
from agent.planning.plan import make_plan
from agent.planning.universe import Universe


def serving(cpus: str = "0-79", spec: Spec | None = None, bases: tuple[Base, ...] = ()) -> PlanInput:
    """Two NPUs and one worker on a small node."""
    every = CpuSet.span(0, 79)
    topology = Topology(every, every, (NumaNode(0, every),), tuple(CpuSet([c]) for c in range(80)))
    inventory = Inventory((Npu(0), Npu(1)), DeviceType.A3)
    container = Container("c", CpuSet.parse(cpus), pod_uid="uid-1")
    worker = Worker(ProcessId(7, 7), (0,), "c")
    return PlanInput(topology, inventory, (container,), (worker,), bases, spec or Spec())


def run(keeper: BaseKeeper, inp: PlanInput, now: float) -> bool:
    """What the planner does in one pass; whether it cut anew."""
    cut = keeper.outdated(inp, now)
    keeper.planned(inp, make_plan(replace(inp, bases=()) if cut else inp), now, anew=cut)
    return cut


BASE = (Base("default", CpuSet.parse("0-59"), (0, 1)),)


def test_cpus_that_come_back_change_nothing_by_default() -> None:
    keeper = BaseKeeper()
    inp = serving(bases=BASE)
    assert not any(run(keeper, inp, float(now)) for now in range(0, 2000, 50))


def test_under_on_grow_they_are_cut_in_after_ten_quiet_seconds() -> None:
    keeper = BaseKeeper()
    inp = serving(bases=BASE, spec=Spec(rebalance=Rebalance.ON_GROW))
    assert [run(keeper, inp, now) for now in (1000.0, 1005.0, 1009.0, 1010.0)] == [False, False, False, True]


def test_a_changed_spec_cuts_anew_once_and_at_most_every_five_minutes() -> None:
    keeper = BaseKeeper()
    assert not run(keeper, serving(bases=BASE), 1000.0)
    reserved = serving(bases=BASE, spec=Spec(reserved_cpus=CpuSet.parse("0-1")))
    assert [run(keeper, reserved, now) for now in (1001.0, 1011.0)] == [False, True]
    after = serving(bases=make_plan(replace(reserved, bases=())).bases, spec=reserved.spec)
    assert not run(keeper, after, 1100.0)
    other = replace(after, spec=Spec(strategy=Strategy.NUMA_SLICE))
    assert [run(keeper, other, now) for now in (1101.0, 1200.0, 1310.0, 1311.0)] == [False, False, False, True]


def test_a_change_that_gives_the_same_bases_is_done_with_and_does_not_wait_for_the_next_cpuset() -> None:
    keeper = BaseKeeper()
    inp = serving()
    bases = make_plan(inp).bases
    assert not run(keeper, replace(inp, bases=bases), 1000.0)
    other = serving(bases=bases, spec=Spec(strategy=Strategy.NUMA_SLICE))
    assert [run(keeper, other, now) for now in (1001.0, 1011.0)] == [False, True]
    less = serving("0-69", other.spec, bases)
    assert not any(run(keeper, less, float(now)) for now in range(1012, 3000, 50))


def test_a_base_that_comes_beside_others_does_not_make_a_changed_spec_forgotten() -> None:
    keeper = BaseKeeper()
    assert not run(keeper, serving(bases=BASE), 1000.0)
    reserved = serving(bases=BASE, spec=Spec(reserved_cpus=CpuSet.parse("0-1")))
    own = Container("d", CpuSet.parse("70-79"))
    two = replace(
        reserved,
        containers=(*reserved.containers, own),
        workers=(*reserved.workers, Worker(ProcessId(8, 8), (1,), "d")),
    )
    bases = make_plan(two).bases
    assert len(bases) == 2
    assert not run(keeper, two, 1005.0)
    assert [run(keeper, replace(two, bases=bases), now) for now in (1006.0, 1304.0, 1306.0)] == [False, False, True]


def test_what_bases_were_cut_by_is_known_to_the_next_agent() -> None:
    spec = Spec(reserved_cpus=CpuSet.parse("0-1"))
    inp = serving(bases=BASE, spec=spec)
    for noted, cuts in ((Cutting(), True), (Cutting.of(spec), False), (None, False)):
        keeper = BaseKeeper(noted)
        assert [run(keeper, inp, now) for now in (1000.0, 1010.0)] == [False, cuts]
        assert keeper.cut_by == Cutting.of(spec)


def test_input_that_keeps_changing_is_not_cut() -> None:
    keeper = BaseKeeper()
    spec = Spec(rebalance=Rebalance.ON_GROW)
    moving = [serving(cpus, spec, BASE) for cpus in ("0-79", "0-78", "0-77", "0-76")]
    assert not any(run(keeper, moving[i % 4], 1000.0 + 5 * i) for i in range(40))


def test_an_npu_that_vanishes_is_kept_as_missing_until_the_driver_is_loaded_anew() -> None:
    whole = Inventory(tuple(Npu(n, bus_id=f"0000:{n:02x}:00.0") for n in range(4)), DeviceType.A2)
    less = Inventory(whole.npus[:3], DeviceType.A2)
    universe, seen = Universe().grow("boot-1", "25.0", whole)
    assert seen == whole
    universe, seen = universe.grow("boot-1", "25.0", less)
    assert [npu.missing for npu in seen.npus] == [False, False, False, True]
    assert seen.npus[3].bus_id == "0000:03:00.0"
    _, back = universe.grow("boot-1", "25.0", whole)
    assert back == whole
    for boot, driver in (("boot-2", "25.0"), ("boot-1", "25.1")):
        assert universe.grow(boot, driver, less)[1] == less


def test_a_missing_npu_keeps_its_pool_and_moves_nobody() -> None:
    whole = serving()
    gone = replace(whole, inventory=Inventory((Npu(0), Npu(1, missing=True)), DeviceType.A3))
    before, after = make_plan(whole), make_plan(gone)
    assert [n.allotment.pool for n in after.npus] == [n.allotment.pool for n in before.npus]
    assert after.npus[1].allotment.problem is not None
    assert after.npus[1].allotment.problem.reason == "NpuMissing"
    assert after.workers == before.workers
