"""Calls of the agent to the kernel, recorded and made to fail by the path that they are for.

A fake, and named so: the calls are those of `os`, `io.open` and getdents64(2) in this process, replaced by ones that
first look whether a fault is to be seen. Only what the agent's own code asks for counts; the virtual node behind it
(`agent.demo`) and the tests see the files as they are.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from agent.node.listing import Listing

READS: Final = frozenset({"open", "read", "listdir", "scandir", "getdents", "stat", "lstat", "readlink", "pread"})
WRITES: Final = frozenset({"create", "write", "fsync", "rename", "mkdir", "unlink"})

_ON_OPENING: Final = frozenset({errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EROFS})
"""What the kernel answers to the one that opens a file; the other errors come from reading it."""
_AFTER_OPENING: Final = frozenset({"read", "listdir", "scandir", "getdents", "readlink", "pread", "stat", "lstat"})
_BEHIND: Final = ("agent.demo", "tests.", "_pytest", "pytest", "xdist")


@dataclass(slots=True)
class Fault:
    """What is wrong with the paths that match, as seen from the root of the node."""

    path: re.Pattern[str]
    code: int = 0
    """errno; 0 for the faults below."""
    short: bool = False
    """Half of what is there is read, and then the end of the file."""
    flickers: bool = False
    """There and gone in turns: ENOENT at every second opening, ESRCH at every second reading."""
    opens: bool = False
    """What is never read, only opened, answers everything to that."""
    calls: frozenset[str] = READS
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(call, path) -> how often it failed."""
    _turns: Counter[str] = field(default_factory=Counter)

    def error(self, call: str, path: str) -> int:
        """errno of this call, 0 where it succeeds."""
        if call not in self.calls or self.path.fullmatch(path) is None or self.short:
            return 0
        if self.flickers:
            self._turns[path] += 1
            code = 0 if self._turns[path] % 2 else errno.ESRCH if call == "read" else errno.ENOENT
        elif call in WRITES:
            code = self.code
        else:
            opening = self.opens or self.code in _ON_OPENING
            code = self.code if opening or call in _AFTER_OPENING else 0
        if code:
            self.met[call, path] += 1
        return code

    def cuts(self, path: str) -> bool:
        """Whether what is read of it is cut short."""
        if not (self.short and self.path.fullmatch(path)):
            return False
        self.met["read", path] += 1
        return True


class Injector:
    """Stands between the agent and the kernel while it is `installed`. One at a time in a process."""

    def __init__(self, root: Path, *more: Path) -> None:
        """`more` are other folders whose files count, such as that of the agent's own."""
        self._roots = tuple(os.fspath(folder) for folder in (root, *more))
        self.faults: list[Fault] = []
        self.seen: Counter[tuple[str, str]] = Counter()
        """(call, path) of everything that the agent asked for."""
        self._served: dict[tuple[int, str], bool] = {}
        self._paths: dict[int, str] = {}

    @contextmanager
    def broken(self, fault: Fault) -> Iterator[Fault]:
        """The fault lasts as long as this does."""
        self.faults.append(fault)
        try:
            yield fault
        finally:
            self.faults.remove(fault)

    @contextmanager
    def installed(self) -> Iterator[Injector]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "read", "pread", "listdir", "scandir", "stat", "lstat", "readlink"):
                patch.setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
            for name in ("write", "fsync"):
                patch.setattr(os, name, self._by_descriptor(name, getattr(os, name)))
            for name, call in (("mkdir", "mkdir"), ("unlink", "unlink"), ("replace", "rename"), ("rename", "rename")):
                patch.setattr(os, name, self._by_path(call, getattr(os, name)))
            opened = self._io_open(io.open)
            patch.setattr(io, "open", opened)
            patch.setattr(builtins, "open", opened)
            patch.setattr(Listing, "read", self._getdents(Listing.read))
            yield self

    def _look(self, call: str, path: str | None) -> None:
        """Raises what the kernel would answer."""
        if path is None:
            return
        self.seen[call, path] += 1
        for fault in self.faults:
            if code := fault.error(call, path):
                raise OSError(code, os.strerror(code), path)

    def _cut(self, path: str | None) -> bool:
        return path is not None and any(fault.cuts(path) for fault in self.faults)

    def _where(self, path: Any, at: int | None = None) -> str | None:
        """The path as seen from a root; None where it is not below one, or not the agent who asks."""
        if not _asked_by_agent():
            return None
        if isinstance(path, int):
            whole = self._of(path)
        else:
            text = os.fsdecode(path)
            whole = text if at is None or text.startswith("/") else f"{self._of(at)}/{text}"
        whole = os.path.normpath(whole)
        for root in self._roots:
            if whole == root or whole.startswith(f"{root}/"):
                return whole.removeprefix(root) or "/"
        return None

    def _of(self, descriptor: int) -> str:
        try:
            return _readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
        except OSError:
            return ""

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            where = self._where(path, dir_fd)
            self._look("create" if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) else "open", where)
            return real(path, flags, mode, dir_fd=dir_fd)

        return call

    def _read(self, real: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        def call(descriptor: int, size: int) -> bytes:
            where = self._where(descriptor)
            self._look("read", where)
            if not self._cut(where):
                return real(descriptor, size)
            if os.lseek(descriptor, 0, os.SEEK_CUR):
                return b""
            content = real(descriptor, size)
            return content[: len(content) // 2]

        return call

    def _pread(self, real: Callable[[int, int, int], bytes]) -> Callable[[int, int, int], bytes]:
        def call(descriptor: int, size: int, offset: int) -> bytes:
            self._look("pread", self._where(descriptor))
            return real(descriptor, size, offset)

        return call

    def _listdir(self, real: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def call(path: Any = ".") -> list[str]:
            where = self._where(path)
            self._look("listdir", where)
            names = real(path)
            return names[: len(names) // 2] if self._cut(where) else names

        return call

    def _scandir(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".") -> Any:
            where = self._where(path)
            self._look("scandir", where)
            return real(path)

        return call

    def _stat(self, real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def call(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
            if not isinstance(path, int):
                self._look("stat", self._where(path, dir_fd))
            return real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

        return call

    def _lstat(self, real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def call(path: Any, *, dir_fd: int | None = None) -> os.stat_result:
            self._look("lstat", self._where(path, dir_fd))
            return real(path, dir_fd=dir_fd)

        return call

    def _readlink(self, real: Callable[..., str]) -> Callable[..., str]:
        def call(path: Any, *, dir_fd: int | None = None) -> str:
            self._look("readlink", self._where(path, dir_fd))
            return real(path, dir_fd=dir_fd)

        return call

    def _by_descriptor(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any) -> Any:
            self._look(name, self._where(descriptor))
            return real(descriptor, *arguments)

        return call

    def _by_path(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            where = self._where(arguments[0] if name == "rename" else path)
            self._look(name, where)
            return real(path, *arguments, **options)

        return call

    def _io_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if isinstance(file, int):
                return real(file, mode, *arguments, **options)
            where = self._where(file)
            self._look("open", where)
            self._look("read", where)
            stream = real(file, mode, *arguments, **options)
            if not self._cut(where):
                return stream
            with stream:
                content = stream.read()
            half = content[: len(content) // 2]
            return io.BytesIO(half) if isinstance(half, bytes) else io.StringIO(half)

        return call

    def _getdents(self, real: Callable[[Listing], dict[int, int]]) -> Callable[[Listing], dict[int, int]]:
        def call(listing: Listing) -> dict[int, int]:
            where = self._where(listing._fd)
            self._look("getdents", where)
            entries = real(listing)
            if not self._cut(where):
                return entries
            return dict(list(entries.items())[: max(1, len(entries) // 2)])

        return call


_readlink: Final = os.readlink


def _asked_by_agent() -> bool:
    """Whether the innermost code that is the agent's, a test's or the virtual node's is the agent's."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("agent."):
            return not name.startswith("agent.demo")
        if name.startswith(_BEHIND) and name != __name__:
            return False
        frame = frame.f_back
    return False
