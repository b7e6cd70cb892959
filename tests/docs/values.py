"""The chart's values, and what is wrong with some that somebody gives."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from jsonschema import Draft7Validator

from tests.docs.pages import CHART

Values = dict[str, Any]

VALUES: Values = yaml.safe_load((CHART / "values.yaml").read_text())
_VALIDATOR = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))


def complaints(given: Values) -> list[str]:
    """Values that the chart does not have, and what its schema refuses."""
    unknown = [f"{path} is no value of the chart" for path in paths(given) if not has(path)]
    return unknown + [error.message for error in _VALIDATOR.iter_errors(_merged(VALUES, given))]


def paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`crds.install` and the like."""
    for key, value in values.items():
        if isinstance(value, dict) and not _is_free(prefix + key):
            yield from paths(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def has(path: str) -> bool:
    """Whether the chart has a value of this path."""
    at: Any = VALUES
    for key in path.split("."):
        if not isinstance(at, dict) or key not in at:
            return False
        at = at[key]
    return True


def _is_free(path: str) -> bool:
    """A mapping that is empty as it comes: its keys are for people to choose."""
    at: Any = VALUES
    for key in path.split("."):
        at = at.get(key) if isinstance(at, dict) else None
    return isinstance(at, dict) and not at


def _merged(values: Values, over: Values) -> Values:
    """As helm merges them."""
    merged = dict(values)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
