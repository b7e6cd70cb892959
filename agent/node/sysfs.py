"""The node's CPUs, cores and NUMA nodes, from /sys/devices/system.

Kernel documentation: ABI/stable/sysfs-devices-system-cpu, ABI/stable/sysfs-devices-node, admin-guide/cputopology.rst.
"""

from __future__ import annotations

import errno
import os
import platform
import re
from pathlib import Path
from typing import Final

from agent.model.cpuset import EMPTY, MAX_CPUS, CpuListError, CpuSet, union
from agent.model.node import NumaNode, Topology
from agent.model.reason import Reason, Refused, printable
from agent.node.cgroups import CgroupTree
from agent.node.files import join, list_folder, read_text, whole_line
from agent.node.procfs import ProcFs

_NODE: Final = re.compile(r"node([0-9]{1,5})", re.ASCII)
_CPU: Final = re.compile(r"cpu([0-9]{1,5})", re.ASCII)
_MEMORY: Final = re.compile(r"MemTotal:\s*([0-9]+)", re.ASCII)


class SystemFiles:
    """The files of /sys/devices/system, and what was in them: none of those that are read here ever goes away while
    the kernel runs. One that did is a mount that did, say, and no news of the CPUs."""

    def __init__(self) -> None:
        self._had: set[str] = set()

    def cpus(self, path: str) -> CpuSet | None:
        """The CPU list in a file, None where there never was one; Refused(TopologyUnreadable) when it is damaged."""
        text = self.text(path)
        if text is None:
            return None
        whole_line(text, path, Reason.TOPOLOGY_UNREADABLE)
        try:
            return CpuSet.parse(text)
        except CpuListError as error:
            raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(path, 120)}: {error}") from None

    def text(self, path: str) -> str | None:
        text = read_text(path, Reason.TOPOLOGY_UNREADABLE)
        self._note(path, there=text is not None)
        return text

    def names(self, folder: str) -> list[str]:
        """What is in a folder; empty where there never was one."""
        names = list_folder(folder, Reason.TOPOLOGY_UNREADABLE)
        self._note(folder, there=bool(names))
        return names

    def _note(self, path: str, *, there: bool) -> None:
        if there:
            self._had.add(path)
        elif path in self._had:
            raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(path, 150)} was there, and is gone")


def read_topology(
    root: Path,
    *,
    architecture: str | None = None,
    cgroups: CgroupTree | None = None,
    before: Topology | None = None,
    files: SystemFiles | None = None,
) -> Topology:
    """The topology of the host whose root folder this is.

    `architecture` as ``uname -m`` prints it (default: this machine's); `cgroups` to share a tree that is there already;
    `before`, an earlier topology of the same host, saves reading a file for each CPU while the same CPUs are online.
    `files` is the same object in every reading of one host. Refused(TopologyUnreadable) when it cannot be told which
    CPUs are online, when a file is damaged, and when one is gone.
    """
    files = files or SystemFiles()
    system = f"{join(root)}/sys/devices/system"
    folders = {
        int(match[1]): f"{system}/node/{name}"
        for name in files.names(f"{system}/node")
        if (match := _NODE.fullmatch(name))
    }
    listed = {number: _node_cpus(files, f"{folders[number]}/cpulist") for number in sorted(folders)}
    online = _online(files, f"{system}/cpu", union(listed.values()))
    same = before is not None and before.online == online
    return Topology(
        online=online,
        root=_root_cpus(root, cgroups or CgroupTree(root), online),
        nodes=_nodes(files, f"{system}/node", folders, listed, online, before if same else None),
        cores=before.cores if before and same else _cores(files, f"{system}/cpu", online),
        isolated=files.cpus(f"{system}/cpu/isolated") or EMPTY,
        possible=_possible(files, f"{system}/cpu/possible") or online,
        architecture=architecture or platform.machine(),
    )


def _online(files: SystemFiles, folder: str, on_nodes: CpuSet) -> CpuSet:
    """The online CPUs. A recording may lack ``online``: ``possible`` is next best, then what the NUMA nodes list."""
    online = files.cpus(f"{folder}/online")
    if online is None:
        online = _possible(files, f"{folder}/possible") or on_nodes
    if not online:
        raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(folder, 150)}/online lists no CPU")
    return online


def _node_cpus(files: SystemFiles, path: str) -> CpuSet:
    """The CPUs of a NUMA node that is listed. One without CPUs has a list, too, of none."""
    cpus = files.cpus(path)
    if cpus is None:
        raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(path, 150)}: {os.strerror(errno.ENOENT)}")
    return cpus


def _possible(files: SystemFiles, path: str) -> CpuSet | None:
    """The CPUs that could ever come online. Nothing is decided by them, so that nothing fails for them either."""
    try:
        return files.cpus(path)
    except Refused:
        return None


def _root_cpus(root: Path, cgroups: CgroupTree, online: CpuSet) -> CpuSet:
    """The root cpuset, as design section 2 defines it: never the agent's own mask, and PID 1's only as a last resort,
    because systemd's CPUAffinity= may have narrowed that.
    """
    cpus = cgroups.root_cpus()
    if cpus is None and (status := ProcFs(root).status(1)):
        cpus = status.cpus_allowed
    return (cpus & online if cpus else EMPTY) or online


def _nodes(  # noqa: PLR0917
    files: SystemFiles,
    folder: str,
    folders: dict[int, str],
    listed: dict[int, CpuSet],
    online: CpuSet,
    before: Topology | None,
) -> tuple[NumaNode, ...]:
    if not folders:  # a kernel without CONFIG_NUMA
        return (NumaNode(0, online),)
    # Memory nodes have the form of a CPU list, and node ids fit into it (MAX_NUMNODES is 1,024 at most).
    with_memory = files.cpus(f"{folder}/has_memory")
    known = {node.id: node.present for node in before.nodes} if before else {}
    nodes = []
    taken = EMPTY
    for number, cpus in listed.items():
        has_memory = _has_memory(files, f"{folders[number]}/meminfo") if with_memory is None else number in with_memory
        present = known[number] if number in known else _present(files, folders[number])
        nodes.append(NumaNode(number, cpus & online - taken, has_memory, (present | cpus) - taken))
        taken |= cpus | present
    return tuple(nodes)


def _present(files: SystemFiles, folder: str) -> CpuSet:
    """The CPUs of a node that are there, online or not: it keeps a link for each, while ``cpulist`` has online ones."""
    names = files.names(folder)
    return CpuSet(int(match[1]) for name in names if (match := _CPU.fullmatch(name)) and int(match[1]) < MAX_CPUS)


def _has_memory(files: SystemFiles, path: str) -> bool:
    """Whether a node's meminfo shows any; True where it doesn't say."""
    match = _MEMORY.search(files.text(path) or "")
    return match is None or match[1].strip("0") != ""


def _cores(files: SystemFiles, folder: str, online: CpuSet) -> tuple[CpuSet, ...]:
    """The online threads of each core. A CPU about which nothing was recorded is a core by itself; every kernel shows
    the core of one that it has a folder for.

    Where two files contradict each other all CPUs that either puts together stay together: a core taken for larger than
    it is gets refused or left whole, one taken for smaller has its halves handed to two NPUs.
    """
    cores: dict[int, int] = {}
    for cpu in online:
        topology = f"{folder}/cpu{cpu}/topology"
        siblings = files.cpus(f"{topology}/core_cpus_list")
        if siblings is None:  # its name before Linux 5.4
            siblings = files.cpus(f"{topology}/thread_siblings_list")
        if siblings is None and os.path.isdir(f"{folder}/cpu{cpu}"):  # noqa: PTH112
            raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(topology, 150)} shows no core")
        together = (siblings or EMPTY).bits & online.bits | 1 << cpu
        if not together & ~cores.get(cpu, 0):
            continue
        merged = together
        for other in CpuSet.from_bits(together):
            merged |= cores.get(other, 0)
        for other in CpuSet.from_bits(merged):
            cores[other] = merged
    distinct = map(CpuSet.from_bits, set(cores.values()))
    return tuple(sorted(distinct, key=lambda core: core.first))
