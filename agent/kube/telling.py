"""What a log says of things that go wrong for a while: once that they do, once that they don't any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from agent.model.reason import Problem

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
        self._told: set[Problem] = set()
        self._lasting: Problem | None = None

    def look(self, problem: Problem | None) -> None:
        """Takes what is wrong now; None where nothing is. To be called again and again."""
        now = self._clock()
        if problem is not None:
            self._since = now if self._since is None else self._since
            self._well_since = None
            if problem not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(problem)
                log.warning("%s: %s; what is bound stays and is kept", self._about, problem)
            if now - self._since >= LASTING_SECONDS and (
                self._lasting is None or self._lasting.reason is not problem.reason
            ):
                self._lasting = problem
        elif self._since is not None:
            self._well_since = now if self._well_since is None else self._well_since
            if now - self._well_since >= STEADY_SECONDS:
                log.info("%s", self._again)
                self._since = self._well_since = self._lasting = None
                self._told.clear()

    @property
    def lasting(self) -> Problem | None:
        """What has been wrong for long and is not steadily well again; it changes with its reason alone."""
        return self._lasting
