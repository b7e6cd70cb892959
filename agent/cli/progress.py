"""What people are told while something takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agent.cli import say

PATIENCE_SECONDS = 2.0
"""npu-smi answers within a second mostly, and may take ten for each of its tables."""


@contextmanager
def told_when_slow(what: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """A line on stderr where the block takes longer, if somebody looks at it."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(seconds, say, (f"still {what}",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
