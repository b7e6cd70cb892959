"""What no two tests may do at once, whichever process of a test run they are in: this machine has one of it."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERRUPTS = "interrupts"
"""To move them, or to write a mask that was read before."""

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Waits until no other test does this."""
    with (Path(tempfile.gettempdir()) / f"cpubind-{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def next_pid(pid: int) -> Iterator[None]:
    """The next process or thread of this machine gets this number, unless it is taken. After that numbers go on from
    where they were: other tests look for nobody under those that have just become free."""
    before = LAST_PID.read_text()
    LAST_PID.write_text(str(pid - 1))
    try:
        yield
    finally:
        LAST_PID.write_text(before)
