"""Writing the files of a virtual node so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NOEXEC = 8
"""ST_NOEXEC of statvfs(3), which `os` names on some platforms only."""

_ROOM, _INODES = 128 << 20, 50_000
"""Several times what the largest virtual node takes."""


def put(path: Path | str, text: str) -> None:
    """Writes a whole file; one that exists is replaced at once."""
    # Names of threads are any bytes; those that are no UTF-8 travel as lone surrogates.
    content = text.encode(errors="surrogateescape")
    name = os.fspath(path)
    try:
        file = os.open(name, _NEW, 0o644)
    except FileExistsError:
        folder, _, base = name.rpartition("/")
        fresh = Path(folder) / f".{base}.new"
        fresh.write_bytes(content)
        fresh.replace(name)
        return
    try:
        os.write(file, content)
    finally:
        os.close(file)


def make(*folders: str) -> None:
    """Makes folders, each after the one it is in; those that exist are left alone. Cheap: a node has thousands."""
    for folder in folders:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)  # noqa: PTH102


def put_executable(path: Path, text: str) -> None:
    """Writes a program."""
    put(path, text)
    path.chmod(0o755)


def scratch() -> Path | None:
    """A folder in memory for the thousands of small files of a node; None where there is none to run programs from.

    On a disk that others use, too, making and removing them can take many seconds.
    """
    memory = Path("/dev/shm")  # noqa: S108 - what is made in there is made by tempfile
    try:
        status = os.statvfs(memory)
    except OSError:
        return None
    # Containers have it without execution, and small.
    room = status.f_bavail * status.f_frsize >= _ROOM and status.f_favail >= _INODES
    return memory if room and not status.f_flag & _NOEXEC and os.access(memory, os.W_OK) else None
