"""``cpubind run --standalone`` as a process on this machine, with a stand-in npu-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES
from agent.model.reason import Refused
from agent.node.proc_events import ProcEvents
from agent.node.storage import HostLock
from tests.cli.running import TIMEOUT, Running, condition


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    NpuSmiStandIn(tmp_path, PROFILES["a2"])
    started: list[Running] = []

    def run(*args: str, below: tuple[str, ...] = ()) -> Running:
        started.append(Running(tmp_path, *args, below=below))
        return started[-1]

    yield run
    for agent in started:
        agent.close()


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
    assert "; runs one? cpubind doctor" in condition(left, "Ready")["message"], "a bare host has no kubectl"
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


@pytest.fixture
def deaf() -> tuple[str, ...]:
    """A command below which the kernel tells of no processes, and whose rights don't change that."""
    command = ("unshare", "--net", "setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{' '.join(command)} is not allowed here")
    return command


def test_where_the_kernel_tells_of_no_processes_the_plan_says_so(
    start: Callable[..., Running], deaf: tuple[str, ...]
) -> None:
    agent = start(below=deaf)
    document = agent.state(lambda d: condition(d, "Degraded")["status"] == "True")
    assert condition(document, "Degraded")["reason"] == "EventsUnavailable"
    assert "network namespace" in condition(document, "Degraded")["message"]
    status, log = agent.end()
    assert status == 0
    assert [entry["level"] for entry in log if "EventsUnavailable" in entry["message"]] == ["warning"]


def test_a_dry_run_needs_no_events(start: Callable[..., Running], deaf: tuple[str, ...]) -> None:
    agent = start("--dry-run", below=deaf)
    document = agent.state(lambda d: bool(d["status"]["npus"]))
    assert condition(document, "Degraded")["reason"] != "EventsUnavailable"
    _, log = agent.end()
    assert not any("EventsUnavailable" in entry["message"] for entry in log)


def test_doctor_says_whether_there_are_events(deaf: tuple[str, ...]) -> None:
    def checks(*below: str) -> dict[str, dict[str, str]]:
        command = [*below, sys.executable, "-m", "agent", "doctor", "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        return {check["name"]: check for check in json.loads(done.stdout)}

    assert checks(*deaf)["events"]["result"] == "warn"
    try:
        ProcEvents.of_host(Path("/")).close()
    except Refused as refused:
        pytest.skip(str(refused))
    assert checks()["events"]["result"] == "ok"
