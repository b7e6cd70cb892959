"""Numbers of threads are given out again. Who was written to under a number that had changed hands gets that back.

sched_setaffinity(2) takes a number, and no call takes a descriptor in its place: whatever is checked before it, the
thread can end, and its number go to somebody else, before the kernel looks. A node with few numbers (kernel.pid_max is
32,768 on many) and a pod that forks all the time make that a matter of a second. So whoever writes looks again when it
has written: a thread that is still there was there all the time; where it is not, `make_good` looks who is.
"""

from __future__ import annotations

import logging
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from agent.node.files import read_text
from agent.node.host import EVERY_CPU, ThreadHost

log = logging.getLogger(__name__)

_MAKERS: Final = ("Tgid", "PPid")


def make_good(host: ThreadHost, proc_root: str, tid: int, given: CpuSet, online: CpuSet) -> bool:
    """After `given` was written to a thread that turned out to have ended: whether another one had its number by then,
    which is put right here.

    A thread begins with the mask of the one that made it, so that it gets what its process has, and a process what its
    parent has, if that is narrower than its cpuset; else all ones. One whose mask is not what such a write makes of it,
    or is its maker's, is left alone: it began later. Raises nothing.
    """
    try:
        maker = _maker(proc_root, tid)
        if maker is None:
            return False
        mask = host.get_affinity(tid) & online
        model = host.get_affinity(maker) & online
        if not mask or not mask <= given or mask == model:
            return False
        host.set_affinity(tid, EVERY_CPU)
        if model < host.get_affinity(tid) & online:
            host.set_affinity(tid, model)
    except (OSError, Refused):
        return False  # it ended as well
    log.warning("thread number %d went to another process while its mask was written; that one has its mask back", tid)
    return True


def _maker(proc_root: str, tid: int) -> int | None:
    """The main thread of a thread, the parent of a main thread; None where nobody has this number."""
    # The kernel has a folder for every thread, which it does not list, and writes newlines in names as \n there.
    text = read_text(f"{proc_root}/{tid}/status", Reason.PROCESS_UNREADABLE)
    if not text:
        return None
    found = {name: value for line in text.split("\n") for name, _, value in (line.partition(":\t"),) if name in _MAKERS}
    try:
        leader, parent = (int(found[name]) for name in _MAKERS)
    except (KeyError, ValueError):
        return None
    return parent if leader == tid else leader
