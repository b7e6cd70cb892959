"""The node's CPUs, cores and NUMA nodes, from /sys/devices/system.

Kernel documentation: ABI/stable/sysfs-devices-system-cpu, ABI/stable/sysfs-devices-node, admin-guide/cputopology.rst.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Final

from agent.model.cpuset import EMPTY, MAX_CPUS, CpuListError, CpuSet, union
from agent.model.node import NumaNode, Topology
from agent.model.reason import Reason, Refused, printable
from agent.node.cgroups import CgroupTree
from agent.node.files import join, list_folder, read_text
from agent.node.procfs import ProcFs

_NODE: Final = re.compile(r"node([0-9]{1,5})", re.ASCII)
_CPU: Final = re.compile(r"cpu([0-9]{1,5})", re.ASCII)
_MEMORY: Final = re.compile(r"MemTotal:\s*([0-9]+)", re.ASCII)


def read_topology(
    root: Path,
    *,
    architecture: str | None = None,
    cgroups: CgroupTree | None = None,
    before: Topology | None = None,
) -> Topology:
    """The topology of the host whose root folder this is.

    `architecture` as ``uname -m`` prints it (default: this machine's); `cgroups` to share a tree that is there already;
    `before`, an earlier topology of the same host, saves reading a file for each CPU while the same CPUs are online.
    Refused(TopologyUnreadable) when it cannot be told which CPUs are online, or when a file is damaged.
    """
    system = f"{join(root)}/sys/devices/system"
    folders = {
        int(match[1]): f"{system}/node/{name}"
        for name in list_folder(f"{system}/node", Reason.TOPOLOGY_UNREADABLE)
        if (match := _NODE.fullmatch(name))
    }
    listed = {number: _cpus(f"{folders[number]}/cpulist") or EMPTY for number in sorted(folders)}
    online = _online(f"{system}/cpu", union(listed.values()))
    same = before is not None and before.online == online
    return Topology(
        online=online,
        root=_root_cpus(root, cgroups or CgroupTree(root), online),
        nodes=_nodes(f"{system}/node", folders, listed, online, before if same else None),
        cores=before.cores if before and same else _cores(f"{system}/cpu", online),
        isolated=_cpus(f"{system}/cpu/isolated") or EMPTY,
        possible=_possible(f"{system}/cpu/possible") or online,
        architecture=architecture or platform.machine(),
    )


def _online(folder: str, on_nodes: CpuSet) -> CpuSet:
    """The online CPUs. A recording may lack ``online``: ``possible`` is next best, then what the NUMA nodes list."""
    online = _cpus(f"{folder}/online")
    if online is None:
        online = _possible(f"{folder}/possible") or on_nodes
    if not online:
        raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(folder, 150)}/online lists no CPU")
    return online


def _possible(path: str) -> CpuSet | None:
    """The CPUs that could ever come online. Nothing is decided by them, so that nothing fails for them either."""
    try:
        return _cpus(path)
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


def _nodes(
    folder: str, folders: dict[int, str], listed: dict[int, CpuSet], online: CpuSet, before: Topology | None
) -> tuple[NumaNode, ...]:
    if not folders:  # a kernel without CONFIG_NUMA
        return (NumaNode(0, online),)
    # Memory nodes have the form of a CPU list, and node ids fit into it (MAX_NUMNODES is 1,024 at most).
    with_memory = _cpus(f"{folder}/has_memory")
    known = {node.id: node.present for node in before.nodes} if before else {}
    nodes = []
    taken = EMPTY
    for number, cpus in listed.items():
        has_memory = _has_memory(f"{folders[number]}/meminfo") if with_memory is None else number in with_memory
        present = known[number] if number in known else _present(folders[number])
        nodes.append(NumaNode(number, cpus & online - taken, has_memory, (present | cpus) - taken))
        taken |= cpus | present
    return tuple(nodes)


def _present(folder: str) -> CpuSet:
    """The CPUs of a node that are there, online or not: it keeps a link for each, while ``cpulist`` has online ones."""
    names = list_folder(folder, Reason.TOPOLOGY_UNREADABLE)
    return CpuSet(int(match[1]) for name in names if (match := _CPU.fullmatch(name)) and int(match[1]) < MAX_CPUS)


def _has_memory(path: str) -> bool:
    """Whether a node's meminfo shows any; True where it doesn't say."""
    match = _MEMORY.search(read_text(path, Reason.TOPOLOGY_UNREADABLE) or "")
    return match is None or match[1].strip("0") != ""


def _cores(folder: str, online: CpuSet) -> tuple[CpuSet, ...]:
    """The online threads of each core. A CPU about which nothing is known is a core by itself.

    Where two files contradict each other all CPUs that either puts together stay together: a core taken for larger than
    it is gets refused or left whole, one taken for smaller has its halves handed to two NPUs.
    """
    cores: dict[int, int] = {}
    for cpu in online:
        topology = f"{folder}/cpu{cpu}/topology"
        siblings = _cpus(f"{topology}/core_cpus_list")
        if siblings is None:  # its name before Linux 5.4
            siblings = _cpus(f"{topology}/thread_siblings_list")
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


def _cpus(path: str) -> CpuSet | None:
    """The CPU list in a file, None where there is none; Refused(TopologyUnreadable) when it is damaged."""
    text = read_text(path, Reason.TOPOLOGY_UNREADABLE)
    if text is None:
        return None
    try:
        return CpuSet.parse(text)
    except CpuListError as error:
        raise Refused(Reason.TOPOLOGY_UNREADABLE, f"{printable(path, 120)}: {error}") from None
