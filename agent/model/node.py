"""What a node is made of: CPUs, NUMA nodes, cores, NPUs. Read by `agent.node`, used by `agent.planning`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from agent.model.cpuset import EMPTY, CpuSet, union


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node as the kernel numbers it: ids may have holes, a node may lack CPUs or memory."""

    id: int
    cpus: CpuSet
    """Its online CPUs."""
    has_memory: bool = True
    present: CpuSet = field(default=EMPTY, compare=False)
    """All its CPUs, offline ones too, where the kernel says (``nodeN/cpuM``); empty where it doesn't."""

    @property
    def members(self) -> CpuSet:
        """All CPUs that are known to be its own."""
        return self.present or self.cpus


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs of a node."""

    online: CpuSet
    root: CpuSet
    """The effective cpuset of PID 1's cgroup: what the host gives to its processes."""
    nodes: tuple[NumaNode, ...]
    """Ascending by id."""
    cores: tuple[CpuSet, ...]
    """The online threads of each core (``thread_siblings_list``), ascending by lowest CPU."""
    isolated: CpuSet = EMPTY
    possible: CpuSet = EMPTY
    architecture: str = "aarch64"
    """As ``uname -m`` prints it."""

    def nodes_of(self, cpus: CpuSet) -> list[int]:
        """The ids of the NUMA nodes that these CPUs lie on, ascending; a CPU that no node lists counts as node 0's."""
        found = {node.id for node in self.nodes if not node.members.isdisjoint(cpus)}
        if cpus - self._on_nodes:
            found.add(0)
        return sorted(found)

    def cpus_of(self, node_id: int) -> CpuSet:
        """The CPUs of a NUMA node, offline ones as far as known; node 0 also has the online ones that no node lists."""
        listed = next((node.members for node in self.nodes if node.id == node_id), EMPTY)
        return listed | (self.online - self._on_nodes) if node_id == 0 else listed

    @property
    def _on_nodes(self) -> CpuSet:
        return union(node.members for node in self.nodes)


class DeviceType(StrEnum):
    """Families of Ascend devices, as far as CPU binding tells them apart (design 4.2)."""

    A2 = "A2"
    A3 = "A3"
    ATLAS_300I = "Atlas300I"
    ASCEND_950 = "Ascend950"
    UNKNOWN = "Unknown"

    @property
    def binds_irqs(self) -> bool:
        """Whether pools of this device have CPUs for interrupts, ACL and release threads."""
        return self is not DeviceType.ASCEND_950


@dataclass(frozen=True, slots=True)
class Npu:
    """One logical NPU."""

    id: int
    """``Chip Logic ID`` of ``npu-smi info -m`` (on Ascend 950 ``NPU ID``): the only key for NPUs in a plan."""
    card: int = 0
    """``NPU ID`` of npu-smi: the card, what ``-i`` takes."""
    chip: int = 0
    """``Chip ID`` of npu-smi: the chip on its card, what ``-c`` takes."""
    phy_id: int | None = None
    """``Chip Phy-ID``, where npu-smi shows one: the N of /dev/davinciN."""
    name: str = ""
    bus_id: str = ""
    """PCI address such as ``0000:c1:00.0``; empty where npu-smi prints NA."""
    affinity: CpuSet | None = None
    """``CPU Affinity`` of ``npu-smi info -t topo``; None where it shows none."""
    missing: bool = False
    """Seen since the driver was loaded, gone now (design 4.1)."""

    @property
    def device_number(self) -> int:
        """N of its /dev/davinciN."""
        return self.id if self.phy_id is None else self.phy_id


@dataclass(frozen=True, slots=True)
class Inventory:
    """The NPUs of a node, ascending by id."""

    npus: tuple[Npu, ...]
    device_type: DeviceType

    def get(self, npu_id: int) -> Npu | None:
        return next((npu for npu in self.npus if npu.id == npu_id), None)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(npu.id for npu in self.npus)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A row of the process table of ``npu-smi info``: a process holds a context on an NPU."""

    npu: int
    """Logical NPU id."""
    pid: int
    """In the host's PID namespace."""
    memory_mib: int | None
    """Device memory in MiB; None where npu-smi prints NA."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """What ``npu-smi info`` says of the processes on the NPUs."""

    rows: tuple[ProcessRow, ...] = ()
    stated: frozenset[int] = frozenset()
    """NPUs of which the table says what runs there, be it nothing. Of others nothing is known."""


ROWS_PER_CHIP = 8
"""npu-smi prints at most this many processes of a chip, so that a chip with as many may have more."""
