"""When to ask again."""

from __future__ import annotations

import random
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


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that an API server asks to wait; 0 where it does not. It gives whole seconds, never a date."""
    text = headers.get("Retry-After") or ""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
