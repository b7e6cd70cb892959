"""A fake /sys: CPUs, NUMA nodes, the NPUs as PCI functions, and their interrupts (which /proc shares)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.demo.fake_files import make, put
from agent.model.cpuset import CpuSet
from agent.model.node import Npu, NumaNode

DRIVER = "drv_pcie_host"
"""The kernel module that drives the PCI functions."""

CQ_IRQS = 16
"""Completion interrupts of an NPU; the driver asks for one submission and one mailbox interrupt besides."""


@dataclass(frozen=True, slots=True)
class FakeIrq:
    """An interrupt of an NPU."""

    number: int
    npu: int
    action: str


def write_cpus(folder: Path, online: CpuSet, possible: CpuSet, isolated: CpuSet, cores: tuple[CpuSet, ...]) -> None:
    """``/sys/devices/system/cpu``. A CPU that is offline keeps its folder and loses its topology."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, cpus in (("online", online), ("possible", possible), ("present", possible), ("isolated", isolated)):
        put(folder / name, f"{cpus}\n")
    put(folder / "offline", f"{possible - online}\n")
    for core in cores:
        threads = f"{core & online}\n"
        for cpu in core:
            topology = f"{folder}/cpu{cpu}/topology"
            lists = (f"{topology}/core_cpus_list", f"{topology}/thread_siblings_list")
            if cpu in online:
                make(f"{folder}/cpu{cpu}", topology)
                for path in lists:
                    put(path, threads)
            elif Path(topology).is_dir():
                shutil.rmtree(topology)


def write_nodes(
    folder: Path, nodes: tuple[NumaNode, ...], online: CpuSet, memory_kb: int, free: Mapping[int, int]
) -> None:
    """``/sys/devices/system/node``; `free` has bytes by node, for those that have memory."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = CpuSet(node.id for node in nodes)
    for name, listed in (
        ("online", ids),
        ("possible", ids),
        ("has_cpu", CpuSet(node.id for node in nodes if node.cpus & online)),
        ("has_memory", CpuSet(node.id for node in nodes if node.has_memory)),
        ("has_normal_memory", CpuSet(node.id for node in nodes if node.has_memory)),
    ):
        put(folder / name, f"{listed}\n")
    for node in nodes:
        own = folder / f"node{node.id}"
        own.mkdir(exist_ok=True)
        total = memory_kb if node.has_memory else 0
        unused = free.get(node.id, 0) >> 10
        lines = (("MemTotal", total), ("MemFree", unused), ("MemUsed", total - unused))
        put(own / "cpulist", f"{node.cpus & online}\n")
        put(own / "meminfo", "".join(f"Node {node.id} {f'{name}:':<15}{value:>8} kB\n" for name, value in lines))


def npu_irqs(npus: tuple[Npu, ...], spacing: int = 256, first: int = 2752) -> list[FakeIrq]:
    """The interrupts of all NPUs. Each device owns a run of 256 vectors of which the driver uses the first few."""
    found = []
    for k, npu in enumerate(npus):
        start = first + k * spacing
        actions = [f"trs-mbox-{npu.device_number}-0", "sq_send_trigger_irq", *["cq_update_irq"] * CQ_IRQS]
        found += [FakeIrq(start + i, npu.id, action) for i, action in enumerate(actions)]
    return found


def write_irqs(root: Path, npus: tuple[Npu, ...], irqs: list[FakeIrq], online: CpuSet) -> None:
    """The PCI functions with their ``msi_irqs``, ``/proc/irq``, ``/sys/kernel/irq`` and ``/proc/interrupts``."""
    module = root / "sys/module" / DRIVER
    module.mkdir(parents=True)
    for npu in npus:
        device = root / "sys/bus/pci/devices" / npu.bus_id
        (device / "msi_irqs").mkdir(parents=True)
        (device / "driver").mkdir()
        (device / "driver/module").symlink_to("../../../../../module/" + DRIVER)
        for name, value in (("vendor", "0x19e5"), ("class", "0x120000"), ("device", "0xd802")):
            put(device / name, f"{value}\n")
    for folder in ("proc/irq", "sys/kernel/irq"):
        (root / folder).mkdir(parents=True)
    add_irqs(root, npus, irqs, online)
    list_irqs(root, irqs, online)


def add_irqs(root: Path, npus: tuple[Npu, ...], irqs: list[FakeIrq], online: CpuSet) -> None:
    """The driver asks for interrupts, and gets them with the mask that interrupts have by default."""
    masks, names = root / "proc/irq", root / "sys/kernel/irq"
    addresses = {npu.id: npu.bus_id for npu in npus}
    mask, listed, first = online.mask(online.bits.bit_length()), str(online), online.first
    for irq in irqs:
        own = f"{masks}/{irq.number}"
        make(own, f"{names}/{irq.number}")
        put(f"{own}/smp_affinity", f"{mask}\n")
        put(f"{own}/smp_affinity_list", f"{listed}\n")
        put(f"{own}/effective_affinity_list", f"{first}\n")
        put(f"{names}/{irq.number}/actions", f"{irq.action}\n")
        put(root / "sys/bus/pci/devices" / addresses[irq.npu] / "msi_irqs" / str(irq.number), "msix\n")


def remove_irqs(root: Path, npus: tuple[Npu, ...], irqs: list[FakeIrq]) -> None:
    """The driver gives interrupts back, as it does when an NPU is reset."""
    addresses = {npu.id: npu.bus_id for npu in npus}
    for irq in irqs:
        (root / "sys/bus/pci/devices" / addresses[irq.npu] / "msi_irqs" / str(irq.number)).unlink()
        shutil.rmtree(root / "proc/irq" / str(irq.number))
        shutil.rmtree(root / "sys/kernel/irq" / str(irq.number))


def list_irqs(root: Path, irqs: list[FakeIrq], online: CpuSet) -> None:
    """``/proc/interrupts``."""
    head = "     " + "".join(f"{f'CPU{cpu}':>11}" for cpu in online)
    counts = f"{0:>11}" * len(online)
    rows = (
        f"{irq.number:>4}:{counts}   ITS-MSI {101187584 + k} Edge      {irq.action}\n" for k, irq in enumerate(irqs)
    )
    put(root / "proc/interrupts", f"{head}\n" + "".join(rows))


def set_irq(root: Path, irq: int, cpus: CpuSet, width: int) -> None:
    """The kernel's side of a write to ``smp_affinity_list``: an interrupt of an ITS goes to one CPU."""
    own = root / "proc/irq" / str(irq)
    put(own / "smp_affinity_list", f"{cpus}\n")
    put(own / "smp_affinity", f"{cpus.mask(width)}\n")
    put(own / "effective_affinity_list", f"{cpus.first}\n")
