"""Links between pages lead somewhere, and no page names a registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import EXAMPLES, PAGES, ROOT, anchors, commands, links, named


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_path_of_this_repository_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"(?<![\w./-])(?:docs|charts|crds|agent)/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path


def test_every_example_is_named_by_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for example in sorted(EXAMPLES.iterdir()):
        assert f"examples/{example.name}" in text


def _images(value: Any) -> Iterator[str]:
    """Names of images anywhere in a document."""
    if isinstance(value, dict):
        for key, child in value.items():
            if key in ("image", "repository") and isinstance(child, str):
                yield child
            yield from _images(child)
    elif isinstance(value, list):
        for child in value:
            yield from _images(child)


def _has_a_host(image: str) -> bool:
    """Whether it is a host's before it is a path, as the reference of an image has it."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def test_no_example_names_a_registry() -> None:
    found = [image for file in EXAMPLES.iterdir() for image in _images(list(yaml.safe_load_all(file.read_text())))]
    assert found
    assert not [image for image in found if _has_a_host(image)]


def test_no_command_names_a_registry() -> None:
    found = [
        word.rpartition("=")[2]
        for command in commands()
        for word in command.words
        if word.startswith("image.repository=") or (command.words[0] == "docker" and "/" in word)
    ]
    assert "YOUR-REPOSITORY/cpubind" in found
    assert not [image for image in found if _has_a_host(image)]


@pytest.mark.parametrize("image", ["a.example/b:1", "host:5000/b", "localhost/b"])
def test_an_image_of_a_registry_would_be_noticed(image: str) -> None:
    assert _has_a_host(image)
