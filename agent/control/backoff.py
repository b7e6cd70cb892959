"""When to try again what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent.model.reason import Problem

FIRST_SECONDS: Final = 10.0
LAST_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that failed, and is not tried again before its time: twice as long after each failure."""

    problem: Problem
    until: float
    """On the clock of whoever keeps it."""
    seconds: float = FIRST_SECONDS

    @classmethod
    def after(cls, earlier: Refusal | None, problem: Problem, now: float, *, last: float = LAST_SECONDS) -> Refusal:
        """What is kept of a failure, with the one before it at the same thing; `last` is the longest time."""
        seconds = FIRST_SECONDS if earlier is None else min(2 * earlier.seconds, last)
        return cls(problem, now + seconds, seconds)
