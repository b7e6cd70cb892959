"""The `task` folders of processes that are looked at in every pass, kept open."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from agent.model.reason import Refused
from agent.model.workload import ProcessId
from agent.node.taskdir import TaskDir

KEPT: Final = 256
"""Folders that are open at once, at most: hosts have up to 64 NPUs, most with one worker each, and a process may open
1,024 files unless somebody allowed it more (RLIMIT_NOFILE)."""


class Folders:
    """Opens them below `proc_root`. Such a folder is tied to its process, so that nothing has to be opened or asked
    again to know that it is still the same."""

    def __init__(self, proc_root: str) -> None:
        self._proc = proc_root
        self._kept: dict[ProcessId, TaskDir] = {}

    def open(self, process: ProcessId) -> TaskDir | None:
        """The threads of a process; None when it ended before it was opened first. Refused when it can't be read."""
        folder = self._kept.get(process)
        if folder is not None:
            return folder
        try:
            folder = TaskDir.of(self._proc, process)
        except Refused:
            if not self._kept:
                raise
            self._close_all()  # there may be no more descriptors to be had
            folder = TaskDir.of(self._proc, process)
        if folder is not None:
            if len(self._kept) >= KEPT:
                self._close_all()
            self._kept[process] = folder
        return folder

    def alive(self, process: ProcessId) -> bool:
        """Whether anything of a process is left. Keeps nothing open that is not."""
        folder = self._kept.get(process)
        if folder is not None:
            return folder.alive()
        folder = TaskDir.of(self._proc, process)
        if folder is None:
            return False
        folder.close()
        return True

    def kept(self) -> Set[ProcessId]:
        """The processes whose folders are open."""
        return self._kept.keys()

    def close(self, process: ProcessId) -> None:
        """Gives a descriptor back, if there is one."""
        if (folder := self._kept.pop(process, None)) is not None:
            folder.close()

    def _close_all(self) -> None:
        for folder in self._kept.values():
            folder.close()
        self._kept.clear()
