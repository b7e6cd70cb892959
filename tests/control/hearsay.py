"""Somebody who tells an agent of processes what a test wants it to hear."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

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
        self._news = News()

    def tell(self, *, lost: bool = False, processes: bool = False, suspects: Collection[int] = ()) -> None:
        """For the next look."""
        news = self._news
        self._news = replace(
            news,
            lost=news.lost or lost,
            processes=news.processes or processes,
            suspects=news.suspects | frozenset(suspects),
        )

    def take(self) -> News:
        news, self._news = self._news, News()
        return news

    def problem(self) -> Problem | None:
        return self.trouble

    def interest(self, bound: Collection[ProcessId], awaited: Collection[int]) -> None:
        self.bound, self.awaited = frozenset(bound), frozenset(awaited)
