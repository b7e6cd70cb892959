"""Tests of the clusters that other tests use."""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import cluster, fake_cluster, real_cluster
from tests.cluster.real_apiserver import RealApiServer

__all__ = ["cluster", "fake_cluster", "real_cluster"]

MODELLED = "v1.20."


@pytest.fixture(autouse=True)
def _of_the_modelled_version(request: pytest.FixtureRequest) -> None:
    """Newer servers say some things otherwise, and that is no fault of the small one."""
    if request.node.get_closest_marker("api"):
        server: RealApiServer = request.getfixturevalue("real_cluster")
        if not server.version.startswith(MODELLED):
            pytest.skip(f"the small API server is as {MODELLED}x is; this real one is {server.version}")
