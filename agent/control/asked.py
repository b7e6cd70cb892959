"""What people ask for: the plan's `spec` as it stands, as it was when last valid, or as an earlier run accepted it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.control.journal import Journal
from agent.control.store import PlanStore
from agent.model.reason import Problem, Refused
from agent.model.spec import Mode, Spec
from agent.planning.validation import parse_spec


@dataclass(frozen=True, slots=True)
class Asked:
    """What one pass is to do."""

    raw: Mapping[str, Any]
    """`spec` as it stands in the plan, or as the plan that is made now will have it."""
    spec: Spec
    """What is in force."""
    fault: Problem | None = None
    """Why that is not what the plan says."""
    lasting: bool = False
    """Whether what is in force is what the plan says, or will say."""


class Asking:
    """Reads the spec for each pass and remembers the last valid one."""

    def __init__(self, state: PlanStore | None, defaults: Spec, record: Journal, *, force_dry_run: bool) -> None:
        self.state = state
        self.defaults = defaults
        self._force_dry_run = force_dry_run
        self._known = False
        self._last = self._of_earlier_run(record)

    @property
    def latest(self) -> Spec:
        """The last valid one, else what is asked of an agent that is asked for nothing."""
        return self._last or self.defaults

    @property
    def accepted(self) -> Spec | None:
        """The last valid one as it is in force; None before there was any."""
        return self.forced(self._last) if self._last else None

    def forced(self, spec: Spec) -> Spec:
        """That spec under what the agent was started with."""
        return replace(spec, mode=Mode.DRY_RUN) if self._force_dry_run else spec

    def read(self, journal: Journal, reported: Mapping[str, Any]) -> Asked:
        """`reported` is the spec of the last report, which is shown where the plan's can't be read."""
        # What comes to be known during a pass counts from the next one on: this one has looked without it.
        self._known = self.state is None or self.state.known
        raw: Mapping[str, Any] = {}
        lasting, fault = False, None
        try:
            found = self.state.spec() if self.state else {}
            raw, in_force = (found, found) if found is not None else self._of_nobody(journal)
            lasting = raw == in_force
            if in_force is None:
                return Asked({}, replace(self.latest, mode=Mode.DRY_RUN))
            self._last = parse_spec(in_force, self.defaults)
        except Refused as refused:
            raw, fault = raw or reported, refused.problem
        # Before a valid one was read nobody has asked for anything to be bound, and somebody may have asked for less.
        spec = self._last or replace(self.defaults, mode=Mode.DRY_RUN)
        return Asked(raw, self.forced(spec), fault, lasting)

    def note(self, asked: Asked, journal: Journal) -> Journal:
        """The journal with the spec in force, for the next start of the agent."""
        if self.state is None or not (self._known and asked.lasting):
            return journal
        return replace(journal, spec=asked.raw, own=self.state.own)

    def _of_nobody(self, journal: Journal) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
        """Without a plan: what the one that is made now is to say, and what is in force until then.

        One that an agent had made comes back with its spec, one of a person's does not. Meanwhile the last one that was
        accepted holds, whoever made it: absence never acts. None while it is not known whether somebody asks for less.
        """
        held = journal.spec if journal.spec is not None or not self._known else {}
        return (journal.spec if journal.own else None) or {}, held

    def _of_earlier_run(self, record: Journal) -> Spec | None:
        """The spec in force when an earlier run of the agent ended: it still is while a new one can't be used."""
        if record.spec is None:
            return None
        try:
            return parse_spec(record.spec, self.defaults)
        except Refused:
            return None
