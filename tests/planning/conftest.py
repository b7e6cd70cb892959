"""Hypothesis for these tests: the same examples at every run of the CI."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a shared build machine stalls now and then, and a test is not slow because its neighbour is.
settings.register_profile("cpubind", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("cpubind")
