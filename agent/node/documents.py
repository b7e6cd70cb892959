"""JSON and YAML that somebody else wrote: what it may take in memory is known before it is parsed.

A megabyte of brackets makes hundreds of megabytes of lists, so that a limit on the length of a file is none on what it
costs. Both parsers count what a text can hold at most, by its punctuation, and refuse it beforehand where that is more
than any document of a node has.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import yaml

from agent.model.reason import Reason, Refused, printable

MAX_BYTES: Final = 64 << 20
"""What a JSON text and the values in it may take in memory together. The pod resources of a node whose kubelet reports
640 CPUs for each of 300 containers take a sixth of it."""

MAX_YAML_VALUES: Final = 50_000
"""Keys and items of a YAML text. The largest plan there is, 64 NPUs with 16 workers each, has 15,000; libyaml needs a
kilobyte and ten microseconds for each."""

MAX_YAML_LINE: Final = 512 << 10
"""Characters of a line of YAML: whether it is a number, a time or a text is found out by regular expressions, which
take 70 bytes for each. A bundle of certificates in a kubeconfig is the longest that people have."""

_COSTS: Final = {"{": 190, "[": 64, ",": 40, ":": 70, '"': 30}
"""Bytes of a dict, a list, its place for an item and the number there, a place in a dict, half a string."""

_NUMBER: Final = 400
"""Characters of a number in YAML. None that means something is as long, and those in base 60 (``1:30:00``, YAML 1.1)
take a time that grows with the square of their length."""


def memory_of(text: str) -> int:
    """Bytes that a JSON text and the values in it take in memory at most."""
    return sys.getsizeof(text) + sum(text.count(mark) * cost for mark, cost in _COSTS.items())


def parse_json(text: str, source: str, reason: Reason) -> object:
    """Any JSON document; Refused with `reason`, naming `source`, when it is none, or would take too much memory."""
    if memory_of(text) > MAX_BYTES:
        raise Refused(reason, f"{printable(source, 120)} holds more values than any node has")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for brackets nested a thousand deep
        raise Refused(reason, f"{printable(source, 120)} is no JSON: {printable(str(error), 80)}") from None


def parse_yaml(text: str, source: str, reason: Reason, most: int = MAX_YAML_VALUES) -> object:
    """Any YAML document, None for an empty one; Refused with `reason`, naming `source` and the line where that is
    known, when it is none, or holds more than so many values. Aliases are not counted as what they stand for."""
    # Each value has one of these before or behind it.
    if sum(map(text.count, ("\n", ",", "- ", "? "))) > most:
        raise Refused(reason, f"{source}: more than {most} values")
    if len(text) > MAX_YAML_LINE and max(map(len, text.splitlines())) > MAX_YAML_LINE:
        raise Refused(reason, f"{source}: a line of more than {MAX_YAML_LINE >> 10} KiB")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader either way
    except Exception as error:  # PyYAML lets through whatever int("") and the like raise
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise Refused(reason, f"{source}{line}: not YAML") from None


# libyaml is ten times faster, where PyYAML was built with it.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):  # type: ignore[misc]
    """The safe loader with numbers of a bounded length, and merge keys (``<<: *other``) that add up to no more keys
    than may be written out: a mapping of a thousand that is merged into a thousand others makes a million."""

    _pairs = 0

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        self._pairs += len(node.value)
        if self._pairs > 2 * MAX_YAML_VALUES:
            raise yaml.constructor.ConstructorError(None, None, "too many merged keys", node.start_mark)


def _bounded(tag: str) -> None:
    construct = _SAFE.yaml_constructors[tag]

    def number(loader: Any, node: Any) -> Any:
        if len(node.value) > _NUMBER:
            raise yaml.constructor.ConstructorError(None, None, "a number that long", node.start_mark)
        return construct(loader, node)

    _Loader.add_constructor(tag, number)


_bounded("tag:yaml.org,2002:int")
_bounded("tag:yaml.org,2002:float")
