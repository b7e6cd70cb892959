"""docs/licences.md, from the metadata of the packages that requirements.lock installs:

    python -m image.licences ENVIRONMENT

Exit 1, and nothing is written, where a licence is none of `ALLOWED` or a package names none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from image.lock import REPOSITORY, normalised

PAGE = REPOSITORY / "docs/licences.md"

ALLOWED = frozenset({"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "PSF-2.0"})
"""Licences, by their SPDX ids, under which an image with the agent may be given to others without more ado. MPL-2.0
asks for the source of the files that are under it, which is that of the wheel, unchanged."""

_WORDS = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX ids of what packages without a licence expression write in their place. `BSD License` is none: which?"""

HEAD = """\
# Licences

cpubind is under the [Apache License 2.0](../LICENSE). Its image has these packages beside it, which
`requirements.lock` pins, each under the licence that it names in its metadata:

| package | version | licence |
|---|---|---|
"""
TAIL = """
The texts are in the image, in the packages' own folders below `/opt/cpubind/lib/python3*/site-packages/*.dist-info`.
Wheels with compiled code hold other works, too, such as BoringSSL in grpcio: their notices are in the same folders as
far as the packages bring them along.

Of its base the image has Python, under the PSF-2.0 licence, and a few libraries and programs of the distribution; with
a base of Debian's kind their notices are below `/usr/share/doc`.

`make licences` makes this page from what the lock installs. It refuses a licence that is not in the list of
`image/licences.py`.
"""


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package."""

    name: str
    version: str
    licence: str
    """An SPDX expression; empty where the package names no licence that is understood."""


def packages(environment: Path) -> list[Package]:
    """What is installed in a virtual environment, by name."""
    (folder,) = (environment / "lib").glob("python3*/site-packages")
    found = [package(distribution) for distribution in distributions(path=[str(folder)])]
    return sorted(found, key=lambda one: one.name)


def package(distribution: Distribution) -> Package:
    """A package with the licence that its metadata names: the expression of PEP 639, else the field before that where
    it is a name and no text, else its classifiers."""
    metadata = distribution.metadata
    fields = [*metadata.get_all("License-Expression", []), *metadata.get_all("License", [])]
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License :")]
    said = [text for text in (*fields, *(line.rpartition(" :: ")[2] for line in classifiers)) if text.strip()]
    words = [_WORDS.get(text, text).partition("\n")[0].strip() for text in said]
    licence = next((text for text in words if allowed(text)), words[0] if words else "")
    return Package(normalised(metadata["Name"]), distribution.version, licence)


def allowed(expression: str) -> bool:
    """Whether all licences of an SPDX expression are; one of a choice is enough."""
    parts = re.split(r"\s+AND\s+", expression.strip())
    return all(any(one.strip("() ") in ALLOWED for one in re.split(r"\s+OR\s+", part)) for part in parts)


def page(found: Iterable[Package]) -> str:
    """The text of docs/licences.md."""
    return HEAD + "".join(f"| {one.name} | {one.version} | {one.licence} |\n" for one in found) + TAIL


def main(environment: str) -> int:
    found = packages(Path(environment))
    refused = [one for one in found if not allowed(one.licence)]
    for one in refused:
        print(f"{one.name} {one.version}: {one.licence or 'no licence named'}: not in ALLOWED", file=sys.stderr)
    if not refused:
        PAGE.write_text(page(found))
    return bool(refused)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
