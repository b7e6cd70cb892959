"""Whether a process that /proc does not show is there all the same.

Where /proc is mounted anew with ``hidepid=invisible``, or unmounted, every process of others is ENOENT in it, and none
has ended. The kernel itself tells one from the other: sched_getaffinity(2) of a pid that nobody has is ESRCH.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from agent.model.cpuset import CpuSet
from agent.model.reason import Problem, Reason
from agent.model.workload import ProcessId
from agent.node.taskdir import TaskStat, read_stat


def hidden(proc_root: str, get_affinity: Callable[[int], CpuSet], process: ProcessId) -> Problem | None:
    """Why nothing can be said of a process that reads as if it were gone and is not; None where it is gone.

    What its stat says counts, where it can be read: another start time is another process, and one that has ended and
    waits to be reaped has ended. Else a process that the kernel knows by this number is taken for this one.
    """
    stat: TaskStat | None = None
    with contextlib.suppress(OSError, ValueError):
        stat = read_stat(proc_root, process.pid)
    if stat is None:
        try:
            get_affinity(process.pid)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return None
    elif stat.start_time != process.start_time or stat.ended:
        return None
    message = f"process {process.pid} lives, and /proc does not show its threads"
    return Problem(Reason.PROCESS_UNREADABLE, message)
