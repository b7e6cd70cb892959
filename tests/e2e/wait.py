"""Waiting for what a cluster does in its own time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_patience = [float(os.environ.get("E2E_PATIENCE") or 1)]


def patience() -> float:
    """How many times longer than on a common node everything may take."""
    return _patience[-1]


@contextmanager
def more_patience(factor: float) -> Iterator[None]:
    """Everything may take so many times longer for a while: the node is emulated."""
    _patience.append(patience() * factor)
    try:
        yield
    finally:
        _patience.pop()


def until(look: Callable[[], T | None], why: str, seconds: float = 20.0) -> T:
    """What `look` returns once that is true; AssertionError with what it said last after `seconds`.

    A look that fails says no: an object that is not there yet, a pod that is being replaced.
    """
    last: object = None
    limit = seconds * patience()
    end = time.monotonic() + limit
    while True:
        try:
            if found := look():
                return found
            last = found
        except (AssertionError, LookupError) as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:g} s: {why}; last: {last!r}") from None
        time.sleep(0.4)


def throughout(look: Callable[[], object], why: str, seconds: float) -> None:
    """Asserts that `look` stays true for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert look(), why
        time.sleep(0.25)
