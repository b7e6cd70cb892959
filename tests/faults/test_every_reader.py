"""That no reader of the host is without rows: what the agent asks for on a virtual node is recorded and looked up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.host_rows import ROWS, HostRow
from tests.faults.injector import READS, WRITES
from tests.faults.scene import scene

BESIDE = (
    r"/",  # the folder of the agent's own files
    r"/proc/irq",  # access(2): whether it is read-only
)
"""Paths that need no rows: nothing is learned from what is in them."""


@pytest.mark.parametrize("device", ["a2", "950"])
def test_every_path_that_the_agent_asks_for_is_in_a_row(device: str, tmp_path: Path) -> None:
    with scene(tmp_path, device) as node:
        node.settle()
        node.another_worker()
        node.settle()
        node.rig.settle(700)
        node.rig.agent.watch.close()
        node.rig.restart()
        node.settle()
        node.rig.ask(mode="Disabled")
        node.settle()
        seen = node.injector.seen
    reads = [re.compile(row.path) for row in ROWS if isinstance(row, HostRow) and not row.writes]
    writes = [re.compile(row.path) for row in ROWS if isinstance(row, HostRow) and row.writes]
    beside = [re.compile(path) for path in BESIDE]
    missing = {
        (call, path)
        for call, path in seen
        if not any(pattern.fullmatch(path) for pattern in (*(writes if call in WRITES else reads), *beside))
    }
    assert missing == set()
    assert {call for call, _ in seen} >= READS - {"pread", "scandir", "lstat", "readlink"}
