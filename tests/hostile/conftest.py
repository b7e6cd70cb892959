"""What several of these tests have before them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.serving import Serving, serving


@pytest.fixture
def server() -> Iterator[Serving]:
    with serving() as server:
        yield server
