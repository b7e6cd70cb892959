"""The loop: observe -> plan -> act -> report. Level-triggered: every pass starts from what is there."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.control import journal_file
from agent.control.act import Actor, ActResult
from agent.control.asked import Asked, Asking
from agent.control.drift import DriftTotals
from agent.control.happenings import Happening
from agent.control.hearing import Hearing
from agent.control.journal import Journal
from agent.control.news import NewsSource
from agent.control.observe import Observation, Observer
from agent.control.plan import Decision, Planner
from agent.control.publication import Publication
from agent.control.report import Report
from agent.control.steps import HostSteps, StepsResult
from agent.control.store import PlanStore
from agent.control.tally import Tally
from agent.control.undo import Surroundings
from agent.model.node import Inventory
from agent.model.plan import Plan
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import Mode, Spec
from agent.model.workload import ProcessId
from agent.node.devices import read_davinci
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.counted import CountedNpuSmi
from agent.node.npu_smi.watch import NpuSmiWatch
from agent.planning.plan import needs_affinity

log = logging.getLogger(__name__)

REPLANS = 2
"""How often one pass plans again when a cpuset changed under it; after that the next sweep does."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What an agent is made of."""

    node: str
    observer: Observer
    npu_smi: NpuSmi
    actor: Actor
    steps: HostSteps
    defaults: Spec
    """What an absent field of `spec` means."""
    state: PlanStore | None = None
    problems: Callable[[], Sequence[Problem]] = tuple
    """What those who feed the agent miss, such as the list of pods: optional things, for the report."""
    tell: Callable[[Sequence[Happening]], None] = lambda _happenings: None
    """Takes what happened in a pass, for events."""
    turned: Callable[[], None] = lambda: None
    """Called after every pass: the loop turns."""
    news: NewsSource | None = None
    """Who hears of processes between the passes. Without, or while it hears nothing, each pass looks for itself."""
    beside: AbstractContextManager[object] = field(default_factory=contextlib.nullcontext)
    """What goes on beside the loop, and ends with it: the thread that hears, say."""
    journal: Path | None = None
    boot_id: str = ""
    sweep_seconds: float = 5.0
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    force_dry_run: bool = False


class Agent:
    """One agent for one host. Not thread-safe but for `wake` and `stop`."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        record, problem = journal_file.load(parts.journal, parts.boot_id) if parts.journal else (Journal(), None)
        if problem is not None or record == Journal(boot_id=parts.boot_id):
            record = replace(record, begun_at=parts.observer.proc.youngest(), lost=problem is not None)
        self.planner = Planner(record)
        parts.actor.adopt(record)
        parts.steps.adopt(record)
        self.tally = Tally(parts.steps.memory.outcomes)
        parts.steps.changed = self.wake
        parts.actor.watched.added = self.wake
        parts.observer.adopt(parts.actor.homes)
        parts.observer.settling.settled = record.settled
        self.passes = 0
        self.failing = False
        """Whether a fault of our own cut the last pass of `run` short."""
        self.last_act = ActResult()
        self.last_steps = StepsResult()
        self._unreported = ActResult(), StepsResult()
        self._saved = record
        self._unsaved: Problem | None = None
        """What of `_saved` the file has no room for."""
        self._journal_problem = problem
        self._open = False
        self.asking = Asking(parts.state, parts.defaults, record, force_dry_run=parts.force_dry_run)
        self.planner.accepted = self.asking.accepted
        self.publication = Publication(parts.state, parts.tell, parts.wall_clock)
        self._awaited: frozenset[ProcessId | str] | None = None
        self._hearing = Hearing(parts.news, parts.observer.opened)
        self._next = float("inf")
        self._wake = threading.Event()
        self._due = False  # whether that was for a pass
        self._stopped = threading.Event()
        npu_smi = parts.npu_smi
        self.npu_smi = npu_smi if isinstance(npu_smi, CountedNpuSmi) else CountedNpuSmi(npu_smi)
        self.watch = NpuSmiWatch(
            self.npu_smi,
            lambda: read_davinci(parts.observer.root),
            self.wake,
            override=lambda: self.asking.latest.device_type,
            needs_affinity=lambda device: needs_affinity(self.asking.latest, device),
        )

    def wake(self) -> None:
        """Lets the next pass begin at once. Safe from any thread."""
        self._due = True
        self._wake.set()

    def glance(self) -> None:
        """Lets the loop look at suspects at once: the next pass begins only where one holds an NPU open. Safe from any
        thread."""
        self._wake.set()

    def stop(self) -> None:
        """Ends `run` after the pass under way; bindings stay. Safe from any thread and from a signal handler."""
        self._stopped.set()
        self.wake()

    def run(self) -> None:
        """Passes until `stop`, one for each sweep and one whenever something woke the loop."""
        with self.parts.beside:
            while not self._stopped.is_set():
                self._due = False
                self._wake.clear()
                try:
                    self.step()
                    self.failing = False
                except Exception:  # a fault of our own in one pass is no reason to stop keeping what is bound
                    log.exception("a pass failed; the next one starts from what is there then")
                    self.failing = True
                self.parts.turned()
                self._rest(max(0.0, min(self.parts.sweep_seconds, self._next - self.parts.clock())))
        self.watch.close()
        self._end_steps()
        self.publication.leave()

    def _rest(self, seconds: float) -> None:
        """Between two passes, of which the next is due in so many seconds at the latest."""
        end = time.monotonic() + seconds
        while not self._stopped.is_set() and self._wake.wait(max(0.0, end - time.monotonic())):
            self._wake.clear()
            try:
                if self._due or self._hearing.worth_a_pass():
                    return
            except Exception:  # see `run`
                log.exception("news were not understood; the next pass looks for itself")
                self._hearing.doubt()
                return

    def step(self) -> None:
        """One pass. Never raises for what the host does; what can't be done is in the report."""
        self.passes += 1
        # What comes to be known during a pass counts from the next one on: this one has looked without it.
        state = self.parts.state
        self._open = state is None or state.open
        read = self._read_spec()
        spec = asked = read.spec
        faults = [read.fault] if read.fault else []
        notes = [self._journal_problem] if self._journal_problem else []
        notes.extend(self.parts.problems())
        if spec.mode is not Mode.ENFORCE:
            self.parts.actor.watched.clear()  # whatever this pass comes to see
            self.parts.actor.timings.held_back()
        elif self.parts.news is not None and (deaf := self.parts.news.problem()) is not None:
            notes.append(deaf)
        now = self.parts.clock()
        reading = self.watch.poll(now, awaiting=self._awaited is None or bool(self._awaited))
        self._next = float("inf") if reading.due is None else reading.due
        decision: Decision | None = None
        seen: Observation | None = None
        checked = False
        (self.last_act, self.last_steps), self._unreported = self._unreported, (ActResult(), StepsResult())
        if reading.problem is not None:
            (faults if reading.reading is None else notes).append(reading.problem)
        if reading.reading is not None:
            notes.extend(reading.reading.notes)
            inventory = self.planner.inventory(reading.reading)
            for attempt in range(REPLANS):
                try:
                    seen = self.parts.observer.look(
                        inventory,
                        reading.reading.processes,
                        now,
                        table_age=reading.age or 0.0,
                        news=self._hearing.take(),
                        spec=asked,
                        afresh=attempt > 0,
                    )
                except Refused as refused:
                    faults.append(refused.problem)
                    break
                decision = self._plan(inventory, seen, asked, now)
                spec, checked = decision.inp.spec, True
                self._act(decision.plan, seen, spec, notes)
                if not (self.last_act.replan or self.last_steps.again):
                    break
        if decision is not None and seen is not None:
            faults.extend(decision.faults)
            notes.extend(seen.notes)
        else:
            with contextlib.suppress(Refused):  # a host that can't be read is reported where it is looked at
                spec, unfit = self.planner.fitting(asked, self.parts.observer.topology(now))
                checked = True
                faults.extend(unfit)
                self._restore_blindly(spec, now)
        # What should not be bound and is: the plan under Disabled, else a thing beside it.
        stuck = (*self.last_act.stuck.values(), *self.last_steps.stuck)
        (faults if spec.mode is Mode.DISABLED else notes).extend(stuck)
        notes.extend(self.last_steps.problems)
        if checked and not any(fault.reason in (Reason.INVALID_SPEC, Reason.STATE_UNREADABLE) for fault in faults):
            self.planner.journal = self.asking.note(read, self.planner.journal)
        self._save_journal(notes)
        self._await(seen, now)
        if reading.reading is None and reading.problem is None:
            # npu-smi is asked for the first time: what was reported last may well still hold.
            self._unreported = self.last_act, self.last_steps
            return
        report = Report(
            node=self.parts.node,
            spec=spec,
            plan=decision.plan if decision else None,
            seen=seen if decision else None,
            outcomes=self.last_act.outcomes,
            irqs=self.last_steps.irqs,
            memory=self.last_steps.memory,
            uvb=self.last_steps.uvb,
            taken=self.planner.journal.taken,
            stuck=stuck,
            faults=tuple(faults),
            notes=tuple(dict.fromkeys(notes)),
        )
        self.publication.publish(report, read.raw, self.last_act, self.last_steps, counts=self._open)
        if decision is not None:
            self.tally.planned(self.publication.status.get("planHash", ""), decision.inp)

    def _await(self, seen: Observation | None, now: float) -> None:
        """Says who is awaited: whoever is new is to be asked for at once."""
        before, self._awaited = self._awaited, seen.awaited if seen is not None else None
        self._hearing.tell(self.parts.actor.bindings, seen.suspects if seen is not None else ())
        if self._awaited and not self._awaited <= (before or frozenset()):
            if before:
                self.watch.hasten()  # somebody new, while others have been awaited for long
            self._next = now

    def _act(self, plan: Plan, seen: Observation, spec: Spec, notes: list[Problem]) -> None:
        """Threads first, then the steps beside them. Each notes what it is about to change, then the journal is
        written, then it is changed."""
        actor, steps, observer = self.parts.actor, self.parts.steps, self.parts.observer
        around = Surroundings(seen.topology.online, seen.children, observer.members, observer.latest_children)
        if spec.mode is Mode.DISABLED:
            done, force = steps.restore(around, actor.bindings), {}
            acted = actor.act(plan, seen, spec, observer.members, observer.latest_children, cpuset=observer.cpuset)
        else:
            steps.let_go(plan, around.online, spec, actor.bindings)
            actor.prepare(plan, seen, spec)
            self._save_journal(notes)
            acted = actor.act(plan, seen, spec, observer.members, observer.latest_children, cpuset=observer.cpuset)
            force = actor.in_force(plan, acted, spec)
            steps.prepare(plan, seen, spec, around, force)
            done = steps.act(noted=self._save_journal(notes))
            if spec.mode is Mode.ENFORCE:
                self.tally.acted(acted, done)
            if any(o.problem and o.problem.reason is Reason.PROCESS_GONE for o in acted.outcomes.values()):
                self._hearing.doubt()  # that was not told, else there would be no plan for it
        self.tally.stands(plan, force, acted, done, spec)
        self.tally.remembered(done.memory)
        self.last_act = acted.after(self.last_act)
        self.last_steps = done.after(self.last_steps)
        steps.retain({*actor.bindings, *(entry.worker.process for entry in plan.workers), *seen.dismissed})
        observer.bound = actor.homes

    def _plan(self, inventory: Inventory, seen: Observation, spec: Spec, now: float) -> Decision:
        settled = self.parts.observer.settling.settled
        self.planner.journal = replace(self.planner.journal, settled=dict(settled))
        decision = self.planner.plan(inventory, seen, spec, now, provisional=not self._open)
        return replace(decision, plan=self.parts.actor.keep(decision.plan, seen))

    def _restore_blindly(self, spec: Spec, now: float) -> None:
        """Undoing does not wait for npu-smi, and an agent that starts under Disabled begins with it."""
        if spec.mode is not Mode.DISABLED:
            return
        observer, actor = self.parts.observer, self.parts.actor
        for _ in range(REPLANS):
            around = Surroundings.of(observer, now)
            self.last_steps = self.parts.steps.restore(around, actor.bindings).after(self.last_steps)
            self.last_act = actor.restore(around).after(self.last_act)
            if not (self.last_act.replan or self.last_steps.again):
                break
        observer.bound = actor.homes

    def _end_steps(self) -> None:
        """Memory that is being moved is left where it is by now, and noted so."""
        self.parts.steps.close()
        self._save_journal([])

    def drift(self) -> DriftTotals:
        """What was found elsewhere than where it had been put, since the agent began. Safe from any thread."""
        return self.parts.actor.drift.totals.plus(self.parts.steps.drift)

    def moved(self) -> dict[int, int]:
        """NPU -> threads and interrupts that the last pass found elsewhere than where they had been put."""
        status = self.publication.status
        if status.get("mode") != Mode.ENFORCE:
            return {}  # a dry run's outcomes are of what was never put anywhere
        found = {npu: irqs.drift for npu, irqs in self.last_steps.irqs.items()}
        astray = {p.pid: len(o.drift) + len(o.unrepaired) for p, o in self.last_act.outcomes.items()}
        for entry in status.get("npus", []):
            threads = sum(astray.get(worker["pid"], 0) for worker in entry.get("workers", []))
            found[entry["id"]] = found.get(entry["id"], 0) + threads
        return {npu: count for npu, count in found.items() if count}

    def plan_object(self) -> dict[str, Any]:
        """The CpuBindingPlan object of the last pass; empty before the first."""
        return self.publication.document

    def _read_spec(self) -> Asked:
        before = self.asking.accepted
        read = self.asking.read(self.planner.journal, self.publication.document.get("spec", {}))
        after = self.asking.latest
        if before and (after.device_type, after.strategy) != (before.device_type, before.strategy):
            self.watch.reread()  # how the tables are read depends on both
        return read

    def _save_journal(self, notes: list[Problem]) -> bool:
        """Whether the journal has all that is noted, or there is none to be kept."""
        self.planner.journal = self.parts.steps.noted(self.parts.actor.noted(self.planner.journal))
        if self.parts.journal is None:
            return True
        if self.planner.journal != self._saved:
            try:
                self._unsaved = journal_file.save(self.parts.journal, self.planner.journal)
            except Refused as refused:
                notes.append(refused.problem)
                return False
            self._saved = self.planner.journal
        if self._unsaved is not None:
            notes.append(self._unsaved)
        return True
