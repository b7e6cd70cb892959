"""Hosts without kubelet: containers whose cpusets are their own, one after the other."""

from __future__ import annotations

from dataclasses import replace

from agent.model.cpuset import CpuSet
from agent.model.plan import Plan, PlanInput
from agent.model.workload import Container
from agent.planning.plan import make_plan
from tests.planning import hosts


def docker(key: str, cpus: str) -> Container:
    return Container(key, CpuSet.parse(cpus))


def pool(plan: Plan, pid: int) -> str:
    return next(str(w.allotment.pool) for w in plan.workers if w.worker.process.pid == pid)


def then(before: Plan, inp: PlanInput) -> PlanInput:
    return replace(inp, bases=before.bases)


def test_a_container_with_a_home_of_its_own_is_planned_beside_an_earlier_one() -> None:
    a2 = hosts.a2_far_pairs()
    a, b = docker("a", "144-191"), docker("b", "0-191")
    before = make_plan(a2.running([a], [hosts.worker(1, 0, "a")]))
    both = make_plan(then(before, a2.running([a, b], [hosts.worker(1, 0, "a"), hosts.worker(2, 1, "b")])))
    assert pool(both, 1) == pool(before, 1) == "144-167"
    assert pool(both, 2) == "0-23"


def test_a_later_container_has_a_domain_of_its_own_and_moves_nobody() -> None:
    a3 = hosts.a3(640)
    a, b = docker("a", "0-319"), docker("b", "300-639")
    before = make_plan(a3.running([a], [hosts.worker(1, 1, "a")]))
    assert pool(before, 1) == "20-39"
    both = make_plan(then(before, a3.running([a, b], [hosts.worker(1, 1, "a"), hosts.worker(2, 15, "b")])))
    assert pool(both, 1) == "20-39"
    # Its cut of 340 CPUs gives 619-639, and 300-319 is NPU 15's from the first cut.
    assert pool(both, 2) == "300-319,619-639"
    alone = make_plan(then(both, a3.running([b], [hosts.worker(2, 15, "b")])))
    assert pool(alone, 2) == pool(both, 2)


def test_a_later_container_that_starves_takes_nothing_from_a_bound_one() -> None:
    a3 = hosts.a3(640)
    a, b = docker("a", "0-319"), docker("b", "310-330")
    before = make_plan(a3.running([a], [hosts.worker(1, 1, "a")]))
    both = make_plan(then(before, a3.running([a, b], [hosts.worker(1, 1, "a"), hosts.worker(2, 0, "b")])))
    assert pool(both, 1) == "20-39"
    assert next(w for w in both.workers if w.worker.process.pid == 2).allotment.problem is not None


def test_planning_again_with_these_bases_changes_nothing() -> None:
    a3 = hosts.a3(640)
    containers = [docker("a", "0-319"), docker("b", "300-639"), docker("c", "100-500")]
    workers = [hosts.worker(n, n, "abc"[n % 3]) for n in range(6)]
    plan = None
    for count in (1, 2, 3):
        present = [w for w in workers if w.container in [c.key for c in containers[:count]]]
        inp = a3.running(containers[:count], present)
        plan = make_plan(inp if plan is None else then(plan, inp))
        assert make_plan(then(plan, inp)) == plan


def test_bases_do_not_pile_up_as_containers_come_and_go() -> None:
    a3 = hosts.a3(640)
    stays = docker("stays", "0-79")
    plan = make_plan(a3.running([stays], [hosts.worker(1, 0, "stays")]))
    for n in range(40):
        guest = docker("guest", f"{100 + n}-{300 + n}")
        workers = [hosts.worker(1, 0, "stays"), hosts.worker(2, 1, "guest")]
        plan = make_plan(then(plan, a3.running([stays, guest], workers)))
        plan = make_plan(then(plan, a3.running([stays], workers[:1])))
        assert pool(plan, 1) == "0-4"
        assert len(plan.bases) == 1
