"""Writing the files of a virtual node so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


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


def put_executable(path: Path, text: str) -> None:
    """Writes a program."""
    put(path, text)
    path.chmod(0o755)
