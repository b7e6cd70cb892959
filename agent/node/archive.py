"""Unpacking a .tar or .tar.gz that comes from anywhere, by mail as a rule.

Archives are taken apart here and not by `tarfile`, of which one header is read at a time: that reads extended headers
and the maps of sparse files whole, however long they say that they are, so that a kilobyte can make it take a gigabyte
of memory; and what it leaves out and follows differs between Python's versions.

Formats: POSIX.1-1988 (ustar), POSIX.1-2001 (pax: the records ``path`` and ``size``), GNU (long names), V7. Sparse
files, which nobody makes of a snapshot unless asked to, are refused.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from agent.model.reason import Reason, Refused, printable

MAX_BYTES: Final = 512 << 20
"""Of all files together."""
MAX_MEMBERS: Final = 200_000
"""Members, and as many folders again: a host has some 20,000 files worth a copy."""
MAX_DEPTH: Final = 100
"""Folders above each other. A cgroup path is looked at to its 64th level, and has five folders above it."""

DAMAGE: Final = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)
"""What a damaged archive raises."""

_BLOCK: Final = tarfile.BLOCKSIZE
_MAX_HEADER: Final = 1 << 16
"""Bytes of an extended header. The kernel takes no path of more than 4,096."""
_MAX_EXTENDED: Final = 4
"""Extended headers of one member: a name, a link's name, one for this member and one for all."""
_MAX_PADDING: Final = 1 << 20
"""Bytes of zeros behind the end. GNU tar fills up 10 KiB, or as much as a tape's block has."""
_CHUNK: Final = 1 << 16
_FILE: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_NAME: Final = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_IGNORED: Final = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)
_NO_CONTENT: Final = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


def unpack(file: IO[bytes], folder: Path) -> int:
    """Unpacks an archive into an empty folder, and returns how many files that makes.

    Only files and folders are made, with nothing of a member but its name and content: no link is ever written that a
    path could lead through. A name that is there twice has the content that comes last. Refused(SnapshotUnreadable) for
    a member that leads out of the folder and for an archive that is too large; what is damaged raises one of DAMAGE.
    """
    gzipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return _Unpacking(gzip.GzipFile(fileobj=file) if gzipped else file, folder).run()


class _Unpacking:
    def __init__(self, stream: IO[bytes] | gzip.GzipFile, folder: Path) -> None:
        self._stream = stream
        self._left = MAX_BYTES + MAX_MEMBERS * 2 * _BLOCK
        """Bytes that may still be read: a few of gzip make as many as one likes."""
        self._top = os.fspath(folder)
        self._made: set[tuple[str, ...]] = {()}
        """Folders, each as its names from the top on."""
        self._members = self._folders = self._bytes = self._files = 0

    def run(self) -> int:
        name: str | None = None
        size: int | None = None
        extended = 0
        while any(block := self._exactly(_BLOCK)):
            header = _header(block)
            if header.type in _NAME or header.type in _IGNORED:
                extended += 1
                if extended > _MAX_EXTENDED:
                    raise tarfile.ReadError("a member has too many extended headers")
                content = self._extended(header)
                if header.type == tarfile.GNUTYPE_LONGNAME:
                    name = content.partition(b"\0")[0].decode("utf-8", "surrogateescape")
                elif header.type in _NAME:
                    name, size = _records(content, name, size)
                continue
            if size is not None:
                header.size = size
            if header.size < 0:
                raise tarfile.ReadError("a member has a negative size")
            self._member(header.name if name is None else name, header)
            name, size, extended = None, None, 0
        if extended:
            raise tarfile.ReadError("the archive ends behind an extended header")
        self._end()
        return self._files

    def _member(self, name: str, header: tarfile.TarInfo) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise self._too_large()
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if name.startswith("/") or ".." in parts:
            raise _refused(f"member {printable(name, 100)} leads out of the snapshot")
        if len(parts) > MAX_DEPTH:
            raise _refused(f"member {printable(name, 100)} is more than {MAX_DEPTH} folders deep")
        if header.type == tarfile.DIRTYPE:
            self._folder(parts)
        elif header.type in _FILE:
            self._bytes += header.size
            if self._bytes > MAX_BYTES:
                raise self._too_large()
            self._folder(parts[:-1])
            self._file("/".join((self._top, *parts)), header.size)
        elif header.type not in _NO_CONTENT:
            self._pass(header.size, lambda _: None)

    def _folder(self, parts: tuple[str, ...]) -> None:
        """Makes a folder and those above it."""
        missing = []
        while parts not in self._made:
            missing.append(parts)
            parts = parts[:-1]
        for made in reversed(missing):
            self._folders += 1
            if self._folders > MAX_MEMBERS:
                raise self._too_large()
            Path(self._top, *made).mkdir(exist_ok=True)
            self._made.add(made)

    def _file(self, path: str, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(path, flags | os.O_EXCL, 0o600)
            self._files += 1
        except FileExistsError:
            file = os.open(path, flags | os.O_TRUNC, 0o600)
        with open(file, "wb") as out:
            self._pass(size, out.write)

    def _too_large(self) -> Refused:
        return _refused(f"the archive has more than {MAX_MEMBERS} members or {MAX_BYTES >> 20} MiB")

    def _extended(self, header: tarfile.TarInfo) -> bytes:
        if not 0 <= header.size <= _MAX_HEADER:
            raise tarfile.ReadError(f"an extended header has {header.size} bytes")
        return self._exactly(-(-header.size // _BLOCK) * _BLOCK)[: header.size]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (more := self._read(size - len(data))):
                raise tarfile.ReadError("the archive ends early")
            data += more
        return data

    def _pass(self, size: int, take: Callable[[bytes], object]) -> None:
        """Hands over the content of a member, and skips what fills up its last block."""
        left = size
        while left:
            if not (data := self._read(min(left, _CHUNK))):
                raise tarfile.ReadError("the archive ends early")
            take(data)
            left -= len(data)
        self._exactly(-size % _BLOCK)

    def _end(self) -> None:
        """To the end of it: gzip has its checksum there, and a damaged archive would pass for a short one."""
        left = _MAX_PADDING
        while rest := self._read(_CHUNK):
            left -= len(rest)
            if any(rest) or left < 0:
                raise tarfile.ReadError("there is something behind the end of the archive")

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _refused(f"the archive unpacks to more than {MAX_BYTES >> 20} MiB")
        return data


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise tarfile.ReadError(f"a header is damaged: {error}") from None
    if header.type == tarfile.GNUTYPE_SPARSE:
        raise _refused(f"member {printable(header.name, 100)} is a sparse file")
    return header


def _records(content: bytes, name: str | None, size: int | None) -> tuple[str | None, int | None]:
    """``path`` and ``size`` of a pax header, else what was known: records ``LENGTH KEY=VALUE\\n``."""
    at = 0
    while at < len(content):
        digits, blank, _ = content[at : at + 8].partition(b" ")
        if not blank or not digits.isdigit() or not (end := at + int(digits)) > at + len(digits) + 1:
            raise tarfile.ReadError("a record of an extended header is damaged")
        key, equals, value = content[at + len(digits) + 1 : end].removesuffix(b"\n").partition(b"=")
        if not equals or end > len(content):
            raise tarfile.ReadError("a record of an extended header is damaged")
        if key.startswith(b"GNU.sparse."):
            raise _refused("a member of the archive is a sparse file")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not (value.isdigit() and len(value) <= 20):
                raise tarfile.ReadError("a size in an extended header is no number")
            size = int(value)
        at = end
    return name, size


def _refused(message: str) -> Refused:
    return Refused(Reason.SNAPSHOT_UNREADABLE, message)
