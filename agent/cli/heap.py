"""Gives memory back that start-up took and nobody needs any more."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

FIRST_TURNS: Final = 12
"""Passes after which start-up is over, watches and first plan included: a minute of sweeps."""
TURNS: Final = 720
"""Passes from then on between two times: an hour of sweeps."""


class HeapKeeper:
    """Counts passes of the loop. What the import of a hundred modules leaves free lies scattered, and free(3) gives the
    kernel only what lies at the end of the heap; malloc_trim(3) gives it all whole pages. That is a seventh of what an
    agent of a cluster occupies."""

    def __init__(self, trim: Callable[[], object] | None = None) -> None:
        self._trim = trim or _malloc_trim
        self._left = FIRST_TURNS

    def turned(self) -> None:
        """After each pass."""
        self._left -= 1
        if self._left <= 0:
            self._left = TURNS
            self._trim()


def _malloc_trim() -> None:
    """glibc's; other libraries have none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
