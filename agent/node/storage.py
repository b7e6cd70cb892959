"""Files of the agent's own: written whole or not at all, and the lock that keeps a second agent off the host."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from agent.model.reason import Reason, Refused, printable


def write_atomic(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Writes a file by fsync and rename, so that readers see the old or the new one whole. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the rename itself is lost in a crash otherwise
    finally:
        os.close(folder)


class HostLock:
    """An flock on a file of the host: whoever holds it acts on the host. The kernel drops it when the holder dies.

    The file names its holder, for people; only the lock counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, holder: str) -> None:
        """Takes the lock, or raises `Refused`: `Locked` names who holds it, `StateNotWritten` says it can't be made."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise Refused(Reason.STATE_NOT_WRITTEN, f"lock {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            named = printable(os.pread(descriptor, 200, 0).decode(errors="replace").strip()) or "an unnamed process"
            os.close(descriptor)
            raise Refused(Reason.LOCKED, f"another agent acts on this host: {named} (lock {self.path})") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{holder}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Gives the lock back; the file stays, since removing it would let two agents lock two files of one name."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
