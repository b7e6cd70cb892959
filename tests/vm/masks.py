"""Where threads should be, and where taskset saw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Fact = Mapping[str, Any]


def places(main: str, acl: str, release: str) -> dict[str, str]:
    """The masks of a worker's threads by the beginning of their names; ``""`` is for all others."""
    return {"acl_thread": acl, "release_thread": release, "": main}


def astray(threads: Iterable[Fact], expected: Mapping[str, str]) -> list[Fact]:
    """The threads whose mask is not what is expected of their name. `threads` is one or more: none is an error."""
    found = list(threads)
    assert found, "no thread was seen"
    return [fact for fact in found if cpus(fact["mask"]) != cpus(_place(fact["comm"], expected))]


def cpus(text: str) -> set[int]:
    """The CPUs of a list. taskset writes two neighbours as ``2,3``, the kernel as ``2-3``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def worker(facts: Fact, number: int) -> list[Fact]:
    """The threads of the worker on an NPU."""
    pid = facts["workers"][str(number)]
    return [fact for fact in facts["threads"] if fact["pid"] == pid]


def by_tid(threads: Iterable[Fact]) -> dict[int, str]:
    """tid -> mask."""
    return {fact["tid"]: fact["mask"] for fact in threads}


def npu(status: Fact, number: int) -> Fact:
    """What a status says of one NPU."""
    return next(entry for entry in status["npus"] if entry["id"] == number)


def _place(comm: str, expected: Mapping[str, str]) -> str:
    return next(mask for prefix, mask in expected.items() if comm.startswith(prefix))
