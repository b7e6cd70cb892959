"""The locks against a package index: the files are there, hash as locked for both architectures, and are what the list
of licences and the bill of materials say. Skipped where no index can be asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent import __version__
from image.licences import PAGE, packages, page
from image.lock import BUILD, RUNTIME, read

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
LOCKED = ("--only-binary", ":all:", "--require-hashes", "--requirement")
ARCHITECTURES = {
    "amd64": ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64"),
    "arm64": ("manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"),
}


def run(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and ("connection" in done.stderr.lower() or "No matching distribution" in done.stderr):
        pytest.skip(f"NOTHING WAS COMPARED: no package index has what is locked: {done.stderr.strip()[-300:]}")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image gets beside the agent, installed as it is there."""
    folder = tmp_path_factory.mktemp("locked") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(*PIP, "--python", folder, "install", "--no-compile", *LOCKED, RUNTIME)
    return folder


def test_the_lock_installs_all_that_it_names_and_nothing_else(environment: Path) -> None:
    assert [(one.name, one.version) for one in packages(environment)] == [(pin.name, pin.version) for pin in read()]
    run(*PIP, "--python", environment, "check")


def test_the_list_of_licences_is_what_the_packages_say(environment: Path) -> None:
    assert page(packages(environment)) == PAGE.read_text(), "make licences"


def test_the_bill_of_materials_is_valid_names_what_is_locked_and_comes_out_the_same_each_time(
    environment: Path,
) -> None:
    pytest.importorskip("cyclonedx", reason="the extra `supply` is not installed")
    from image.sbom import bill

    text = bill(environment)
    assert bill(environment) == text
    document: dict[str, Any] = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    root = document["metadata"]["component"]
    assert (root["name"], root["version"], root["type"]) == ("cpubind", __version__, "application")
    purls = {component["purl"] for component in document["components"]}
    assert purls == {f"pkg:pypi/{pin.name}@{pin.version}" for pin in read()}
    assert all(component["licenses"] for component in document["components"])
    assert "serialNumber" not in document
    direct = next(entry["dependsOn"] for entry in document["dependencies"] if entry["ref"] == root["bom-ref"])
    assert {ref.partition("==")[0] for ref in direct} >= {"kopf", "kubernetes", "grpcio"}


@pytest.mark.parametrize("lock", [RUNTIME, BUILD], ids=lambda path: path.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_package_has_a_wheel_that_hashes_as_locked(lock: Path, architecture: str, tmp_path: Path) -> None:
    platforms = [word for name in ARCHITECTURES[architecture] for word in ("--platform", name)]
    run(*PIP, "download", "--no-deps", "--python-version", "3.11", *platforms, "--dest", tmp_path, *LOCKED, lock)
    assert len(list(tmp_path.glob("*.whl"))) == len(read(lock))


def test_a_file_that_does_not_hash_as_locked_is_refused(tmp_path: Path) -> None:
    """The build passes `--require-hashes`: a wheel of the same name and version from elsewhere does not get in."""
    forged = tmp_path / "requirements.lock"
    forged.write_text(f"mdurl==0.1.2 --hash=sha256:{'0' * 64}\n")
    done = subprocess.run(
        [*PIP, "download", "--no-deps", "--dest", str(tmp_path), *LOCKED, str(forged)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
    assert not list(tmp_path.glob("*.whl"))
