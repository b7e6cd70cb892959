"""What the image is made from is locked: each package at one version, each file by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from image.lock import BUILD, REPOSITORY, RUNTIME, normalised, read

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
ASKED = {RUNTIME: PROJECT["project"]["dependencies"], BUILD: PROJECT["build-system"]["requires"]}

locks = pytest.mark.parametrize("lock", ASKED, ids=lambda path: path.name)


@locks
def test_every_requirement_is_in_the_lock_at_a_version_that_pyproject_allows(lock: Path) -> None:
    pinned = {pin.name: pin for pin in read(lock)}
    for requirement in map(Requirement, ASKED[lock]):
        name = normalised(requirement.name)
        assert name in pinned, f"{requirement} is not in {lock.name}: make lock"
        assert requirement.specifier.contains(Version(pinned[name].version)), f"{requirement}: make lock"


@locks
def test_every_line_of_a_lock_pins_a_version_and_what_its_files_hash_to(lock: Path) -> None:
    pins = read(lock)
    lines = [line for line in lock.read_text().splitlines() if re.match("[A-Za-z]", line)]
    assert [line.partition("==")[0] for line in lines] == [pin.name for pin in pins]
    assert all(pin.hashes for pin in pins)
    assert sum(len(pin.hashes) for pin in pins) == lock.read_text().count("--hash=")


@locks
def test_a_lock_is_for_every_machine_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert not [option for option in ("--index-url", "--find-links", "--extra-index-url") if option in text]
    assert [pin.name for pin in read(lock) if pin.marker] == []


@locks
def test_nothing_is_locked_that_nobody_asks_for(lock: Path) -> None:
    """Each entry is followed by who asks for it."""
    asked = {normalised(Requirement(text).name) for text in ASKED[lock]}
    entries = re.split(r"^(?=[a-z])", lock.read_text(), flags=re.MULTILINE)[1:]
    for entry in entries:
        name = normalised(entry.partition("==")[0])
        assert name in asked or re.search(r"# via\s+(#\s+)?[a-z]", entry), name
