"""A fake kernel: CPU masks and cpusets with the semantics of Linux, for processes that exist on paper alone.

What it imitates was read in kernel/sched and kernel/cgroup/cpuset.c and compared with a real kernel by a test:

* sched_setaffinity silently intersects with the cpuset; an empty intersection is EINVAL.
* Since Linux 6.2 a task remembers the mask it was told, and a change of its cpuset gives it that mask ∩ the new
  cpuset, or the whole cpuset where they do not meet. Before, it simply got the whole new cpuset.
* A cpuset that is written with the CPUs it has is no change.
* Children and threads start with the mask, and the memory of it, of the thread that made them.
* Names of threads are cut to 15 bytes; those of kernel threads are not, since Linux 5.17.
* sched_getaffinity hides CPUs that are offline; Cpus_allowed in /proc does not.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

from agent.demo.fake_cgroups import FakeCgroups
from agent.demo.fake_memory import FakeMapping, FakeMemory, FakeRegion
from agent.demo.fake_proc import PF_KTHREAD, PF_NO_SETAFFINITY, PF_RANDOMIZE, FakeProc, FakeTask
from agent.demo.fake_sysfs import set_irq
from agent.model.cpuset import CpuSet
from agent.model.workload import ProcessId
from agent.node.host import check_write, masks_one_by_one
from agent.node.irq import check_irq_write
from agent.node.irqbalance import Irqbalance
from agent.node.pages import check_pages

FIRST_PID = 4_100_000
"""Close to PID_MAX_LIMIT (4,194,304), where hardly any kernel ever gets: should a system call escape to a real one, it
meets nobody."""

COMM_BYTES = 15
KERNEL_COMM_BYTES = 63


class FakeKernel:
    """Processes, threads, masks and cpusets of a virtual node; an `agent.node.host.Host` over them."""

    def __init__(
        self,
        root: Path,
        online: CpuSet,
        *,
        mems: str = "0",
        possible: int = 0,
        remembers_masks: bool = True,
        free: Mapping[int, int] | None = None,
    ) -> None:
        self.online = online
        self.mems = mems
        self._possible = CpuSet.span(0, (possible or online.bits.bit_length()) - 1)
        self.remembers_masks = remembers_masks
        self.proc = FakeProc(root / "proc", len(self._possible), mems)
        self.cgroups = FakeCgroups(root / "sys/fs/cgroup", online, mems)
        self.memory = FakeMemory(free or {})
        self.tasks: dict[int, FakeTask] = {}
        self.calls: Counter[str] = Counter()
        """System calls of the agent by name; what other programs do is not counted."""
        self.denied: set[int] = set()
        """Threads that the agent has no right to move, and processes whose memory it has none to."""
        self.irq_errors: dict[int, int] = {}
        """Interrupt -> errno with which the kernel refuses to move it."""
        self._root = root
        self._dirty: set[int] = set()
        self._next = FIRST_PID
        self._clock = 1000
        self._lock = RLock()

    # The calls that the agent makes

    def get_affinity(self, tid: int) -> CpuSet:
        """sched_getaffinity(2)."""
        with self._lock:
            self.calls["sched_getaffinity"] += 1
            return self._task(tid).mask & self.online

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        """sched_getaffinity(2) of many."""
        return masks_one_by_one(self.get_affinity, tids)

    def names(self, tids: Sequence[int]) -> None:
        """Names are in the files of /proc alone."""

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """sched_setaffinity(2), as a `Host` calls it: ValueError for what must never reach it."""
        check_write(tid, cpus)
        with self._lock:
            self.calls["sched_setaffinity"] += 1
            if tid in self.denied and tid in self.tasks:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            self._set_affinity(tid, cpus)

    def set_irq_affinity(self, irq: int, cpus: CpuSet) -> None:
        """A write to ``/proc/irq/N/smp_affinity_list``, as a `Host` makes it."""
        check_irq_write(irq, cpus)
        with self._lock:
            self.calls["smp_affinity_list"] += 1
            number = 0 if cpus & self.online else errno.EINVAL
            if not (self._root / "proc/irq" / str(irq)).is_dir():
                number = errno.ENOENT
            if number := self.irq_errors.get(irq, number):
                raise OSError(number, os.strerror(number))
            set_irq(self._root, irq, cpus, len(self._possible))

    def ban_irqs(self, balancer: ProcessId, keep: Collection[int], irqs: Sequence[int]) -> frozenset[int]:
        """A list for irqbalance, as a `Host` sends it: through a real socket, to `agent.demo.fake_irqbalance`."""
        with self._lock:
            self.calls["ban irqs"] += 1
        return Irqbalance(self._root, stand_in=os.getpid()).ban(balancer, keep, irqs)

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        """move_pages(2) without nodes."""
        check_pages(pid, addresses)
        with self._lock:
            self.calls["page_nodes"] += 1
            self._allowed_to_look(pid)
            return self.memory.page_nodes(pid, addresses)

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        """move_pages(2) with MPOL_MF_MOVE."""
        check_pages(pid, addresses)
        with self._lock:
            self.calls["move_pages"] += 1
            task = self._allowed_to_look(pid)
            if node not in CpuSet.parse(task.mems or self.mems):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            statuses = self.memory.move_pages(pid, addresses, node)
            self._show_memory(task)
            return statuses

    # What other programs do

    def map_memory(self, pid: int, region: FakeRegion, **mapping: Any) -> FakeMapping:
        """mmap(2), by a process that then touches the pages; see `FakeMemory.map`."""
        with self._lock:
            task = self._task(pid)
            mapped = self.memory.map(pid, region, **mapping)
            task.resident = self.memory.resident(pid)
            self.proc.set_maps(pid, self.memory.maps(pid))
            self.proc.write_status(task)
            self._show_memory(task)
            return mapped

    def set_mems(self, pid: int, mems: str) -> None:
        """Somebody writes ``cpuset.mems`` of a process's cgroup."""
        with self._lock:
            task = self._task(pid)
            task.mems = mems
            self.proc.write_status(task)

    def set_by_other(self, tid: int, cpus: CpuSet) -> None:
        """sched_setaffinity(2), called by somebody else: ``taskset``, OpenMP, an in-process binder."""
        with self._lock:
            self._set_affinity(tid, cpus)

    def write_cpuset(self, path: str, cpus: CpuSet) -> None:
        """Somebody writes ``cpuset.cpus`` of a cgroup."""
        with self._lock:
            self._follow(self.cgroups.write(path, cpus))

    def set_online(self, online: CpuSet) -> None:
        """CPUs go offline or come back. Tasks in the root cgroup keep their masks."""
        with self._lock:
            self.online = online
            self._follow(self.cgroups.set_root(online))

    def start_process(
        self,
        comm: str,
        *,
        parent: int = 1,
        cgroup: str | None = None,
        flags: int = PF_RANDOMIZE,
        fds: Iterable[tuple[int, int, int]] = (),
        pid: int | None = None,
        uid: int | None = None,
    ) -> FakeTask:
        """fork, then exec, then into a cgroup: by default that of the parent, as its user is."""
        with self._lock:
            above = self.tasks.get(parent)
            task = self._create(comm, above, tid=pid, flags=flags, cgroup=cgroup)
            task.uid = uid if uid is not None else above.uid if above else 0
            task.threads.append(task.tid)
            self.cgroups.attach(task.tid, task.cgroup, None)
            if task.cgroup != (above.cgroup if above else "/"):
                self._clamp(task)
            self.proc.add(task, fds)
            return task

    def start_thread(self, tgid: int, comm: str, *, creator: int | None = None, flags: int | None = None) -> FakeTask:
        """A thread of a process, made by its main thread unless another is named."""
        with self._lock:
            leader, maker = self._task(tgid), self._task(creator or tgid)
            task = self._create(comm, maker, tgid=tgid, flags=leader.flags if flags is None else flags)
            task.ppid, task.uid = leader.ppid, leader.uid
            leader.threads.append(task.tid)
            self.proc.add(task)
            self._dirty.add(tgid)
            return task

    def rename(self, tid: int, comm: str) -> None:
        """prctl(PR_SET_NAME)."""
        with self._lock:
            task = self._task(tid)
            task.comm = _cut(comm, self._comm_bytes(task.flags))
            self.proc.write_names(task)
            self._dirty.add(tid)

    def end(self, tid: int) -> None:
        """A thread ends; with a process's main thread the process does."""
        with self._lock:
            task = self._task(tid)
            for gone in list(task.threads) if task.is_leader else [tid]:
                del self.tasks[gone]
                self._dirty.discard(gone)
            if task.is_leader:
                self.cgroups.detach(tid, task.cgroup)
                self.memory.end(tid)
            else:
                self.tasks[task.tgid].threads.remove(tid)
                self._dirty.add(task.tgid)
            self.proc.remove(task)

    def move(self, pid: int, cgroup: str) -> None:
        """Puts a process, with all its threads, into another cgroup."""
        with self._lock:
            leader = self._task(pid)
            self.cgroups.attach(pid, cgroup, leader.cgroup)
            for tid in leader.threads:
                self.tasks[tid].cgroup = cgroup
                self._clamp(self.tasks[tid])
            self.proc.set_cgroup(leader)

    # Looking in from outside

    def allowed(self, tid: int) -> CpuSet:
        """The cpuset of a task."""
        return self.cgroups.effective(self._task(tid).cgroup)

    def sync(self) -> None:
        """Brings ``status`` in /proc up to date. Left to the caller: the agent sets masks by the thousand."""
        with self._lock:
            for tid in self._dirty:
                self.proc.write_status(self.tasks[tid])
            self._dirty.clear()

    def _create(
        self,
        comm: str,
        maker: FakeTask | None,
        *,
        tid: int | None = None,
        tgid: int | None = None,
        flags: int = 0,
        cgroup: str | None = None,
    ) -> FakeTask:
        if tid is None:
            tid, self._next = self._next, self._next + 1
        self._clock += 1
        task = FakeTask(
            tid=tid,
            tgid=tid if tgid is None else tgid,
            ppid=maker.tgid if maker else 0,
            comm=_cut(comm, self._comm_bytes(flags)),
            start_time=self._clock,
            flags=flags,
            mask=maker.mask if maker else self._possible,
            asked=maker.asked if maker else None,
            cgroup=cgroup or (maker.cgroup if maker else "/"),
        )
        self.tasks[tid] = task
        return task

    def _comm_bytes(self, flags: int) -> int:
        """A kernel that remembers masks (6.2) is none from before 5.17."""
        return KERNEL_COMM_BYTES if flags & PF_KTHREAD and self.remembers_masks else COMM_BYTES

    def _task(self, tid: int) -> FakeTask:
        task = self.tasks.get(tid)
        if task is None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return task

    def _show_memory(self, task: FakeTask) -> None:
        if task.cgroup != "/":  # of which the kernel shows none
            self.cgroups.show_memory(task.cgroup, self.memory.placed(self.cgroups.procs(task.cgroup)))

    def _allowed_to_look(self, pid: int) -> FakeTask:
        task = self._task(pid)
        if pid in self.denied:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return task

    def _set_affinity(self, tid: int, cpus: CpuSet) -> None:
        task = self._task(tid)
        mask = cpus & self.cgroups.effective(task.cgroup)
        if task.flags & PF_NO_SETAFFINITY or not mask & self.online:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if self.remembers_masks:
            task.asked = cpus
        task.mask = mask
        self._dirty.add(tid)

    def _follow(self, changed: list[str]) -> None:
        """Applies changed cpusets to the tasks in them."""
        for task in self.tasks.values():
            if self.cgroups.covers(changed, task.cgroup):
                self._clamp(task)

    def _clamp(self, task: FakeTask) -> None:
        """What the kernel does to a task whose cpuset changed."""
        cpus = self.cgroups.effective(task.cgroup)
        task.mask = (task.asked & cpus if task.asked is not None else cpus) or cpus
        self._dirty.add(task.tid)


def _cut(comm: str, size: int) -> str:
    """comm holds so many bytes, whatever they are."""
    return comm.encode(errors="surrogateescape")[:size].decode(errors="surrogateescape")


__all__ = ["FIRST_PID", "PF_KTHREAD", "PF_NO_SETAFFINITY", "FakeKernel", "FakeTask"]
