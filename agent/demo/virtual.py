"""A virtual node: a folder that the real readers take for the root of a host, and a fake kernel behind it.

    node = VirtualNode(tmp_path, "a3")
    pod = node.kubelet.add_pod("llm-0")
    worker = Worker.start(node, npu=0, pod=pod)      # agent.demo.workload
    read_topology(node.root), node.npu_smi.query("info"), node.kernel.set_affinity(worker.pid, CpuSet.parse("2-37"))

Nothing in it reaches the machine that it runs on.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.demo.fake_files import put
from agent.demo.fake_kernel import PF_KTHREAD, PF_NO_SETAFFINITY, FakeKernel
from agent.demo.fake_kubelet import FakeKubelet
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.fake_sysfs import (
    FakeIrq,
    add_irqs,
    list_irqs,
    npu_irqs,
    remove_irqs,
    set_irq,
    write_cpus,
    write_irqs,
    write_nodes,
)
from agent.demo.profiles import PROFILES, Profile
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import Inventory, Npu, ProcessRow, Topology

DAVINCI_MAJOR = 236
"""The driver's device number is dynamic; this is one that hosts have."""

MEMORY_KB = 128 << 20
"""Memory of each NUMA node, half of which is free."""

UVB_THREAD = "uvb_poll_window_thread"


class VirtualNode:
    """A node of a profile, idle at first."""

    def __init__(
        self,
        root: Path,
        profile: Profile | str = "a3",
        *,
        name: str = "",
        isolated: CpuSet = EMPTY,
        remembers_masks: bool = True,
        interrupts: bool = True,
    ) -> None:
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.name = name or f"{self.profile.name}-0"
        self.root = root
        self.isolated = isolated
        topology = self.profile.topology
        mems = str(CpuSet(node.id for node in topology.nodes if node.has_memory))
        self.kernel = FakeKernel(
            root,
            topology.online,
            mems=mems,
            possible=topology.possible.bits.bit_length(),
            remembers_masks=remembers_masks,
            free={node.id: MEMORY_KB << 9 for node in topology.nodes if node.has_memory},
        )
        self._write_system()
        self._start_system()
        self.kubelet = FakeKubelet(root, self.kernel)
        self.npu_smi = NpuSmiStandIn(root, self.profile)
        self._write_devices()
        self.irqs: list[FakeIrq] = npu_irqs(self.profile.inventory.npus) if interrupts else []
        if interrupts:
            write_irqs(root, self.profile.inventory.npus, self.irqs, topology.online)

    @property
    def topology(self) -> Topology:
        """What the readers should find now."""
        full, online = self.profile.topology, self.kernel.online
        return replace(
            full,
            online=online,
            root=online,
            nodes=tuple(replace(node, cpus=node.cpus & online) for node in full.nodes),
            cores=tuple(core & online for core in full.cores if core & online),
            isolated=self.isolated,
        )

    @property
    def inventory(self) -> Inventory:
        """What the readers should find."""
        return self.profile.inventory

    def npu(self, npu_id: int) -> Npu:
        found = self.inventory.get(npu_id)
        if found is None:
            raise LookupError(f"{self.name} has no NPU {npu_id}")
        return found

    def set_offline(self, cpus: CpuSet) -> None:
        """Takes CPUs offline; those not named come back."""
        self.kernel.set_online(self.profile.topology.online - cpus)
        self._write_cpus()

    def set_free_memory(self, node: int, size: int) -> None:
        """So many bytes of a NUMA node are free; half of it at first."""
        self.kernel.memory.free[node] = size
        self._write_nodes()

    def hold(self, pid: int, npus: list[tuple[int, int | None]], name: str) -> None:
        """A process opens NPUs and holds contexts of so many MiB on them; without a size it has only opened them."""
        opened = [(20 + k, DAVINCI_MAJOR, self.npu(npu).device_number) for k, (npu, _) in enumerate(npus)]
        self.kernel.proc.set_fds(pid, [(0, 1, 3), (1, 1, 3), (2, 1, 3), (19, DAVINCI_MAJOR, 64), *opened])
        rows = [ProcessRow(npu, pid, memory, name) for npu, memory in npus if memory is not None]
        others = [row for row in self.npu_smi.rows if row.pid != pid]
        self.npu_smi.set_rows(sorted([*others, *rows], key=lambda row: (row.npu, row.pid)))

    def let_go(self, pid: int) -> None:
        """The contexts of a process that ended are gone."""
        self.npu_smi.set_rows(row for row in self.npu_smi.rows if row.pid != pid)

    def set_irq(self, irq: int, cpus: CpuSet) -> None:
        """The kernel's side of a write to ``/proc/irq/N/smp_affinity_list``."""
        set_irq(self.root, irq, cpus, self.profile.topology.online.bits.bit_length())

    def reset_npu(self, npu_id: int, first: int) -> None:
        """The driver gives the NPU's interrupts back and asks for new ones, which get the numbers from `first` on."""
        npu = (self.npu(npu_id),)
        remove_irqs(self.root, npu, [irq for irq in self.irqs if irq.npu == npu_id])
        fresh = npu_irqs(npu, first=first)
        add_irqs(self.root, npu, fresh, self.kernel.online)
        self.irqs = [*(irq for irq in self.irqs if irq.npu != npu_id), *fresh]
        list_irqs(self.root, self.irqs, self.kernel.online)

    def irqs_of(self, npu_id: int, action: str = "") -> list[int]:
        """The numbers of an NPU's interrupts, ascending; those of one name alone where it is given."""
        return sorted(irq.number for irq in self.irqs if irq.npu == npu_id and action in ("", irq.action))

    def pod_objects(self) -> list[dict[str, Any]]:
        """The pods as the API server has them."""
        return [pod.manifest(self.name) for pod in self.kubelet.pods]

    def _write_system(self) -> None:
        self._write_cpus()
        self._write_nodes()
        kernel = self.root / "proc/sys/kernel"
        (kernel / "random").mkdir(parents=True)
        seed = hashlib.sha256(f"{self.root}/{self.name}".encode()).digest()
        put(kernel / "random/boot_id", f"{uuid.UUID(bytes=seed[:16], version=4)}\n")
        release = "6.6.0-72.0.0.76.oe2403sp1" if self.kernel.remembers_masks else "5.10.0-216.0.0.115.oe2203sp4"
        put(kernel / "osrelease", f"{release}.{self.profile.topology.architecture}\n")
        put(kernel / "hostname", f"{self.name}\n")

    def _write_cpus(self) -> None:
        topology = self.profile.topology
        folder = self.root / "sys/devices/system/cpu"
        write_cpus(folder, self.kernel.online, topology.possible, self.isolated, topology.cores)
        if (self.root / "sys/devices/system/node").is_dir():
            self._write_nodes()

    def _write_nodes(self) -> None:
        folder = self.root / "sys/devices/system/node"
        write_nodes(folder, self.profile.topology.nodes, self.kernel.online, MEMORY_KB, self.kernel.memory.free)

    def _write_devices(self) -> None:
        """``/dev/davinciN`` in the one-file form of a snapshot."""
        folder = self.root / "dev"
        folder.mkdir()
        numbers = sorted(npu.device_number for npu in self.inventory.npus)
        put(folder / "davinci", "".join(f"{number} {DAVINCI_MAJOR}:{number}\n" for number in numbers))

    def _start_system(self) -> None:
        """What runs on every host, as far as it is of interest."""
        kernel = self.kernel
        for path in ("/init.scope", "/system.slice", "/user.slice"):
            kernel.cgroups.create(path)
        kernel.start_process("systemd", parent=0, cgroup="/init.scope", pid=1)
        threads = kernel.start_process("kthreadd", parent=0, flags=PF_KTHREAD)
        kernel.start_process("ksoftirqd/0", parent=threads.tid, flags=PF_KTHREAD | PF_NO_SETAFFINITY)
        if not self.profile.device_type.binds_irqs:
            kernel.start_process(UVB_THREAD, parent=threads.tid, flags=PF_KTHREAD)
        for comm in ("containerd", "kubelet", "sshd"):
            path = f"/system.slice/{comm}.service"
            kernel.cgroups.create(path, cpuset=False)
            kernel.start_process(comm, cgroup=path)
