"""What all tests share: temporary folders, no settings from outside, and how hypothesis looks for examples."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from agent.demo.fake_files import scratch

# Virtual nodes are thousands of small files; making and removing these on a shared disk takes minutes.
if (memory := scratch()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# What a developer's shell or a CI sets for the agent is not for the agents of tests.
for variable in [name for name in os.environ if name.startswith("CPUBIND_")]:
    del os.environ[variable]

# The same examples at every run of the CI. No deadline: a shared machine stalls now and then, and a test is not slow
# because its neighbour is.
settings.register_profile("cpubind", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("cpubind")


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """A command that runs in this process says what a signal does; for the tests after it that is nothing."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
