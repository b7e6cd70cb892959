"""What is gathered for an ARM64 machine, with a few files in the place of the wheels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.vm import arm64

WHEELS = ("bin/kopf", "kubernetes/aio/x.py", "kubernetes/client/api/core_v1_api.py", "click/core.py")
KEPT = "kubernetes/client/api/custom_objects_api.py"

needs_python_3_11 = pytest.mark.skipif(sys.version_info[:2] != arm64.PYTHON, reason="makes bytecode of Python 3.11")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where wheels were unpacked, each time that they were."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(arm64, "ROOT", tmp_path / "checkout")
    monkeypatch.setattr(arm64, "LOCK", tmp_path / "requirements.lock")
    arm64.LOCK.write_text("click==8.1\n")
    (arm64.ROOT / "agent").mkdir(parents=True)
    (arm64.ROOT / "agent/act.py").write_text("first = 1\n")
    targets: list[Path] = []

    def install(target: Path) -> None:
        for name in (*WHEELS, KEPT):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text("x = 1\n")
        targets.append(target)

    monkeypatch.setattr(arm64, "_install", install)
    return targets


@needs_python_3_11
def test_wheels_are_there_without_what_the_image_does_without(tmp_path: Path, installed: list[Path]) -> None:
    packages = arm64.build_site(tmp_path / "root") / arm64.PACKAGES
    files = {str(file.relative_to(packages)) for file in packages.rglob("*.py")}
    assert files == {"click/core.py", KEPT, "agent/act.py"}
    assert not (packages / "bin").exists()


@needs_python_3_11
def test_wheels_are_fetched_once_for_each_state_of_the_lock(tmp_path: Path, installed: list[Path]) -> None:
    arm64.build_site(tmp_path / "one")
    arm64.build_site(tmp_path / "two")
    assert len(installed) == 1
    arm64.LOCK.write_text("click==8.2\n")
    arm64.build_site(tmp_path / "three")
    assert len(installed) == 2


@needs_python_3_11
def test_the_agent_is_the_checkouts_each_time(tmp_path: Path, installed: list[Path]) -> None:
    arm64.build_site(tmp_path / "root")
    (arm64.ROOT / "agent/act.py").unlink()
    (arm64.ROOT / "agent/bind.py").write_text("second = 2\n")
    packages = arm64.build_site(tmp_path / "root") / arm64.PACKAGES
    assert [file.name for file in (packages / "agent").glob("*.py")] == ["bind.py"]


@needs_python_3_11
def test_bytecode_is_used_whatever_the_times_of_the_files_are(tmp_path: Path, installed: list[Path]) -> None:
    packages = arm64.build_site(tmp_path / "root") / arm64.PACKAGES
    # An initial RAM disk gives every file another time. What is run is the bytecode, then: it says 1.
    (packages / "agent/act.py").write_text("first = 2\n")
    code = f"import sys; sys.path[:0] = [{str(packages)!r}]; from agent import act; print(act.first)"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"


def test_another_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arm64, "PYTHON", (3, 1))
    with pytest.raises(arm64.BuildError, match=r"3\.11"):
        arm64.build_site(tmp_path)
