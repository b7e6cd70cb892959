"""Virtual nodes for these tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo.fake_files import scratch
from agent.demo.profiles import PROFILES
from agent.demo.virtual import VirtualNode


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's own, in memory where that can be: a node has thousands of files."""
    with tempfile.TemporaryDirectory(prefix="cpubind-test-", dir=scratch()) as folder:
        yield Path(folder)


@pytest.fixture(params=sorted(PROFILES))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> VirtualNode:
    """A virtual node of every profile in turn, idle."""
    return VirtualNode(tmp_path, str(request.param), interrupts=False)
