"""How long it takes: ``make soak SECONDS=600``."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def seconds() -> float:
    """From $SOAK_SECONDS; ten minutes without it."""
    return float(os.environ.get("SOAK_SECONDS", "600"))
