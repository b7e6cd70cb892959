"""A small API server with a proxy before it, and a watch that a test looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.fixtures import fake_cluster
from tests.kube.follower import NODE, PODS, Follower

__all__ = ["fake_cluster"]


@pytest.fixture
def proxy(fake_cluster: FakeApiServer) -> Iterator[FaultProxy]:
    fake_cluster.nodes.named(NODE)
    fake_cluster.pods.run("elsewhere", node="another")  # where no pod ever changes, there are no bookmarks
    fake_cluster.bookmark_interval = 0.5  # a minute elsewhere
    with FaultProxy(fake_cluster) as proxy:
        yield proxy


@pytest.fixture
def account(proxy: FaultProxy, tmp_path: Path) -> Path:
    """The service account's folder."""
    return proxy.service_account_dir(tmp_path / "account")


Follow = Callable[..., Follower]


@pytest.fixture
def follow(proxy: FaultProxy, account: Path) -> Iterator[Follow]:
    """Makes a watch, of pods unless told, and starts it unless told."""
    made: list[Follower] = []

    def make(subject: Any = PODS, *, start: bool = True, **how: Any) -> Follower:
        made.append(Follower(proxy, account, subject, **how))
        if start:
            made[-1].watch.start()
        return made[-1]

    yield make
    for one in made:
        one.watch.stop(10)
        assert not one.alive, "the watch did not stop"


@pytest.fixture
def pods(follow: Follow) -> Follower:
    """A watch of the node's pods that is open."""
    follower = follow()
    follower.until_open()
    return follower
