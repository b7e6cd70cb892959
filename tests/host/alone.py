"""What no two tests may do at once, whichever process of a test run they are in: this machine has one of it."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Waits until no other test does this."""
    with (Path(tempfile.gettempdir()) / f"cpubind-{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
