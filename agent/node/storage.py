"""Files of the agent's own: written whole or not at all, and the lock that keeps a second agent off the host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused, printable

MARK: Final = b"cpubind "
"""What a lock's file of ours begins with."""
_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def irregular(path: Path, *, follow: bool = False) -> str | None:
    """What stands there instead of a regular file: "a folder", say. None where one or nothing does, or who knows.

    `follow` takes a link for what it leads to.
    """
    try:
        mode = path.stat(follow_symlinks=follow).st_mode
    except (OSError, ValueError):
        return None  # opening it says why
    if stat.S_ISREG(mode):
        return None
    return next((name for holds, name in _KINDS if holds(mode)), "a device")


def write_atomic(path: Path, text: str, *, mode: int = 0o644, new: bool = False) -> None:
    """Writes a file by fsync and rename, so that readers see the old or the new one whole.

    `new`: there is none, and one that has come to be there meanwhile is not replaced (FileExistsError). Raises OSError,
    also where the name is that of something else than a regular file: a rename would replace it.
    """
    if (kind := irregular(path)) is not None:
        raise OSError(errno.EEXIST, f"is {kind}, not a regular file", str(path))
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        if new:
            _link(Path(temporary), path)
        else:
            Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the rename itself is lost in a crash otherwise
    finally:
        os.close(folder)


def _link(temporary: Path, path: Path) -> None:
    """Gives a file its name if nobody has it. File systems without hard links are few: there it is looked for first."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)
    else:
        temporary.unlink()


class HostLock:
    """An flock on a file of the host: whoever holds it acts on the host. The kernel drops it when the holder dies.

    The file names its holder, for people; only the lock counts. So a name that can't be written (a full disk, say) is
    left out, and a file with content that is not ours is locked as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._named = False

    def acquire(self, holder: str) -> None:
        """Takes the lock, or raises `Refused`: `Locked` names who holds it, `StateNotWritten` says it can't be made."""
        if (kind := irregular(self.path)) is not None:
            raise self._refused(f"is {kind}, not a regular file")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open_lock(self.path)
        except OSError as error:
            raise self._refused(error.strerror) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            content = _head(descriptor)
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise self._refused(error.strerror) from error
            named = printable(content.decode(errors="replace").strip()) if content.startswith(MARK) else ""
            named = named or "an unnamed process"
            raise Refused(Reason.LOCKED, f"another agent acts on this host: {named} (lock {self.path})") from None
        self._descriptor = descriptor
        with contextlib.suppress(OSError):
            content = _head(descriptor)
            if not content or content.startswith(MARK):
                os.ftruncate(descriptor, 0)
                self._named = True
                os.pwrite(descriptor, f"{holder}\n".encode(errors="replace"), 0)

    def release(self) -> None:
        """Gives the lock back; the file stays, since removing it would let two agents lock two files of one name."""
        if self._descriptor is not None:
            if self._named:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
            self._named = False

    def _refused(self, why: str | None) -> Refused:
        return Refused(Reason.STATE_NOT_WRITTEN, f"lock {printable(str(self.path), 150)}: {why or 'cannot be opened'}")


def _open_lock(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | flags)  # enough to lock one that is there
        raise


def _head(descriptor: int) -> bytes:
    """The beginning of a lock's file. Not to be had is not empty: nothing is written over it then."""
    try:
        return os.pread(descriptor, 200, 0)
    except OSError:
        return b"?"
