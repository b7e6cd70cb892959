"""docs/licences.md: which licences the packages of the image are under, and that all of them may be."""

from __future__ import annotations

from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import cast

import pytest

from image.licences import ALLOWED, HEAD, PAGE, TAIL, Package, allowed, package, page
from image.lock import read
from tests.docs.pages import table

ROWS = [Package(*row) for row in table(PAGE.read_text())]


def test_the_page_has_every_package_of_the_lock_at_its_version_and_no_other() -> None:
    assert [(row.name, row.version) for row in ROWS] == [(pin.name, pin.version) for pin in read()], "make licences"


def test_every_licence_on_the_page_is_one_that_is_allowed() -> None:
    assert [row for row in ROWS if not allowed(row.licence)] == []


def test_the_page_is_made_by_its_program() -> None:
    assert PAGE.read_text() == page(ROWS)
    assert PAGE.read_text().startswith(HEAD)
    assert PAGE.read_text().endswith(TAIL)


def test_packages_that_are_installed_here_at_the_locks_version_name_the_licence_of_the_page() -> None:
    compared = 0
    for row in ROWS:
        try:
            found = distribution(row.name)
        except PackageNotFoundError:
            continue
        if found.version == row.version:
            assert package(found) == row
            compared += 1
    assert compared, "none: make test-slow compares them all"


class Metadata(Distribution):
    """A package with such metadata and nothing else."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self._fields = fields

    @property
    def metadata(self) -> Message:  # type: ignore[override,unused-ignore]
        message = Message()
        for name, value in (("Name", "Some_Package"), ("Version", "1.2"), *self._fields):
            message[name] = value
        return message

    def read_text(self, filename: str) -> str | None:
        return None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


MIT = ("Classifier", "License :: OSI Approved :: MIT License")
GPL = ("Classifier", "License :: OSI Approved :: GNU General Public License v3 (GPLv3)")
BSD = ("Classifier", "License :: OSI Approved :: BSD License")


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "Apache-2.0 AND MIT")], "Apache-2.0 AND MIT"),
        ([("License", "Apache 2.0")], "Apache-2.0"),
        ([MIT], "MIT"),
        ([("License", "see the file LICENSE"), MIT], "MIT"),
        ([("License", "ISC"), BSD], "ISC"),
        ([BSD], "BSD License"),
        ([GPL], "GNU General Public License v3 (GPLv3)"),
        ([("License", "Copyright (c) somebody\nAll rights reserved.")], "Copyright (c) somebody"),
        ([], ""),
    ],
)
def test_a_licence_is_taken_from_where_the_package_says_it(fields: list[tuple[str, str]], licence: str) -> None:
    found = package(cast("Distribution", Metadata(*fields)))
    assert found == Package("some-package", "1.2", licence)


@pytest.mark.parametrize(
    "expression", [*sorted(ALLOWED), "Apache-2.0 AND MIT", "GPL-3.0-only OR MIT", "MIT AND (ISC OR GPL)"]
)
def test_licences_of_the_list_are_allowed_and_one_of_a_choice_is_enough(expression: str) -> None:
    assert allowed(expression)


@pytest.mark.parametrize(
    "expression",
    ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "BSD License", "AGPL-3.0-only OR SSPL-1.0", "mit license"],
)
def test_any_other_is_refused(expression: str) -> None:
    assert not allowed(expression)
