"""Act: make every worker's threads be where the plan says, and say what came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.control.journal import BoundWorker
from agent.control.observe import Observation
from agent.model.cpuset import CpuSet
from agent.model.outcome import WorkerOutcome
from agent.model.plan import Plan, Roles, WorkerPlan
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
    withheld: int = 0
    """Writes that a dry run would have made."""
    replan: bool = False
    """A cpuset changed under the plan: look and plan again at once."""


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
    def remaining(self) -> int:
        """Workers in which anything was ever done to a thread that has not been undone."""
        return len(self._bindings)

    def bound(self) -> list[BoundWorker]:
        """Workers whose first binding has been through."""
        return [
            BoundWorker(process, binding.pool, binding.roles)
            for process, binding in self._bindings.items()
            if binding.complete
        ]

    def act(self, plan: Plan, seen: Observation, spec: Spec) -> ActResult:
        """One pass over all workers of a plan. Writes only what is not in place."""
        if spec.mode is Mode.DISABLED:
            return self.restore(seen.topology.online, seen.children)
        if spec.mode is Mode.DRY_RUN:
            return self._rehearse(plan, seen, spec)
        result = ActResult()
        pids = {entry.worker.process.pid for entry in plan.workers}
        for entry in plan.workers:
            process = entry.worker.process
            if entry.allotment.roles is None:
                if moved := self._release(process, entry.allotment.problem, seen):
                    result.released[process] = moved
                continue
            outcome = self._bind(entry, entry.allotment.roles, seen, spec)
            result.outcomes[process] = outcome
            if outcome.state in ("Bound", "Partial") and (
                moved := self._return_descendants(process, entry.allotment.roles, seen, pids)
            ):
                result.returned[process] = moved
        for process in seen.dismissed & self._bindings.keys():
            result.undone[process] = self._undo(process, seen.topology.online, seen.children, pids)
        living = {entry.worker.process for entry in plan.workers} | (seen.dismissed & self._bindings.keys())
        self._bindings = {process: kept for process, kept in self._bindings.items() if process in living}
        self.binder.retain(living)
        changed = any(o.problem and o.problem.reason is Reason.CPUSET_CHANGED for o in result.outcomes.values())
        return replace(result, replan=changed)

    def restore(self, online: CpuSet, children: Mapping[int, Sequence[int]]) -> ActResult:
        """Undoes every binding. Those that could not be undone are still in `bound`."""
        result = ActResult()
        for process in list(self._bindings):
            result.undone[process] = self._undo(process, online, children, ())
        return result

    def _undo(
        self, process: ProcessId, online: CpuSet, children: Mapping[int, Sequence[int]], exclude: Collection[int]
    ) -> int:
        """Gives a worker that is not to be bound any more, and what descends from it, back to its cpuset."""
        pool = self._bindings[process].pool
        inherited = self.binder.release_descendants(
            process, pool=pool, online=online, children=children, exclude=exclude
        )
        moved = self.binder.release(process, pool=pool, online=online)
        if moved.problem is None and inherited.problem is None:
            del self._bindings[process]
        return moved.threads + inherited.threads

    def _bind(self, entry: WorkerPlan, roles: Roles, seen: Observation, spec: Spec) -> WorkerOutcome:
        process = entry.worker.process
        cpuset = seen.cpusets.get(process)
        if cpuset is None:
            message = f"the cpuset of process {process.pid} cannot be read"
            return WorkerOutcome(process, "Failed", Problem(Reason.CPUSET_UNREADABLE, message))
        binding = self._bindings.get(process)
        if binding is None or binding.roles != roles:
            # New CPUs are a first binding again: what lies within the old ones would look like a thread's own choice.
            binding = self._bindings[process] = _Binding(roles, entry.allotment.pool)
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
            first = binding is None or binding.roles != roles or not binding.complete
            online, rules = seen.topology.online, spec.thread_rules
            outcomes[process] = self._dry_binder.bind(
                process, roles, cpuset=cpuset, online=online, rules=rules, first=first
            )
        self._dry_binder.retain(outcomes)
        withheld = len(self._dry_host.writes)
        self._dry_host.writes.clear()
        return ActResult(outcomes, withheld=withheld)

    def _release(self, process: ProcessId, problem: Problem | None, seen: Observation) -> int:
        """A bound worker whose plan fails goes back to its cpuset, it is not left on old masks (design 4.9)."""
        if problem is not None and problem.reason in _PASSING:
            return 0
        binding = self._bindings.pop(process, None)
        if binding is None:
            return 0
        return self.binder.release(process, pool=binding.pool, online=seen.topology.online).threads

    def _return_descendants(self, process: ProcessId, roles: Roles, seen: Observation, workers: Collection[int]) -> int:
        if not roles.apart or process.pid not in seen.children:
            return 0
        moved = self.binder.return_descendants(
            process,
            roles,
            cpuset=seen.cpusets[process],
            online=seen.topology.online,
            children=seen.children,
            exclude=workers,
        )
        return moved.threads


_PASSING = frozenset({Reason.NPUS_CHANGING, Reason.PENDING, Reason.CPUSET_UNREADABLE})
"""Problems that say nothing against what is bound: it stays until there is a plan again."""
