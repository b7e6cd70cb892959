"""A fake cgroup v2 hierarchy with its cpusets, in memory and as files below a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.demo.fake_files import put
from agent.model.cpuset import EMPTY, CpuSet

CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc\n"


class FakeCgroups:
    """Paths are as /proc/<pid>/cgroup writes them: ``/`` is the root, ``/kubepods.slice`` a child of it."""

    def __init__(self, mount: Path, cpus: CpuSet, mems: str) -> None:
        self.mount = mount
        self._mems = mems
        self._asked: dict[str, CpuSet] = {}
        self._effective: dict[str, CpuSet] = {"/": cpus}
        self._procs: dict[str, set[int]] = {"/": set()}
        mount.mkdir(parents=True, exist_ok=True)
        put(mount / "cgroup.controllers", CONTROLLERS)
        put(mount / "cgroup.subtree_control", "cpuset cpu io memory hugetlb pids\n")
        put(mount / "cpuset.mems.effective", f"{mems}\n")
        self._write_effective("/")
        self._write_procs("/")

    def create(self, path: str, cpus: CpuSet | None = None, *, cpuset: bool = True) -> None:
        """Makes a cgroup and those above it; without `cpuset` it has no cpuset files and uses its parent's CPUs."""
        parent = _parent(path)
        if parent not in self._procs:
            self.create(parent)
        self._procs.setdefault(path, set())
        folder = self._folder(path)
        folder.mkdir(exist_ok=True)
        put(folder / "cgroup.controllers", CONTROLLERS if cpuset else "memory pids\n")
        self._write_procs(path)
        if cpuset:
            self._asked[path] = EMPTY if cpus is None else cpus
            put(folder / "cpuset.cpus", f"{self._asked[path]}\n")
            put(folder / "cpuset.mems", "\n")
            put(folder / "cpuset.mems.effective", f"{self._mems}\n")
            self._effective[path] = self._computed(path)
            self._write_effective(path)

    def remove(self, path: str) -> None:
        """Removes an empty cgroup."""
        if self._procs[path]:
            raise OSError(f"{path} still holds processes")
        folder = self._folder(path)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        del self._procs[path]
        self._asked.pop(path, None)
        self._effective.pop(path, None)

    def write(self, path: str, cpus: CpuSet) -> list[str]:
        """Writes cpuset.cpus; returns the cgroups whose effective CPUs that changed."""
        if path not in self._asked:
            raise FileNotFoundError(f"{path} has no cpuset.cpus")
        self._asked[path] = cpus
        put(self._folder(path) / "cpuset.cpus", f"{cpus}\n")
        return list(self._settle(path))

    def set_root(self, cpus: CpuSet) -> list[str]:
        """CPUs came or went; returns the cgroups below the root whose effective CPUs that changed."""
        self._effective["/"] = cpus
        self._write_effective("/")
        return [changed for path in self._children("/") for changed in self._settle(path)]

    def effective(self, path: str) -> CpuSet:
        """The CPUs that tasks of this cgroup may use: those of the nearest cgroup with a cpuset."""
        while path not in self._effective:
            path = _parent(path)
        return self._effective[path]

    def show_memory(self, path: str, anonymous: Mapping[int, int]) -> None:
        """``memory.numa_stat``, with the bytes on each NUMA node."""
        figures = "".join(f" N{node}={size}" for node, size in sorted(anonymous.items()))
        put(self._folder(path) / "memory.numa_stat", f"anon{figures}\nfile{' N0=0' if anonymous else ''}\n")

    def attach(self, pid: int, path: str, before: str | None) -> None:
        """Puts a process into a cgroup."""
        if before is not None:
            self.detach(pid, before)
        self._procs[path].add(pid)
        self._write_procs(path)

    def detach(self, pid: int, path: str) -> None:
        self._procs[path].discard(pid)
        self._write_procs(path)

    def procs(self, path: str) -> list[int]:
        return sorted(self._procs[path])

    def covers(self, changed: list[str], path: str) -> bool:
        """Whether a process in `path` takes its CPUs from one of these cgroups."""
        while path not in self._effective:
            path = _parent(path)
        return path in changed

    def _settle(self, path: str) -> Iterator[str]:
        cpus = self._computed(path)
        if cpus == self._effective[path]:
            return  # the kernel, too, leaves the whole subtree alone then
        self._effective[path] = cpus
        self._write_effective(path)
        yield path
        for child in self._children(path):
            yield from self._settle(child)

    def _computed(self, path: str) -> CpuSet:
        above = self.effective(_parent(path))
        return self._asked[path] & above or above

    def _children(self, path: str) -> list[str]:
        return [other for other in self._asked if _parent(other) == path]

    def _folder(self, path: str) -> Path:
        return self.mount / path.lstrip("/")

    def _write_effective(self, path: str) -> None:
        put(self._folder(path) / "cpuset.cpus.effective", f"{self._effective[path]}\n")

    def _write_procs(self, path: str) -> None:
        put(self._folder(path) / "cgroup.procs", "".join(f"{pid}\n" for pid in sorted(self._procs[path])))


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
