"""Writing snapshots: of fake hosts, of this machine, and of snapshots."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from agent.model.workload import Pod, PodContainer, PodResources
from agent.node import capture as module
from agent.node.capture import CaptureSummary, capture
from agent.node.cgroups import CgroupTree
from agent.node.devices import has_npu, read_davinci
from agent.node.kubelet import read_cpu_manager_state
from agent.node.procfs import ProcFs, boot_id
from agent.node.snapshot import Snapshot, open_snapshot
from agent.node.sysfs import read_topology

from .conftest import Tree

UID = "12345678-1234-1234-1234-123456789abc"
ID = "0123456789abcdef" * 4
POD = f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
CONTAINER = f"{POD}/cri-containerd-{ID}.scope"
STAT = "{} (VLLM::Worker) S 1 0 0 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 2 0 987654 0 0\n"
HOST = {
    "dev/davinci": "0 236:0\n1 236:1\n",
    "proc/1/cgroup": "0::/init.scope\n",
    "proc/1/stat": STAT.format(1),
    "proc/1/status": "Name:\tsystemd\nCpus_allowed_list:\t0-3\n",
    "proc/4711/cgroup": f"0::/{CONTAINER}/deeper\n",
    "proc/4711/cmdline": "vllm\0serve\0--api-key\0SECRET\0",
    "proc/4711/comm": "VLLM::Worker\n",
    "proc/4711/environ": "TOKEN=SECRET\0",
    "proc/4711/fd": "3 236:0\n5 237:0\n",
    "proc/4711/root/dev/davinci": "0 236:0\n",
    "proc/4711/stat": STAT.format(4711),
    "proc/4711/status": "Name:\tVLLM::Worker\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t1\nMems_allowed_list:\t0\n",
    "proc/4711/task/4711/comm": "VLLM::Worker\n",
    "proc/4711/task/4711/stat": STAT.format(4711),
    "proc/4711/task/4711/status": "Cpus_allowed_list:\t1\n",
    "proc/4711/task/4712/comm": "acl_thread\n",
    "proc/4711/task/4712/stat": STAT.format(4712),
    "proc/4711/task/4712/status": "Cpus_allowed_list:\t2\n",
    "proc/4799/comm": "bystander\n",
    "proc/interrupts": "           CPU0       CPU1\n 43:          0          0  ITS-MSI 1 Edge sq_send_trigger_irq\n",
    "proc/irq/43/effective_affinity_list": "0\n",
    "proc/irq/43/smp_affinity_list": "0-3\n",
    "proc/irq/default_smp_affinity": "f\n",
    "proc/sys/kernel/random/boot_id": "6f1c09ab-0000-4000-8000-000000000001\n",
    "sys/bus/pci/devices/0000:c1:00.0/class": "0x120000\n",
    "sys/bus/pci/devices/0000:c1:00.0/msi_irqs/43": "msix\n",
    "sys/bus/pci/devices/0000:c1:00.0/vendor": "0x19e5\n",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list": "0,2\n",
    "sys/devices/system/cpu/cpu1/topology/core_cpus_list": "1,3\n",
    "sys/devices/system/cpu/isolated": "\n",
    "sys/devices/system/cpu/online": "0-3\n",
    "sys/devices/system/cpu/possible": "0-7\n",
    "sys/devices/system/node/has_memory": "0\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1024 kB\n",
    "sys/devices/system/node/node1/cpulist": "2-3\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu\n",
    "sys/fs/cgroup/cpuset.cpus.effective": "0-3\n",
    f"sys/fs/cgroup/{CONTAINER}/cpuset.cpus.effective": "1-2\n",
    f"sys/fs/cgroup/{CONTAINER}/memory.max": "max\n",
    "sys/fs/cgroup/other.slice/cpuset.cpus.effective": "0\n",
    "sys/kernel/irq/43/actions": "sq_send_trigger_irq\n",
    "var/lib/kubelet/cpu_manager_state": f'{{"policyName":"static","entries":{{"{UID}":{{"vllm":"1-2"}}}}}}',
}
NOT_TAKEN = {
    "proc/4711/cmdline",
    "proc/4711/environ",
    "proc/4799/comm",
    "proc/irq/default_smp_affinity",
    f"sys/fs/cgroup/{CONTAINER}/memory.max",
    "sys/fs/cgroup/other.slice/cpuset.cpus.effective",
}
PODS = [
    Pod(
        uid=UID,
        namespace="prod",
        name="llm-0",
        qos="Guaranteed",
        annotations={"cpubind.dev/enabled": "true"},
        containers=(PodContainer("vllm", ID, 2000), PodContainer("side")),
        config_hash="0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    )
]
RESOURCES = [PodResources("prod", "llm-0", "vllm", CpuSet({1, 2}), ("Ascend910-0",))]
TABLES = {("info",): "+---+\n", ("info", "-m"): "NPU ID\n", ("info", "-t", "board", "-i", "0", "-c", "1"): "board\n"}


def npu_smi(*args: str) -> str:
    if args not in TABLES:
        raise Refused(Reason.NOT_SUPPORTED, "Error parameter of -t")
    return TABLES[args]


def take(root: Path, target: Path, *, pids: tuple[int, ...] = (4711,)) -> CaptureSummary:
    return capture(
        root,
        npu_smi,
        target,
        node="a3-0",
        architecture="aarch64",
        pids=pids,
        chips=[(0, 1)],
        pods=[PODS[0]],
        pod_resources=RESOURCES,
        journal='{"version": 1}\n',
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def answers(root: Path, pid: int) -> Mapping[str, object]:
    """All that the readers say of a host and of one process of it."""
    proc, cgroups, davinci = ProcFs(root), CgroupTree(root), read_davinci(root)
    identity = cgroups.identity(pid)
    return {
        "topology": read_topology(root, architecture="aarch64"),
        "boot": boot_id(root),
        "davinci": davinci,
        "npu": has_npu(root),
        "kubelet": read_cpu_manager_state(root),
        "form": cgroups.form,
        "root": cgroups.root_cpus(),
        "identity": identity,
        "cpus": cgroups.process_cpus(pid),
        "container": identity and cgroups.effective_cpus(identity.path),
        "stat": proc.stat(pid),
        "status": proc.status(pid),
        "devices": proc.device_files(pid),
        "dev": proc.root_devices(pid, davinci),
        "threads": [(tid, proc.comm(pid, tid), proc.stat(pid, tid)) for tid in proc.thread_ids(pid)],
    }


@contextmanager
def opened(root: Path, target: Path) -> Iterator[Snapshot]:
    take(root, target)
    with open_snapshot(target) as found:
        yield found


@pytest.mark.parametrize("name", ["bundle", "bundle.tar.gz", "bundle.tgz", "bundle.tar"])
def test_what_is_captured_reads_as_the_host_does(tree: Tree, tmp_path: Path, name: str) -> None:
    root = tree(HOST)
    with opened(root, tmp_path / name) as found:
        assert answers(found.root, 4711) == answers(root, 4711)
        assert (found.node, found.architecture) == ("a3-0", "aarch64")
        assert found.pods == tuple(PODS)
        assert found.pod_resources == tuple(RESOURCES)
        assert found.journal == '{"version": 1}\n'
        assert contents(found.npu_smi) == {
            "info.txt": b"+---+\n",
            "info-m.txt": b"NPU ID\n",
            "info-t-board-i-0-c-1.txt": b"board\n",
        }


def test_exactly_what_is_read_is_captured(tree: Tree, tmp_path: Path) -> None:
    with opened(tree(HOST), tmp_path / "bundle") as found:
        taken = contents(found.root)
        assert taken.keys() == HOST.keys() - NOT_TAKEN
        assert {name: text.decode() for name, text in taken.items()} == {
            name: text for name, text in HOST.items() if name not in NOT_TAKEN
        }


def test_no_secret_is_captured(tree: Tree, tmp_path: Path) -> None:
    secret = Pod(UID, "prod", "llm-0", annotations={"kubectl.kubernetes.io/last-applied-configuration": "SECRET"})
    root = tree(HOST)
    capture(root, npu_smi, tmp_path / "bundle", node="n", architecture="aarch64", pids=[4711], pods=[secret])
    assert not any(b"SECRET" in content for content in contents(tmp_path / "bundle").values())


def test_a_capture_of_a_capture_is_the_same(tree: Tree, tmp_path: Path) -> None:
    with opened(tree(HOST), tmp_path / "first.tar.gz") as first, opened(first.root, tmp_path / "second.tgz") as second:
        assert contents(second.folder) == contents(first.folder)


def test_processes_that_are_gone_are_not_counted(tree: Tree, tmp_path: Path) -> None:
    assert take(tree(HOST), tmp_path / "bundle", pids=(4711, 9999)).processes == 2


def test_the_summary_counts_what_was_written(tree: Tree, tmp_path: Path) -> None:
    summary = take(tree(HOST), tmp_path / "bundle")
    written = contents(tmp_path / "bundle")
    assert (summary.files, summary.size) == (len(written), sum(map(len, written.values())))
    assert [note for note in summary.notes if "npu-smi" in note] == [
        "npu-smi info -t topo: NotSupported: Error parameter of -t"
    ]


def test_progress_is_told_and_notes_with_it(tree: Tree, tmp_path: Path) -> None:
    lines: list[str] = []
    summary = capture(
        tree(HOST), npu_smi, tmp_path / "b", node="n", architecture="aarch64", pids=[], progress=lines.append
    )
    assert set(summary.notes) < set(lines)


@pytest.mark.parametrize(
    ("reason", "message", "files"),
    [
        (Reason.NPU_SMI_NOT_FOUND, "No such file or directory", {}),
        (Reason.NPU_SMI_HUNG, "no answer in 10 s", {"info.txt": b"no answer in 10 s\n", "info.rc": b"1\n"}),
        (
            Reason.DRIVER_NOT_READY,
            "dcmi module initialize failed. ret is -8005",
            {"info.txt": b"dcmi module initialize failed. ret is -8005\n", "info.rc": b"1\n"},
        ),
    ],
)
def test_a_failure_of_npu_smi_is_captured_as_such(
    tree: Tree, tmp_path: Path, reason: Reason, message: str, files: Mapping[str, bytes]
) -> None:
    def failing(*args: str) -> str:
        raise Refused(reason if args == ("info",) else Reason.NOT_SUPPORTED, message)

    capture(tree(HOST), failing, tmp_path / "bundle", node="n", architecture="aarch64")
    assert (contents(tmp_path / "bundle/npu-smi") if files else {}) == files
    assert (tmp_path / "bundle/npu-smi").exists() == bool(files)


def test_a_damaged_list_is_said_and_the_rest_captured(tree: Tree, tmp_path: Path) -> None:
    summary = take(tree(HOST | {"proc/4711/fd": "nonsense\n"}), tmp_path / "b")
    assert any("open files of process 4711" in note for note in summary.notes)
    assert not (tmp_path / "b/root/proc/4711/fd").exists()
    assert (tmp_path / "b/root/proc/4711/task/4712/comm").exists()


def test_cgroup_paths_are_captured_as_they_are_on_the_host(tree: Tree, tmp_path: Path) -> None:
    root = tree(
        HOST
        | {
            # As an agent in a cgroup namespace two levels deep sees them.
            "proc/1/cgroup": "0::/../../init.scope\n",
            "proc/4711/cgroup": f"0::/../../{CONTAINER}\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/agent.slice/agent.scope/cgroup.procs": "self\n",
        }
    )
    take(root, tmp_path / "b")
    # Where the agent is cannot be known: the tree has one such container, but PID 1 is left alone.
    assert (tmp_path / "b/root/proc/4711/cgroup").read_text() == f"0::/{CONTAINER}\n"
    assert (tmp_path / "b/root/proc/1/cgroup").read_text() == "0::/../../init.scope\n"
    (root / "proc/4700").mkdir()
    (root / "proc/4700/cgroup").write_text("0::/\n")
    (root / "proc/self/cgroup").unlink()
    (root / "proc/self").rmdir()
    (root / "proc/self").symlink_to("4700")
    (root / "sys/fs/cgroup/agent.slice/agent.scope/cgroup.procs").write_text("4700\n")
    take(root, tmp_path / "c")
    assert (tmp_path / "c/root/proc/4711/cgroup").read_text() == f"0::/{CONTAINER}\n"
    assert (tmp_path / "c/root/proc/1/cgroup").read_text() == "0::/init.scope\n"
    assert CgroupTree(tmp_path / "c/root").process_cpus(4711) == CpuSet({1, 2})


def test_only_the_line_that_counts_is_rewritten(tree: Tree, tmp_path: Path) -> None:
    text = "9:pids:/a\n8:cpuset:/b\n1:name=systemd:/c\n0::/d\n"
    take(tree(HOST | {"proc/4711/cgroup": text}), tmp_path / "b")
    assert (tmp_path / "b/root/proc/4711/cgroup").read_text() == text


def test_no_link_of_a_process_is_followed(tree: Tree, tmp_path: Path) -> None:
    root = tree(HOST | {"secret": "SECRET", "proc/4720/stat": STAT.format(4720), "elsewhere/comm": "SECRET"})
    for name in ("status", "comm", "cgroup"):
        (root / "proc/4720" / name).symlink_to(root / "secret")
    (root / "proc/4720/task").mkdir()
    (root / "proc/4720/task/4720").symlink_to(root / "elsewhere")
    (root / "proc/4721").symlink_to(root / "elsewhere")
    take(root, tmp_path / "b", pids=(4720, 4721))
    assert contents(tmp_path / "b/root/proc/4720").keys() == {"stat"}
    assert not any(b"SECRET" in content for content in contents(tmp_path / "b").values())


# Where it is written


def test_a_folder_with_something_in_it_is_not_overwritten(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    take(tree(HOST), tmp_path / "b")
    with pytest.raises(Refused, match="not empty") as refused:
        take(tree(HOST), tmp_path / "b")
    assert refused.value.reason is Reason.SNAPSHOT_NOT_WRITTEN
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_place_that_is_not_there_is_refused(tree: Tree, tmp_path: Path) -> None:
    for name in ("nothing/b", "nothing/b.tar.gz"):
        with pytest.raises(Refused) as refused:
            take(tree(HOST), tmp_path / name)
        assert refused.value.reason is Reason.SNAPSHOT_NOT_WRITTEN


@pytest.mark.parametrize("name", ["b", "b.tar.gz"])
def test_a_capture_that_fails_half_way_leaves_nothing(tree: Tree, tmp_path: Path, name: str) -> None:
    def failing(*_args: str) -> str:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError):
        capture(tree(HOST), failing, tmp_path / name, node="n", architecture="aarch64")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["b", "b.tar.gz"])
def test_a_snapshot_too_large_to_be_opened_again_is_not_written(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 20)
    with pytest.raises(Refused, match="more than 20 files") as refused:
        take(tree(HOST), tmp_path / name)
    assert refused.value.reason is Reason.SNAPSHOT_NOT_WRITTEN
    assert list(tmp_path.iterdir()) == []


def test_others_cannot_read_it(tree: Tree, tmp_path: Path) -> None:
    for name in ("b", "b.tar.gz"):
        take(tree(HOST), tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) & 0o077 == 0


def test_an_archive_holds_plain_files_of_root_alone(tree: Tree, tmp_path: Path) -> None:
    take(tree(HOST), tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        members = archive.getmembers()
    assert all(member.isreg() and (member.uid, member.gid) == (0, 0) for member in members)
    assert members[0].name == "snapshot.json"


def test_snapshot_json_is_of_version_1(tree: Tree, tmp_path: Path) -> None:
    take(tree(HOST), tmp_path / "b")
    about = json.loads((tmp_path / "b/snapshot.json").read_text())
    assert (about["version"], about["node"], about["architecture"]) == (1, "a3-0", "aarch64")
    assert about["pods"][0]["metadata"]["uid"] == UID


# This machine's own


def test_this_machine_replays_as_it_is(tmp_path: Path) -> None:
    holding = "import time; full = open('/dev/full'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            live = answers(Path("/"), process.pid)
            capture(Path("/"), npu_smi, tmp_path / "b.tar.gz", node="n", architecture="aarch64", pids=[process.pid])
            again = answers(Path("/"), process.pid)
        finally:
            process.kill()
    with open_snapshot(tmp_path / "b.tar.gz") as found:
        recorded = answers(found.root, process.pid)
        replay = {name: recorded[name] for name in live if live[name] == again[name]}
        assert replay == {name: live[name] for name in replay}
        assert {"topology", "identity", "devices", "threads", "cpus"} <= replay.keys()
        assert (1, 7) in ProcFs(found.root).open_devices(process.pid)
        assert not any(
            path.name in {"environ", "cmdline", "maps"} for path in found.root.rglob("*") if "proc" in path.parts
        )
