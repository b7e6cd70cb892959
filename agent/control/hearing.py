"""The loop's side of a `NewsSource`: which news are all that there was, and which are worth a pass."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from agent.control.news import NOBODY, News, NewsSource
from agent.model.workload import ProcessId


class Hearing:
    """Takes news, for the looks of one loop. Without a source nothing is ever heard."""

    def __init__(self, source: NewsSource | None, opened: Callable[[Collection[int]], bool]) -> None:
        """`opened` says whether one of these processes holds an NPU open that nobody knew of."""
        self._source = source
        self._opened = opened
        self._heard = False
        """Whether there was a source at the last look, so that nothing was missed since then."""
        self._kept = News()
        """Taken since then."""

    def take(self) -> News | None:
        """What came since this was called last; None where that may not be all."""
        source = self._source
        heard, self._heard = self._heard, source is not None and source.up
        if source is None or not self._heard:
            return None
        told, self._kept = self._kept.then(source.take()), News()
        return told if heard else None

    def worth_a_pass(self) -> bool:
        """Whether a suspect holds an NPU open, or nobody can know. All else that came waits for the next pass: whoever
        told it says by himself how soon that is to be."""
        source = self._source
        if source is None or not (source.up and self._heard):
            return True
        told = source.take()
        self._kept = self._kept.then(replace(told, suspects=NOBODY))
        if not (told.lost or self._opened(told.suspects)):
            return False
        self._kept = self._kept.then(told)
        return True

    def doubt(self) -> None:
        """Something happened that had not been told: the next look is not to rely on news."""
        self._heard = False

    def tell(self, bound: Collection[ProcessId], awaited: Collection[int]) -> None:
        """As `NewsSource.interest`."""
        if self._source is not None:
            self._source.interest(bound, awaited)
