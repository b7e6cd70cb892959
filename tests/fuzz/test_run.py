"""``make fuzz``: what it finds it keeps, and says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import run
from tests.fuzz.targets import TARGETS, Target


@pytest.fixture(autouse=True)
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "FOUND", tmp_path / "found")
    return tmp_path / "found"


def _with_a_fault(data: bytes) -> object:
    if b"7" in data:
        raise KeyError("seven")
    return data


def test_a_fault_is_found_and_kept(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "faulty", Target(_with_a_fault, (b"6",), (b"7",)))
    result = run._in_a_fork("faulty", False, 2, keep=False)
    assert "KeyError" in result.fault
    assert b"7" in (found / "faulty.found-last").read_bytes()


def test_a_parser_without_a_fault_is_run_for_its_time(found: Path) -> None:
    result = run._in_a_fork("address", False, 1, keep=False)
    assert (result.fault, result.runs > 100) == ("", True)
    assert not found.exists()


def test_it_fuzzes_what_it_is_asked_to_and_ends_in_time() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", "--seconds", "2", "cpu-mask", "address"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 targets" in done.stdout
    assert "0 with a fault" in done.stdout
    unknown = subprocess.run([sys.executable, "-m", "tests.fuzz.run", "x"], capture_output=True, text=True, check=False)
    assert (unknown.returncode, "no target x" in unknown.stderr) == (2, True)
