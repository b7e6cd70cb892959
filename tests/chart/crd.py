"""The resource definition as the tests look at it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "crds/cpubindingplans.yaml"
COPY = ROOT / "charts/cpubind/files/cpubindingplans.yaml"

Schema = dict[str, Any]


@cache
def definition() -> Schema:
    """The whole CustomResourceDefinition."""
    document: Schema = yaml.safe_load(SOURCE.read_text())
    return document


def version() -> Schema:
    """Its one version."""
    (only,) = definition()["spec"]["versions"]
    result: Schema = only
    return result


def schema(part: str = "") -> Schema:
    """The schema of the object, or of its `spec` or `status`."""
    whole: Schema = version()["schema"]["openAPIV3Schema"]
    return whole["properties"][part] if part else whole


def fields(node: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema below this one with its path: `status.npus[].workers[].pid`."""
    for name, child in node.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield below, child
        yield from fields(child, below)
    if "items" in node:
        yield f"{path}[]", node["items"]
        yield from fields(node["items"], f"{path}[]")


def paths_of(value: object, path: str) -> Iterator[str]:
    """The paths, as `fields` writes them, of what a document holds."""
    yield path
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from paths_of(child, f"{path}.{name}")
    elif isinstance(value, list):
        for child in value:
            yield from paths_of(child, f"{path}[]")


@cache
def strict(part: str) -> Draft202012Validator:
    """Says what is wrong with a `spec` or `status`, fields that the schema does not declare included.

    An API server drops these or, on server-side apply, refuses the whole document.
    """
    closed = copy.deepcopy(schema(part))
    for node in [closed, *(child for _, child in fields(closed))]:
        if node["type"] == "object":
            node["additionalProperties"] = False
    return Draft202012Validator(closed, format_checker=FormatChecker())


def complaints(part: str, document: object) -> list[str]:
    """One line for each thing that the schema refuses."""
    return [f"{error.json_path}: {error.message}" for error in strict(part).iter_errors(document)]
