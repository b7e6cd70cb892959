"""Lists a folder of numbers again and again: what has not changed since the last time costs a comparison of bytes.

`os.listdir` makes a copy of the descriptor, a stream on it and a text of every name each time; what it does not tell
are inode numbers, for which `os.scandir` makes an object of every name. Here getdents64(2) is called directly: the C
library of 2018 (glibc 2.28) has no function for it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

_NUMBERS: Final = {"x86_64": 217, "aarch64": 61}
"""The system call by architecture (asm/unistd.h)."""

_BYTES: Final = 1 << 15

_ENTRY: Final = struct.Struct("=QqHB")
"""struct linux_dirent64: inode number, offset, length of the entry, type; then the name with a NUL, filled up to a
multiple of eight bytes."""
_NAME: Final = _ENTRY.size
_DOTS: Final = 48
"""Bytes of the entries ``.`` and ``..``, which come first in /proc."""
_LONG: Final = 32
"""Bytes of an entry whose name has 5 to 12 letters."""
_FAST: Final = struct.Struct("=Q8xHx13s")


class Listing:
    """The entries of an open folder whose names are numbers. Reads through a descriptor that belongs to somebody else,
    and moves its position."""

    __slots__ = ("_call", "_content", "_entries", "_fd", "_number")

    def __init__(self, fd: int, architecture: str | None = None) -> None:
        self._fd = fd
        self._number = _NUMBERS.get(platform.machine() if architecture is None else architecture)
        # PyDLL keeps the GIL. It is given up once for each listing, when the position is moved.
        self._call = _LIBC.syscall
        self._content = b""
        self._entries: dict[int, int] = {}

    def read(self) -> dict[int, int]:
        """Number -> inode number in the order of the folder; the same dict as before if nothing changed. OSError."""
        if self._number is None:
            with os.scandir(self._fd) as entries:
                now = {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal()}
            if now != self._entries:
                self._entries = now
            return self._entries
        content = self._read(self._number)
        if content != self._content:
            self._entries = parse(content)
            self._content = content
        return self._entries

    def _read(self, number: int) -> bytes:
        os.lseek(self._fd, 0, os.SEEK_SET)
        # The kernel leaves what lies between two names as it was: a buffer of zeros each time, or listings that are
        # alike would look different. It is as large as the last listing needed, and one entry more.
        size = max(_BYTES, len(self._content) + 512)
        parts: list[bytes] = []
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._call(number, self._fd, buffer, size)
            if length < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            if length == 0:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            parts.append(ctypes.string_at(buffer, length))


def parse(content: bytes) -> dict[int, int]:
    """Number -> inode number of the entries whose names are numbers, in their order."""
    count, odd = divmod(len(content) - _DOTS, _LONG)
    # Where every length in a row says that the next entry is as long, it is. Five digits or more: nearly always.
    if count > 0 and not odd and content[:_DOTS][16::24] == b"\x18\x18":
        rest = content[_DOTS:]
        if rest[16::_LONG] == b"\x20" * count and rest[17::_LONG] == bytes(count):
            inodes, _, names = zip(*_FAST.iter_unpack(rest), strict=True)
            numbers = b" ".join(names).replace(b"\0", b"").split()
            if len(numbers) == count and b"".join(numbers).isdigit():
                return dict(zip(map(int, numbers), inodes, strict=True))
    found = {}
    at = 0
    while at < len(content):
        inode, _, length, _ = _ENTRY.unpack_from(content, at)
        name = content[at + _NAME : content.index(0, at + _NAME)]
        if name.isdigit():
            found[int(name)] = inode
        at += length
    return found


_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
