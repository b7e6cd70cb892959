"""Fixtures of most of these tests; a test file has its own `worker`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node.threads import ThreadBinder
from tests.host.support import BOTH, Cgroup, CountingHost, cpuset_cgroup


@pytest.fixture
def host() -> CountingHost:
    return CountingHost()


@pytest.fixture
def binder(host: CountingHost) -> ThreadBinder:
    return ThreadBinder(Path("/proc"), host)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """A cpuset of both CPUs."""
    with cpuset_cgroup(BOTH) as group:
        yield group
