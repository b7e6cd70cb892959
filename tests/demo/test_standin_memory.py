"""Memory of stand-in workers: of the kinds that matter to whoever moves pages, and all of it present."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from agent.demo.standin import StandIn

KIB = 2 << 10


def _smaps(pid: int, address: int) -> tuple[str, dict[str, int]]:
    """The head of the mapping with this address, and its counts in KiB."""
    head, counts = "", {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            if head:
                break
            head = line if int(match[1], 16) <= address < int(match[2], 16) else ""
        elif head and (count := re.match(r"(\w+): +(\d+) kB", line)):
            counts[count[1]] = int(count[2])
    return head, counts


@pytest.mark.parametrize(
    ("kind", "letters", "anonymous"),
    [
        ("private", "rw-p", True),
        ("shared", "rw-s", False),
        ("shared-file", "rw-s", False),
        ("private-file", "rw-p", False),
    ],
)
def test_mapped_memory_is_of_its_kind_and_present(kind: str, letters: str, anonymous: bool, tmp_path: Path) -> None:
    file = tmp_path / "mapped"
    file.write_bytes(bytes(KIB << 10))
    with StandIn() as worker:
        head, counts = _smaps(worker.pid, worker.map(kind, KIB >> 10, file if "file" in kind else None))
    assert letters in head
    assert ("mapped" in head) == ("file" in kind)
    assert counts["Rss"] >= KIB
    assert (counts["Anonymous"] >= KIB) == anonymous


def test_a_thread_of_its_own_touches_memory_until_it_is_told_to_end() -> None:
    with StandIn() as worker:
        address = worker.map("private", 1)
        for seconds in (0.05, 0.5, 5.0):  # it has to begin first, on a machine that is busy with others
            worker.pace(address)
            time.sleep(seconds)
            if (pace := worker.pace_end())["longest_ms"]:
                break
        assert pace["touches"] > 0
        assert pace["longest_ms"] > 0
