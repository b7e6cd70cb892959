"""A fleet's agents don't ask all at once where one thing made all of them ask."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from agent.kube import traffic, watch
from agent.kube.retry import Spread
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import FaultProxy
from tests.kube.follower import NODE, PLAN, Follower

Follow = Callable[..., Follower]

LONG = 60.0
"""Seconds; nobody here waits for so long."""


@pytest.fixture(autouse=True)
def _longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all the times that may be drawn each gets the longest."""
    monkeypatch.setattr("random.uniform", lambda _low, high: high)


def test_nothing_is_asked_before_the_time_that_was_drawn(proxy: FaultProxy, follow: Follow) -> None:
    begun = time.time()
    pods = follow(spread=Spread(1.0))
    pods.until_open()
    assert min(one.time for one in pods.requests()) >= begun + 0.9


def test_the_watches_of_one_agent_begin_together(proxy: FaultProxy, follow: Follow) -> None:
    spread = Spread(0.6)
    both = follow(spread=spread), follow(PLAN, spread=spread)
    for one in both:
        one.until(lambda one=one: one.lists, "it lists")  # type: ignore[misc]
    first = [min(one.time for one in proxy.seen if resource in one.path) for resource in ("pods", "cpubindingplans")]
    assert abs(first[0] - first[1]) < 0.4


def test_agents_draw_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    now = time.monotonic()
    drawn = [Spread(10.0)._first - now for _ in range(1000)]
    by_second = [sum(second <= one < second + 1 for one in drawn) for second in range(10)]
    assert sum(by_second) >= 999
    assert max(by_second) < 150, by_second


@pytest.mark.parametrize("early", [True, False], ids=["before", "meanwhile"])
def test_nobody_waits_once_a_worker_does(proxy: FaultProxy, follow: Follow, early: bool) -> None:
    spread = Spread(LONG)
    pods = follow(spread=spread, start=False)
    if early:
        spread.hurry()
    pods.watch.start()
    if not early:
        assert pods.asked_within(0.3) == 0
        spread.hurry()
    pods.until_open()


def test_that_a_worker_waited_is_forgotten_in_time(proxy: FaultProxy, follow: Follow) -> None:
    spread = Spread(0.8)
    spread.hurry()
    pods = follow(spread=spread)
    pods.until_open()
    time.sleep(1.0)
    cut_at = time.time()
    proxy.cut()
    pods.until(lambda: len(pods.requests("watch")) == 2, "the watch is opened again")
    assert pods.requests("watch")[-1].time >= cut_at + 0.7


def test_it_can_be_stopped_while_it_waits(follow: Follow) -> None:
    pods = follow(spread=Spread(LONG))
    time.sleep(0.2)
    begun = time.monotonic()
    pods.watch.stop()
    assert time.monotonic() - begun < 2.0
    assert not pods.alive


def test_a_watch_that_was_cut_is_opened_again_after_a_while_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.0)
    spread = Spread(0.8)
    pods = follow(spread=spread)
    pods.until_open()
    for number in range(2):
        before, cut_at = len(pods.requests()), time.time()
        proxy.cut()
        fake_cluster.pods.run(f"new-{number}", node=NODE)
        pods.until(lambda number=number: f"new-{number}" in pods.names, "it is told")  # type: ignore[misc]
        (again,) = pods.requests()[before:]
        assert again.time >= cut_at + 0.7
    assert pods.lists == 1


def test_after_a_cut_nobody_waits_once_a_worker_does(proxy: FaultProxy, follow: Follow) -> None:
    spread = Spread(LONG)
    spread.hurry()
    pods = follow(spread=spread)
    pods.until_open()
    spread._hurried = float("-inf")
    proxy.cut()
    assert pods.asked_within(0.5) == 0
    spread.hurry()
    pods.until_open()


def test_a_server_that_stays_away_is_asked_with_pauses_alone_once_the_time_is_over(
    proxy: FaultProxy, follow: Follow
) -> None:
    """Else each attempt of an outage would wait for that besides, and the end of it be found late."""
    pods = follow(spread=Spread(1.0))
    pods.until_open()
    proxy.refuse()
    pods.until_problem("refused")
    before = sum(pods.counted.values())
    pods.until(lambda: sum(pods.counted.values()) >= before + 4, "it tries again and again", 3.0)
    proxy.heal()
    pods.until_open()


def test_a_watch_that_ends_in_its_time_is_renewed_at_once(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(watch, "SERVER_SECONDS", 1)
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.5)
    monkeypatch.setattr(traffic, "EARLY_SECONDS", 0.2)
    spread = Spread(LONG)
    spread.hurry()
    pods = follow(spread=spread)
    pods.until_open()
    spread._hurried = float("-inf")
    pods.until(lambda: len(pods.requests("watch")) >= 3, "it is renewed twice")
