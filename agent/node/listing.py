"""Lists a folder of numbers again and again: what has not changed since the last time costs next to nothing.

`os.listdir` makes a copy of the descriptor, a stream on it and a text of every name each time; what it does not tell
are inode numbers, for which `os.scandir` makes an object of every name. Here getdents64(2) is called directly: the C
library of 2018 (glibc 2.28) has no function for it.
"""

from __future__ import annotations

import ctypes
import errno
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
_SIZES: Final = ((32, 7), (24, 4))
"""Bytes of an entry, and the digits that a number in it may have: no thread id is above 4,194,304 (PID_MAX_LIMIT)."""

_POSITION: Final = struct.Struct("=q")

_PROC_SUPER_MAGIC: Final = 0x9FA0

_ALL_EVERY: Final = 16


class Listing:
    """The entries of an open folder whose names are numbers. Reads through a descriptor that belongs to somebody else,
    and moves its position."""

    __slots__ = ("_appends", "_call", "_content", "_entries", "_fd", "_looks", "_number", "_size")

    def __init__(self, fd: int, architecture: str | None = None) -> None:
        self._fd = fd
        self._number = _NUMBERS.get(platform.machine() if architecture is None else architecture)
        # PyDLL keeps the GIL. It is given up once for each listing, when the position is moved.
        self._call = _LIBC.syscall
        self._content = b""
        self._entries: dict[int, int] = {}
        self._size = 0
        self._looks = 0
        self._appends: bool | None = None

    def read(self) -> dict[int, int]:
        """Number -> inode number in the order of the folder; the same dict as before if nothing changed. OSError.

        In /proc only the end is looked at where that is enough. The kernel adds a thread at the end of the list of its
        process, and a position in a `task` folder counts threads (copy_process, proc_task_readdir). So if the one that
        was last is still where it was, none before it ended, and what follows it is new. Once in a while all is listed,
        for a kernel that would have it otherwise. However it is read, the kernel ends a listing early where the thread
        that it has come to ends at that moment (next_tid): who comes after it is found by the next look.
        """
        self._looks += 1
        if self._size and self._looks % _ALL_EVERY and self._is_procfs() and (entries := self._read_end()) is not None:
            return entries
        return self._read_all()

    def _read_all(self) -> dict[int, int]:
        if self._number is None:
            with os.scandir(self._fd) as entries:
                now = {int(entry.name): entry.inode() for entry in entries if entry.name.isdecimal()}
            if now != self._entries:
                self._entries = now
            return self._entries
        content = self._read(self._number, 0)
        if content != self._content:
            self._entries, self._size = parse(content)
            self._content = content
        return self._entries

    def _read_end(self) -> dict[int, int] | None:
        """None where one before the end is missing."""
        size = self._size
        last, before = self._content[-size:], self._content[-2 * size : -size]
        if self._number is None or len(self._entries) < 2:
            return None
        (position,) = _POSITION.unpack_from(before, 8)
        rest = self._read(self._number, position)
        if not rest.startswith(last):
            return None
        if len(rest) > size:
            added, alike = parse(rest, dots=False)
            self._entries = self._entries | added
            self._content += rest[size:]
            self._size = size if alike == size else 0
        return self._entries

    def _is_procfs(self) -> bool:
        if self._appends is None:
            # struct statfs begins with the type of the file system, a long.
            buffer = (ctypes.c_long * 64)()
            self._appends = _LIBC.fstatfs(self._fd, buffer) == 0 and buffer[0] == _PROC_SUPER_MAGIC
        return self._appends

    def _read(self, number: int, position: int) -> bytes:
        os.lseek(self._fd, position, os.SEEK_SET)
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


def parse(content: bytes, *, dots: bool = True) -> tuple[dict[int, int], int]:
    """Number -> inode number of the entries whose names are numbers, in their order; and the size that all of them
    have, 0 where they differ or it does not begin with ``.`` and ``..``, of which without `dots` there are none."""
    first = _DOTS if dots else 0
    if not dots or (content[_NAME : _NAME + 2] == b".\0" and content[24 + _NAME : 24 + _NAME + 3] == b"..\0"):
        rest = content[first:]
        for size, digits in _SIZES:
            if (found := _parse_alike(rest, size, digits)) is not None:
                return found, size
    found = {}
    at = 0
    while at < len(content):
        inode, _, length, _ = _ENTRY.unpack_from(content, at)
        if length <= _NAME:
            raise OSError(errno.EIO, "a listing of another form")
        name = content[at + _NAME : content.index(0, at + _NAME)]
        if name.isdigit():
            found[int(name)] = inode
        at += length
    return found, 0


def _parse_alike(content: bytes, size: int, digits: int) -> dict[int, int] | None:
    """`parse` where all entries have that size, and names of no more digits; None where they have not."""
    count, odd = divmod(len(content), size)
    zeros = bytes(count)
    # Where every length in a row says that the next entry is as long, it is.
    if not count or odd or content[16::size] != bytes((size,)) * count or content[17::size] != zeros:
        return None
    if content[_NAME + digits :: size] != zeros:
        return None
    # Column by column, which takes as many steps as a name has digits and not as there are names.
    names = bytearray(b" " * (count * (digits + 1)))
    for column in range(digits):
        names[column :: digits + 1] = content[_NAME + column :: size]
    numbers = names.replace(b"\0", b" ").split()
    if len(numbers) != count or not b"".join(numbers).isdigit():
        return None
    return dict(zip(map(int, numbers), memoryview(content).cast("Q")[:: size // 8].tolist(), strict=True))


_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
