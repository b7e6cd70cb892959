"""Reading small files of /proc, /sys and recorded trees: whole, bounded, and without surprises.

Files of a process vanish at any moment, so absence is a value (None) and not an exception.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused, printable

LIMIT: Final = 1 << 20
"""Bytes; the default bound."""

INTERRUPTS_LIMIT: Final = 64 << 20
"""Bytes, for /proc/interrupts: eleven a CPU and interrupt, which makes 28 MiB of 640 CPUs and 4,096 vectors."""

ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ESRCH, errno.ENXIO})
"""What the kernel answers for a file, process, device or cgroup that is not there, or no longer."""

DENIED: Final = frozenset({errno.EACCES, errno.EPERM})

# O_NONBLOCK so that a FIFO in a recorded tree cannot hold up the reader; regular, proc and sysfs files don't heed it.
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_CHUNK: Final = 1 << 16


def read_bytes(
    path: str | Path, reason: Reason, *, limit: int = LIMIT, at: int | None = None, sized: bool = False
) -> bytes | None:
    """The whole file, or None where there is none. `at` is a folder's descriptor that `path` is relative to; then the
    file's own name is not followed if it is a link. `sized` is for files on a disk, of which the kernel knows how long
    they are: half of one is none. Refused with `reason` on any other error and beyond `limit` bytes.
    """
    try:
        file = os.open(path, _FLAGS if at is None else _FLAGS | os.O_NOFOLLOW, dir_fd=at)
    except OSError as error:
        if error.errno in ABSENT or (at is not None and error.errno == errno.ELOOP):
            return None
        raise refusal(reason, path, error) from error
    try:
        content = os.read(file, _CHUNK)
        # A seq_file gives out whole records, so that a short read does not mean the end: only an empty one does.
        if chunk := os.read(file, _CHUNK):
            chunks, length = [content], len(content)
            while chunk and length <= limit:
                chunks.append(chunk)
                length += len(chunk)
                chunk = os.read(file, _CHUNK)
            content = b"".join(chunks)
        size = os.fstat(file).st_size if sized else 0
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise refusal(reason, path, error) from error
    finally:
        os.close(file)
    if len(content) > limit:
        raise Refused(reason, f"{printable(str(path), 150)} is larger than {limit} bytes")
    if len(content) < size:
        raise Refused(reason, f"{printable(str(path), 150)}: {len(content)} of {size} bytes could be read")
    return content


def read_text(
    path: str | Path, reason: Reason, *, limit: int = LIMIT, at: int | None = None, sized: bool = False
) -> str | None:
    """As `read_bytes`, decoded as UTF-8. Other bytes become lone surrogates, so that paths survive (PEP 383)."""
    content = read_bytes(path, reason, limit=limit, at=at, sized=sized)
    return None if content is None else content.decode("utf-8", "surrogateescape")


def whole_line(content: bytes | str, path: str | Path, reason: Reason) -> None:
    """Refused with `reason` where what was read of a file of the kernel ends in the middle of a line: half of a CPU
    list reads like a whole one. One that is empty ends nowhere."""
    if content and content[-1] not in ("\n", 10):
        shown = content if isinstance(content, str) else content.decode("utf-8", "replace")
        raise Refused(reason, f"{printable(str(path), 120)} is cut short: {printable(shown[-40:], 60)}")


def list_folder(path: str | Path, reason: Reason) -> list[str]:
    """The names in a folder, in the kernel's order; empty where there is none. Refused with `reason` otherwise."""
    try:
        return os.listdir(path)  # noqa: PTH208 - names alone: a Path for each would cost more than the listing
    except OSError as error:
        if error.errno in ABSENT:
            return []
        raise refusal(reason, path, error) from error


def refusal(reason: Reason, path: str | Path, error: OSError) -> Refused:
    """The Refused that stands for an OSError; its message names the file and what the kernel said."""
    said = error.strerror or errno.errorcode.get(error.errno or 0, "unknown error")
    return Refused(reason, f"{printable(str(path), 150)}: {said}")


def join(root: Path) -> str:
    """A root folder as a prefix for paths that begin with a slash."""
    return os.fspath(root).rstrip("/")


def numbered_devices(text: str, path: str | Path, reason: Reason) -> list[tuple[int, tuple[int, int]]]:
    """Lines ``N major:minor`` of a recorded tree: N with its device number. Blank lines count for nothing.

    Refused with `reason` on any other line.
    """
    devices = []
    for line in text.splitlines():
        if not line.strip():
            continue
        number, _, device = line.strip().partition(" ")
        major, colon, minor = device.strip().partition(":")
        if not (colon and all(_is_number(part) for part in (number, major, minor))):
            raise Refused(reason, f"{printable(str(path), 120)}: {printable(line, 60)!r} is not «N major:minor»")
        devices.append((int(number), (int(major), int(minor))))
    return devices


def _is_number(text: str) -> bool:
    # Device numbers have 32 bits; the bound keeps int() from being handed a megabyte of digits.
    return text.isascii() and text.isdigit() and len(text) <= 10
