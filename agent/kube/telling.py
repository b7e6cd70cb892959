"""What a log says of things that go wrong for a while: once that they do, once that they don't any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from agent.model.reason import Problem, Reason
from agent.model.remedies import REMEDIES

log = logging.getLogger(__name__)

STEADY_SECONDS = 30.0
"""What has been well for so long is well again. What comes and goes faster is one trouble, told once."""
LASTING_SECONDS = 30.0
"""What has been wrong for so long is worth a write to the API server; a moment's is not, least of all by every node."""
MAX_TOLD = 4
"""How many things are told of one trouble that changes."""


class Trouble:
    """One thing that may be wrong."""

    def __init__(self, about: str, again: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`about` begins the lines of the log; `again` is the line when it is over."""
        self._about = about
        self._again = again
        self._clock = clock
        self._since: float | None = None
        self._well_since: float | None = None
        self._told: set[tuple[Reason, str]] = set()
        self._lasting: Problem | None = None

    def look(self, problem: Problem | None) -> None:
        """Takes what is wrong now; None where nothing is. To be called again and again."""
        now = self._clock()
        if problem is None:
            self._lasting = self._since = None
            if self._told:
                self._well_since = now if self._well_since is None else self._well_since
                if now - self._well_since >= STEADY_SECONDS:
                    log.info("%s", self._again)
                    self._told.clear()
            return
        self._well_since = None
        self._since = now if self._since is None else self._since
        cause = problem.reason, problem.message.partition(": ")[2]  # whatever was asked for
        if cause not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(cause)
            remedy = REMEDIES.get(problem.reason)
            todo = f"; {remedy}" if remedy else ""
            log.warning("%s: %s; what is bound stays and is kept%s", self._about, problem, todo)
        if now - self._since >= LASTING_SECONDS and (
            self._lasting is None or self._lasting.reason is not problem.reason
        ):
            self._lasting = problem

    @property
    def lasting(self) -> Problem | None:
        """What has been wrong for long, and is; it changes with its reason alone."""
        return self._lasting
