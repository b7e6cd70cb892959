"""statx(2) with AT_STATX_DONT_SYNC, for which Python has no call.

A worker holds model weights open on NFS, CephFS or FUSE as a rule. stat(2) on such a file asks the server for its
attributes and waits for ever when that server is gone; with this flag the kernel answers from what it knows.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import Final

_AT_NO_AUTOMOUNT: Final = 0x800
_AT_STATX_DONT_SYNC: Final = 0x4000
_STATX_TYPE: Final = 0x1
_SIZE: Final = 256
_MODE: Final = 28
"""Offset of ``stx_mode`` in struct statx (include/uapi/linux/stat.h); ``stx_rdev_major`` and minor are at 128."""
_RDEV: Final = 128


def character_device(path: str, at: int) -> tuple[int, int] | None:
    """(major, minor) of the character device that `path`, below the folder open as `at`, leads to; links are followed.

    None for anything else, for what is gone, and for a file whose server answers with an error. PermissionError is
    passed on.
    """
    return _look(path, at)


def _by_statx(path: str, at: int) -> tuple[int, int] | None:
    buffer = ctypes.create_string_buffer(_SIZE)
    flags = _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC
    if _statx is None or _statx(at, os.fsencode(path), flags, _STATX_TYPE, buffer):
        if (code := ctypes.get_errno()) in {errno.EACCES, errno.EPERM}:
            raise PermissionError(code, os.strerror(code), path)
        return None
    if not stat.S_ISCHR(struct.unpack_from("=H", buffer, _MODE)[0]):
        return None
    major, minor = struct.unpack_from("=II", buffer, _RDEV)
    return major, minor


def _by_stat(path: str, at: int) -> tuple[int, int] | None:
    try:
        status = os.stat(path, dir_fd=at)
    except PermissionError:
        raise
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None


# glibc has it since 2.28, musl since 1.2.5.
_statx: Final = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
_look: Final[Callable[[str, int], tuple[int, int] | None]] = _by_stat if _statx is None else _by_statx
