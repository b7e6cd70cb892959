"""What cases are made of, on this machine: they run, each in a process of its own, and their parts count right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.node import DeviceType
from benchmarks import planning
from benchmarks.__main__ import BASELINE, main
from benchmarks.agent_process import EVERY, ROLES, make_small_plan
from benchmarks.cases import CASES
from benchmarks.clock import cpu_seconds, machine, rss_mib
from benchmarks.scene import crowd, system_calls

ROOT = Path(__file__).parents[2]


def test_a_case_runs_in_a_process_of_its_own_and_its_figures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    assert main(["--quick", "--case", "planning", "--results", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["machine"].keys() == machine().keys()
    names = [entry["name"] for entry in document["cases"]["planning"]["figures"]]
    assert all(name in capsys.readouterr().out for name in names[:1])
    assert all(entry["repeats"] >= 5 for entry in document["cases"]["planning"]["figures"])


def test_the_baseline_is_of_cases_that_there_are_and_has_ratios_alone() -> None:
    document = json.loads(BASELINE.read_text())
    assert {"threads", "planning", "steady"} <= document["ratios"].keys() <= CASES.keys()
    assert all(value > 0 for ratios in document["ratios"].values() for value in ratios.values())


def test_help_teaches_the_commands_and_lists_the_cases() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for word in ("--quick", "compare", "baseline", "results.json", *CASES):
        assert word in done.stdout


def test_the_cpu_time_of_another_process_counts_threads_that_ended() -> None:
    program = """
import sys, threading, time
def work():
    while time.thread_time() < 0.05: pass
thread = threading.Thread(target=work)
thread.start(); thread.join()
print(flush=True); sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        assert cpu_seconds(child.pid) >= 0.05
        assert rss_mib(child.pid) > 1
    finally:
        child.communicate(b"")
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_seconds(child.pid)


def test_other_processes_are_there_and_then_gone() -> None:
    def children() -> int:
        return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with crowd(7):
        assert children() == before + 7
    assert children() == before


def test_every_worker_gets_cpus_of_this_machine() -> None:
    inp = planning._node(640, 16, 8, DeviceType.A3)
    plan = make_small_plan(inp)
    assert {worker.allotment.roles for worker in plan.workers} == {ROLES}
    assert len(plan.workers) == len(plan.npus) == 16
    assert ROLES.main <= EVERY


def test_system_calls_are_counted_by_name() -> None:
    program = "import os, time\nprint(flush=True)\nwhile True: os.sched_getaffinity(0); time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            for seconds in (0.5, 5.0):  # strace has to begin first, on a machine that is busy with others
                if calls := system_calls(child.pid, seconds):
                    break
        finally:
            child.kill()
    if calls is None:
        pytest.skip("strace is not here, or may not trace")
    assert calls["sched_getaffinity"] > 0
    assert "total" not in calls
