"""When to ask, and when to ask again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping

MAX_PAUSE = 60.0
"""Seconds. No API server that means well asks for more; one that does is asked again after so long all the same."""


class Backoffs:
    """Pauses between attempts, endless: doubling from `first` to `last` seconds, each shortened at random by up to a
    third, so that the agents of a fleet don't come back together. kopf iterates over it once a request."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last

    def __iter__(self) -> Iterator[float]:
        pause = self._first
        while True:
            yield pause * random.uniform(2 / 3, 1)  # noqa: S311 - spreading load, not a secret
            pause = min(2 * pause, self._last)


class Spread:
    """Keeps the agents of a fleet from asking all at once where one thing made all of them ask: an upgrade that started
    them, an API server that went and took their watches with it. Each waits for a random part of `seconds`.

    Not where somebody waits for the answer. What is bound is kept without the API server; a worker whose pod is not
    known can't be bound before it is. Whoever sees one calls `hurry`. Safe from any thread.
    """

    def __init__(self, seconds: float) -> None:
        """0 lets nobody wait."""
        self._seconds = seconds
        self._first = time.monotonic() + self._part()
        self._hurried = float("-inf")
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def hurry(self) -> None:
        """Ends all waiting, and lets nobody wait for the time being."""
        self._hurried = time.monotonic()
        with self._lock:
            waiting = list(self._waiting)
        for loop, urgent in waiting:
            with contextlib.suppress(RuntimeError):  # that loop has just ended
                loop.call_soon_threadsafe(urgent.set)

    async def start(self) -> None:
        """Before the first request: until a moment that is the same for all of an agent's watches."""
        await self._wait(self._first - time.monotonic())

    async def resume(self) -> None:
        """Before a request that follows on something that all agents of a fleet have met."""
        await self._wait(self._part())

    def _part(self) -> float:
        return random.uniform(0, self._seconds)  # noqa: S311 - spreading load, not a secret

    async def _wait(self, seconds: float) -> None:
        urgent = asyncio.Event()
        mine = asyncio.get_running_loop(), urgent
        with self._lock:
            self._waiting.add(mine)
        try:
            if seconds > 0 and time.monotonic() - self._hurried > self._seconds:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(urgent.wait(), seconds)
        finally:
            with self._lock:
                self._waiting.discard(mine)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that an API server asks to wait; 0 where it does not. It gives whole seconds, never a date."""
    text = headers.get("Retry-After") or ""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
