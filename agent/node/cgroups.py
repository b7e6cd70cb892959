"""The cgroup tree of a host: which cgroup a process is in, and which CPUs that cgroup gives it.

Kernel documentation: admin-guide/cgroup-v1/cpusets.rst, admin-guide/cgroup-v2.rst (section Cpuset).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.model.cpuset import CpuListError, CpuSet
from agent.model.reason import Reason, Refused, printable
from agent.model.workload import CgroupIdentity
from agent.node.cgroup_paths import CgroupLine, components, identify, parse_cgroup, resolve, written
from agent.node.files import ABSENT, join, read_bytes, read_text, refusal, whole_line

__all__ = ["CgroupLine", "CgroupTree", "find_cpuset", "identify", "own_cgroup", "parse_cgroup"]

EFFECTIVE: Final = {
    "v2": ("cpuset.cpus.effective",),
    # effective_cpus came with Linux 3.17; before it, cpuset.cpus was what counted.
    "v1": ("cpuset.effective_cpus", "cpuset.cpus"),
}
"""Files that say which CPUs a cgroup gives, the best first, by kind of hierarchy."""

_DEEPEST: Final = 64
"""Levels that are looked at. A container can nest cgroups without end; what lies deeper gets the CPUs of this level."""
_MOST_FOLDERS: Final = 50_000
_CACHED: Final = 4096
_FRESH: Final = 30.0
"""Seconds for which a look at the whole tree is believed: a recorded one stays as it is, a live one does not."""


class CgroupTree:
    """The cgroups below a host's root folder."""

    def __init__(self, root: Path, *, own: str | None = None, kubepods_root: str | None = None) -> None:
        """`own`: the root of the agent's cgroup namespace, found by `own_cgroup` when not given.

        `kubepods_root`: the cgroup below which this node's pods are; not needed unless the node is itself a container
        and PID 1's cgroup doesn't show that.
        """
        self._root = root
        self._own = own
        self._kubepods_root = kubepods_root
        self._node_known = kubepods_root is not None
        self._mount: tuple[str, str] | None = None
        self._identities: dict[str, CgroupIdentity] = {}
        self._paths: dict[bytes, str] = {}
        """What /proc/<pid>/cgroup says -> the path; many processes have the same."""
        self._ends: dict[str, list[list[str]]] = {}
        self._ends_of: float | None = None

    @property
    def mount(self) -> tuple[str, str] | None:
        """Where cpusets are mounted: as `find_cpuset`."""
        if self._mount is None:
            self._mount = find_cpuset(self._root)
        return self._mount

    @property
    def form(self) -> str:
        """Where cpusets are: ``v1``, ``v2``, ``hybrid`` (v1 beside a v2 hierarchy), or empty for nowhere."""
        mount = self.mount
        if mount is None:
            return ""
        top = _top(self._root)
        return "hybrid" if mount[0] != top and Path(f"{top}/unified").is_dir() else mount[1]

    @property
    def own(self) -> str:
        """The root of the agent's cgroup namespace, as a path below the host's mount."""
        if self._own is None:
            self._own = own_cgroup(self._root)
        return self._own

    def path(self, pid: int) -> str | None:
        """The whole path of a process below the mount of its hierarchy; None when it is gone.

        Where the root of the namespace it is written in is not known (a recording made elsewhere), it is the one folder
        of the tree whose path ends so. Where that could not be found either, it still begins with ``/..``. PID 1 is not
        looked for: containers have folders that end like its own.
        """
        content = read_bytes(f"{join(self._root)}/proc/{pid}/cgroup", Reason.PROCESS_UNREADABLE)
        if not content:
            return None
        if (known := self._paths.get(content)) is not None:
            return known
        whole_line(content, f"process {pid}: cgroup", Reason.PROCESS_UNREADABLE)
        line = parse_cgroup(content.decode("utf-8", "surrogateescape"))
        if line is None:
            return None
        parts, lost = resolve(line.path, self.own)
        path = written(parts, lost)
        if lost:  # where it leads depends on the tree
            return path if pid == 1 else self._located(path) or path
        if len(self._paths) >= _CACHED:
            self._paths.clear()
        self._paths[content] = path
        return path

    def identity(self, pid: int) -> CgroupIdentity | None:
        """Whose process it is, with the path cut at the container's component; None when it is gone."""
        path = self.path(pid)
        return None if path is None else self.identity_of(path)

    def identity_of(self, path: str) -> CgroupIdentity:
        """Whose cgroup it is. `path` as `path` gives it."""
        identity = self._identities.get(path)
        if identity is None:
            if len(self._identities) >= _CACHED:
                self._identities.clear()
            identity = self._identities[path] = identify(path, kubepods_root=self._node())
        return identity

    def process_cpus(self, pid: int) -> CpuSet | None:
        """The CPUs that the process's own cgroup gives it; None when it is gone or no cpuset can be read."""
        path = self.path(pid)
        return None if path is None else self._cpus(path)

    def root_cpus(self) -> CpuSet | None:
        """The root cpuset: what PID 1's cgroup gives; None where no cpuset hierarchy is readable."""
        cpus = self.process_cpus(1)
        return self._cpus("/") if cpus is None else cpus

    def effective_cpus(self, path: str) -> CpuSet | None:
        """The effective cpuset of a cgroup, from the nearest one upwards that has a file for it and something in it.

        Neither a link nor ``..`` is followed. A path that begins with ``/..`` counts only if all the rest of it exists,
        or if it is the end of one folder's path and of no other's. None where no cpuset can be read;
        Refused(CpusetUnreadable) where one is there and is damaged or denied.
        """
        return self._cpus(self._located(path) or path)

    def _cpus(self, path: str) -> CpuSet | None:
        """As `effective_cpus`, without looking for what could not be made absolute."""
        mount = self.mount
        parts, lost = resolve(path)
        if mount is None:
            return None
        folder, form = mount
        levels: list[int] = []
        try:
            levels.append(os.open(folder, os.O_PATH | os.O_DIRECTORY))
            for part in parts[:_DEEPEST]:
                try:
                    levels.append(os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=levels[-1]))
                except OSError as error:
                    if error.errno not in _NO_LEVEL:
                        raise
                    if lost:
                        return None
                    break
            return next((cpus for level in reversed(levels) if (cpus := _level_cpus(level, form, path))), None)
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise refusal(Reason.CPUSET_UNREADABLE, f"{folder}{path}", error) from error
        finally:
            for level in levels:
                os.close(level)

    def _located(self, path: str) -> str | None:
        """Where in the tree a path that begins with ``/..`` leads; None where none or several folders end so.

        What a container made below its own cgroup may be missing in a recording: then its own folder is looked for.
        """
        parts, lost = resolve(path)
        if not lost or not parts:
            return None
        cut = identify(path)
        own = resolve(cut.path)[0] if cut.runtime else parts
        for end in (parts, own):
            found = [whole for whole in self._folders_named(end[-1]) if whole[-len(end) :] == end]
            if found:
                return written(found[0] + parts[len(end) :]) if len(found) == 1 else None
        return None

    def _folders_named(self, name: str) -> list[list[str]]:
        """Every folder of the cpuset hierarchy with this name; empty where it has more folders than are looked at."""
        now = time.monotonic()
        if self._ends_of is None or now - self._ends_of > _FRESH:
            mount = self.mount
            self._ends, self._ends_of = {}, now
            for count, (parts, _folder, _inode) in enumerate(_folders(mount[0]) if mount else ()):
                if count >= _MOST_FOLDERS:
                    self._ends = {}
                    break
                self._ends.setdefault(parts[-1], []).append(parts)
        return self._ends.get(name, [])

    def _node(self) -> str | None:
        """The cgroup below which pods are to be looked for: PID 1's container, where the node itself is one."""
        if not self._node_known:
            path = self.path(1)
            if path is not None:
                first = identify(path)
                self._kubepods_root = first.path if first.runtime else None
                self._node_known = True
        return self._kubepods_root


_NO_LEVEL: Final = ABSENT | {errno.ELOOP, errno.ENAMETOOLONG}


def find_cpuset(root: Path) -> tuple[str, str] | None:
    """Where cpusets are mounted below a host's root folder: the folder, and ``v1`` or ``v2``; None for nowhere."""
    top = _top(root)
    try:
        with os.scandir(top) as entries:
            folders = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise refusal(Reason.CPUSET_UNREADABLE, top, error) from error
    # The top of v1 is a tmpfs with one folder for each hierarchy and no files of its own.
    if not folders.keys().isdisjoint({"cgroup.controllers", "cgroup.procs", "cpuset.cpus.effective"}):
        return top, "v2"
    # Distributions mount several controllers as one, and put links such as cpuset -> cpu,cpuset beside it.
    for name in sorted(name for name, is_folder in folders.items() if is_folder and "cpuset" in name.split(",")):
        return f"{top}/{name}", "v1"
    if folders.get("unified"):
        return f"{top}/unified", "v2"
    return (top, "v2") if any(folders.values()) else None


def own_cgroup(root: Path, *, mount: Path = Path("/sys/fs/cgroup")) -> str:
    """The root of this process's cgroup namespace, as a path below the host's own mount of it; ``/`` if it has none.

    In a namespace of its own a process sees PID 1 somewhere at ``/../..``. What it has mounted at `mount` is then the
    same folder, by device and inode, as one below the host's mount. Where that tells nothing (the host's mount was laid
    over it, say), the cgroup that lists this process does: /proc/self of the host's /proc is its pid there.
    """
    proc = f"{join(root)}/proc"
    first = parse_cgroup(read_text(f"{proc}/1/cgroup", Reason.PROCESS_UNREADABLE) or "")
    above = components(first.path).count("..") if first else 0
    found = find_cpuset(root)
    if not above or found is None:
        return "/"
    host, _ = found
    same = os.path.relpath(host, _top(root))
    try:
        wanted = (mount / same).stat()
    except OSError:
        wanted = None
    if wanted is not None:
        for parts, folder, inode in _folders(host):
            if inode == wanted.st_ino and len(parts) >= above and _is_same(folder, wanted):
                return written(parts)
    try:
        pid = os.readlink(f"{proc}/self")  # noqa: PTH115
        line = parse_cgroup(read_text(f"{proc}/self/cgroup", Reason.PROCESS_UNREADABLE) or "")
    except (OSError, Refused):
        return "/"
    inner = components(line.path) if line else []
    for parts, folder, _inode in _folders(host):
        end = len(parts) - len(inner)
        if end >= above and parts[end:] == inner and _lists(folder, pid):
            return written(parts[:end])
    return "/"


def _top(root: Path) -> str:
    return f"{join(root)}/sys/fs/cgroup"


def _level_cpus(level: int, form: str, path: str) -> CpuSet | None:
    """What one cgroup says; None where it says nothing. An empty file is a cgroup under construction (v1)."""
    for name in EFFECTIVE[form]:
        text = read_text(name, Reason.CPUSET_UNREADABLE, at=level)
        if text is None:
            continue
        whole_line(text, f"{name} of {printable(path, 100)}", Reason.CPUSET_UNREADABLE)
        try:
            return CpuSet.parse(text) or None
        except CpuListError as error:
            raise Refused(Reason.CPUSET_UNREADABLE, f"{name} of {printable(path, 100)}: {error}") from None
    return None


def _folders(top: str) -> Iterator[tuple[list[str], str, int]]:
    """The cgroups below a mount, parents first: components, path, inode. Some may vanish meanwhile."""
    waiting: list[tuple[list[str], str]] = [([], top)]
    for count, (parts, folder) in enumerate(waiting):
        if count > _MOST_FOLDERS:
            return
        try:
            with os.scandir(folder) as entries:
                found = [(e.name, e.inode()) for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for name, inode in found:
            waiting.append(([*parts, name], f"{folder}/{name}"))
            yield [*parts, name], f"{folder}/{name}", inode


def _is_same(folder: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(Path(folder).lstat(), wanted)
    except OSError:
        return False


def _lists(folder: str, pid: str) -> bool:
    try:
        text = read_text(f"{folder}/cgroup.procs", Reason.PROCESS_UNREADABLE)
    except Refused:  # a threaded cgroup refuses to list processes
        return False
    return text is not None and pid in text.split()
