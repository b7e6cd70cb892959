"""Sockets in another network namespace. Abstract unix addresses belong to one (unix(7)), and so does netlink."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from typing import Final

_CLONE_NEWNET: Final = 0x40000000


def unix_socket(namespace: str) -> socket.socket:
    """A unix stream socket, as `socket_in`."""
    return socket_in(namespace, socket.AF_UNIX, socket.SOCK_STREAM)


def socket_in(namespace: str, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A socket in the network namespace that a file such as ``/proc/1/ns/net`` stands for.

    A socket stays in the namespace that it was made in. Where that is not this thread's own, a thread that lives no
    longer than that goes there (setns(2)), so that nobody else is moved. Raises OSError: ENOENT where it is gone,
    EPERM without CAP_SYS_ADMIN, EACCES without the right to look at the process (CAP_SYS_PTRACE); and what socket(2)
    raises.
    """
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.fstat(descriptor), os.stat("/proc/thread-self/ns/net")):  # noqa: PTH116
            return socket.socket(family, kind, protocol)
        return _made_in(descriptor, family, kind, protocol)
    finally:
        os.close(descriptor)


def _made_in(descriptor: int, family: int, kind: int, protocol: int) -> socket.socket:
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) < 0:
            number = ctypes.get_errno()
            failed.append(OSError(number, os.strerror(number)))
            return
        try:
            made.append(socket.socket(family, kind, protocol))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make, name="netns", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
