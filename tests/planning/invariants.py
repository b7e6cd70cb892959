"""What holds of every plan (design 4.6, 4.7, 4.10), whatever it was made from."""

from __future__ import annotations

from collections.abc import Iterator

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import DeviceType
from agent.model.plan import Allotment, NpuPlan, Plan, PlanInput, WorkerPlan
from agent.model.reason import Reason


def node_cpus(inp: PlanInput) -> CpuSet:
    """Section 2: online CPUs of the root cpuset without reserved and, unless asked for, isolated ones."""
    usable = inp.topology.online & inp.topology.root - inp.spec.reserved_cpus
    return usable if inp.spec.include_isolated_cpus else usable - inp.topology.isolated


def exclusive_cpus(inp: PlanInput) -> CpuSet:
    return union(container.owned for container in inp.containers if container.owned is not None)


def pools_by_npu(plan: Plan) -> Iterator[tuple[int, CpuSet]]:
    """Every pool that somebody gets or is shown, with the NPU it is for."""
    for npu in plan.npus:
        yield npu.id, npu.allotment.pool
    for each in plan.workers:
        if len(each.worker.npus) == 1:
            yield each.worker.npus[0], each.allotment.pool


def all_of(allotment: Allotment) -> CpuSet:
    """Every CPU that an allotment speaks of."""
    roles = allotment.roles
    if roles is None:
        return allotment.pool
    return allotment.pool | roles.main | roles.irq | roles.acl | roles.release


def assert_sound(inp: PlanInput, plan: Plan) -> None:
    """All invariants of one plan."""
    for message in _messages(plan):
        assert len(message.encode()) <= 256
        assert message.isprintable()
    assert (
        sorted(each.worker.process for each in plan.workers) == sorted(w.process for w in inp.workers) or plan.problem
    )
    if plan.problem is not None:
        assert all(each.allotment.roles is None for each in _entries(plan))
        return
    assert [npu.id for npu in plan.npus] == sorted(inp.inventory.ids)
    assert [(w.worker.npus, w.worker.process) for w in plan.workers] == sorted(
        (worker.npus, worker.process) for worker in inp.workers
    )
    assert plan.node_cpus == node_cpus(inp)
    _pools_of_two_npus_are_apart(plan)
    for npu in plan.npus:
        _allotment_is_whole(plan.device_type, npu.allotment)
        assert all_of(npu.allotment) <= inp.topology.online - inp.spec.reserved_cpus
        if not npu.exclusive:
            assert all_of(npu.allotment) <= node_cpus(inp) - exclusive_cpus(inp)
        found = inp.inventory.get(npu.id)
        problem = npu.allotment.problem
        assert found is not None
        assert found.missing == (problem is not None and problem.reason is Reason.NPU_MISSING)
    for each in plan.workers:
        _stays_in_its_container(inp, each)
        if len(each.worker.npus) == 1:
            _allotment_is_whole(plan.device_type, each.allotment)
        else:
            _several_npus_have_no_role_threads(each)
        _says_where_it_is_like_its_npu(plan, each)
    assert plan.uvb <= node_cpus(inp) & inp.topology.cpus_of(0) - exclusive_cpus(inp)
    assert all(plan.uvb.isdisjoint(pool) for _, pool in pools_by_npu(plan))
    if plan.device_type is not DeviceType.ASCEND_950:
        assert plan.uvb == EMPTY
        assert plan.uvb_problem is None


def _pools_of_two_npus_are_apart(plan: Plan) -> None:
    owner: dict[int, int] = {}
    for npu, pool in pools_by_npu(plan):
        for cpu in pool:
            assert owner.setdefault(cpu, npu) == npu, f"CPU {cpu} is in the pools of NPUs {owner[cpu]} and {npu}"
    for each in plan.workers:
        for cpu in all_of(each.allotment):
            assert owner.get(cpu, each.worker.npus[0] if each.worker.npus else -1) in each.worker.npus


def _allotment_is_whole(device_type: DeviceType, allotment: Allotment) -> None:
    """A pool with roles that partition it, or a problem and no roles (a missing card keeps what it had)."""
    if allotment.problem is not None and allotment.problem.reason is not Reason.NPU_MISSING:
        assert allotment.roles is None
        return
    if allotment.problem is not None and allotment.roles is None:
        return
    roles, pool = allotment.roles, allotment.pool
    assert roles is not None
    assert pool
    if device_type is DeviceType.ASCEND_950:
        assert roles.main == pool
        assert not roles.apart
        return
    listed = list(pool)
    assert len(listed) >= 5
    assert list(roles.irq) == listed[:2]
    assert list(roles.main) == listed[2:-2]
    assert list(roles.acl) == listed[-2:-1]
    assert list(roles.release) == listed[-1:]


def _several_npus_have_no_role_threads(each: WorkerPlan) -> None:
    roles = each.allotment.roles
    if each.allotment.problem is not None:
        assert roles is None
        return
    assert roles is not None
    assert roles.main
    assert not roles.apart


def _stays_in_its_container(inp: PlanInput, each: WorkerPlan) -> None:
    container = next((c for c in inp.containers if c.key == each.worker.container), None)
    if container is None:
        assert each.allotment.roles is None
        return
    taken = all_of(each.allotment)
    assert taken <= container.cpus & inp.topology.online & inp.topology.root
    if container.owned is None:
        assert taken <= node_cpus(inp) - exclusive_cpus(inp)
    else:
        assert taken <= container.owned - inp.spec.reserved_cpus


def _says_where_it_is_like_its_npu(plan: Plan, each: WorkerPlan) -> None:
    if not each.own and each.allotment.problem is None:
        assert len(each.worker.npus) == 1
        entry = plan.npu(each.worker.npus[0])
        assert entry is not None
        assert entry.domain == each.domain
        assert entry.allotment.pool == each.allotment.pool
        missing = entry.allotment.problem is not None and entry.allotment.problem.reason is Reason.NPU_MISSING
        assert missing or entry.allotment == each.allotment


def _entries(plan: Plan) -> list[NpuPlan | WorkerPlan]:
    return [*plan.npus, *plan.workers]


def _messages(plan: Plan) -> Iterator[str]:
    found = [plan.problem, plan.uvb_problem]
    for each in _entries(plan):
        found += [each.allotment.problem, each.allotment.note]
    yield from (problem.message for problem in found if problem is not None)
