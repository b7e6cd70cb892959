"""The real readers take a virtual node for a host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.demo.fake_kernel import PF_NO_SETAFFINITY
from agent.demo.profiles import PROFILES, small
from agent.demo.virtual import UVB_THREAD, VirtualNode
from agent.demo.workload import RESIDUAL_MIB, Worker
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, ProcessRow
from agent.model.spec import Role
from agent.model.workload import ExclusiveGrant
from agent.node.cgroups import CgroupTree
from agent.node.devices import has_npu, read_davinci
from agent.node.kubelet import read_cpu_manager_state
from agent.node.npu_smi.command import NpuSmiCommand
from agent.node.npu_smi.inventory import read_inventory
from agent.node.procfs import ProcFs, boot_id
from agent.node.sysfs import read_topology


def test_its_topology(node: VirtualNode) -> None:
    assert read_topology(node.root, architecture="aarch64") == node.topology == node.profile.topology


def test_its_inventory_by_the_object_and_by_the_program(node: VirtualNode) -> None:
    davinci = read_davinci(node.root)
    assert sorted(davinci) == sorted(npu.device_number for npu in node.inventory.npus)
    for npu_smi in (node.npu_smi, NpuSmiCommand(str(node.npu_smi.path))):
        reading = read_inventory(npu_smi, davinci)
        assert reading.inventory == node.inventory
        assert reading.notes == ()
        assert reading.driver_version == node.profile.npu_smi
        assert reading.processes.stated == frozenset(node.inventory.ids)
    assert has_npu(node.root)


def test_profiles_have_the_sizes_they_are_named_for() -> None:
    sizes = {
        name: (len(p.cpus), len(p.topology.nodes), len(p.inventory.npus), p.device_type) for name, p in PROFILES.items()
    }
    assert sizes == {
        "a3": (640, 8, 16, DeviceType.A3),
        "a2": (192, 8, 8, DeviceType.A2),
        "atlas300i": (96, 4, 4, DeviceType.ATLAS_300I),
        "ascend950": (256, 2, 8, DeviceType.ASCEND_950),
    }
    assert PROFILES["ascend950"].topology.cores[3] == CpuSet.parse("3,131")


def test_a_worker_is_found_by_its_identity(node: VirtualNode) -> None:
    pod = node.kubelet.add_pod("llm-0", containers=("vllm", "sidecar"))
    worker = Worker.start(node, 1, pod, container="sidecar")
    proc, cgroups = ProcFs(node.root), CgroupTree(node.root)
    stat = proc.stat(worker.pid)
    assert stat is not None
    assert (stat.pid, stat.start_time, stat.ppid, stat.comm) == (
        worker.pid,
        worker.identity.start_time,
        1,
        "VLLM::Worker_TP",
    )
    assert not stat.kernel_thread
    assert (236, node.npu(1).device_number) in proc.open_devices(worker.pid)
    identity = cgroups.identity(worker.pid)
    assert identity is not None
    container = pod.container("sidecar")
    assert (identity.pod_uid, identity.container_id, identity.qos) == (pod.uid, container.id, "Burstable")
    assert cgroups.process_cpus(worker.pid) == node.kernel.online
    assert cgroups.effective_cpus(identity.path) == node.kernel.online
    assert cgroups.root_cpus() == node.kernel.online
    assert proc.thread_ids(worker.pid) == [task.tid for task in worker.threads]
    assert len(boot_id(node.root)) == 36


def test_processes_of_the_host_are_there_and_told_apart(node: VirtualNode) -> None:
    proc = ProcFs(node.root)
    stats = {stat.comm: stat for pid in proc.pids() if (stat := proc.stat(pid))}
    assert stats["systemd"].pid == 1
    assert stats["ksoftirqd/0"].kernel_thread
    assert stats["ksoftirqd/0"].flags & PF_NO_SETAFFINITY
    assert (UVB_THREAD in stats) == (node.profile.device_type is DeviceType.ASCEND_950)
    assert not stats["kubelet"].kernel_thread
    assert CgroupTree(node.root).process_cpus(stats["kubelet"].pid) == node.kernel.online
    status = proc.status(stats["kubelet"].pid)
    assert status is not None
    assert status.cpus_allowed == node.kernel.online
    assert status.mems_allowed == CpuSet(range(len(node.topology.nodes)))


def test_contexts_come_and_go_with_their_process(node: VirtualNode) -> None:
    pod = node.kubelet.add_pod("llm")
    first, second = (Worker.start(node, npu, pod, memory_mib=9000 + npu, residual=(0,)) for npu in (0, 1))
    unlisted = Worker.start(node, 2, pod, listed=False)
    davinci = read_davinci(node.root)
    rows = read_inventory(NpuSmiCommand(str(node.npu_smi.path)), davinci).processes.rows
    assert rows == (
        ProcessRow(0, first.pid, 9000, "VLLM::Worker_TP"),
        ProcessRow(0, second.pid, RESIDUAL_MIB, "VLLM::Worker_TP"),
        ProcessRow(1, second.pid, 9001, "VLLM::Worker_TP"),
    )
    assert (236, node.npu(2).device_number) in ProcFs(node.root).open_devices(unlisted.pid)
    second.end()
    assert not second.alive
    assert [row.pid for row in read_inventory(node.npu_smi, davinci).processes.rows] == [first.pid]
    assert ProcFs(node.root).stat(second.pid) is None
    assert second.pid not in ProcFs(node.root).pids()


def test_kubelet_takes_the_cpus_of_an_exclusive_pod_from_everybody(tmp_path: Path) -> None:
    node = VirtualNode(tmp_path, "a2")
    shared = node.kubelet.add_pod("llm")
    worker = Worker.start(node, 0, shared)
    own = CpuSet.parse("8-15")
    pod = node.kubelet.add_pod("batch", own_cpus=own)
    cgroups = CgroupTree(node.root)
    assert read_cpu_manager_state(node.root) == ("static", (ExclusiveGrant(pod.uid, "vllm", own),))
    assert cgroups.process_cpus(worker.pid) == CpuSet.parse("0-7,16-191")
    assert cgroups.effective_cpus(pod.container().cgroup) == own
    assert node.kernel.get_affinity(worker.pid) == CpuSet.parse("0-7,16-191")
    assert (pod.qos, pod.model().containers[0].cpu_limit_milli) == ("Guaranteed", 8000)
    assert node.pod_objects()[1]["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "8"}}
    node.kubelet.remove_pod(pod)
    assert cgroups.process_cpus(worker.pid) == node.kernel.online
    assert read_cpu_manager_state(node.root) == ("static", ())


def test_cpus_go_offline_and_come_back(tmp_path: Path) -> None:
    node = VirtualNode(tmp_path, "ascend950", isolated=CpuSet.parse("60-63"))
    node.set_offline(CpuSet.parse("128,255"))
    topology = read_topology(node.root, architecture="aarch64")
    assert topology == node.topology
    assert topology.online == CpuSet.parse("0-127,129-254")
    assert topology.cores[0] == CpuSet.parse("0")
    assert topology.isolated == CpuSet.parse("60-63")
    node.set_offline(CpuSet())
    assert read_topology(node.root, architecture="aarch64").cores == node.profile.topology.cores


def test_a_worker_grows_forks_and_drifts(tmp_path: Path) -> None:
    node = VirtualNode(tmp_path, small())
    worker = Worker.start(node, 0, node.kubelet.add_pod("llm"), threads=30)
    assert len(worker.threads) == 30
    roles = worker.add_role_threads()
    assert [task.comm for task in roles] == ["acl_thread", "release_thread"]
    node.kernel.set_affinity(roles[0].tid, CpuSet.parse("6"))
    late = worker.grow(2, creator=roles[0].tid)
    child = worker.fork(creator=roles[0].tid)
    assert {str(node.kernel.get_affinity(task.tid)) for task in (*late, child)} == {"6"}
    assert node.kernel.tasks[child.tid].ppid == worker.pid
    moved = worker.drift(CpuSet.parse("15"), 3)
    assert [str(node.kernel.get_affinity(tid)) for tid in moved] == ["15"] * 3
    assert Role.ACL.value in roles[0].comm


def test_interrupts_lead_from_the_pci_address_to_their_masks(tmp_path: Path) -> None:
    node = VirtualNode(tmp_path, "a2")
    device = tmp_path / "sys/bus/pci/devices" / node.npu(0).bus_id / "msi_irqs"
    numbers = sorted(int(path.name) for path in device.iterdir())
    actions = [(tmp_path / f"sys/kernel/irq/{n}/actions").read_text().strip() for n in numbers]
    assert (actions.count("sq_send_trigger_irq"), actions.count("cq_update_irq")) == (1, 16)
    sq = numbers[actions.index("sq_send_trigger_irq")]
    assert (tmp_path / f"proc/irq/{sq}/smp_affinity_list").read_text() == "0-191\n"
    node.set_irq(sq, CpuSet.parse("144-145"))
    assert (tmp_path / f"proc/irq/{sq}/effective_affinity_list").read_text() == "144\n"
    assert (tmp_path / f"proc/irq/{sq}/smp_affinity").read_text() == f"{CpuSet.parse('144-145').mask(192)}\n"
    lines = (tmp_path / "proc/interrupts").read_text().splitlines()
    assert lines[0].split()[:2] == ["CPU0", "CPU1"]
    assert lines[2].split()[0] == f"{sq}:"
    assert lines[2].split()[-1] == "sq_send_trigger_irq"


def test_a_large_node_is_made_in_a_moment(tmp_path: Path) -> None:
    begin = time.process_time()
    VirtualNode(tmp_path, "a3")
    # A fifth of that where this was written. Time of its own, since the machine may have other things to do.
    assert time.process_time() - begin < 1


def test_no_thread_is_moved_before_somebody_asks(node: VirtualNode) -> None:
    worker = Worker.start(node, 0, node.kubelet.add_pod("llm"))
    with pytest.raises(LookupError, match="no NPU 99"):
        node.npu(99)
    assert {str(node.kernel.get_affinity(task.tid)) for task in worker.threads} == {str(node.kernel.online)}
