"""A fake /proc: the files of processes and threads, in the formats of Linux."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from agent.demo.fake_files import make, put
from agent.model.cpuset import CpuSet

PF_KTHREAD = 0x00200000
PF_NO_SETAFFINITY = 0x04000000
PF_RANDOMIZE = 0x00400000
"""Set for every process started by exec; it makes the flags of user processes look as they do."""


@dataclass(slots=True)
class FakeTask:
    """A thread, as far as the scheduler and /proc are concerned."""

    tid: int
    tgid: int
    ppid: int
    comm: str
    start_time: int
    flags: int
    mask: CpuSet
    """``cpus_mask``: what Cpus_allowed shows, offline CPUs included."""
    cgroup: str
    asked: CpuSet | None = None
    """``user_cpus_ptr``: the mask that somebody asked for (Linux 6.2 and later)."""
    mems: str = ""
    """The NUMA nodes of its cpuset, where these are not all that have memory."""
    resident: int = 0
    """Bytes of RssAnon."""
    uid: int = 0
    threads: list[int] = field(default_factory=list)
    """Of a thread group leader: its tids, its own first."""

    @property
    def is_leader(self) -> bool:
        return self.tid == self.tgid


class FakeProc:
    """Writes below a folder that stands for /proc."""

    def __init__(self, folder: Path, cpus: int, mems: str) -> None:
        self.folder = folder
        self._cpus = cpus
        self._mems = mems
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, task: FakeTask, fds: Iterable[tuple[int, int, int]] = ()) -> None:
        """A process or a thread appears."""
        if task.is_leader:
            process = f"{self.folder}/{task.tid}"
            make(process, f"{process}/task")
            put(f"{process}/cgroup", f"0::{task.cgroup}\n")
            self.set_fds(task.tid, fds)
        make(self._folder(task))
        self.write_names(task)
        self.write_status(task)

    def remove(self, task: FakeTask) -> None:
        """A thread ends; with a leader the whole process does."""
        if not task.is_leader:
            shutil.rmtree(self._folder(task))
            return
        # A rename first, so that nobody meets a process of which half is gone.
        grave = self.folder / f".gone-{task.tid}"
        (self.folder / str(task.tid)).rename(grave)
        shutil.rmtree(grave)

    def set_cgroup(self, task: FakeTask) -> None:
        put(self.folder / str(task.tgid) / "cgroup", f"0::{task.cgroup}\n")

    def set_fds(self, pid: int, fds: Iterable[tuple[int, int, int]]) -> None:
        """Open files as (fd, major, minor), in the one-file form of a snapshot: what is fake has no open files."""
        text = "".join(f"{fd} {major}:{minor}\n" for fd, major, minor in fds)
        put(self.folder / str(pid) / "fd", text)

    def set_maps(self, pid: int, maps: str) -> None:
        put(self.folder / str(pid) / "maps", maps)

    def write_names(self, task: FakeTask) -> None:
        """comm and stat, which change with the name."""
        state = "S" if task.tid != 1 else "R"
        # Fields 4 to 21, then field 22, the start time; see proc_pid_stat(5).
        head = f"{task.ppid} {task.tgid} {task.tgid} 0 -1 {task.flags} 97 0 0 0 21 8 0 0 20 0 1 0"
        tail = "3133440 383 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0"
        stat = f"{task.tid} ({_escaped(task.comm)}) {state} {head} {task.start_time} {tail}\n"
        for folder in self._folders(task):
            put(f"{folder}/comm", f"{task.comm}\n")
            put(f"{folder}/stat", stat)

    def write_status(self, task: FakeTask) -> None:
        mems = task.mems or self._mems
        uid = f"{task.uid}\t" * 3 + str(task.uid)
        text = (
            f"Name:\t{_escaped(task.comm)}\nUmask:\t0022\n"
            f"State:\tS (sleeping)\nTgid:\t{task.tgid}\nNgid:\t0\nPid:\t{task.tid}\n"
            f"PPid:\t{task.ppid}\nTracerPid:\t0\nUid:\t{uid}\nGid:\t0\t0\t0\t0\nFDSize:\t256\nGroups:\t \n"
            f"NStgid:\t{task.tgid}\nNSpid:\t{task.tid}\nNSpgid:\t{task.tgid}\nNSsid:\t{task.tgid}\n"
            f"VmRSS:\t{(task.resident >> 10) + 1532:>8} kB\nRssAnon:\t{task.resident >> 10:>8} kB\n"
            f"Threads:\t{max(len(task.threads), 1)}\nSigQ:\t0/96364\nSeccomp:\t0\n"
            f"Cpus_allowed:\t{_mask(task.mask, self._cpus)}\nCpus_allowed_list:\t{task.mask}\n"
            f"Mems_allowed:\t{_mask(CpuSet.parse(mems), 64)}\nMems_allowed_list:\t{mems}\n"
            "voluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n"
        )
        for folder in self._folders(task):
            put(f"{folder}/status", text)

    def _folder(self, task: FakeTask) -> str:
        return f"{self.folder}/{task.tgid}/task/{task.tid}"

    def _folders(self, task: FakeTask) -> tuple[str, ...]:
        """Where the files of this task are: those of a leader are its process's, too."""
        own = self._folder(task)
        return (f"{self.folder}/{task.tgid}", own) if task.is_leader else (own,)


def _escaped(comm: str) -> str:
    """As stat and status print it; comm has it as it is."""
    return comm.replace("\\", "\\\\").replace("\n", "\\n")


@lru_cache(maxsize=1024)
def _mask(cpus: CpuSet, width: int) -> str:
    return cpus.mask(width)
