"""A small fleet against a real API server: what is counted, what it must be, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agent.demo.fake_files import scratch
from benchmarks import fleet
from benchmarks.figures import Figure
from benchmarks.fleet import DEFAULTS, Options, measure
from tests.cluster.real_apiserver import missing_assets

pytestmark = [
    pytest.mark.api,
    pytest.mark.skipif(missing_assets() is not None, reason=missing_assets() or ""),
]

ROOT = Path(__file__).parents[2]
QUICK = {**DEFAULTS, "sweep_interval": 0.5, "status_interval": 0.5, "api_jitter": 1.0}


def left() -> list[str]:
    """Folders of fleets."""
    parent = scratch() or Path(os.environ.get("TMPDIR", "/tmp"))
    return sorted(path.name for path in parent.glob("cpubind-fleet-*"))


def test_three_agents_ask_for_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "OUTAGE_SECONDS", 2.0)
    before = left()
    outcomes = measure(Options(nodes=3, profile="a2", others=1, idle=3.0, settings=QUICK))
    found: dict[str, dict[str, Figure]] = {}
    for name, outcome in outcomes.items():
        assert not isinstance(outcome, str)
        found[name] = outcome
    assert list(found) == ["install", "idle", "pods", "upgrade", "crash", "outage", "held"]
    over = [(name, figure.name, figure.value) for name in found for figure in found[name].values()]
    assert [entry for entry in over if found[entry[0]][entry[1]].verdict == "OVER"] == []

    def value(phase: str, name: str) -> float:
        return found[phase][name].value

    assert value("install", "plan writes") >= 2, "each has made its plan and written its status"
    assert value("install", "requests") >= 7
    assert value("idle", "requests") == 0
    assert value("pods", "watch events, per pod") >= 6
    assert value("pods", "plan writes, per pod") >= 1
    assert value("upgrade", "plan writes") == 2
    assert value("crash", "requests") == 4
    assert value("crash", "answers to LIST and GET") > value("held", "a plan, as it is sent")
    assert value("outage", "requests") >= 2
    assert value("held", "open watches per agent") == 2
    assert left() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_fleet_that_is_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    before = left()
    command = [*(sys.executable, "-m", "benchmarks.fleet", "--nodes", "2", "--profile", "a2", "--pods", "0")]
    with subprocess.Popen(
        [*command, "--results", str(tmp_path / "results.json")],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "install" in line:
                break
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 4, "etcd, kube-apiserver, and two nodes"
        assert left() != before
        process.send_signal(number)
        assert process.wait(30) == 130
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in started):
        assert time.monotonic() < deadline, started
        time.sleep(0.05)
    assert left() == before
    assert not (tmp_path / "results.json").exists()


def test_without_an_api_server_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    assert fleet.main(["--nodes", "1"]) == 2
    assert "KUBEBUILDER_ASSETS is not set" in capsys.readouterr().err
