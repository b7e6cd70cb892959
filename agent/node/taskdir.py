"""The threads of one process, read fast and without ever mistaking another process for it.

A descriptor of a directory in /proc is tied to the very process, not to its number: once that has ended, what is
opened through it is ESRCH or ENOENT and a listing is empty, though the number may belong to somebody else by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal

from agent.model.reason import Reason, Refused, printable
from agent.model.workload import ProcessId

PF_NO_SETAFFINITY: Final = 0x04000000
"""Flag in field 9 of a thread's stat (include/linux/sched.h): sched_setaffinity(2) answers EINVAL whatever it is told.
Kernel threads that belong to one CPU have it and, on kernels from before 2023, threads that io_uring makes inside a
process."""

_GONE: Final = (FileNotFoundError, ProcessLookupError)
"""ENOENT from opening, ESRCH from reading."""

_COMM_BYTES: Final = 80
"""comm is up to 15 bytes and a newline; that of kernel threads up to 63 since Linux 5.17."""

_STAT_BYTES: Final = 4096


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

    __slots__ = ("_fd", "leader", "pid")

    def __init__(self, pid: int, leader: TaskStat, fd: int) -> None:
        self.pid = pid
        self.leader = leader
        """The process's own stat, read once."""
        self._fd = fd

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
            return [name for name in os.listdir(self._fd) if name.isdecimal()]  # noqa: PTH208 - a descriptor
        except _GONE:
            return []
        except OSError as error:
            raise _unreadable(self.pid, error.strerror or str(error)) from error

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
            # Not by way of _read: this is most of what a pass costs.
            file = os.open(name + "/comm", os.O_RDONLY, dir_fd=self._fd)
            try:
                return os.read(file, _COMM_BYTES).removesuffix(b"\n")
            finally:
                os.close(file)
        except _GONE:
            return None
        except OSError as error:
            raise _unreadable(self.pid, error.strerror or str(error)) from error

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
        os.close(self._fd)

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


def _unreadable(pid: int, what: str) -> Refused:
    return Refused(Reason.PROCESS_UNREADABLE, f"threads of process {pid}: {printable(what, 150)}")
