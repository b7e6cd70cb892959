"""Fixtures of tests that need a cluster. A conftest imports them by name:

    from tests.cluster.fixtures import cluster, fake_cluster, real_cluster

`cluster` runs a test twice, `fake` and `real`. The real server is started once in a process (each worker of xdist has
its own), with the first test that wants it, and is as new for each test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.real_apiserver import START_ERRORS, RealApiServer, missing_assets, started_twice

_SERVER = pytest.StashKey[RealApiServer | str]()
"""The server of this process, or why there is none: a start that failed is not tried again by each test."""


def the_real_server(config: pytest.Config) -> RealApiServer | str:
    """Started when it is first asked for; else the sentence that says why not. Closed when pytest ends."""
    if _SERVER not in config.stash:
        config.stash[_SERVER] = _start(config)
    return config.stash[_SERVER]


def _start(config: pytest.Config) -> RealApiServer | str:
    if absent := missing_assets():
        return absent
    try:
        server = started_twice(Path(os.environ["KUBEBUILDER_ASSETS"]))
    except START_ERRORS as error:
        return f"THE REAL API SERVER DID NOT COME UP, tried twice: {error}"
    config.add_cleanup(server.close)
    return server


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.api)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster with nothing in it but our CRD, once the small one and once the real one."""
    chosen: Cluster = request.getfixturevalue(f"{request.param}_cluster")
    return chosen


@pytest.fixture
def fake_cluster() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.close()


@pytest.fixture
def real_cluster(request: pytest.FixtureRequest) -> RealApiServer:
    """For tests of its own this wants the marker `api`."""
    server = the_real_server(request.config)
    if isinstance(server, str):
        pytest.skip(server)
    server.reset()
    return server
