"""Who may open another connection: of one address a few dozen a second, and the rest is turned away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST: Final = 256
PER_SECOND: Final = 32.0
"""Connections of one address that are accepted at once, and then each second. kubelet and Prometheus come a few times
in ten seconds."""
ADDRESSES: Final = 1024
"""That are remembered."""


class Turnstile:
    """How many connections an address may still open: `BURST`, and `PER_SECOND` more each second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """Address -> connections it had left, and when."""

    def admits(self, address: str) -> bool:
        """Whether another one of it may come in now, which counts."""
        now = self._clock()
        left, at = self._left.pop(address, (float(BURST), now))
        left = min(float(BURST), left + (now - at) * PER_SECOND)
        if len(self._left) >= ADDRESSES:
            del self._left[next(iter(self._left))]  # the one that was heard of longest ago
        self._left[address] = (max(left - 1, 0.0) if left >= 1 else left, now)
        return left >= 1
