"""Short readings of inputs and plans, for the tests that compare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.model.cpuset import CpuSet
from agent.model.plan import Allotment, Plan, PlanInput
from agent.model.reason import Reason
from agent.planning.plan import make_plan
from tests.planning.invariants import assert_sound, node_cpus


def planned(inp: PlanInput) -> Plan:
    """The plan, with all its invariants checked."""
    plan = make_plan(inp)
    assert_sound(inp, plan)
    return plan


def allotment(plan: Plan, npu_id: int) -> Allotment:
    npu = plan.npu(npu_id)
    assert npu is not None
    return npu.allotment


def allotment_of(plan: Plan, pid: int) -> Allotment:
    return next(each.allotment for each in plan.workers if each.worker.process.pid == pid)


def reason(plan: Plan, npu_id: int) -> Reason | None:
    problem = allotment(plan, npu_id).problem
    return None if problem is None else problem.reason


def reasons(plan: Plan) -> dict[int, Reason | None]:
    return {npu.id: reason(plan, npu.id) for npu in plan.npus}


def pools(plan: Plan) -> dict[int, str]:
    """The pool of every NPU, as a list."""
    assert plan.problem is None
    return {npu.id: str(npu.allotment.pool) for npu in plan.npus}


def given_pools(plan: Plan) -> dict[int, str]:
    """The pools of the NPUs that got one."""
    return {npu: pool for npu, pool in pools(plan).items() if reason(plan, npu) is None}


def readable(cpus_by_npu: Mapping[int, Iterable[int]]) -> dict[int, str]:
    return {npu: str(CpuSet(pool)) for npu, pool in cpus_by_npu.items()}


def pools_by_pid(plan: Plan) -> dict[int, str]:
    return {each.worker.process.pid: str(each.allotment.pool) for each in plan.workers}


def bound(plan: Plan) -> set[int]:
    """The NPUs whose worker got its pool."""
    return {npu for each in plan.workers if each.allotment.problem is None for npu in each.worker.npus}


def node_of(inp: PlanInput) -> dict[int, int]:
    """The NUMA node of every online CPU; 0 where no node lists it."""
    nodes = dict.fromkeys(inp.topology.online, 0)
    for node in inp.topology.nodes:
        nodes.update(dict.fromkeys(node.cpus, node.id))
    return nodes


def allowed(inp: PlanInput) -> list[int]:
    """Of the one shared container; of the node while nothing runs in it (design 4.7)."""
    return list(node_cpus(inp) & inp.containers[0].cpus if inp.workers else node_cpus(inp))


def affinity(inp: PlanInput) -> dict[int, list[int] | None]:
    return {npu.id: None if npu.affinity is None else list(npu.affinity) for npu in inp.inventory.npus}
