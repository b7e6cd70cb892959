"""What these tests share: CPUs of this machine, masks as the kernel tells them, a host that counts, cpuset cgroups."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.workload import ProcessId
from agent.node.host import LinuxHost
from agent.node.threads import ThreadBinder

ALL = CpuSet(os.sched_getaffinity(0))
A, B = (sorted(ALL) * 2)[:2]
"""Two CPUs of this machine."""

ON_A = CpuSet({A})
ON_B = CpuSet({B})
BOTH = CpuSet({A, B})

APART = Roles(main=ON_A, acl=ON_B, release=ON_B)
"""Main on one CPU, the others on the other."""

WIDE = Roles(main=BOTH, acl=ON_A, release=ON_B)
"""Room in main for a thread to narrow itself."""

two_cpus = pytest.mark.skipif(A == B, reason="needs two CPUs")

CPUSETS = Path("/sys/fs/cgroup/cpuset")


def mask(tid: int) -> set[int]:
    """A thread's mask, as the kernel tells the test."""
    return os.sched_getaffinity(tid)


def tids(pid: int) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{pid}/task")]


def masks(pid: int) -> dict[int, set[int]]:
    return {tid: mask(tid) for tid in tids(pid)}


def identity(pid: int) -> ProcessId:
    """A process as it is now."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return ProcessId(pid, int(stat.rpartition(b")")[2].split()[19]))


class CountingHost(LinuxHost):
    """The real host; remembers the calls and lets a test step in before each write."""

    def __init__(self, mask_bytes: int | None = None) -> None:
        super().__init__(mask_bytes)
        self.read: list[int] = []
        self.written: list[int] = []
        self.before_write: Callable[[int], object] = lambda tid: None

    def get_affinity(self, tid: int) -> CpuSet:
        self.read.append(tid)
        return super().get_affinity(tid)

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        self.read.extend(tids)
        return super().get_masks(tids)

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        self.before_write(tid)
        self.written.append(tid)
        super().set_affinity(tid, cpus)


@contextmanager
def bound_worker(binder: ThreadBinder, host: CountingHost) -> Iterator[StandIn]:
    """A process whose threads are on the CPUs of their roles; `host` has no write of that on record."""
    with StandIn("--threads", "2", "--acl", "--release") as worker:
        binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ALL, first=True)
        host.written.clear()
        yield worker


class Cgroup:
    """A cpuset cgroup of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.parse((self._folder / "cpuset.effective_cpus").read_text())

    def write(self, cpus: CpuSet) -> None:
        (self._folder / "cpuset.cpus").write_text(str(cpus))

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def add_thread(self, tid: int) -> None:
        (self._folder / "tasks").write_text(str(tid))


def remove_cgroup(folder: Path, leave: Callable[[], None] = lambda: None) -> None:
    """An ended task leaves its cgroup a moment after it has been waited for, and others may be forking: `leave` sends
    them elsewhere."""
    end = time.monotonic() + 20
    while True:
        leave()
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


def _to_the_root(folder: Path) -> None:
    for tid in (folder / "tasks").read_text().split():
        with suppress(ProcessLookupError):
            (CPUSETS / "tasks").write_text(tid)


@contextmanager
def cpuset_cgroup(cpus: CpuSet, name: str = "") -> Iterator[Cgroup]:
    """A new cgroup with these CPUs, removed at the end: whatever is in it then goes back to the root."""
    if not os.access(CPUSETS / "cgroup.procs", os.W_OK):
        pytest.skip(f"needs a cgroup v1 cpuset hierarchy at {CPUSETS} that may be written")
    folder = CPUSETS / (name or f"cpubind-test-{uuid4()}")
    folder.mkdir()
    try:
        (folder / "cpuset.mems").write_text((CPUSETS / "cpuset.mems").read_text())
        group = Cgroup(folder)
        group.write(cpus)
        yield group
    finally:
        remove_cgroup(folder, partial(_to_the_root, folder))
