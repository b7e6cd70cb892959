"""Somebody who tells an agent of processes what a test wants it to hear."""

from __future__ import annotations

from collections.abc import Collection

from agent.control.news import News
from agent.model.reason import Problem
from agent.model.workload import ProcessId


class Hearsay:
    """A `NewsSource` that knows nothing by itself."""

    def __init__(self) -> None:
        self.up = True
        self.trouble: Problem | None = None
        self.bound: frozenset[ProcessId] = frozenset()
        self.awaited: frozenset[int] = frozenset()
        """What the agent said last that it is interested in."""
        self.waiting = News()
        """What it has not taken yet."""

    def tell(self, *, lost: bool = False, processes: bool = False, suspects: Collection[int] = ()) -> None:
        """For the next look."""
        self.waiting = self.waiting.then(News(lost, processes, frozenset(suspects)))

    def take(self) -> News:
        news, self.waiting = self.waiting, News()
        return news

    def problem(self) -> Problem | None:
        return self.trouble

    def interest(self, bound: Collection[ProcessId], awaited: Collection[int]) -> None:
        self.bound, self.awaited = frozenset(bound), frozenset(awaited)
