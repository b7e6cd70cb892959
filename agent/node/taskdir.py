"""The threads of one process, read fast and without ever mistaking another process for it.

A descriptor of a directory in /proc is tied to the very process, not to its number: once that has ended, what is
opened through it is ESRCH or ENOENT and a listing is empty, though the number may belong to somebody else by then. So a
descriptor that is kept is as good as looking at the start time again, and better.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal

from agent.model.reason import Reason, Refused, printable
from agent.model.workload import ProcessId
from agent.node.listing import Listing

PF_NO_SETAFFINITY: Final = 0x04000000
"""Flag in field 9 of a thread's stat (include/linux/sched.h): sched_setaffinity(2) answers EINVAL whatever it is told.
Kernel threads that belong to one CPU have it and, on kernels from before 2023, threads that io_uring makes inside a
process."""

_GONE: Final = (FileNotFoundError, ProcessLookupError)
"""ENOENT from opening, ESRCH from reading."""

_COMM_BYTES: Final = 80
"""comm is up to 15 bytes and a newline; that of kernel threads up to 63 since Linux 5.17."""

_STAT_BYTES: Final = 4096

_AT_ONCE: Final = 32
"""Names that are read at once: as many descriptors are open for a moment."""

MAX_PASSES: Final = 20
"""Passes over the threads of a process before it is left for later: one that makes misplaced threads faster than they
can be put right."""


@dataclass(frozen=True, slots=True)
class TaskStat:
    """What /proc/<pid>/stat says of a process or thread, as far as it is needed here. See proc_pid_stat(5)."""

    state: str
    """Field 3."""
    ppid: int
    """Field 4."""
    flags: int
    """Field 9: PF_* of the kernel."""
    threads: int
    """Field 20: the threads of the process, a leader that has ended before the others included."""
    start_time: int
    """Field 22, clock ticks after boot."""

    @classmethod
    def parse(cls, content: bytes) -> TaskStat:
        """ValueError when it is damaged."""
        # comm may hold any byte, parentheses and blanks too; only numbers and one letter follow it.
        fields = content[content.rindex(b")") + 1 :].split()
        if len(fields) < 20:
            raise ValueError("too few fields")
        # Field n of the manual page is fields[n - 3]: pid and comm are cut off.
        state = fields[0].decode("ascii", "replace")
        return cls(state, *(int(fields[n - 3]) for n in (4, 9, 20, 22)))

    @property
    def ended(self) -> bool:
        """A zombie with nothing left in it. (A main thread that ended before the others is a zombie, too.)"""
        return self.state in ("Z", "X") and self.threads <= 1


class TaskDir:
    """/proc/<pid>/task of one process, held open. A context manager.

    What is gone is None or empty; any other failure to read is Refused(ProcessUnreadable).
    """

    __slots__ = ("_fd", "_listing", "leader", "pid")

    def __init__(self, pid: int, leader: TaskStat, fd: int) -> None:
        self.pid = pid
        self.leader = leader
        """The process's own stat, read once."""
        self._fd = fd
        self._listing = Listing(fd)

    @classmethod
    def open(cls, proc_root: str, pid: int) -> TaskDir | None:
        """The process that has this number now; None when there is none, or it has ended and waits to be reaped."""
        try:
            process = os.open(f"{proc_root}/{pid}", os.O_RDONLY | os.O_DIRECTORY)
            try:
                content = _read("stat", process, _STAT_BYTES)
                stat = TaskStat.parse(content)
                return (
                    None
                    if stat.ended
                    else cls(pid, stat, os.open("task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=process))
                )
            finally:
                os.close(process)
        except _GONE:
            return None
        except OSError as error:
            raise _unreadable(pid, error.strerror or str(error)) from error
        except ValueError:
            raise _unreadable(pid, f"stat is damaged: {printable(repr(content), 80)}") from None

    @classmethod
    def of(cls, proc_root: str, process: ProcessId) -> TaskDir | None:
        """As `open`, and None too when the number now belongs to another process."""
        tasks = cls.open(proc_root, process.pid)
        if tasks is not None and tasks.leader.start_time != process.start_time:
            tasks.close()
            return None
        return tasks

    def names(self) -> list[str]:
        """The thread ids, as text, in the order in which the threads were made; empty when the process is gone."""
        try:
            return list(map(str, self._listing.read()))
        except _GONE:
            return []
        except OSError as error:
            raise _unreadable(self.pid, error.strerror or str(error)) from error

    def entries(self) -> dict[int, int]:
        """The threads by number in the order in which they were made, with the inode numbers of their folders; empty
        when the process is gone or waits to be reaped. The same dict as before where nothing changed: for reading only.

        The inode is made with the folder, for one thread (proc_pid_make_inode), and folders of threads that ended are
        dropped (proc_flush_pid). So another inode number under a number may be another thread; the same one is the same
        thread for as long as the kernel kept its promise, which it calls "just an optimization": a second sign, no
        proof. The kernel may make the folder of a living thread anew when memory is short.
        """
        try:
            entries = self._listing.read()
        except _GONE:
            return {}
        except OSError as error:
            raise _unreadable(self.pid, error.strerror or str(error)) from error
        # A zombie is listed until it is reaped. If it has others beside it, it is a main thread that ended before them.
        return {} if len(entries) == 1 and not self.alive() else entries

    def alive(self) -> bool:
        """Whether anything of the process is left. Refused where that can't be read."""
        # The second adds up the times of all threads, and is all that a recording may have.
        leader = self.stat(str(self.pid)) or self.stat("..")
        return leader is not None and not leader.ended

    def visit(self, visit: Callable[[str], bool], seen: set[str]) -> Literal["settled", "changing", "gone"]:
        """Calls `visit` with every thread id that is not in `seen`, which grows; it says whether it wrote a mask.

        After a pass that wrote, threads made meanwhile may have copied a mask from before, so that another pass looks
        for them: ``settled`` after one without a write, ``changing`` when MAX_PASSES were not enough, ``gone`` when the
        process ended.
        """
        for _ in range(MAX_PASSES):
            names = self.names()
            if not names:
                return "gone"
            wrote = False
            for name in names:
                if name not in seen:
                    seen.add(name)
                    wrote |= visit(name)
            if not wrote:
                return "settled"
        return "changing"

    def comm(self, name: str) -> bytes | None:
        """The name of a thread: any bytes but NUL, without the newline that the kernel adds."""
        try:
            content = _read(name + "/comm", self._fd, _COMM_BYTES)
        except _GONE:
            return None
        except OSError as error:
            raise _unreadable(self.pid, error.strerror or str(error)) from error
        if not content.endswith(b"\n"):  # half a name is that of another role, mostly of main
            raise _unreadable(self.pid, f"comm of thread {name} is cut short: {content!r}")
        return content[:-1]

    def comms(self, tids: Sequence[int]) -> list[bytes | None]:
        """The name of each thread, as `comm`. This is most of what a pass costs where names are not kept."""
        names: list[bytes | None] = []
        for first in range(0, len(tids), _AT_ONCE):
            names += self._comms(tids[first : first + _AT_ONCE])
        return names

    def _comms(self, tids: Sequence[int]) -> list[bytes | None]:
        names: list[bytes | None] = []
        files: list[int] = []
        try:
            for tid in tids:
                try:
                    files.append(os.open(f"{tid}/comm", os.O_RDONLY, dir_fd=self._fd))
                except _GONE:
                    files.append(-1)
            for file in files:
                try:
                    content = b"" if file < 0 else os.read(file, _COMM_BYTES)
                    if file >= 0 and not content.endswith(b"\n"):
                        return [self.comm(str(tid)) for tid in tids]  # which says so
                    names.append(None if file < 0 else content[:-1])
                except _GONE:
                    names.append(None)
        except OSError:
            pass  # there may be no more descriptors to be had: one at a time
        else:
            return names
        finally:
            _close(files)
        return [self.comm(str(tid)) for tid in tids]

    def stat(self, name: str) -> TaskStat | None:
        """One thread's stat: its own flags and start time."""
        try:
            return TaskStat.parse(_read(name + "/stat", self._fd, _STAT_BYTES))
        except _GONE:
            return None
        except (OSError, ValueError) as error:
            raise _unreadable(self.pid, f"stat of thread {name}: {error}") from error

    def close(self) -> None:
        """Gives the descriptor back."""
        file, self._fd = self._fd, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> TaskDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read(path: str, folder: int, limit: int) -> bytes:
    """A small file of /proc, which one read gives whole."""
    file = os.open(path, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(file, limit)
    finally:
        os.close(file)


def read_stat(proc_root: str, pid: int) -> TaskStat:
    """The stat of a process by its number. OSError where it can't be read, ValueError when it is damaged."""
    process = os.open(f"{proc_root}/{pid}", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return TaskStat.parse(_read("stat", process, _STAT_BYTES))
    finally:
        os.close(process)


def _close(files: Sequence[int]) -> None:
    opened = [file for file in files if file >= 0]
    # A run without a gap is closed by one call: nobody else has a descriptor in it.
    if opened and opened == list(range(opened[0], opened[0] + len(opened))):
        os.closerange(opened[0], opened[-1] + 1)
    else:
        for file in opened:
            os.close(file)


def _unreadable(pid: int, what: str) -> Refused:
    return Refused(Reason.PROCESS_UNREADABLE, f"threads of process {pid}: {printable(what, 150)}")
