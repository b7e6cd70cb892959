"""What was there and is gone, and what is half of what was there: neither is news of the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.demo.profiles import small
from agent.demo.virtual import VirtualNode
from agent.model.reason import Reason, Refused
from agent.node.devices import read_davinci
from agent.node.files import read_text
from agent.node.proc_table import ProcTable
from agent.node.storage import write_atomic
from agent.node.sysfs import SystemFiles, read_topology
from agent.node.taskdir import TaskDir


@pytest.fixture
def node(tmp_path: Path) -> VirtualNode:
    return VirtualNode(tmp_path, small(64, 4, 4), interrupts=False)


@pytest.mark.parametrize("name", ["node/node1/cpulist", "node/has_memory", "cpu/online", "cpu/isolated"])
def test_a_file_of_the_topology_that_was_there_is_not_taken_for_one_that_never_was(
    node: VirtualNode, name: str
) -> None:
    files = SystemFiles()
    before = read_topology(node.root, files=files)
    path = node.root / "sys/devices/system" / name
    text = path.read_text()
    path.unlink()
    with pytest.raises(Refused) as refused:
        read_topology(node.root, files=files)
    assert refused.value.reason is Reason.TOPOLOGY_UNREADABLE
    path.write_text(text)
    assert read_topology(node.root, files=files) == before


def test_a_numa_node_without_its_list_of_cpus_is_refused_at_once(node: VirtualNode) -> None:
    (node.root / "sys/devices/system/node/node2/cpulist").unlink()
    with pytest.raises(Refused, match="node2/cpulist"):
        read_topology(node.root)


def test_a_cpu_that_has_a_folder_and_shows_no_core_is_refused(node: VirtualNode) -> None:
    for name in ("core_cpus_list", "thread_siblings_list"):
        (node.root / f"sys/devices/system/cpu/cpu3/topology/{name}").unlink(missing_ok=True)
    with pytest.raises(Refused, match="cpu3/topology"):
        read_topology(node.root)


def test_a_host_that_shows_no_process_any_more_is_refused(node: VirtualNode) -> None:
    table = ProcTable(node.root)
    assert table.read()
    (node.root / "proc").rename(node.root / "unmounted")
    with pytest.raises(Refused):
        table.read()
    (node.root / "proc").mkdir()
    with pytest.raises(Refused, match="no process"):
        table.read()


def test_a_process_whose_stat_is_damaged_is_as_it_was(node: VirtualNode) -> None:
    table = ProcTable(node.root)
    before = table.read()
    stat = node.root / "proc/1/stat"
    stat.write_text("1 (sys")
    assert table.read() == before
    assert [problem.reason for problem in table.problems] == [Reason.PROCESS_UNREADABLE]


def test_half_a_name_is_no_name(node: VirtualNode) -> None:
    task = node.kernel.start_process("acl_thread")
    tasks = TaskDir.open(f"{node.root}/proc", task.tid)
    assert tasks is not None
    with tasks:
        assert tasks.comms([task.tid]) == [b"acl_thread"]
        (node.root / f"proc/{task.tid}/task/{task.tid}/comm").write_text("acl_")
        with pytest.raises(Refused, match="cut short"):
            tasks.comms([task.tid])


def test_a_file_of_which_less_is_read_than_it_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("spec: {}\n" * 10)
    real, chunks = os.read, iter([20])
    monkeypatch.setattr(os, "read", lambda file, _size: real(file, next(chunks, 0)))
    with pytest.raises(Refused, match="20 of 90 bytes"):
        read_text(path, Reason.STATE_UNREADABLE, sized=True)


def test_a_device_that_cannot_be_looked_at_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci").write_bytes(b"\xff")
    with pytest.raises(Refused) as refused:
        read_davinci(tmp_path)
    assert refused.value.reason is Reason.INVENTORY_INCOMPLETE


def test_a_new_file_replaces_none_that_somebody_has_made_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("theirs")
    with pytest.raises(FileExistsError):
        write_atomic(path, "ours", new=True)
    assert path.read_text() == "theirs"
    path.unlink()
    write_atomic(path, "ours", new=True)
    assert (path.read_text(), [file.name for file in tmp_path.iterdir()]) == ("ours", ["plan.yaml"])


def test_a_file_system_without_hard_links_gets_its_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_arguments: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuses)
    path = tmp_path / "plan.yaml"
    write_atomic(path, "ours", new=True)
    with pytest.raises(FileExistsError):
        write_atomic(path, "again", new=True)
    assert (path.read_text(), [file.name for file in tmp_path.iterdir()]) == ("ours", ["plan.yaml"])
