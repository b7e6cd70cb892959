"""Act: make every worker's threads be where the plan says, and say what came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.control.journal import BoundWorker
from agent.control.observe import Observation
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import WorkerOutcome
from agent.model.plan import Allotment, Plan, Roles, WorkerPlan
from agent.model.reason import Problem, Reason
from agent.model.spec import Mode, Spec
from agent.model.workload import ProcessId
from agent.node.host import DryRunHost, Host
from agent.node.threads import ThreadBinder


@dataclass(slots=True)
class _Binding:
    """What is in force for one worker."""

    roles: Roles
    pool: CpuSet
    complete: bool = False
    """A first binding has been through, as far as the kernel let it: from then on a main thread that narrowed itself is
    left alone."""
    left: CpuSet = EMPTY
    """The CPUs that it had before these, on which its descendants may still be."""
    released: bool = False
    """It was taken back, as far as that went, and that was told."""
    undone: bool = False
    """It was taken back whole: another pass has to find whatever was forked meanwhile."""


@dataclass(frozen=True, slots=True)
class ActResult:
    """What one pass did."""

    outcomes: dict[ProcessId, WorkerOutcome] = field(default_factory=dict)
    released: dict[ProcessId, int] = field(default_factory=dict)
    """Workers whose plan failed -> threads given back to their cpuset."""
    undone: dict[ProcessId, int] = field(default_factory=dict)
    """Workers that are not to be bound any more -> threads of theirs and of their descendants given back."""
    returned: dict[ProcessId, int] = field(default_factory=dict)
    """Workers -> threads of their descendants taken off CPUs that are set apart."""
    stuck: dict[ProcessId, Problem] = field(default_factory=dict)
    """Workers that are still bound, and should not be -> why."""
    withheld: int = 0
    """Writes that a dry run would have made."""
    replan: bool = False
    """Look and plan again at once: a cpuset changed under the plan, or something was undone."""

    def after(self, earlier: ActResult) -> ActResult:
        """What this pass and an earlier one did together."""
        drift = {process: outcome.drift for process, outcome in earlier.outcomes.items()}
        return replace(
            self,
            outcomes={p: replace(o, drift=(*drift.get(p, ()), *o.drift)) for p, o in self.outcomes.items()},
            released=_summed(earlier.released, self.released),
            undone=_summed(earlier.undone, self.undone),
            returned=_summed(earlier.returned, self.returned),
        )


def _summed(one: Mapping[ProcessId, int], other: Mapping[ProcessId, int]) -> dict[ProcessId, int]:
    return {process: one.get(process, 0) + other.get(process, 0) for process in (*one, *other)}


class Actor:
    """Applies plans. Remembers what is bound, by (pid, start time), for as long as the process lives."""

    def __init__(self, proc_root: Path, host: Host) -> None:
        self.binder = ThreadBinder(proc_root, host)
        self._dry_host = DryRunHost(host)
        self._dry_binder = ThreadBinder(proc_root, self._dry_host)
        self._bindings: dict[ProcessId, _Binding] = {}

    def adopt(self, workers: Iterable[BoundWorker]) -> None:
        """Bindings of an earlier run of the agent: they are kept, not made for a first time."""
        for worker in workers:
            self._bindings[worker.process] = _Binding(worker.roles, worker.pool, complete=True)

    @property
    def bindings(self) -> frozenset[ProcessId]:
        """Workers in which anything was ever done to a thread that has not been undone."""
        return frozenset(self._bindings)

    def bound(self) -> list[BoundWorker]:
        """Workers whose first binding has been through."""
        return [
            BoundWorker(process, binding.pool, binding.roles)
            for process, binding in self._bindings.items()
            if binding.complete
        ]

    def keep(self, plan: Plan, seen: Observation) -> Plan:
        """The plan, in which bound workers of which too little is known to plan for them keep the CPUs that they have:
        they may own them without anybody having said so yet. Where a cpuset has lost some of these, the plan stands."""
        pools = {npu.id: npu.allotment.pool for npu in plan.npus}
        workers = []
        for entry in plan.workers:
            process = entry.worker.process
            binding = self._bindings.get(process) if process in seen.unknown else None
            known = binding is None or binding.roles == entry.allotment.roles
            if binding is not None and not known and binding.pool <= seen.cpusets.get(process, EMPTY):
                shared = [pools.get(npu) for npu in entry.worker.npus] == [binding.pool]
                entry = replace(entry, allotment=Allotment(binding.pool, binding.roles), own=not shared)  # noqa: PLW2901
            workers.append(entry)
        return replace(plan, workers=tuple(workers))

    def act(self, plan: Plan, seen: Observation, spec: Spec) -> ActResult:
        """One pass over all workers of a plan. Writes only what is not in place."""
        if spec.mode is Mode.DISABLED:
            return self.restore(seen.topology.online, seen.children)
        if spec.mode is Mode.DRY_RUN:
            return self._rehearse(plan, seen, spec)
        result = ActResult()
        replan = False
        online = seen.topology.online
        planned = {entry.worker.process for entry in plan.workers}
        pids = {process.pid for process in planned}
        for entry in plan.workers:
            process = entry.worker.process
            roles = entry.allotment.roles
            if roles is None:
                # A bound worker whose plan fails goes back to its cpuset, it is not left on old masks (design 4.9).
                problem = entry.allotment.problem
                if process in self._bindings and not (problem and problem.reason in _PASSING):
                    replan |= self._undo(
                        process, online, seen.children, pids, counts=result.released, stuck=result.stuck
                    )
                continue
            outcome = self._bind(entry, roles, seen, spec)
            result.outcomes[process] = outcome
            if outcome.state in ("Bound", "Partial") and (
                moved := self._return_descendants(process, roles, seen, pids)
            ):
                result.returned[process] = moved
        for process in seen.dismissed & self._bindings.keys():
            replan |= self._undo(process, online, seen.children, pids, counts=result.undone, stuck=result.stuck)
        # One that is not seen on its NPU any more stays bound, for as long as it lives.
        living = planned | {process for process in self._bindings.keys() - planned if self.binder.lives(process)}
        self._bindings = {process: kept for process, kept in self._bindings.items() if process in living}
        self.binder.retain(living)
        replan |= any(o.problem and o.problem.reason is Reason.CPUSET_CHANGED for o in result.outcomes.values())
        return replace(result, replan=replan)

    def restore(self, online: CpuSet, children: Mapping[int, Sequence[int]]) -> ActResult:
        """Undoes every binding. Those that could not be undone, or not be proven so, are still in `bindings`."""
        result = ActResult()
        replan = False
        for process in list(self._bindings):
            replan |= self._undo(process, online, children, (), counts=result.undone, stuck=result.stuck)
        return replace(result, replan=replan)

    def _undo(
        self,
        process: ProcessId,
        online: CpuSet,
        children: Mapping[int, Sequence[int]],
        exclude: Collection[int],
        *,
        counts: dict[ProcessId, int],
        stuck: dict[ProcessId, Problem],
    ) -> bool:
        """Gives a worker that is not to be bound any more, and what descends from it, back to its cpuset. Adds to
        `counts` how many threads that moved, once, and to `stuck` why it is to be tried again. Whether another look
        is wanted at once."""
        binding = self._bindings[process]
        pool = binding.pool | binding.left
        moved = self.binder.release(process, pool=pool, online=online)
        inherited = self.binder.release_descendants(
            process, pool=pool, online=online, children=children, exclude=exclude
        )
        count = moved.threads + inherited.threads
        if count and not binding.released:
            counts[process] = count
        again = False
        problem = moved.problem or inherited.problem
        if problem is not None:
            stuck[process] = problem
        elif binding.undone or not count:
            del self._bindings[process]
        else:
            again = binding.undone = True
        # Where a pool is all that a cpuset has, threads that are free look as if they were not.
        binding.released = True
        return again

    def _bind(self, entry: WorkerPlan, roles: Roles, seen: Observation, spec: Spec) -> WorkerOutcome:
        process = entry.worker.process
        cpuset = seen.cpusets.get(process)
        if cpuset is None:
            message = f"the cpuset of process {process.pid} cannot be read"
            return WorkerOutcome(process, "Failed", Problem(Reason.CPUSET_UNREADABLE, message))
        binding = self._bindings.get(process)
        if binding is None or binding.released or binding.roles != roles:
            # New CPUs are a first binding again: what lies within the old ones would look like a thread's own choice.
            left = binding.pool | binding.left if binding is not None else EMPTY
            binding = self._bindings[process] = _Binding(roles, entry.allotment.pool, left=left)
        online, rules, first = seen.topology.online, spec.thread_rules, not binding.complete
        outcome = self.binder.bind(process, roles, cpuset=cpuset, online=online, rules=rules, first=first)
        binding.complete = binding.complete or outcome.state in ("Bound", "Partial")
        return outcome

    def _rehearse(self, plan: Plan, seen: Observation, spec: Spec) -> ActResult:
        """A dry run: the same pass, with every write recorded in place of made, and nothing remembered as done."""
        outcomes = {}
        for entry in plan.workers:
            process, roles = entry.worker.process, entry.allotment.roles
            cpuset = seen.cpusets.get(process)
            if roles is None or cpuset is None:
                continue
            binding = self._bindings.get(process)
            first = binding is None or binding.released or binding.roles != roles or not binding.complete
            online, rules = seen.topology.online, spec.thread_rules
            outcomes[process] = self._dry_binder.bind(
                process, roles, cpuset=cpuset, online=online, rules=rules, first=first
            )
        self._dry_binder.retain(outcomes)
        withheld = len(self._dry_host.writes)
        self._dry_host.writes.clear()
        return ActResult(outcomes, withheld=withheld)

    def _return_descendants(self, process: ProcessId, roles: Roles, seen: Observation, workers: Collection[int]) -> int:
        binding = self._bindings[process]
        if process.pid not in seen.children:
            binding.left = EMPTY
            return 0
        if not (roles.apart or binding.left):
            return 0
        moved = self.binder.return_descendants(
            process,
            roles,
            cpuset=seen.cpusets[process],
            online=seen.topology.online,
            children=seen.children,
            exclude=workers,
            left=binding.left,
        )
        if moved.problem is None:
            binding.left = EMPTY
        return moved.threads


_PASSING = frozenset({Reason.NPUS_CHANGING, Reason.PENDING, Reason.CPUSET_UNREADABLE})
"""Problems that say nothing against what is bound: it stays until there is a plan again."""
