"""requirements.lock is what the whole agent is installed from where everything must be the same each time."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PINNED = {
    match["name"]: match
    for match in re.finditer(
        r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})*)",
        LOCK,
        re.MULTILINE,
    )
}


def _dependencies() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def test_every_dependency_is_in_the_lock_at_a_version_that_pyproject_allows() -> None:
    assert _dependencies()
    for dependency in _dependencies():
        assert dependency.name in PINNED, f"{dependency} is not in the lock: make it anew, as its first line says"
        assert dependency.specifier.contains(Version(PINNED[dependency.name]["version"])), str(dependency)


def test_every_line_of_the_lock_pins_a_version_and_what_its_files_hash_to() -> None:
    names = [line.split("==")[0].split()[0] for line in LOCK.splitlines() if re.match("[a-z]", line)]
    assert names == list(PINNED)
    assert all(match["hashes"] for match in PINNED.values())


def test_the_lock_is_for_every_machine_and_names_no_index() -> None:
    assert "--index-url" not in LOCK
    assert "--find-links" not in LOCK
    assert "platform_machine" not in LOCK
