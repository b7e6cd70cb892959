"""Writing the files of a virtual node so that a reader never sees half of one."""

from __future__ import annotations

from pathlib import Path


def put(path: Path, text: str) -> None:
    """Writes a whole file; one that exists is replaced at once."""
    # Names of threads are any bytes; those that are no UTF-8 travel as lone surrogates.
    content = text.encode(errors="surrogateescape")
    if not path.exists():
        path.write_bytes(content)
        return
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def put_executable(path: Path, text: str) -> None:
    """Writes a program."""
    put(path, text)
    path.chmod(0o755)
