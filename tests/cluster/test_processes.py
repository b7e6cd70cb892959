"""Starting the real API server where that can't work, and ending what was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.client import eventually
from tests.cluster.processes import Program, StartError
from tests.cluster.real_apiserver import RealApiServer, missing_assets


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_where_the_variable_is_unset_one_line_says_so_and_what_to_do() -> None:
    sentence = missing_assets({})
    assert sentence is not None
    assert "KUBEBUILDER_ASSETS is not set" in sentence
    assert "setup-envtest" in sentence
    assert "\n" not in sentence


def test_a_folder_that_lacks_a_program_is_named_with_it(tmp_path: Path) -> None:
    program(tmp_path / "etcd", "")
    sentence = missing_assets({"KUBEBUILDER_ASSETS": str(tmp_path)})
    assert sentence is not None
    assert f"KUBEBUILDER_ASSETS={tmp_path} has no kube-apiserver" in sentence
    program(tmp_path / "kube-apiserver", "")
    assert missing_assets({"KUBEBUILDER_ASSETS": str(tmp_path)}) is None


def test_a_server_that_does_not_come_up_is_told_with_its_last_words_and_leaves_nothing(tmp_path: Path) -> None:
    program(tmp_path / "etcd", "echo no such luck >&2; exit 3")
    program(tmp_path / "kube-apiserver", "")
    with pytest.raises(StartError, match="etcd ended with status 3: no such luck"):
        RealApiServer(tmp_path, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["etcd", "kube-apiserver"]


def test_a_program_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    sleeper = Program(["sleep", "60"], tmp_path / "log")
    with pytest.raises(StartError, match=r"sleep was not ready within 0\.2 s: it said nothing"):
        sleeper.start(lambda: False, 0.2)
    assert not sleeper.runs


def test_programs_end_with_the_tests_even_when_these_are_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from tests.cluster.processes import Program\n"
        "one = Program(['sleep', '60'], pathlib.Path(sys.argv[1]))\n"
        "one.start(lambda: True, 5)\n"
        "print(one.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        # Until the leash is on it would outlive us.
        eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "it runs")
        tests.send_signal(signal.SIGKILL)
        tests.wait()
        eventually(lambda: not runs(pid), "the program is gone")


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_killed_program_is_gone_when_kill_returns(tmp_path: Path) -> None:
    sleeper = Program(["sleep", "60"], tmp_path / "log")
    sleeper.start(lambda: True, 5)
    pid = sleeper.pid
    began = time.monotonic()
    sleeper.kill()
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
