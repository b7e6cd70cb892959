"""The whole process table, read fast: a host has hundreds of processes and thousands of kernel threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.model.reason import Problem, Reason, Refused
from agent.node.files import ABSENT, join, refusal
from agent.node.procfs import ProcessStat, parse_stat_bytes

_PROC_INODE: Final = 1
"""Inode of the root of a procfs (PROC_ROOT_INO in include/linux/proc_ns.h)."""

_STAT_BYTES: Final = 4096
"""A stat has some 350 bytes, and is one record: one read gives all of it."""


class ProcTable:
    """Reads the stat of every process below a host's root folder, and of each kernel thread twice in its life.

    A folder of procfs keeps its inode number for as long as the kernel remembers it, and that of another process under
    the same pid never has the same one. So whoever was a kernel thread under this number is the same one now, and no
    kernel thread ever becomes another program. It is read a second time because it is named after it begins.
    """

    def __init__(self, root: Path) -> None:
        self._proc = f"{join(root)}/proc"
        self._known: dict[str, tuple[int, ProcessStat | None]] = {}
        """Name of a kernel thread's folder -> inode, and what its stat says once that was seen twice."""
        self.kernel_threads: tuple[ProcessStat, ...] = ()
        """Of the last `read`. Their parents and names do not change."""
        self.problems: tuple[Problem, ...] = ()
        """Why processes are missing from the last `read`, or are in it as they were before."""
        self._before: dict[int, ProcessStat] = {}

    def read(self) -> dict[int, ProcessStat]:
        """Every process but kernel threads, by pid, ascending; those that end meanwhile may be missing.

        One whose stat can't be read is as it was in the last `read`: whoever acts on it looks again.
        Refused(ProcessUnreadable) where /proc is there and cannot be listed, and where it shows nobody any more: a host
        has a process at any time.
        """
        found: dict[int, ProcessStat] = {}
        known, self._known = self._known, {}
        threads: list[ProcessStat] = []
        problems: list[Problem] = []
        try:
            top = os.open(self._proc, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in ABSENT and not self._before:
                self.kernel_threads = self.problems = ()
                return found
            raise refusal(Reason.PROCESS_UNREADABLE, self._proc, error) from error
        try:
            live = os.fstat(top).st_ino == _PROC_INODE
            folders = _folders(top, self._proc)
            for name, inode in folders if live else sorted(folders, key=lambda folder: int(folder[0])):
                before = known.get(name) if live else None
                if before is not None and before[0] == inode and before[1] is not None:
                    self._known[name] = before
                    threads.append(before[1])
                    continue
                try:
                    stat = self._stat(top, name)
                except Refused as refused:
                    problems.append(refused.problem)
                    if (last := self._before.get(int(name))) is not None:
                        found[last.pid] = last
                    continue
                if stat is None:
                    continue
                if stat.kernel_thread:
                    again = before is not None and before[0] == inode
                    self._known[name] = (inode, stat if again else None)
                    threads.append(stat)
                else:
                    found[stat.pid] = stat
        finally:
            os.close(top)
        if not found and self._before:
            raise Refused(Reason.PROCESS_UNREADABLE, f"{self._proc} shows no process any more")
        self.kernel_threads, self.problems = tuple(threads), tuple(problems)
        self._before = found
        return found

    def _stat(self, top: int, name: str) -> ProcessStat | None:
        try:
            file = os.open(name + "/stat", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=top)
            try:
                content = os.read(file, _STAT_BYTES)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise refusal(Reason.PROCESS_UNREADABLE, f"{self._proc}/{name}/stat", error) from error
        return parse_stat_bytes(content, f"{self._proc}/{name}/stat") if content else None


def _folders(top: int, path: str) -> Iterator[tuple[str, int]]:
    """Names and inodes of the processes' folders, in the kernel's order, which is that of pids."""
    try:
        with os.scandir(top) as entries:
            for entry in entries:
                name = entry.name
                if name[0] <= "9" and name.isdecimal() and name.isascii() and len(name) <= 10:
                    yield name, entry.inode()
    except OSError as error:
        raise refusal(Reason.PROCESS_UNREADABLE, path, error) from error
