"""The whole process table, of this machine and of recorded trees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.model.reason import Reason, Refused
from agent.node.proc_table import ProcTable
from agent.node.procfs import PF_KTHREAD, ProcessStat, ProcFs
from tests.host.alone import LAST_PID, next_pid, one_at_a_time

from .conftest import Tree

HERE = Path("/")


def stat_line(pid: int, comm: str, flags: int = 4194560, start: int = 100) -> str:
    return f"{pid} ({comm}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n"


@contextmanager
def sleeping() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files below the folders of processes that were opened since."""
    opened: list[str] = []
    real = os.open

    def counting(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            opened.append(path)
        return real(path, flags, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", counting)
    return opened


def test_every_process_is_read_as_it_is_one_by_one() -> None:
    proc = ProcFs(HERE)
    with sleeping() as pid:
        table = ProcTable(HERE).read()
        assert table[pid] == proc.stat(pid)
        assert table[pid].ppid == os.getpid()
    one_by_one = {pid: stat for pid in proc.pids() if (stat := proc.stat(pid)) and not stat.kernel_thread}
    again = ProcTable(HERE).read()
    for pid in table.keys() & one_by_one.keys() & again.keys():
        if table[pid].start_time == again[pid].start_time:  # else another process has the number now
            assert (table[pid].start_time, table[pid].pid) == (one_by_one[pid].start_time, pid)
    assert list(table) == sorted(table)


def test_what_ended_is_gone_from_the_next_look_and_what_began_is_in_it() -> None:
    table = ProcTable(HERE)
    with sleeping() as pid:
        assert pid in table.read()
    assert pid not in table.read()
    with sleeping() as pid:
        assert pid in table.read()


def test_a_kernel_thread_is_read_twice_in_its_life(reads: list[str]) -> None:
    table = ProcTable(HERE)
    table.read()
    threads = {str(thread.pid) for thread in table.kernel_threads}
    if not threads:
        pytest.skip("no kernel thread is seen from here")
    for again in (True, False, False):
        reads.clear()
        table.read()
        read = {path.partition("/")[0] for path in reads}
        assert bool(read & threads) is again
        assert str(os.getpid()) in read
    seen = {str(thread.pid) for thread in table.kernel_threads}
    assert {pid for pid in threads if os.path.exists(f"/proc/{pid}")} <= seen, "none but those that have ended is gone"


@pytest.fixture
def numbers() -> Iterator[None]:
    """No other test has the kernel give a number again meanwhile."""
    with one_at_a_time("pid"):
        yield


@pytest.mark.usefixtures("numbers")
def test_another_process_under_the_same_pid_has_a_folder_with_another_inode() -> None:
    if not os.access(LAST_PID, os.W_OK):
        pytest.skip("needs the right to say which pid is next")

    def inode(pid: int) -> int:
        with os.scandir("/proc") as entries:
            return next(entry.inode() for entry in entries if entry.name == str(pid))

    for _ in range(20):
        with sleeping() as pid:
            before = inode(pid)
            assert inode(pid) == before
        with next_pid(pid), sleeping() as other:
            if other == pid:
                assert inode(pid) != before
                return
    pytest.skip("other processes were faster, twenty times")


def test_in_a_recorded_tree_everything_is_read_each_time(tree: Tree) -> None:
    root = tree({"proc/10/stat": stat_line(10, "kworker/0:1", PF_KTHREAD), "proc/9/stat": stat_line(9, "vllm")})
    table = ProcTable(root)
    for _ in range(3):
        assert list(table.read()) == [9]
        assert [thread.comm for thread in table.kernel_threads] == ["kworker/0:1"]
    # A filesystem gives the number of a file that is gone to the next one.
    (root / "proc/10/stat").write_text(stat_line(10, "python", start=200))
    assert table.read() == {
        9: ProcessStat(9, 2, 100, "vllm", 4194560),
        10: ProcessStat(10, 2, 200, "python", 4194560),
    }
    assert table.kernel_threads == ()


def test_a_damaged_process_is_told_and_the_others_are_read(tree: Tree) -> None:
    table = ProcTable(tree({"proc/7/stat": "7 (", "proc/8/stat": stat_line(8, "vllm"), "proc/9/stat": ""}))
    assert list(table.read()) == [8]
    assert [problem.reason for problem in table.problems] == [Reason.PROCESS_UNREADABLE]


def test_what_is_no_process_is_not_one(tree: Tree) -> None:
    names = ("self", "0x7", "٣", "12345678901", "sys", "7a")
    root = tree({f"proc/{name}/stat": stat_line(7, "vllm") for name in names})
    assert ProcTable(root).read() == {}


def test_a_tree_without_proc_has_no_processes(tmp_path: Path) -> None:
    assert ProcTable(tmp_path).read() == {}


def test_a_proc_that_is_a_file_is_refused_or_empty(tmp_path: Path) -> None:
    (tmp_path / "proc").write_text("")
    assert ProcTable(tmp_path).read() == {}


def test_a_proc_that_cannot_be_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(Refused) as caught:
        ProcTable(HERE).read()
    assert caught.value.reason is Reason.PROCESS_UNREADABLE
