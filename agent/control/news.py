"""News of processes: what the kernel told since the last pass, for a loop that then need not look for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from agent.model.reason import Problem
from agent.model.workload import ProcessId

NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class News:
    """What came to be known between two passes."""

    lost: bool = False
    """Something was missed: nothing that was read earlier is to be believed."""
    processes: bool = False
    """A process that matters was born, ended or became another program: a worker that is bound, or anybody in a
    container that is awaited. A child of a worker is not worth a look at everything: whoever hears of it puts it in
    place."""
    suspects: frozenset[int] = NOBODY
    """Pids of processes that made threads, as one does that opens an NPU: only their open files are worth a look."""

    def then(self, later: News) -> News:
        """This and what came later."""
        suspects = self.suspects | later.suspects
        return News(self.lost or later.lost, self.processes or later.processes, suspects)


class NewsSource(Protocol):
    """Whoever hears of processes. Safe to be asked from the loop's thread while news come in another."""

    @property
    def up(self) -> bool:
        """Whether everything is heard of just now. While it is not, every pass looks for itself."""
        ...

    def take(self) -> News:
        """What came since the last call."""
        ...

    def problem(self) -> Problem | None:
        """Why nothing is heard, for the plan; None while it is, and where nobody has to know."""
        ...

    def interest(self, bound: Collection[ProcessId], awaited: Collection[int]) -> None:
        """Told after each pass: the workers that are bound, and the pids of processes that hold an NPU open, or are in
        containers, of which a worker is awaited."""
        ...
