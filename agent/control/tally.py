"""What the loop did, counted as it does it. Nothing here reads the host, or waits for anybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agent.control.act import ActResult
from agent.control.steps import StepsResult
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.figures import (
    MEMORY_RESULTS,
    OPERATION_ROLES,
    PLAN_CHANGES,
    IrqState,
    MemoryResult,
    Operation,
    OperationRole,
    PlanChange,
)
from agent.model.outcome import IrqOutcome, MemoryOutcome, UvbOutcome, WorkerOutcome
from agent.model.plan import Plan, PlanInput, Roles
from agent.model.reason import Reason
from agent.model.spec import Mode, Role, Spec, ThreadRule
from agent.model.workload import ProcessId

ROLE: Final[Mapping[Role, OperationRole]] = {
    Role.IRQ: "irq",
    Role.MAIN: "main",
    Role.ACL: "acl",
    Role.RELEASE: "release",
}
THREADS: Final[tuple[OperationRole, ...]] = ("main", "acl", "release", "uvb")
_USUAL: Final[Sequence[Operation]] = (
    *((role, "bound", Reason.AS_PLANNED) for role in OPERATION_ROLES),
    *((role, "failed", reason) for role in THREADS for reason in (Reason.PERMISSION_DENIED, Reason.UNMOVABLE)),
    *(("irq", "failed", reason) for reason in (Reason.IRQ_REFUSED, Reason.IRQ_READ_ONLY)),
)
"""That are certain to come, or bad news: a counter that begins with 1 has no rate."""
_NOTHING: Final = MemoryOutcome("Pending")


@dataclass(frozen=True, slots=True)
class Placed:
    """A bound worker, as a pass left it."""

    process: ProcessId
    npus: tuple[int, ...]
    roles: Roles
    rules: tuple[ThreadRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """How things are after a pass. Replaced as a whole, so that any thread may read it."""

    placed: tuple[Placed, ...] = ()
    pools: Mapping[int, CpuSet] = field(default_factory=dict)
    """Of the plan, by NPU."""
    threads: Mapping[str, int] = field(default_factory=dict)
    """By role."""
    irqs: Mapping[IrqState, int] = field(default_factory=dict)


class Tally:
    """Written by the loop, read by any thread."""

    def __init__(self, memory: Mapping[ProcessId, MemoryOutcome]) -> None:
        """`memory` is what came of workers under an earlier run of the agent, which counts for nothing."""
        self.operations: dict[Operation, int] = dict.fromkeys(_USUAL, 0)
        self.memory_bytes: dict[MemoryResult, int] = dict.fromkeys(MEMORY_RESULTS, 0)
        self.plan_changes: dict[PlanChange, int] = dict.fromkeys(PLAN_CHANGES, 0)
        self.standing = Standing()
        self._threads: dict[ProcessId, Mapping[Role, int]] = {}
        self._unmovable: dict[tuple[ProcessId, Role], int] = {}
        self._irqs: Mapping[int, IrqOutcome] = {}
        self._uvb: UvbOutcome | None = None
        self._memory = memory
        self._hash = ""
        self._made_of: PlanInput | None = None

    def acted(self, acted: ActResult, done: StepsResult) -> None:
        """What one pass did under Enforce, by itself."""
        for outcome in acted.outcomes.values():
            self._worker(outcome)
        for npu, irq in done.irqs.items():
            self._add("irq", irq.written)
            before = self._irqs.get(npu)
            # It is tried again after ever longer times, which are not told: what stays as it is counts once.
            if irq.astray and irq.problem is not None and (before is None or before.problem != irq.problem):
                self._fail("irq", irq.problem.reason, irq.astray)
        self._irqs = done.irqs
        if done.uvb is not None:
            self._add("uvb", done.uvb.written)
            if done.uvb.state == "Failed" and done.uvb.problem and (not self._uvb or self._uvb.problem is None):
                self._fail("uvb", done.uvb.problem.reason)
        self._uvb = done.uvb
        self._add("helper", done.helpers + sum(acted.returned.values()))
        living = acted.outcomes.keys()
        self._unmovable = {key: count for key, count in self._unmovable.items() if key[0] in living}

    def remembered(self, memory: Mapping[ProcessId, MemoryOutcome]) -> None:
        """What came of memory, of all workers that are known. Memory that could not be read is looked at again, and
        counts once all the same."""
        counted = {process: self._memory[process] for process in memory if process in self._memory}
        for process, outcome in memory.items():
            if outcome.state == "Pending":
                continue
            before = counted.get(process, _NOTHING)
            now = replace(
                outcome,
                moved=max(outcome.moved, before.moved),
                left=max(outcome.left, before.left),
                skipped=max(outcome.skipped, before.skipped),
            )
            self.memory_bytes["moved"] += now.moved - before.moved
            self.memory_bytes["left"] += now.left - before.left
            self.memory_bytes["skipped"] += now.skipped - before.skipped
            counted[process] = now
        self._memory = counted

    def stands(
        self, plan: Plan, force: Mapping[ProcessId, Roles], acted: ActResult, done: StepsResult, spec: Spec
    ) -> None:
        """How things are after a pass; `force` has the workers that are bound, in a dry run those that would be."""
        planned = {entry.worker.process for entry in plan.workers} if spec.mode is not Mode.DISABLED else set()
        seen = {p: {r: counts.total for r, counts in o.threads.items()} for p, o in acted.outcomes.items() if o.threads}
        # Of a worker that somebody else keeps moving no pass counts the threads: it has those that it had.
        self._threads = {p: threads for p, threads in {**self._threads, **seen}.items() if p in planned}
        threads = {role.value: sum(t.get(role, 0) for t in self._threads.values()) for role in ROLE}
        irqs = done.irqs.values() if spec.mode is Mode.ENFORCE else ()
        astray = sum(outcome.astray for outcome in irqs)
        self.standing = Standing(
            placed=tuple(
                Placed(entry.worker.process, entry.worker.npus, force[entry.worker.process], spec.thread_rules)
                for entry in plan.workers
                if entry.worker.process in force
            ),
            pools={npu.id: npu.allotment.pool for npu in plan.npus},
            threads=threads | {"uvb": done.uvb.threads if done.uvb is not None else 0},
            irqs={"placed": sum(outcome.irqs for outcome in irqs) - astray, "astray": astray},
        )

    def planned(self, plan_hash: str, made_of: PlanInput) -> None:
        """Pools and roles as they are reported now, by their hash, and what the plan was made of."""
        if plan_hash and plan_hash != self._hash:
            self.plan_changes[_change(self._made_of, made_of)] += 1
            self._hash = plan_hash
        self._made_of = made_of

    def _worker(self, outcome: WorkerOutcome) -> None:
        for role, counts in outcome.threads.items():
            self._add(ROLE[role], counts.written)
            self._fail(ROLE[role], Reason.PERMISSION_DENIED, counts.denied)
            self._fail(ROLE[role], Reason.CPUSET_CHANGED, counts.outside)
            # These are remembered and not tried again.
            before = self._unmovable.get((outcome.process, role), 0)
            self._fail(ROLE[role], Reason.UNMOVABLE, max(0, counts.unmovable - before))
            self._unmovable[outcome.process, role] = counts.unmovable
        problem = outcome.problem
        if outcome.state == "Failed" and not outcome.threads and problem and problem.reason is not Reason.PROCESS_GONE:
            self._fail("main", problem.reason)

    def _add(self, role: OperationRole, count: int) -> None:
        self.operations[role, "bound", Reason.AS_PLANNED] += count

    def _fail(self, role: OperationRole, reason: Reason, count: int = 1) -> None:
        if count:
            key: Operation = (role, "failed", reason)
            self.operations[key] = self.operations.get(key, 0) + count


def overlap(standing: Standing) -> int:
    """CPUs that more than one NPU has, by the plan or by what its workers are bound to. There should be none.

    A worker on several NPUs has what all of them have, which is no fault."""
    taken = dict(standing.pools)
    for worker in standing.placed:
        if len(worker.npus) == 1:
            roles = worker.roles
            own = roles.main | roles.acl | roles.release | roles.irq
            taken[worker.npus[0]] = taken.get(worker.npus[0], EMPTY) | own
    once = twice = 0
    for cpus in taken.values():
        twice |= once & cpus.bits
        once |= cpus.bits
    return twice.bit_count()


def _change(before: PlanInput | None, now: PlanInput) -> PlanChange:
    """The first of what differs, that which people did foremost."""
    if before is None:
        return "start"
    if before.spec != now.spec:
        return "spec"
    if before.topology != now.topology:
        return "topology"
    if before.inventory != now.inventory:
        return "inventory"
    if before.bases != now.bases:
        return "base"
    return "workload"
