"""Up to 10 MiB of anything take no parser more than a second of a CPU or 100 MiB of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz import seeds
from tests.fuzz.measure import cost
from tests.fuzz.targets import TARGETS, UNGUIDED

LARGE, MOST_FILES, OWN_FILES = 10 << 20, (1 << 20) - 1, (4 << 20) - 1
"""Bytes. The second is what readers of a host's files take at most, unless they say otherwise; the third is what they
take of a state file."""
SECONDS = 1.0
BYTES = 100 << 20
PATIENT = dict.fromkeys(UNGUIDED, 5.0)
"""A person's own file, read by the Kubernetes client: nobody else waits for it."""

FLOODS: dict[str, Callable[[int], bytes]] = {
    "one line": seeds.many(b"x"),
    "newlines": seeds.many(b"\n"),
    "blanks": seeds.many(b" "),
    "zeros": seeds.many(b"\0"),
    "digits": seeds.many(b"9"),
    "colons": seeds.many(b":"),
    "commas": seeds.many(b","),
    "slashes": seeds.many(b"/"),
    "brackets": seeds.many(b"["),
    "lists": seeds.many(b"[],", before=b"[", behind=b"0]"),
    "objects": seeds.many(b'{"":0},', before=b"[", behind=b"0]"),
    "strings": seeds.many(b'"",', before=b"[", behind=b"0]"),
    "quotes": seeds.many(b'"'),
    "invalid UTF-8": seeds.many(b"\xff"),
    "wide characters": seeds.many("😀".encode()),
}


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_large_is_read_or_refused_soon_and_in_little_memory(name: str) -> None:
    target = TARGETS[name]
    own: dict[str, Callable[[int], bytes]] = {
        "the same again and again": seeds.many(max(target.seeds, key=len)),
        **target.floods,
    }
    seconds = PATIENT.get(name, SECONDS)
    dear = []
    for size, floods in ((LARGE, FLOODS | own), (MOST_FILES, FLOODS | own), (OWN_FILES, own)):
        for flood, make in floods.items():
            data = make(size)
            spent = cost(target, data)
            if spent.seconds > seconds:  # caches of a CPU that others use, too
                spent = min(spent, cost(target, data), key=lambda one: one.seconds)
            if spent.raised or spent.seconds > seconds or spent.bytes > BYTES:
                dear.append(f"{flood}, {size} bytes: {spent.seconds:.2f} s, {spent.bytes >> 20} MiB {spent.raised}")
    assert not dear
