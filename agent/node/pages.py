"""move_pages(2): asking where the pages of a process are, and moving them to another NUMA node.

The C library has no function for it. What follows is how the kernel's mm/migrate.c has it, from Linux 4.17 on:

* Each page that is to be moved is put on a list. One that can't be, or is where it belongs, gets its status at once,
  and the list up to there is moved. Of a huge page the first address takes it whole, the second one is told EBUSY.
* Where the list could not be moved whole, pages pinned for DMA, the call ends there: the statuses of that list and of
  everything after it are not written, and it returns how many pages are not moved.
* Where the target node has no room left it fails with ENOMEM, having moved some.

So a status says less than asking again does: `agent.node.memory` counts by where pages are, before and after.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from array import array
from typing import Final

UNTRIED: Final = -(1 << 30)
"""Status of a page to which the kernel did not get; no node and no errno."""

_NUMBERS: Final = {"x86_64": 279, "aarch64": 239}
"""The system call by architecture (asm/unistd.h)."""

_MPOL_MF_MOVE: Final = 1 << 1
"""Only pages that no other process maps (linux/mempolicy.h)."""


class PageCalls:
    """move_pages(2) of the running kernel. OSError with its errno; ENOSYS where its number is not known."""

    def __init__(self, architecture: str | None = None) -> None:
        self._number = _NUMBERS.get(platform.machine() if architecture is None else architecture)
        # CDLL gives up the GIL, which these calls need: they take tens of milliseconds, unlike those for masks.
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long

    def nodes(self, pid: int, addresses: array[int]) -> array[int]:
        """For each page the node that it is on, or -errno."""
        return self._call(pid, addresses, None, 0)

    def move(self, pid: int, addresses: array[int], node: int) -> array[int]:
        """For each page the node that it is on now, -errno, or UNTRIED."""
        return self._call(pid, addresses, array("i", [node]) * len(addresses), _MPOL_MF_MOVE)

    def _call(self, pid: int, addresses: array[int], nodes: array[int] | None, flags: int) -> array[int]:
        check_pages(pid, addresses)
        statuses = array("i", [UNTRIED]) * len(addresses)
        if not addresses:
            return statuses
        if self._number is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        result = self._syscall(
            ctypes.c_long(self._number),
            ctypes.c_long(pid),
            ctypes.c_ulong(len(addresses)),
            _pointer(addresses),
            None if nodes is None else _pointer(nodes),
            _pointer(statuses),
            ctypes.c_long(flags),
        )
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return statuses


def page_addresses(start: int, end: int, page_size: int) -> array[int]:
    """The addresses of the pages of [start, end), in the form that `Host.move_pages` takes."""
    return array("Q", range(start, end, page_size))


def check_pages(pid: int, addresses: array[int]) -> None:
    """ValueError for what must never reach the system call: pid 0 would be the caller itself."""
    if pid < 1:
        raise ValueError(f"{pid} is no process id")
    if addresses.itemsize != ctypes.sizeof(ctypes.c_void_p):
        raise ValueError(f"addresses have {addresses.itemsize} bytes each")


def _pointer(values: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.buffer_info()[0])
