"""Finds the UVB threads of an Ascend 950 host (design 6): who they are, and who only calls itself so.

The driver makes a kernel thread called ``uvb_poll_window_thread``. Linux shows 15 bytes of that before 5.17, all of it
since (get_kthread_comm). Threads of processes are cut to 15 bytes on every kernel, and anybody can give himself that
name: they count only in a process that runs as root in a service of the host itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.reason import Problem, Reason, Refused
from agent.model.workload import ThreadId
from agent.node.cgroup_paths import LONGEST_PATH, identify, resolve, written
from agent.node.cgroups import CgroupTree
from agent.node.files import join, read_text
from agent.node.proc_table import ProcTable
from agent.node.procfs import ProcessStat, ProcFs
from agent.node.targets import COMM_BYTES
from agent.node.taskdir import PF_NO_SETAFFINITY, TaskDir

NAME: Final = "uvb_poll_window_thread"

_CUT: Final = NAME[:COMM_BYTES]
_COMM: Final = _CUT.encode()
_SYSTEM: Final = ("init.scope", "system.slice")


@dataclass(frozen=True, slots=True)
class SeenThread:
    """A UVB thread, as it was when it was looked at."""

    thread: ThreadId
    pid: int
    """Of its process; a kernel thread's own."""
    cpuset: CpuSet | None = None
    """The effective cpuset of its cgroup; None where that can't be read. Kernel threads have one, too: they can be put
    into a cgroup under v1."""
    fixed: bool = False
    """The kernel lets nobody move it (PF_NO_SETAFFINITY)."""


class UvbThreads:
    """Looks for them below a host's root folder."""

    def __init__(self, root: Path, cgroups: CgroupTree | None = None) -> None:
        self.folder = self._proc = f"{join(root)}/proc"
        self._procfs = ProcFs(root)
        self._table = ProcTable(root)
        self._cgroups = cgroups or CgroupTree(root)

    def scan(self) -> tuple[list[SeenThread], Problem | None]:
        """Every UVB thread, ascending, and the first thing that could not be looked at. It reads a file of every
        process and one of every thread of the host's own services: not for every sweep."""
        try:
            processes = self._table.read()
        except Refused as refused:
            return [], refused.problem
        problem = next(iter(self._table.problems), None)
        found = [
            self._as(SeenThread(ThreadId(stat.pid, stat.start_time), stat.pid), stat)
            for stat in self._table.kernel_threads
            if stat.comm in (NAME, _CUT)
        ]
        for pid in processes:
            try:
                found += self._threads_of(pid)
            except Refused as refused:
                problem = problem or refused.problem
        return sorted(found, key=lambda seen: seen.thread), problem

    def again(self, seen: SeenThread) -> SeenThread | None:
        """The same thread as it is now; None when it ended or is called otherwise."""
        stat = self._stat(seen)
        if stat is None or stat.start_time != seen.thread.start_time or stat.comm not in (NAME, _CUT):
            return None
        return self._as(seen, stat)

    def find(self, thread: ThreadId, pid: int | None = None) -> SeenThread | None:
        """A thread that was once a UVB thread, whatever it is called now; None when it ended. `pid` is of its process,
        as far as known: the kernel has a folder for every thread, which it does not list."""
        seen = SeenThread(thread, thread.tid if pid is None else pid)
        stat = self._stat(seen)
        return self._as(seen, stat) if stat is not None and stat.start_time == thread.start_time else None

    def _stat(self, seen: SeenThread) -> ProcessStat | None:
        tid = seen.thread.tid
        return self._procfs.stat(seen.pid, None if tid == seen.pid else tid)

    def _as(self, seen: SeenThread, stat: ProcessStat) -> SeenThread:
        return replace(seen, cpuset=self._cpus(seen.pid), fixed=bool(stat.flags & PF_NO_SETAFFINITY))

    def _cpus(self, pid: int) -> CpuSet | None:
        try:
            return self._cgroups.process_cpus(pid)
        except Refused:
            return None

    def _threads_of(self, pid: int) -> list[SeenThread]:
        """Those of a process that is no kernel thread."""
        if not self._is_system(pid):
            return []
        status = self._procfs.status(pid)
        if status is None or status.uid != 0:
            return []
        tasks = TaskDir.open(self._proc, pid)
        if tasks is None:
            return []
        with tasks:
            tids = [int(name) for name in tasks.names() if tasks.comm(name) == _COMM]
        found = []
        for tid in tids:
            own = self._procfs.stat(pid, None if tid == pid else tid)
            if own is not None:
                found.append(self._as(SeenThread(ThreadId(tid, own.start_time), pid), own))
        return found

    def _is_system(self, pid: int) -> bool:
        text = read_text(f"{self._proc}/{pid}/cgroup", Reason.PROCESS_UNREADABLE)
        return text is not None and of_the_host(text, self._cgroups.own)


def of_the_host(cgroup: str, own: str = "/") -> bool:
    """Whether a process with this /proc/<pid>/cgroup is one of the host's own: in the root cgroup, in ``init.scope`` or
    in ``system.slice``, and in no container there. `own` is the root of the reader's cgroup namespace.

    Every hierarchy that tells these apart has its say. Under v1 systemd keeps sessions and services in the root of the
    cpuset hierarchy, and only its own one (``name=systemd``) shows which are which.
    """
    telling = False
    for line in cgroup.split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        names = controllers.split(",")
        if not colon or not ("cpuset" in names or "name=systemd" in names or (hierarchy == "0" and not controllers)):
            continue
        if len(path) > LONGEST_PATH:
            return False
        telling = True
        parts, lost = resolve(path, own)
        if lost or (parts and parts[0] not in _SYSTEM):
            return False
        identity = identify(written(parts))
        if identity.runtime or identity.pod_uid:
            return False
    return telling
