"""After an upgrade, or an outage of the API server, the agents of a fleet ask one after the other; no worker waits."""

from __future__ import annotations

import time

import pytest

from tests.api.rig import KubeRig
from tests.api.scene import is_repaired, meddle, requests

LONG = 60
"""Seconds; nobody here waits for so long."""


@pytest.fixture(autouse=True)
def _longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all the times that may be drawn each gets the longest."""
    monkeypatch.setattr("random.uniform", lambda _low, high: high)


def test_a_worker_that_is_there_when_the_agent_is_installed_is_bound_at_once(a2: KubeRig) -> None:
    _, workers = a2.run_pod("llm-0", [0])
    a2.start(api_jitter=LONG)
    a2.until_bound(workers)


def test_a_worker_that_came_while_the_agent_was_away_is_bound_at_once(a2: KubeRig) -> None:
    a2.start()
    _, workers = a2.run_pod("llm-0", [0])
    a2.until_bound(workers)
    a2.stop()
    _, others = a2.run_pod("llm-1", [1])
    a2.start(api_jitter=LONG)
    a2.until_bound([*workers, *others])


def test_after_an_upgrade_workers_are_kept_bound_before_the_api_server_is_asked(a2: KubeRig) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    a2.settle()
    a2.kill()
    version, begun = a2.version, time.time()
    agent = a2.start(api_jitter=LONG)
    meddle(worker)
    a2.until(lambda: is_repaired(worker), "it is put back")
    a2.until(agent.agent.plan_object, "there is a plan, for probes and metrics")
    time.sleep(1.0)
    assert requests(a2, begun) == []
    assert not agent.plan.open, "it is not reported: without the pods it says less than it will"
    _, (other,) = a2.run_pod("llm-1", [1])
    a2.until_bound([other])
    assert a2.version != version
