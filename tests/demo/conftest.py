"""Virtual nodes for these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.demo.profiles import PROFILES
from agent.demo.virtual import VirtualNode


@pytest.fixture(params=sorted(PROFILES))
def node(request: pytest.FixtureRequest, tmp_path: Path) -> VirtualNode:
    """A virtual node of every profile in turn, idle."""
    return VirtualNode(tmp_path, str(request.param), interrupts=False)
