"""Plan: from what was observed, what is recorded and what people ask for to the plan in force."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.control.journal import Journal
from agent.control.observe import Observation
from agent.model.cpuset import EMPTY
from agent.model.node import Inventory, Topology
from agent.model.plan import Plan, PlanInput
from agent.model.reason import Problem
from agent.model.spec import Mode, Spec
from agent.node.npu_smi.inventory import InventoryReading
from agent.planning.bases import BaseKeeper
from agent.planning.plan import make_plan
from agent.planning.validation import check_spec


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan with what it was made from."""

    inp: PlanInput
    plan: Plan
    faults: tuple[Problem, ...] = ()
    """Why the plan in force is not what people asked for."""


class Planner:
    """Keeps what plans depend on beyond one look: the universe of NPUs, the bases, the last valid spec."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.keeper = BaseKeeper(journal.cut_by)
        self.accepted: Spec | None = None
        """The last spec that fitted the node."""
        self._last: Decision | None = None

    def inventory(self, reading: InventoryReading) -> Inventory:
        """The NPUs to plan for: those read, and those that were there since the driver was loaded."""
        universe, inventory = self.journal.universe.grow(
            self.journal.boot_id, reading.driver_version, reading.inventory
        )
        self.journal = replace(self.journal, universe=universe)
        return inventory

    def fitting(self, spec: Spec, topology: Topology) -> tuple[Spec, tuple[Problem, ...]]:
        """The spec in force, and why it is another one. One that does not fit the node leaves the last one that did in
        force; where there is none the plan is shown without what does not fit, and nothing is bound. The last one need
        not fit either: what it leaves out means what the settings of this run say."""
        problem = check_spec(spec, topology)
        if problem is None:
            self.accepted = spec
            return spec, ()
        held = self.accepted or replace(spec, mode=Mode.DRY_RUN)
        if check_spec(held, topology) is None:
            return held, (problem,)
        mode = Mode.DISABLED if held.mode is Mode.DISABLED else Mode.DRY_RUN
        return replace(held, mode=mode, reserved_cpus=EMPTY), (problem,)

    def plan(
        self, inventory: Inventory, seen: Observation, spec: Spec, now: float, *, provisional: bool = False
    ) -> Decision:
        """The plan in force. `provisional`: more will be known soon, so that no new base is taken for good; nor is one
        for what nobody has asked for."""
        spec, faults = self.fitting(spec, seen.topology)
        provisional |= spec != self.accepted
        inp = PlanInput(seen.topology, inventory, seen.containers, seen.workers, self.journal.bases, spec)
        if provisional:
            return Decision(inp, make_plan(inp), faults)
        anew = self.keeper.outdated(inp, now)
        cutting = replace(inp, bases=()) if anew else inp
        if self._last is None or self._last.inp != cutting:
            plan = make_plan(cutting)
            self.keeper.planned(inp, plan, now, anew=anew)
            self.journal = replace(self.journal, bases=plan.bases, cut_by=self.keeper.cut_by)
            # The bases just taken give the same plan again: a look that finds nothing new plans nothing.
            self._last = Decision(replace(cutting, bases=plan.bases), plan, faults)
        return replace(self._last, faults=faults)
