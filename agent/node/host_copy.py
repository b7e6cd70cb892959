"""The part of a snapshot below ``root``: the files that the readers of this package read, copied under the same names.

Three things are not plain copies, since a recorded tree has neither device files nor cgroup namespaces: open devices
(``proc/<pid>/fd``) and device nodes (``dev/davinci``, ``proc/<pid>/root/dev/davinci``) become lists of numbers, and
cgroup paths are written as they are below the host's own mount, wherever the recorder saw them from.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused, printable
from agent.node.cgroup_paths import components, parse_cgroup
from agent.node.cgroups import CgroupTree
from agent.node.devices import read_davinci
from agent.node.files import ABSENT, INTERRUPTS_LIMIT, join, list_folder, read_bytes
from agent.node.procfs import ProcFs

Add = Callable[[str, bytes], None]

_PLAIN: Final = (
    "proc/interrupts",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/random/boot_id",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/possible",
    "sys/devices/system/node/has_memory",
    "var/lib/kubelet/cpu_manager_state",
)
_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f:.]+", re.ASCII)
_FOLDERS: Final = (
    # (folder, names in it, files of each)
    (
        "sys/devices/system/cpu",
        re.compile(r"cpu[0-9]+", re.ASCII),
        ("topology/core_cpus_list", "topology/thread_siblings_list"),
    ),
    ("sys/devices/system/node", re.compile(r"node[0-9]+", re.ASCII), ("cpulist", "meminfo")),
    ("proc/irq", _NUMBER, ("effective_affinity_list", "smp_affinity_list")),
    ("sys/kernel/irq", _NUMBER, ("actions",)),
    ("sys/bus/pci/devices", _PCI_ADDRESS, ("class", "vendor")),
)
_CPUSETS: Final = {
    "v1": ("cpuset.cpus", "cpuset.effective_cpus", "cpuset.effective_mems", "cpuset.mems"),
    "v2": ("cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems", "cpuset.mems.effective"),
}
_TOP: Final = ("cgroup.controllers", "unified/cgroup.controllers")
"""Files that tell one form of the cgroup tree from another."""


def copy_host(
    root: Path,
    pids: Collection[int],
    add: Add,
    note: Callable[[str], None],
    progress: Callable[[str], None],
    *,
    private: Sequence[str] = (),
) -> int:
    """Hands every file to `add`, as ``root/…`` with its content, and returns how many of the processes were there.

    What can't be read goes to `note`, a line each. `private` are further files of each process.
    """
    copy = _HostCopy(root, add, note, tuple(private))
    progress("CPUs, NUMA nodes and interrupts")
    copy.system()
    progress(f"processes and their threads ({len(pids)})")
    return sum([copy.process(pid) for pid in pids])


class _HostCopy:
    def __init__(self, root: Path, add: Add, note: Callable[[str], None], private: tuple[str, ...]) -> None:
        self._root = root
        self._private = private
        self._prefix = join(root)
        self._add = add
        self._note = note
        self._proc = ProcFs(root)
        self._cgroups = CgroupTree(root)
        self._davinci: Mapping[int, tuple[int, int]] = {}
        self._levels: set[str] = set()

    def system(self) -> None:
        for name in _PLAIN:
            self._file(name)
        for folder, pattern, files in _FOLDERS:
            for name in self._names(folder, pattern):
                for file in files:
                    self._file(f"{folder}/{name}/{file}")
        for device in self._names("sys/bus/pci/devices", _PCI_ADDRESS):
            folder = f"sys/bus/pci/devices/{device}/msi_irqs"
            for irq in self._names(folder, _NUMBER):
                self._file(f"{folder}/{irq}")
        for name in _TOP:
            self._file(f"sys/fs/cgroup/{name}")
        with self._noting("dev/davinci*"):
            self._davinci = read_davinci(self._root)
        if self._davinci:
            self._put("dev/davinci", _numbered(self._davinci))

    def process(self, pid: int) -> bool:
        """One process with its threads and its cgroup; False when it is gone."""
        folder = f"proc/{pid}"
        try:
            # Nothing below it is a link as the kernel makes it; a recording could have one.
            at = os.open(f"{self._prefix}/{folder}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in ABSENT:
                self._note(f"{folder}: {error.strerror}")
            return False
        try:
            for name in ("comm", "stat", "status", *self._private):
                self._file(f"{folder}/{name}", name, at)
            self._cgroup(pid, at)
            self._devices(pid)
            self._threads(pid, at)
        finally:
            os.close(at)
        return True

    def _threads(self, pid: int, process: int) -> None:
        try:
            task = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=process)
        except OSError:
            return
        try:
            for tid in self._proc.thread_ids(pid):
                try:
                    at = os.open(str(tid), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=task)
                except OSError:
                    continue
                try:
                    for name in ("comm", "stat", "status"):
                        self._file(f"proc/{pid}/task/{tid}/{name}", name, at)
                finally:
                    os.close(at)
        finally:
            os.close(task)

    def _cgroup(self, pid: int, at: int) -> None:
        with self._noting(f"cgroup of process {pid}"):
            content = read_bytes("cgroup", Reason.PROCESS_UNREADABLE, at=at)
            path = self._cgroups.path(pid)
            if content is None or path is None:
                return
            self._put(f"proc/{pid}/cgroup", _absolute(content.decode("utf-8", "surrogateescape"), path))
            self._cpusets(path)

    def _cpusets(self, path: str) -> None:
        """The cpuset files of a cgroup and of all above it."""
        mount = self._cgroups.mount
        parts = components(path)
        if mount is None or ".." in parts:
            return
        folder, form = mount
        name = os.path.relpath(folder, self._prefix or "/")
        for part in ("", *parts):
            name = f"{name}/{part}" if part else name
            if name in self._levels:
                continue
            self._levels.add(name)
            for file in _CPUSETS[form]:
                self._file(f"{name}/{file}")

    def _devices(self, pid: int) -> None:
        with self._noting(f"open files of process {pid}"):
            if devices := self._proc.device_files(pid):
                self._put(f"proc/{pid}/fd", _numbered(devices))
        with self._noting(f"/dev of process {pid}"):
            seen = self._proc.root_devices(pid, self._davinci)
            if seen is not None:  # none of them is another answer than not being able to look
                self._put(f"proc/{pid}/root/dev/davinci", _numbered({n: self._davinci[n] for n in seen}))

    def _names(self, folder: str, pattern: re.Pattern[str]) -> list[str]:
        names: list[str] = []
        with self._noting(folder):
            names = list_folder(f"{self._prefix}/{folder}", Reason.TOPOLOGY_UNREADABLE)
        return sorted(filter(pattern.fullmatch, names))

    def _file(self, name: str, path: str | None = None, at: int | None = None) -> None:
        """A plain copy, if the file is there; `path` below the folder open as `at` when that is given."""
        with self._noting(name):
            path = f"{self._prefix}/{name}" if path is None else path
            content = read_bytes(path, Reason.PROCESS_UNREADABLE, limit=INTERRUPTS_LIMIT, at=at)
            if content is not None:
                self._add(f"root/{name}", content)

    def _put(self, name: str, text: str) -> None:
        self._add(f"root/{name}", text.encode("utf-8", "surrogateescape"))

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Turns what can't be read into a note; what can't be written stays an error."""
        try:
            yield
        except Refused as refused:
            if refused.reason is Reason.SNAPSHOT_NOT_WRITTEN:
                raise
            self._note(f"{printable(what, 100)} is left out: {refused.message}")


def _absolute(text: str, path: str) -> str:
    """The text of a cgroup file with `path` in the line that counts."""
    chosen = parse_cgroup(text)
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if chosen is not None and parse_cgroup(line) == chosen:
            lines[at] = ":".join([*line.split(":", 2)[:2], path])
            break
    return "\n".join(lines)


def _numbered(devices: Mapping[int, tuple[int, int]]) -> str:
    return "".join(f"{number} {major}:{minor}\n" for number, (major, minor) in sorted(devices.items()))
