"""Act: make every worker's threads be where the plan says, and say what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.control.bindings import Binding
from agent.control.drift import DriftTracker
from agent.control.journal import Journal
from agent.control.observe import Observation
from agent.control.timings import Timings
from agent.control.undo import Children, Members, Surroundings, Undoer
from agent.control.watchlist import Watched, WatchList
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.outcome import Moved, WorkerOutcome
from agent.model.plan import Allotment, Plan, Roles, WorkerPlan
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import Mode, Spec, ThreadRule
from agent.model.workload import ProcessId
from agent.node.binding import gone
from agent.node.comms import CommCache
from agent.node.host import DryRunHost, Host
from agent.node.threads import ThreadBinder


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
        return replace(
            self,
            outcomes={p: _after(outcome, earlier.outcomes.get(p)) for p, outcome in self.outcomes.items()},
            released=_summed(earlier.released, self.released),
            undone=_summed(earlier.undone, self.undone),
            returned=_summed(earlier.returned, self.returned),
        )


def _after(outcome: WorkerOutcome, earlier: WorkerOutcome | None) -> WorkerOutcome:
    if earlier is None:
        return outcome
    at_once = earlier.at_once or outcome.at_once
    return replace(outcome, drift=(*earlier.drift, *outcome.drift), at_once=at_once)


def _summed(one: Mapping[ProcessId, int], other: Mapping[ProcessId, int]) -> dict[ProcessId, int]:
    return {process: one.get(process, 0) + other.get(process, 0) for process in (*one, *other)}


class Actor:
    """Applies plans. Remembers what is bound, by (pid, start time), for as long as something of it is left.

    A pass is `prepare`, then whoever keeps the journal writes what is `noted`, then `act`: so that whatever was done to
    the host by an agent that is killed at any moment is known to the next one.
    """

    def __init__(
        self,
        proc_root: Path,
        host: Host,
        *,
        clock: Callable[[], float] = time.monotonic,
        timings: Timings | None = None,
    ) -> None:
        self.comms = CommCache()
        """Names of threads that need not be read, as long as whoever hears of renames keeps it up."""
        self.binder = ThreadBinder(proc_root, host, self.comms)
        self.drift = DriftTracker()
        self.timings = timings or Timings()
        self._clock = clock
        self.watched = WatchList()
        """The workers whose threads somebody else may put in place between the passes."""
        self._dry_host = DryRunHost(host)
        self._dry_binder = ThreadBinder(proc_root, self._dry_host)
        self._bindings: dict[ProcessId, Binding] = {}
        self._undoer = Undoer(self.binder, self._bindings)
        self._begun_at, self._lost = 0, False

    def adopt(self, journal: Journal) -> None:
        """What an earlier run of the agent had noted: it is kept, not done for a first time."""
        self._bindings.update((worker.process, Binding.adopted(worker)) for worker in journal.workers)
        self._begun_at, self._lost = journal.begun_at, journal.lost

    def noted(self, journal: Journal) -> Journal:
        """The journal with all that is to be given back one day."""
        workers = (binding.noted(process) for process, binding in sorted(self._bindings.items()))
        return replace(journal, workers=tuple(workers))

    @property
    def bindings(self) -> frozenset[ProcessId]:
        """Workers in which anything may have been done to a thread that has not been undone."""
        return frozenset(self._bindings)

    @property
    def homes(self) -> dict[ProcessId, str]:
        """`bindings` -> the keys of their containers."""
        return {process: binding.container for process, binding in self._bindings.items()}

    def in_force(self, plan: Plan, act: ActResult, spec: Spec) -> dict[ProcessId, Roles]:
        """Bound workers -> their roles, after a pass, in a dry run also those that would be. Among them are those that
        are not seen on their NPU just now, that keep what they have while there is no plan for them, and whose threads
        can't be looked at: none of that says anything against what was done for them."""
        outcomes = act.outcomes
        gone = {p for p, o in outcomes.items() if o.problem and o.problem.reason is Reason.PROCESS_GONE}
        planned = {entry.worker.process: entry.allotment.roles for entry in plan.workers}
        bound = {
            process: binding.roles
            for process, binding in self._bindings.items()
            if binding.complete and not binding.released and (process in planned or self.binder.lives(process))
        }
        if spec.mode is Mode.DRY_RUN:
            bound |= {p: roles for p, roles in planned.items() if roles and p in outcomes and _is_bound(outcomes[p])}
        return {process: roles for process, roles in bound.items() if process not in gone}

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
        return replace(plan, workers=tuple(workers)) if seen.unknown else plan

    def prepare(self, plan: Plan, seen: Observation, spec: Spec) -> None:
        """Takes note of who is about to be bound, or to get other CPUs. Writes nothing to the host.

        The masks of a worker's threads are read once, before anything is done to it.
        """
        if spec.mode is not Mode.ENFORCE:
            return
        for entry in plan.workers:
            process, roles, pool = entry.worker.process, entry.allotment.roles, entry.allotment.pool
            cpuset, container = seen.cpusets.get(process), entry.worker.container
            if roles is None or cpuset is None:
                continue
            binding = self._bindings.get(process)
            if binding is None:
                binding = self._bindings[process] = Binding(roles, pool, container)
                self._note_masks(process, binding, cpuset, seen.topology.online)
            elif binding.released or binding.roles != roles:
                # New CPUs are a first binding again: what lies within the old ones would look like a thread's choice.
                self._bindings[process] = binding.moved_to(roles, pool, container)
            elif container:
                binding.container = container  # an agent of an earlier version had not noted it

    def _note_masks(self, process: ProcessId, binding: Binding, cpuset: CpuSet, online: CpuSet) -> None:
        """Notes the masks that threads have of their own.

        Not theirs is what an agent gave: to a worker of the same container that made this one, or to this one before
        the journal was lost. Which CPUs those were is not known then: nothing that is narrower than the cpuset counts
        as a thread's own, and all of it as CPUs that the worker has left. Where there was no journal at all most likely
        there was no agent, and only what the plan gives now is taken for its doing.
        """
        try:
            masks = self.binder.masks(process, cpuset=cpuset, online=online)
        except Refused:
            return  # whatever keeps them from being read is the outcome of binding
        older = process.start_time <= self._begun_at
        if older and self._lost:
            left = union(masks.values())
            binding.left = left if left < cpuset & online else EMPTY
            return
        known = [b.roles for b in self._bindings.values() if b.container == binding.container]
        if not older:
            known.remove(binding.roles)
        given = {part & cpuset & online for roles in known for part in (roles.main, roles.acl, roles.release)}
        binding.masks = {thread: mask for thread, mask in masks.items() if mask not in given}

    def act(
        self,
        plan: Plan,
        seen: Observation,
        spec: Spec,
        members: Members,
        children: Callable[[], Children] | None = None,
        *,
        cpuset: Callable[[int], CpuSet | None] = lambda _pid: None,
    ) -> ActResult:
        """One pass over all workers of a plan that was prepared. Writes only what is not in place. `children` reads
        those of this pass, by default those that were `seen`; `cpuset` that of a process."""
        look = children or (lambda: seen.children)
        around = Surroundings(seen.topology.online, seen.children, members, look, cpuset)
        if spec.mode is Mode.DISABLED:
            return self.restore(around)
        if spec.mode is Mode.DRY_RUN:
            self.watched.clear()
            return self._rehearse(plan, seen, spec)
        due = self._due(plan, seen, spec)
        self.watched.withdraw(due.values())
        result = ActResult()
        replan = False
        planned = {entry.worker.process for entry in plan.workers}
        for entry in plan.workers:
            process = entry.worker.process
            roles = entry.allotment.roles
            if roles is None:
                # A bound worker whose plan fails goes back to its cpuset, it is not left on old masks (design 4.9).
                problem = entry.allotment.problem
                if process in self._bindings and not (problem and problem.reason in _PASSING):
                    replan |= self._undo(process, around, counts=result.released, stuck=result.stuck)
                continue
            outcome = self._bind(entry, roles, seen, spec)
            result.outcomes[process] = outcome
            paused = self.drift.paused(process, self._clock())
            if _is_bound(outcome) and not paused and (moved := self._settle(outcome, roles, seen, planned, around)):
                result.returned[process] = moved
        # One that is not seen on its NPU any more stays bound, for as long as it lives.
        living = planned | {process for process in self._bindings.keys() - planned if self.binder.lives(process)}
        dismissed = self._dismissed(seen, living)
        for process in dismissed:
            replan |= self._undo(process, around, counts=result.undone, stuck=result.stuck)
        for process in self._bindings.keys() - living - set(dismissed):
            if not self._undoer.haunted(process, living, around):
                del self._bindings[process]
        self.binder.retain(living)
        self.drift.retain(living)
        kept = {process for process, outcome in result.outcomes.items() if _is_kept(outcome)}
        self.watched.publish(entry for process, entry in due.items() if process in kept)
        replan |= any(o.problem and o.problem.reason is Reason.CPUSET_CHANGED for o in result.outcomes.values())
        return replace(result, replan=replan)

    def restore(self, around: Surroundings) -> ActResult:
        """Undoes every binding. Those that could not be undone, or not be proven so, are still in `bindings`."""
        self.watched.clear()
        result = ActResult()
        replan = False
        self.drift.retain(())
        for process in list(self._bindings):
            replan |= self._undo(process, around, counts=result.undone, stuck=result.stuck)
        return replace(result, replan=replan)

    def _due(self, plan: Plan, seen: Observation, spec: Spec) -> dict[ProcessId, Watched]:
        """The workers that are to be bound, with all that says where their threads belong."""
        due = {}
        for entry in plan.workers:
            process, roles = entry.worker.process, entry.allotment.roles
            cpuset = seen.cpusets.get(process)
            if roles is not None and cpuset is not None and process not in seen.dismissed:
                due[process] = Watched(process, roles, cpuset, seen.topology.online, spec.thread_rules)
        return due

    def _dismissed(self, seen: Observation, living: Collection[ProcessId]) -> list[ProcessId]:
        """Bound workers whose pods say that they are not to be, and those that ended in the same containers. Each once:
        a second look is for the next pass."""
        dismissed = [process for process in self._bindings if process in seen.dismissed]
        containers = {self._bindings[process].container for process in dismissed}
        ended = self._bindings.keys() - living - set(dismissed)
        return dismissed + [process for process in ended if self._bindings[process].container in containers]

    def _undo(
        self,
        process: ProcessId,
        around: Surroundings,
        *,
        counts: dict[ProcessId, int],
        stuck: dict[ProcessId, Problem],
    ) -> bool:
        """Gives a worker that is not to be bound any more, and what came of it, back to its cpuset. Adds to `counts`
        how many threads that moved, once, and to `stuck` why it is to be tried again. Whether another look is wanted at
        once."""
        binding = self._bindings[process]
        moved = self._undoer.give_back(process, around)
        if moved.threads and not binding.released:
            counts[process] = moved.threads
        again = False
        if moved.problem is not None:
            stuck[process] = moved.problem
        elif binding.undone or not moved.threads:
            self._undoer.forget(process)
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
        binding = self._bindings[process]
        online, rules, first = seen.topology.online, spec.thread_rules, not binding.complete
        now = self._clock()
        self.drift.saw(process, cpuset, now)
        if binding.complete and self.drift.paused(process, now):
            return self._leave(process, roles, cpuset, online, rules)
        began = time.monotonic()
        outcome = self.binder.bind(process, roles, cpuset=cpuset, online=online, rules=rules, first=first)
        if outcome.written:
            self.timings.bind_seconds.observe(time.monotonic() - began)
        if first and _is_bound(outcome):
            binding.complete = True
            if not binding.left:  # else it has been bound before, to other CPUs
                self.timings.bound(process)
        return self.drift.judged(outcome, now)

    def _leave(
        self, process: ProcessId, roles: Roles, cpuset: CpuSet, online: CpuSet, rules: Sequence[ThreadRule]
    ) -> WorkerOutcome:
        """Looks at a worker whose threads somebody else keeps moving, and writes nothing."""
        try:
            astray = self.binder.check(process, roles, cpuset=cpuset, online=online, rules=rules)
        except Refused as refused:
            return WorkerOutcome(process, "Failed", refused.problem)
        if not self.binder.lives(process):
            return gone(process)
        return self.drift.left(process, astray, cpuset & online)

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

    def _settle(
        self,
        outcome: WorkerOutcome,
        roles: Roles,
        seen: Observation,
        workers: Collection[ProcessId],
        around: Surroundings,
    ) -> int:
        """Takes what came of a worker that was bound off the CPUs that are set apart, and off those that it has left.
        How many threads of its descendants that moved."""
        process, online = outcome.process, around.online
        binding = self._bindings[process]
        moved = orphans = Moved()
        # A child that begins while masks are written may have an old one, and that is looked for this once.
        children = around.children if outcome.written or binding.left else around.seen
        if process.pid in children and (roles.apart or binding.left):
            moved = self.binder.return_descendants(
                process,
                roles,
                cpuset=seen.cpusets[process],
                online=online,
                children=children,
                exclude={worker.pid for worker in workers},
                left=binding.left | binding.told if binding.left else EMPTY,
            )
        if binding.left:
            orphans = self._undoer.free_orphans(process, around)
            if outcome.state == "Bound" and moved.problem is None and orphans.problem is None:
                binding.left = EMPTY
        return moved.threads


def _is_bound(outcome: WorkerOutcome) -> bool:
    return outcome.state in ("Bound", "Partial")


def _is_kept(outcome: WorkerOutcome) -> bool:
    """Whether its threads are where they belong, as far as the kernel allows; and nobody else is to have them."""
    if outcome.problem is None:
        return outcome.state == "Bound"
    return _is_bound(outcome) and outcome.problem.reason in _AS_FAR_AS_CAN_BE


_AS_FAR_AS_CAN_BE = frozenset({Reason.UNMOVABLE, Reason.PERMISSION_DENIED, Reason.THREADS_CHANGING})

_PASSING = frozenset({Reason.NPUS_CHANGING, Reason.PENDING, Reason.CPUSET_UNREADABLE})
"""Problems that say nothing against what is bound: it stays until there is a plan again."""
