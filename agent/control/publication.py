"""What was reported last, and what follows from it for the next report: transition times, events, the plan kept."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.control.act import ActResult
from agent.control.conditions import stopped
from agent.control.happenings import Happening, happenings
from agent.control.logbook import LogBook
from agent.control.report import Report, resource
from agent.control.steps import StepsResult
from agent.control.store import PlanStore
from agent.model.reason import Refused


class Publication:
    """The CpuBindingPlan object that stands, in the store and for those who ask. Not thread-safe but for `document`."""

    def __init__(
        self, state: PlanStore | None, tell: Callable[[Sequence[Happening]], None], wall_clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._tell = tell
        self._wall_clock = wall_clock
        self.document: dict[str, Any] = {}
        """The object of the last pass; empty before the first."""
        self._made_of: object = None  # what that is the report of, where this run of the agent made it
        self._met = False  # whether what an earlier run reported was taken up
        self._npus: object = []  # as they were reported with the last plan
        self._untold = ActResult()
        self._logbook = LogBook()

    @property
    def status(self) -> Mapping[str, Any]:
        """Its status; empty where there is none."""
        return _status(self.document)

    def publish(
        self, report: Report, raw: Mapping[str, Any], act: ActResult, steps: StepsResult, *, counts: bool
    ) -> None:
        """Makes the object, logs it, tells what happened and keeps it; `counts` as `PlanStore.open` says."""
        if counts:
            self._meet()
        generation = self._state.generation if self._state else 0
        # While there is no plan no worker is reported, and none of them has changed.
        before = {"status": {**self.status, "npus": self._npus}}
        told = (report, raw, generation)
        if told != self._made_of:
            now = self._timestamp()
            self.document = resource(report, spec=raw, previous=self.document, now=now, generation=generation)
            self._made_of = told
        self._logbook.tell(report, self.document, act, steps)
        if report.plan is not None:
            self._npus = self.document["status"]["npus"]
        if self._state is None:
            return
        act, self._untold = act.after(self._untold), ActResult()
        if not counts:
            self._untold = replace(act, outcomes={})  # who was given back; it is told as soon as anything is
            return
        self._tell(happenings(before, self.document, report, act))
        try:
            self._state.write(self.document)
            self._logbook.forget("state")
        except Refused as refused:
            self._logbook.once("state", refused.problem, logging.ERROR)

    def leave(self) -> None:
        """Says in the store that nobody keeps the plan any more."""
        status = self.status
        if self._state is None or not self._met or not status:
            return
        left = {**status, "conditions": stopped(status.get("conditions"), self._timestamp())}
        with contextlib.suppress(Refused):
            self._state.write(self.document | {"status": left})

    def _meet(self) -> None:
        """Takes up what an earlier run of the agent left, if anything: conditions that still hold keep their transition
        times, and what was told is not told again. What this run saw before that it has told nobody yet."""
        if self._met or self._state is None:
            return
        self._met = True
        with contextlib.suppress(Refused):  # reported when the spec is read from it
            self.document, self._made_of = self._state.read(), None
        self._npus = self.status.get("npus")

    def _timestamp(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall_clock()))


def _status(document: Mapping[str, Any]) -> Mapping[str, Any]:
    status = document.get("status")
    return status if isinstance(status, Mapping) else {}
