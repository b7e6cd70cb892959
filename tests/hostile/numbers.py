"""A process that gets the number of one that ended: clone3(2) with set_tid, which the kernel lets root do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterator
from typing import Final

import pytest

_CLONE3: Final = 435
"""The same on every architecture that is newer than it (include/uapi/asm-generic/unistd.h)."""


class _CloneArgs(ctypes.Structure):
    """struct clone_args (clone(2))."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls",
            "set_tid", "set_tid_size",
        )
    ]  # fmt: skip


def start_as(pid: int) -> None:
    """Starts a process with this number, which does nothing. It begins with the mask of the thread that calls this."""
    wanted = ctypes.c_int(pid)
    args = _CloneArgs(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    # PyDLL keeps the GIL, which the child needs to go on.
    libc = ctypes.PyDLL(None, use_errno=True)
    until = time.monotonic() + 10
    while (got := libc.syscall(_CLONE3, ctypes.byref(args), ctypes.sizeof(args))) < 0:
        code = ctypes.get_errno()
        if code == errno.EEXIST and time.monotonic() < until:  # the kernel is not through with the one that ended
            time.sleep(0.001)
            continue
        if code in (errno.EPERM, errno.ENOSYS):
            pytest.skip(f"clone3 with set_tid: {os.strerror(code)}")
        raise OSError(code, os.strerror(code))
    if got == 0:
        os.execv("/bin/sleep", ["sleep", "600"])
    assert got == pid
    while os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe"):
        assert time.monotonic() < until, "it did not become another program"
        time.sleep(0.001)


@contextlib.contextmanager
def ended_after(pid: int) -> Iterator[None]:
    """Ends what `start_as` began with this number, if it did."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
