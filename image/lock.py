"""The locks: what is pinned, and what its files hash to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RUNTIME = REPOSITORY / "requirements.lock"
"""What the image installs beside the agent."""
BUILD = REPOSITORY / "requirements-build.lock"
"""What the agent's own wheel is built with; nothing of it is in the image."""

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?P<marker>(?: ;[^\\\n]*[^\\\n ])?)"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})*)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Pin:
    """One package of a lock."""

    name: str
    """Normalised, as PEP 503 has it."""
    version: str
    marker: str
    """For which machines it is; empty for all."""
    hashes: frozenset[str]
    """SHA-256 of each file of this version, in hexadecimal."""


def read(path: Path = RUNTIME) -> list[Pin]:
    """The pins of a lock, in its order."""
    return [
        Pin(normalised(name), version, marker.strip(" ;"), frozenset(re.findall("[0-9a-f]{64}", hashes)))
        for name, version, marker, hashes in _PIN.findall(path.read_text())
    ]


def normalised(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
