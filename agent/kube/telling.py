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


def cause(problem: Problem) -> tuple[Reason, str]:
    """What is wrong, whatever was asked for: texts begin with that, ``list of pods: …``."""
    return problem.reason, problem.message.partition(": ")[2] or problem.message


class Lasting:
    """What has been wrong for long, and is; it changes with its reason alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._told: Problem | None = None

    def look(self, problem: Problem | None) -> Problem | None:
        """Takes what is wrong now; None where nothing is. To be called again and again."""
        if problem is None:
            self._told = self._since = None
            return None
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since >= LASTING_SECONDS and (self._told is None or self._told.reason is not problem.reason):
            self._told = problem
        return self._told


class Trouble:
    """One thing that may be wrong, and what the log says of it."""

    def __init__(self, about: str, again: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`about` begins the lines of the log; `again` is the line when it is over."""
        self._about = about
        self._again = again
        self._clock = clock
        self._well_since: float | None = None
        self._told: set[tuple[Reason, str]] = set()

    def look(self, problem: Problem | None) -> None:
        """Takes what is wrong now; None where nothing is. To be called again and again."""
        now = self._clock()
        if problem is None:
            if self._told:
                self._well_since = now if self._well_since is None else self._well_since
                if now - self._well_since >= STEADY_SECONDS:
                    log.info("%s", self._again)
                    self._told.clear()
            return
        self._well_since = None
        if cause(problem) not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(cause(problem))
            remedy = REMEDIES.get(problem.reason)
            todo = f"; {remedy}" if remedy else ""
            log.warning("%s: %s; what is bound stays and is kept%s", self._about, problem, todo)
