"""Processes that /proc does not show, on this machine's kernel."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason
from agent.model.workload import ProcessId
from agent.node.host import LinuxHost
from agent.node.liveness import hidden
from agent.node.procfs import ProcFs
from agent.node.threads import ThreadBinder

ALL = CpuSet.span(0, 1023)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def identity(process: subprocess.Popen[bytes]) -> ProcessId:
    stat = ProcFs(Path("/")).stat(process.pid)
    assert stat is not None
    return ProcessId(process.pid, stat.start_time)


def test_a_process_that_a_proc_does_not_show_lives(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    process = identity(child)
    assert hidden(str(tmp_path), LinuxHost().get_affinity, process) is not None
    binder = ThreadBinder(tmp_path, LinuxHost())
    assert binder.lives(process)
    moved = binder.release(process, pool=ALL, online=ALL)
    assert moved.problem is not None
    assert (moved.threads, moved.problem.reason) == (0, Reason.PROCESS_UNREADABLE)


def test_a_process_that_ended_is_gone_whatever_proc_shows(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    process = identity(child)
    child.kill()
    child.wait()
    assert hidden(str(tmp_path), LinuxHost().get_affinity, process) is None
    assert not ThreadBinder(tmp_path, LinuxHost()).lives(process)


def test_one_that_waits_to_be_reaped_is_gone(child: subprocess.Popen[bytes]) -> None:
    process = identity(child)
    child.kill()
    while (status := ProcFs(Path("/")).stat(process.pid)) is not None:
        text = Path(f"/proc/{status.pid}/stat").read_text()
        if text[text.rindex(")") + 2] == "Z":
            break
    assert hidden("/proc", LinuxHost().get_affinity, process) is None


def test_another_process_under_the_same_number_is_not_it(child: subprocess.Popen[bytes]) -> None:
    process = identity(child)
    earlier = ProcessId(process.pid, process.start_time - 1)
    assert hidden("/proc", LinuxHost().get_affinity, earlier) is None
