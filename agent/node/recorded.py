"""Masks as /proc tells them: for looking at hosts, containers and recordings whose threads can't be asked directly."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from agent.model.cpuset import CpuListError, CpuSet
from agent.model.reason import Reason, Refused
from agent.node.files import read_text


class ProcStatusHost:
    """A `Host` that reads masks of one process from ``Cpus_allowed_list`` and writes nothing."""

    def __init__(self, proc_root: Path, pid: int) -> None:
        self._tasks = proc_root / str(pid) / "task"

    def get_affinity(self, tid: int) -> CpuSet:
        """OSError with ESRCH where the thread is gone, or its mask is not recorded."""
        text = read_text(self._tasks / str(tid) / "status", Reason.PROCESS_UNREADABLE) or ""
        for line in text.splitlines():
            if line.startswith("Cpus_allowed_list:"):
                try:
                    return CpuSet.parse(line.partition(":")[2])
                except CpuListError as error:
                    raise Refused(Reason.PROCESS_UNREADABLE, f"status of thread {tid}: {error}") from None
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """Always OSError with EROFS."""
        raise OSError(errno.EROFS, f"thread {tid} is only looked at, and stays off {cpus}")
