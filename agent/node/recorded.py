"""Masks as /proc tells them: for looking at hosts, containers and recordings whose threads can't be asked directly."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from agent.model.cpuset import CpuListError, CpuSet
from agent.model.reason import Reason, Refused
from agent.node.files import read_text
from agent.node.host import masks_one_by_one


class ProcStatusHost:
    """A `ThreadHost` that reads masks of one process from ``Cpus_allowed_list`` and writes nothing."""

    def __init__(self, proc_root: Path, pid: int) -> None:
        self._pid = pid
        self._process = proc_root / str(pid)

    def get_affinity(self, tid: int) -> CpuSet:
        """OSError with ESRCH where the thread is gone; Refused(ProcessUnreadable) where its mask is not recorded.

        A recording may have the status of the process alone: that is the main thread's.
        """
        thread = self._process / "task" / str(tid)
        for folder in (thread, self._process) if tid == self._pid else (thread,):
            text = read_text(folder / "status", Reason.PROCESS_UNREADABLE) or ""
            for line in text.splitlines():
                if line.startswith("Cpus_allowed_list:"):
                    try:
                        return CpuSet.parse(line.partition(":")[2])
                    except CpuListError as error:
                        raise Refused(Reason.PROCESS_UNREADABLE, f"status of thread {tid}: {error}") from None
        # A thread without a mask must not look like one that ended: those count as in place.
        if thread.is_dir():
            raise Refused(Reason.PROCESS_UNREADABLE, f"the mask of thread {tid} is not recorded")
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        """As `get_affinity`: Refused, too."""
        return masks_one_by_one(self.get_affinity, tids)

    def names(self, tids: Sequence[int]) -> None:
        """Names are in the files."""

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """Always OSError with EROFS."""
        raise OSError(errno.EROFS, f"thread {tid} is only looked at, and stays off {cpus}")
