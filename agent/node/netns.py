"""Unix sockets in another network namespace. Abstract addresses belong to one (unix(7)); paths do not."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from contextlib import suppress
from typing import Final

_CLONE_NEWNET: Final = 0x40000000


def unix_socket(namespace: str) -> socket.socket:
    """A stream socket in the network namespace that a file such as ``/proc/1/ns/net`` stands for.

    A socket stays in the namespace that it was made in. Where that is not this thread's own, a thread that lives no
    longer than that goes there (setns(2)), so that nobody else is moved. Raises OSError: ENOENT where it is gone,
    EPERM without CAP_SYS_ADMIN.
    """
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat("/proc/thread-self/ns/net")):  # noqa: PTH116
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        return _made_in(descriptor)
    finally:
        os.close(descriptor)


def _made_in(descriptor: int) -> socket.socket:
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) < 0:
            number = ctypes.get_errno()
            failed.append(OSError(number, os.strerror(number)))
            return
        with suppress(OSError):
            made.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))

    thread = threading.Thread(target=make, name="netns", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    if not made:
        raise OSError("no socket could be made in the namespace")
    return made[0]
