"""A bill of materials in CycloneDX's JSON, of what requirements.lock installs:

    python -m image.sbom ENVIRONMENT FILE

The same lock gives the same bytes: there is no time and no serial number in it. What the image has of its base it does
not list; scanners find that in the image itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from agent import __version__
from image.lock import REPOSITORY

VERSION = SchemaVersion.V1_6


def bill(environment: Path) -> str:
    """The document. RuntimeError where it is not as CycloneDX's schema has it."""
    made = subprocess.run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", REPOSITORY / "pyproject.toml"),
            *("--mc-type", "application", "--sv", VERSION.to_version(), "--output-reproducible", environment),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    document: dict[str, Any] = json.loads(made.stdout)
    # Its version is dynamic in pyproject.toml, where cyclonedx-py can't read it.
    document["metadata"]["component"]["version"] = __version__
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    if (problem := JsonStrictValidator(VERSION).validate_str(text)) is not None:
        raise RuntimeError(f"not as the schema has it: {problem}")
    return text


def main(environment: str, file: str) -> None:
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(bill(Path(environment)))
    print(f"{path}: {len(json.loads(path.read_text())['components'])} components")


if __name__ == "__main__":
    main(*sys.argv[1:])
