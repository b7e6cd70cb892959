"""What the virtual nodes are made of: CPUs, NUMA nodes and NPUs, copied from hosts whose outputs were published."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, Npu, NumaNode, Topology


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of node."""

    name: str
    title: str
    """One line for people."""
    topology: Topology
    """As the readers should find it. Every CPU of it is online."""
    inventory: Inventory
    npu_smi: str
    """Version that its npu-smi reports."""
    memory_mib: int
    """Device memory of an NPU."""
    chips_per_card: int = 1
    topo_supported: bool = True
    """Whether ``npu-smi info -t topo`` knows this device."""

    @property
    def cpus(self) -> CpuSet:
        return self.topology.online

    @property
    def device_type(self) -> DeviceType:
        return self.inventory.device_type


def _even(cpus: int, nodes: int) -> Topology:
    """CPUs in equal NUMA nodes of consecutive numbers, one thread a core."""
    size = cpus // nodes
    return Topology(
        online=CpuSet.span(0, cpus - 1),
        root=CpuSet.span(0, cpus - 1),
        nodes=tuple(NumaNode(i, CpuSet.span(i * size, i * size + size - 1)) for i in range(nodes)),
        cores=tuple(CpuSet([cpu]) for cpu in range(cpus)),
        possible=CpuSet.span(0, cpus - 1),
    )


def _threads_apart(cores: int, nodes: int) -> Topology:
    """Two threads a core, numbered c and c + cores."""
    size = cores // nodes
    every = CpuSet.span(0, 2 * cores - 1)
    return Topology(
        online=every,
        root=every,
        nodes=tuple(
            NumaNode(
                i,
                CpuSet.span(i * size, i * size + size - 1) | CpuSet.span(cores + i * size, cores + i * size + size - 1),
            )
            for i in range(nodes)
        ),
        cores=tuple(CpuSet([core, core + cores]) for core in range(cores)),
        possible=every,
    )


def _a3() -> Profile:
    buses = (0x9D, 0x9F, 0x99, 0x9B, 0x95, 0x97, 0x91, 0x93, 0x8D, 0x8F, 0x89, 0x8B, 0x85, 0x87, 0x81, 0x83)
    npus = tuple(
        Npu(id=i, card=i // 2, chip=i % 2, phy_id=i, name="Ascend910", bus_id=f"0000:{bus:02x}:00.0")
        for i, bus in enumerate(buses)
    )
    return Profile(
        name="a3",
        title="Atlas A3: 16 NPUs on 8 dual-die cards, 640 CPUs in 8 NUMA nodes",
        topology=_even(640, 8),
        inventory=Inventory(npus, DeviceType.A3),
        npu_smi="24.1.rc3.7",
        memory_mib=65536,
        chips_per_card=2,
    )


def _a2() -> Profile:
    buses = (0xC1, 0xC2, 0x81, 0x82, 0x01, 0x02, 0x41, 0x42)
    homes = ("144-167", "96-119", "0-23", "48-71")
    npus = tuple(
        Npu(id=i, card=i, name="910B3", bus_id=f"0000:{bus:02x}:00.0", affinity=CpuSet.parse(homes[i // 2]))
        for i, bus in enumerate(buses)
    )
    return Profile(
        name="a2",
        title="Atlas A2: 8 NPUs 910B3, two to a NUMA node, 192 CPUs in 8 NUMA nodes",
        topology=_even(192, 8),
        inventory=Inventory(npus, DeviceType.A2),
        npu_smi="24.1.rc1.b030",
        memory_mib=65536,
    )


def _atlas300i() -> Profile:
    # The driver numbers these cards by their PCIe slot. No host is known whose npu-smi prints an affinity for them.
    cards = ((0, 0x01), (32, 0x02), (32768, 0x81), (32800, 0x82))
    npus = tuple(
        Npu(id=i, card=card, name="310P3", bus_id=f"0000:{bus:02x}:00.0") for i, (card, bus) in enumerate(cards)
    )
    return Profile(
        name="atlas300i",
        title="Atlas 300I: 4 NPUs 310P3 without CPU affinity, 96 CPUs in 4 NUMA nodes",
        topology=_even(96, 4),
        inventory=Inventory(npus, DeviceType.ATLAS_300I),
        npu_smi="24.1.0.1",
        memory_mib=21527,
        topo_supported=False,
    )


def _ascend950() -> Profile:
    buses = (0x01, 0x11, 0x61, 0x71, 0x81, 0x91, 0xE1, 0xF1)
    homes = ("0-63,128-191", "64-127,192-255")
    npus = tuple(
        Npu(
            id=i,
            card=i,
            phy_id=i,
            name="Ascend950PR",
            bus_id=f"0000:{bus:02x}:00.0",
            affinity=CpuSet.parse(homes[i // 4]),
        )
        for i, bus in enumerate(buses)
    )
    return Profile(
        name="ascend950",
        title="Ascend 950: 8 NPUs in two UB quads, 128 cores with two threads in 2 NUMA nodes",
        topology=_threads_apart(128, 2),
        inventory=Inventory(npus, DeviceType.ASCEND_950),
        npu_smi="25.7.rc1",
        memory_mib=131072,
    )


PROFILES = {profile.name: profile for profile in (_a3(), _a2(), _atlas300i(), _ascend950())}
"""Profiles by name, as ``demo --device`` takes them."""


def small(cpus: int = 16, nodes: int = 2, npus: int = 2) -> Profile:
    """A node that fits on a screen and in a test: an A2 whose k-th NPU is at home on the k-th NUMA node, in turn."""
    topology = _even(cpus, nodes)
    model = PROFILES["a2"]
    chosen = tuple(
        replace(model.inventory.npus[i], affinity=topology.nodes[i % nodes].cpus)
        for i in range(min(npus, len(model.inventory.npus)))
    )
    return replace(
        model,
        name="small",
        title=f"{len(chosen)} NPUs 910B3, {cpus} CPUs in {nodes} NUMA nodes",
        topology=topology,
        inventory=Inventory(chosen, DeviceType.A2),
    )
