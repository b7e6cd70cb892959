"""What is done to a host besides placing the threads of workers: interrupts, memory, UVB threads, helpers (design 6).

Each step is reported by itself and fails by itself. Like the threads they go in two halves, between which the journal
is written: `prepare` notes how everything is that is about to be changed, `act` changes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from agent.control.confine import Confiner
from agent.control.confinement import Confinement, ConfineResult, off_limits, to_confine
from agent.control.drift import DriftTotals
from agent.control.interrupts import Interrupts
from agent.control.journal import Journal
from agent.control.memory import DEADLINE_SECONDS, MemoryMover
from agent.control.observe import Observation
from agent.control.pci_addresses import Board
from agent.control.undo import Surroundings
from agent.control.uvb import Uvb, wanted
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType, Npu
from agent.model.outcome import IrqOutcome, MemoryOutcome, Moved, UvbOutcome
from agent.model.plan import Plan, Roles, WorkerPlan
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import Mode, Spec, Steps
from agent.model.workload import ProcessId
from agent.node.cgroups import CgroupTree
from agent.node.host import DryRunHost, Host
from agent.node.irqbalance import Irqbalance
from agent.node.npu_smi.boards import Boards
from agent.node.npu_smi.command import NpuSmi
from agent.planning.optin import steps_of

_Outcome = TypeVar("_Outcome", IrqOutcome, UvbOutcome)

InForce: TypeAlias = Mapping[ProcessId, Roles]
"""Bound workers -> the roles that are in force for them."""


@dataclass(frozen=True, slots=True)
class StepsResult:
    """What one pass did, or found in place."""

    irqs: Mapping[int, IrqOutcome] = field(default_factory=dict)
    """By NPU, of those with a bound worker."""
    memory: Mapping[ProcessId, MemoryOutcome] = field(default_factory=dict)
    uvb: UvbOutcome | None = None
    helpers: int = 0
    """Threads of other processes in workers' containers that were taken off CPUs that are set apart."""
    returned: Mapping[str, int] = field(default_factory=dict)
    """What was given back -> how many of it: ``interrupts``, ``UVB threads``, ``threads of helpers``."""
    problems: tuple[Problem, ...] = ()
    """Optional things that are missing, besides those in the outcomes."""
    stuck: tuple[Problem, ...] = ()
    """Why something that should have been given back is not."""
    again: bool = False
    """Another look is wanted at once."""

    def after(self, earlier: StepsResult) -> StepsResult:
        """What this pass and an earlier one did together."""
        kinds = dict.fromkeys((*earlier.returned, *self.returned))
        returned = {kind: earlier.returned.get(kind, 0) + self.returned.get(kind, 0) for kind in kinds}
        irqs = {npu: _after(outcome, earlier.irqs.get(npu)) for npu, outcome in self.irqs.items()}
        uvb = None if self.uvb is None else _after(self.uvb, earlier.uvb)
        return replace(self, irqs=irqs, uvb=uvb, helpers=earlier.helpers + self.helpers, returned=returned)


_NOT_YET = MemoryOutcome("Skipped", Problem(Reason.PENDING, "the agent was stopped before its turn had come"))
"""In the journal, of a worker that is bound: its memory is still to be moved."""


def _after(outcome: _Outcome, earlier: _Outcome | None) -> _Outcome:
    if earlier is None:
        return outcome
    return replace(outcome, written=earlier.written + outcome.written, drift=earlier.drift + outcome.drift)


def _no_board(npu: Npu) -> str:
    raise Refused(Reason.NPU_SMI_NOT_FOUND, f"nobody to ask for the board of NPU {npu.id}")


class HostSteps:
    """Does these steps, and takes them back. Remembers what is to be taken back."""

    def __init__(
        self,
        root: Path,
        host: Host,
        cgroups: CgroupTree,
        *,
        npu_smi: NpuSmi | None = None,
        balancer: Irqbalance | None = None,
        memory_seconds: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`npu_smi` is asked for boards of NPUs whose PCI address is not known; undoing needs none. `balancer` finds
        irqbalance, by default below `root`. `memory_seconds` is what the memory of one worker may take."""
        self.changed: Callable[[], None] = lambda: None
        """Called from another thread when something came to be known that is worth a pass: memory was moved, say."""
        board = Boards(npu_smi, self._tell).address if npu_smi is not None else _no_board
        self.memory = MemoryMover(root, host, seconds=memory_seconds, wake=self._tell, clock=clock)
        self._real = _Writers(root, host, cgroups, board, balancer, clock)
        self._rehearsed = DryRunHost(host)
        self._dry = _Writers(root, self._rehearsed, cgroups, board, balancer, clock)
        self._irqs_of: dict[ProcessId, dict[Npu, CpuSet]] = {}
        """The CPUs for interrupts of the NPUs of each bound worker; none where they are not to be moved."""
        self._next: Callable[[], StepsResult] | None = None

    @property
    def drift(self) -> DriftTotals:
        """How many interrupts were found elsewhere than where they had been put."""
        return self._real.interrupts.drift

    def adopt(self, journal: Journal) -> None:
        """What an earlier run of the agent had noted."""
        self._real.adopt(journal)
        # Memory is moved at a worker's first binding, and noted before that binding is: a worker that is bound without
        # it was bound by a release that moved none. It serves by now; an upgrade must not slow it down.
        left = MemoryOutcome("Skipped", Problem(Reason.BOUND_BEFORE, "it was bound by an earlier release"))
        known = {w.process: w.memory or left for w in journal.workers if w.memory is not None or w.complete}
        self.memory.adopt({process: memory for process, memory in known.items() if memory != _NOT_YET})

    def noted(self, journal: Journal) -> Journal:
        """The journal with all that is to be given back one day, and what came of memory."""
        memory = self.memory.outcomes
        workers = tuple(
            replace(worker, memory=memory.get(worker.process, _NOT_YET if worker.complete else None))
            for worker in journal.workers
        )
        return self._real.noted(replace(journal, workers=workers))

    def let_go(self, plan: Plan, online: CpuSet, spec: Spec, bound: Collection[ProcessId]) -> None:
        """Gives workers that are new what they had before they were taken for helpers. For before they are noted."""
        if spec.mode is Mode.ENFORCE and self._real.confiner.containers:
            new = [entry.worker for entry in plan.workers if entry.worker.process not in bound]
            self._real.confiner.let_go(new, online)

    def prepare(self, plan: Plan, seen: Observation, spec: Spec, around: Surroundings, force: InForce) -> None:
        """Looks at everything and notes what `act` is about to change. Writes nothing to the host."""
        dry = spec.mode is Mode.DRY_RUN
        writers = self._dry if dry else self._real
        if dry:
            writers.adopt(self._real.noted(Journal()))
        asked = {entry.worker.process: self._asked(entry, seen, spec) for entry in plan.workers}
        irqs, off = self._interrupts(plan, seen, force, asked, writers.interrupts)
        writers.interrupts.survey(irqs, whole=force.keys() <= self._irqs_of.keys())
        of_950 = plan.device_type is DeviceType.ASCEND_950
        uvb = wanted(plan, spec) if of_950 else (EMPTY, None)
        writers.uvb.survey(uvb[0], around.online)
        confined = around.members(writers.confiner.containers)
        keys = to_confine(plan, seen, spec, force.keys(), confined)
        members = {**confined, **around.members(keys - confined.keys())}
        workers = {*force, *(entry.worker.process for entry in plan.workers)}
        confinement = Confinement(keys, members, workers, off_limits(plan), around.online)
        writers.confiner.survey(confinement)
        if not dry:
            self._submit(plan, seen, force, asked)

        def act() -> StepsResult:
            outcomes = writers.interrupts.act(irqs)
            threads = writers.uvb.act(uvb[0], around.online, uvb[1]) if of_950 or writers.uvb.taken else None
            confined = writers.confiner.act(confinement)
            self._rehearsed.writes.clear()
            self._rehearsed.others.clear()
            return _result(
                irqs=off | outcomes,
                memory=self.memory.outcomes,
                uvb=threads if of_950 else None,
                confined=confined,
                problems=writers.interrupts.problems,
            )

        self._next = act

    def act(self, *, noted: bool = True) -> StepsResult:
        """Does what was prepared, and gives back what is not asked for any more. Memory, which is moved once, waits
        until the journal was written: `noted`."""
        prepared, self._next = self._next, None
        if noted:
            self.memory.begin()
        return prepared() if prepared is not None else StepsResult()

    def restore(self, around: Surroundings, workers: Collection[ProcessId] = ()) -> StepsResult:
        """Undoes everything but the moving of memory. For before workers are released, since what helpers had before
        may have been a worker's; `workers` are never taken for helpers. What could not be undone is still `noted`."""
        writers = self._real
        self._irqs_of.clear()
        confined = writers.confiner.restore(around.members(writers.confiner.containers), workers, around.online)
        irqs = writers.interrupts.restore()
        uvb = writers.uvb.restore(around.online)
        return _result(
            memory=self.memory.outcomes,
            confined=confined,
            returned={"interrupts": irqs, "UVB threads": uvb.threads},
            stuck=[*writers.interrupts.problems, *_problem_of(uvb)],
        )

    def retain(self, living: Collection[ProcessId]) -> None:
        """Forgets processes that ended."""
        self.memory.retain(living)
        self._irqs_of = {process: kept for process, kept in self._irqs_of.items() if process in living}

    def close(self) -> None:
        """Ends the moving of memory, after the batch under way."""
        self.memory.close()

    def _tell(self) -> None:
        self.changed()

    def _asked(self, entry: WorkerPlan, seen: Observation, spec: Spec) -> Steps:
        _, _, container = seen.places.get(entry.worker.process, ("", "", ""))
        return steps_of(seen.pods.get(entry.worker.process), container, spec)

    def _interrupts(
        self,
        plan: Plan,
        seen: Observation,
        force: InForce,
        asked: Mapping[ProcessId, Steps],
        interrupts: Interrupts,
    ) -> tuple[dict[Npu, CpuSet], dict[int, IrqOutcome]]:
        """NPUs with a bound worker -> the CPUs for their interrupts; and the outcomes of those that are left alone."""
        if not plan.device_type.binds_irqs:
            return {}, {}
        for entry in plan.workers:
            process = entry.worker.process
            if process not in force:
                self._irqs_of.pop(process, None)
                continue
            before = self._irqs_of.pop(process, None)
            npus = [npu for npu in map(seen.inventory.get, entry.worker.npus) if npu is not None]
            wanted = {npu for npu in npus if asked[process].irq_binding}
            if seen.undecided(process):
                # They stay as they are; where an earlier run of the agent moved none, nobody knows why.
                wanted = {n for n in npus if (interrupts.holds(n) if before is None else before.get(n))}
                if before is None and len(wanted) < len(npus):
                    continue
            its = {npu: _irq_cpus(plan, npu.id, force[process]) for npu in npus if npu in wanted}
            self._irqs_of[process] = {npu: its.get(npu, EMPTY) for npu in npus if npu not in its or its[npu]}
        # A bound worker that npu-smi does not show just now is no reason to move interrupts back and forth. Of several
        # on one NPU the eldest counts, whichever an agent has seen first.
        found: dict[Npu, CpuSet] = {}
        off: dict[int, IrqOutcome] = {}
        for process, its in sorted(self._irqs_of.items(), key=lambda item: item[0].start_time):
            for npu, cpus in its.items() if process in force else ():
                if cpus:
                    found.setdefault(npu, cpus)
                else:
                    off[npu.id] = IrqOutcome(npu.id, "Skipped", Problem(Reason.SWITCHED_OFF, "not to be moved"))
        return {npu: cpus for npu, cpus in found.items() if npu.id not in off}, off

    def _submit(self, plan: Plan, seen: Observation, force: InForce, asked: Mapping[ProcessId, Steps]) -> None:
        for entry in plan.workers:
            process, roles = entry.worker.process, entry.allotment.roles
            if process not in force or roles is None or seen.undecided(process):
                continue
            npu = seen.inventory.get(entry.worker.npus[0])
            self.memory.submit(
                entry.worker,
                roles,
                entry.allotment.pool,
                seen.topology,
                home=(npu.affinity if npu else None) or EMPTY,
                enabled=asked[process].memory_migration,
            )


class _Writers:
    """The steps that write through one host, real or rehearsing."""

    def __init__(  # noqa: PLR0917
        self,
        root: Path,
        host: Host,
        cgroups: CgroupTree,
        board: Board,
        balancer: Irqbalance | None,
        clock: Callable[[], float],
    ) -> None:
        self.interrupts = Interrupts(root, host, board, balancer=balancer, clock=clock)
        self.uvb = Uvb(root, host, cgroups, clock)
        self.confiner = Confiner(root / "proc", host, cgroups)

    def adopt(self, journal: Journal) -> None:
        self.interrupts.adopt(journal.irqs, journal.bans)
        self.uvb.adopt(journal.uvb)
        self.confiner.adopt(journal.confined)

    def noted(self, journal: Journal) -> Journal:
        return replace(
            journal,
            irqs=self.interrupts.taken,
            bans=self.interrupts.bans,
            uvb=self.uvb.taken,
            confined=self.confiner.taken,
        )


def _irq_cpus(plan: Plan, npu_id: int, roles: Roles) -> CpuSet:
    """The CPUs for an NPU's interrupts: those of its worker, or, for a process on several NPUs, the NPU's own."""
    if roles.irq:
        return roles.irq
    npu = plan.npu(npu_id)
    return npu.allotment.roles.irq if npu is not None and npu.allotment.roles is not None else EMPTY


def _result(
    *,
    confined: ConfineResult,
    memory: Mapping[ProcessId, MemoryOutcome],
    irqs: Mapping[int, IrqOutcome] | None = None,
    uvb: UvbOutcome | None = None,
    returned: Mapping[str, int] | None = None,
    problems: Sequence[Problem] = (),
    stuck: Sequence[Problem] = (),
) -> StepsResult:
    given_back = {**(returned or {}), "threads of helpers": sum(confined.returned.values())}
    of_helpers = [outcome.problem for outcome in confined.outcomes.values() if outcome.problem is not None]
    return StepsResult(
        irqs=irqs or {},
        memory=memory,
        uvb=uvb,
        helpers=sum(outcome.written for outcome in confined.outcomes.values()),
        returned={kind: count for kind, count in given_back.items() if count},
        problems=(*problems, *of_helpers),
        stuck=(*stuck, *confined.stuck.values()),
        again=confined.again,
    )


def _problem_of(moved: Moved) -> list[Problem]:
    return [] if moved.problem is None else [moved.problem]
