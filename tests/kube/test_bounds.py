"""An answer takes so long and so many bytes, and no more, whatever sends it."""

from __future__ import annotations

import gzip
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.kube import api as api_module
from agent.kube import bounds
from agent.kube.access import Access
from agent.kube.api import Api, ApiError
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.manners import Manner
from tests.kube.follower import NODE, Follower

Follow = Callable[..., Follower]


def asks(proxy: FaultProxy, account: Path) -> ApiError:
    """For the Node, in vain."""
    api = Api(Access(f"https://{proxy.host}:{proxy.port}", account))
    try:
        with pytest.raises(ApiError) as caught:
            api.node(NODE)
        return caught.value
    finally:
        api.close()


@pytest.mark.parametrize("manner", [Manner.SLOW, Manner.SLOW_HEAD])
def test_an_answer_that_comes_a_byte_at_a_time_is_given_up_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, account: Path, manner: Manner
) -> None:
    """Each byte comes well within the timeout of a single one."""
    monkeypatch.setattr(api_module, "TIMEOUT", (0.5, 0.5))
    proxy.mishandle(manner)
    begun = time.monotonic()
    assert str(asks(proxy, account).problem) == "ApiUnreachable: get of nodes: no answer in time"
    assert 1.0 <= time.monotonic() - begun < 5.0


def test_an_answer_without_an_end_is_given_up(proxy: FaultProxy, account: Path) -> None:
    proxy.mishandle(Manner.ENDLESS)
    assert str(asks(proxy, account).problem) == "ApiUnreachable: get of nodes: more than 32 MiB came"


def test_a_list_without_an_end_is_given_up(proxy: FaultProxy, follow: Follow) -> None:
    proxy.mishandle(Manner.ENDLESS, path="/pods$", watch=False)
    pods = follow()
    assert pods.until_problem("MiB") == "ApiUnreachable: list of pods: more than 32 MiB came"
    pods.until_open()


def test_an_event_without_an_end_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(bounds, "MAX_LINE", 1 << 20)
    proxy.mishandle(Manner.ENDLESS, path="/pods$", watch=True, times=2)
    pods = follow()
    pods.until(lambda: len(pods.requests("watch")) == 3, "it is opened again")
    pods.until_open()
    fake_cluster.pods.run("new", node=NODE)
    pods.until(lambda: pods.names == {"new"}, "events come")


@pytest.mark.parametrize("manner", [Manner.RESET, Manner.RESET_MIDWAY, Manner.SHORT])
def test_a_connection_that_breaks_off_is_said_in_the_same_words_wherever_it_does(
    proxy: FaultProxy, account: Path, manner: Manner
) -> None:
    proxy.mishandle(manner)
    assert str(asks(proxy, account).problem) == "ApiUnreachable: get of nodes: the connection broke off"


def test_a_redirect_is_refused_and_not_followed(proxy: FaultProxy, account: Path) -> None:
    proxy.answer(307, b"", headers={"Location": f"https://{proxy.host}:{proxy.port}/elsewhere"}, times=math.inf)
    error = asks(proxy, account)
    assert (error.status, error.problem.reason) == (307, "ApiRefused")
    assert [one.path for one in proxy.seen] == [f"/api/v1/nodes/{NODE}"]


def test_what_is_packed_though_nobody_asked_for_it_is_not_unpacked(proxy: FaultProxy, account: Path) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    proxy.answer(200, bomb, headers={"Content-Encoding": "gzip"})
    assert str(asks(proxy, account).problem) == "ApiUnreachable: get of nodes: the answer makes no sense"
