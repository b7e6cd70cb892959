"""The agent against an API server: each behaviour on the small one of the tests, and on the real one where it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.rig import KubeRig
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import cluster, fake_cluster, real_cluster

__all__ = ["cluster", "fake_cluster", "real_cluster"]


@pytest.fixture
def rig(cluster: Cluster, tmp_path: Path) -> Iterator[KubeRig]:
    """An A3 node that is registered, without an agent as yet."""
    with KubeRig(cluster, tmp_path) as made:
        made.register()
        yield made


@pytest.fixture
def a2(cluster: Cluster, tmp_path: Path) -> Iterator[KubeRig]:
    """The same with an A2 node, which is smaller: 192 CPUs, 8 NPUs."""
    with KubeRig(cluster, tmp_path, "a2", status_interval=0.3) as made:
        made.register()
        yield made
