"""``cpubind run --standalone`` as a process on this machine, with a stand-in npu-smi."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES
from agent.node.storage import HostLock

TIMEOUT = 60.0


class Running:
    """A running agent and its files."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agent", "run", "--standalone", "--allow-any-architecture"),
                *("--npu-smi", str(folder / "usr/local/bin/npu-smi"), "--node-name", "test-node"),
                *("--state-file", str(folder / "plan.yaml"), "--journal-file", str(folder / "journal.json")),
                *("--lock-file", str(folder / "lock"), "--log-format", "json", "--sweep-interval", "0.2", *args),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )

    def state(self, holds: Callable[[dict[str, Any]], bool], name: str = "plan.yaml") -> dict[str, Any]:
        """The state file, once it is as expected."""
        end = time.monotonic() + TIMEOUT
        document: dict[str, Any] = {}
        while time.monotonic() < end:
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            try:
                document = yaml.safe_load((self.folder / name).read_text()) or {}
            except FileNotFoundError:
                document = {}
            if document and holds(document):
                return document
            time.sleep(0.05)
        raise AssertionError(f"not as expected: {document}")

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """SIGTERM; the exit status and the log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, [json.loads(line) for line in log.splitlines()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    NpuSmiStandIn(tmp_path, PROFILES["a2"])
    started: list[Running] = []

    def run(*args: str) -> Running:
        started.append(Running(tmp_path, *args))
        return started[-1]

    yield run
    for agent in started:
        agent.process.kill()
        agent.process.wait()
        assert agent.process.stderr is not None
        agent.process.stderr.close()


def condition(document: dict[str, Any], kind: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(c for c in document["status"]["conditions"] if c["type"] == kind)
    return entry


def test_it_publishes_logs_json_and_ends_cleanly_on_sigterm(start: Callable[..., Running]) -> None:
    agent = start()
    document = agent.state(lambda d: bool(d["status"]["npus"]))
    assert document["metadata"]["name"] == "test-node"
    status, log = agent.end()
    assert status == 0
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in log)
    assert log[-1]["message"] == "stopped; bindings stay as they are"
    left = yaml.safe_load((agent.folder / "plan.yaml").read_text())
    assert condition(left, "Ready")["reason"] == "AgentStopped"
    assert not list(agent.folder.glob(".plan.yaml*")), "a temporary file was left"


def test_a_second_agent_exits_with_3_and_names_the_holder(start: Callable[..., Running]) -> None:
    first = start()
    first.state(lambda d: "status" in d)
    second = start()
    _, log = second.process.communicate(timeout=TIMEOUT)
    assert second.process.returncode == 3
    assert f"pid {first.process.pid}" in log
    assert log.count("\n") == 1
    status, _ = first.end()
    assert status == 0


def test_of_agents_that_start_at_the_same_moment_one_acts_and_the_others_exit_with_3(
    start: Callable[..., Running],
) -> None:
    agents = [start() for _ in range(4)]
    end = time.monotonic() + TIMEOUT
    while len(running := [agent for agent in agents if agent.process.poll() is None]) > 1:
        assert time.monotonic() < end, "more than one agent goes on"
        time.sleep(0.05)
    (holder,) = running
    document = holder.state(lambda d: bool(d["status"]["npus"]))
    for agent in agents:
        if agent is not holder:
            _, said = agent.process.communicate()
            assert agent.process.returncode == 3
            assert f"pid {holder.process.pid}" in said
    status, log = holder.end()
    assert status == 0
    assert document["metadata"]["name"] == "test-node"
    assert not [entry for entry in log if entry["level"] == "error"]


def test_the_lock_goes_with_a_killed_agent(start: Callable[..., Running]) -> None:
    agent = start()
    agent.state(lambda d: "status" in d)
    agent.process.kill()
    agent.process.wait()
    lock = HostLock(agent.folder / "lock")
    lock.acquire("the test")
    lock.release()


def test_spec_in_the_state_file_is_followed_without_a_restart(start: Callable[..., Running]) -> None:
    agent = start()
    document = agent.state(lambda d: bool(d["status"]["npus"]))
    document["spec"] = {"mode": "DryRun"}
    (agent.folder / "plan.yaml").write_text(yaml.safe_dump(document))
    after = agent.state(lambda d: d["status"]["mode"] == "DryRun")
    assert after["spec"] == {"mode": "DryRun"}


def test_a_dry_run_takes_no_lock_and_writes_nothing_but_the_state_that_it_is_told(
    start: Callable[..., Running],
) -> None:
    holder = start()
    holder.state(lambda d: "status" in d)
    dry = start("--dry-run", "--state-file", str(holder.folder / "dry.yaml"), "--journal-file", "/nonexistent/journal")
    dry.state(lambda d: d["status"]["mode"] == "DryRun", "dry.yaml")
    status, log = dry.end()
    assert status == 0
    assert not [entry for entry in log if "journal" in entry["message"]]
    holder.state(lambda d: d["status"]["mode"] == "Enforce")


def test_a_host_root_of_another_kernel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/self").symlink_to("1")
    done = subprocess.run(
        [sys.executable, "-m", "agent", "run", "--standalone", "--host-root", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, "NotThisKernel" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert os.listdir(tmp_path) == ["proc"]
