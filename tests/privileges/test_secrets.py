"""Secrets of a worker, in its environment and on its command line: in nothing that the agent says, writes or holds."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.model.node import ProcessRow
from agent.node.capabilities import Capability
from tests.cli.running import TIMEOUT, Running
from tests.cluster.background import free_port
from tests.host.irqbalance_daemon import alone, wait_for
from tests.host.wider import make_root
from tests.privileges.agent import PROFILE
from tests.privileges.rig import FIVE, STRANGER, just, need_root

need_root()


@contextmanager
def worker(secret: str) -> Iterator[int]:
    """A process of another user that has it in both; its pid."""
    program = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", f"--password={secret}"]
    command = [*just({Capability.DAC_READ_SEARCH}, user=STRANGER), *program]
    process = subprocess.Popen(command, env={"PATH": os.environ["PATH"], "HF_TOKEN": secret})
    try:
        # Before and while it becomes that program they are empty, or another's.
        wait_for(
            lambda: all(secret in Path(f"/proc/{process.pid}/{name}").read_text() for name in ("environ", "cmdline"))
        )
        yield process.pid
    finally:
        process.kill()
        process.wait()


def bound(document: dict[str, Any]) -> bool:
    npus = document["status"].get("npus", [])
    return bool(npus) and npus[0]["state"] == "Bound" and npus[0]["workers"][0].get("memory") != "Pending"


def memory(pid: int) -> Iterator[bytes]:
    """What a core dump of a process would have."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r(?!.*\[v(var|syscall))", line)
            if match is None:
                continue
            start, end = int(match[1], 16), int(match[2], 16)
            with suppress(OSError, ValueError, OverflowError):
                file.seek(start)
                yield file.read(end - start)


@pytest.fixture
def secret() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def worker_pid(secret: str, tmp_path: Path) -> Iterator[int]:
    """A worker on NPU 0 of a node whose files are in the test's folder."""
    npu_smi = make_root(tmp_path, PROFILE)
    with worker(secret) as pid:
        npu_smi.set_rows([ProcessRow(0, pid, 30_000, "python")])
        yield pid


def files(folder: Path) -> dict[str, bytes]:
    """What the agent, or somebody with its commands, has left there; what was there before is not its own."""
    found = {}
    for name in ("plan.yaml", "journal.json", "lock"):
        found[name] = (folder / name).read_bytes()
    with tarfile.open(folder / "node.tar.gz") as bundle:
        for member in bundle.getmembers():
            content = bundle.extractfile(member)
            found[f"bundle: {member.name}"] = member.name.encode() + (content.read() if content else b"")
    return found


def test_no_secret_of_a_worker_is_in_what_the_agent_says_writes_or_holds(
    worker_pid: int, secret: str, tmp_path: Path
) -> None:
    port = free_port()
    with alone():  # of interrupts there are none, and still no other test's irqbalance is to be asked
        address = ("--metrics-address", f"127.0.0.1:{port}", "--metrics-per-pod")
        agent = Running(
            tmp_path,
            *("--host-root", str(tmp_path), "--log-level", "debug", "--sweep-interval", "2", *address),
            below=just(FIVE, own_network=False),
            program="tests.privileges.agent",
        )
        try:
            agent.state(bound)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                said = {"metrics": answer.read()}
            target, npu_smi = tmp_path / "node.tar.gz", tmp_path / "usr/local/bin/npu-smi"
            host = ("--host-root", str(tmp_path), "--npu-smi", str(npu_smi))
            for name, arguments in (
                ("capture", ("capture", "-o", str(target), *host)),
                ("plan", ("plan", "-o", "yaml", *host)),
                ("explain", ("explain", str(worker_pid), *host)),
                ("doctor", ("doctor", *host)),
            ):
                command = [sys.executable, "-m", "tests.privileges.agent", *arguments]
                done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
                said[name] = done.stdout + done.stderr
            assert str(worker_pid).encode() in said["explain"], said["explain"]
            held = b"".join(memory(agent.process.pid))
            assert b"test-node" in held, "the memory that was looked at is the agent's"
            _, log = agent.end()
        finally:
            agent.close()
    said["log"] = "\n".join(str(entry) for entry in log).encode()
    said |= files(tmp_path)
    assert [name for name in said if name.endswith(f"root/proc/{worker_pid}/status")], sorted(said)
    assert [name for name, content in said.items() if secret.encode() in content] == []
    assert secret.encode() not in held
    assert (tmp_path / "journal.json").stat().st_mode & 0o777 == 0o600


def test_the_agent_opens_no_environment_and_no_command_line(worker_pid: int, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("NOT TESTED: which files the agent opens, for want of strace (Debian: apt-get install strace)")
    trace = tmp_path / "trace"
    with alone():
        agent = Running(
            tmp_path,
            *("--host-root", str(tmp_path)),
            below=(strace, "-f", "-qq", "-s", "300", "-e", "trace=open,openat,openat2", "-o", str(trace)),
            program="tests.privileges.agent",
        )
        try:
            agent.state(bound)
        finally:
            for child in psutil.Process(agent.process.pid).children():
                child.terminate()
            agent.process.wait(TIMEOUT)
            agent.close()
    opened = re.findall(r'"([^"]*)"', trace.read_text(errors="replace"))
    assert [path for path in opened if path.endswith(f"proc/{worker_pid}/maps")], "it looked at the worker"
    assert [path for path in opened if re.search(r"/(environ|cmdline|auxv|mem)$", path)] == []
