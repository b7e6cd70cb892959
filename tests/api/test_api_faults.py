"""Whatever the API server does, and does not do: what is bound is kept, and all is well again without a restart."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from operator import le
from pathlib import Path

import pytest

from agent.kube import telling
from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from tests.api.outage import Outage, hurry, usage
from tests.api.scene import is_bound, is_free, is_untouched, wait_until_unknown
from tests.cluster.cluster import Cluster
from tests.cluster.fault_proxy import GONE, FaultProxy
from tests.cluster.real_apiserver import RealApiServer

BOTH = "/(pods|cpubindingplans)$"


@pytest.fixture
def outage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """An A2 node that is registered, without an agent as yet, and everybody in a hurry."""
    hurry(monkeypatch)
    with FaultProxy(cluster) as proxy, Outage(cluster, tmp_path, proxy) as made:
        made.register()
        yield made


def _gone(outage: Outage) -> None:
    assert outage.proxy.inject(GONE) == 2


def _new_token(outage: Outage) -> None:
    outage.cluster.new_token()
    # The real server takes the old one for some seconds more: it remembers whom it has seen.
    outage.proxy.answer(401, times=math.inf)
    outage.proxy.cut()


LASTING: dict[str, tuple[Callable[[Outage], object], str]] = {
    "refuses connections": (lambda outage: outage.proxy.refuse(), "Connection refused"),
    "takes requests and says no word": (lambda outage: outage.proxy.hang(), "no answer in time"),
    "takes no token": (_new_token, "401 Unauthorized"),
    "is another one": (lambda outage: outage.proxy.change_ca(), "TLS: unable to get local issuer certificate"),
}
"""After which a server has to take up again what it did before. What else it may answer is in tests/faults."""

KEPT = f"; what is bound stays and is kept; {REMEDIES[Reason.API_UNREACHABLE]}"
"""How a line of the log about an outage ends."""


def test_what_is_bound_is_kept_through_outages_and_nothing_is_left_behind(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "LASTING_SECONDS", 3600.0)  # a busy machine takes its time; the agent's clock does not
    (worker,) = outage.start_with(0)
    version, lines, used = outage.version, len(outage.lines()), usage()
    for name, (begin, said) in LASTING.items():
        print(name)
        line = outage.hear(said, lambda begin=begin: begin(outage))  # type: ignore[misc]
        assert line.endswith(KEPT)
        outage.keeps(worker)
        outage.hear("again", lambda: _end(outage), logging.INFO)
        outage.until_quiet()
        told = outage.lines()[lines:]
        lines += len(told)
        assert len(told) <= 4, (name, told)
        assert outage.version == version, name
    assert (outage.bound(), outage.condition("Degraded")["status"]) == ({worker.pid}, "False")
    outage.until(lambda: all(map(le, usage(), used)), f"no thread and no file is left behind: {usage()}, {used}")
    assert outage.events("CpuBindingRepaired")


def _end(outage: Outage) -> None:
    outage.proxy.heal()
    outage.mount_service_account()
    outage.proxy.cut()


def _lists_that_break_off(outage: Outage) -> None:
    outage.proxy.truncate(path=BOTH, watch=False, times=2)
    _gone(outage)


MOMENTS: dict[str, Callable[[Outage], object]] = {
    "a cut": lambda outage: outage.proxy.cut(),
    "a 410 in the stream": _gone,
    "lists that break off": _lists_that_break_off,
}


def test_a_moments_fault_costs_nothing_but_a_look(outage: Outage) -> None:
    (worker,) = outage.start_with(0)
    version, writes = outage.version, outage.writes()
    for name, happen in MOMENTS.items():
        print(name)
        asked = len(outage.proxy.seen)
        happen(outage)
        outage.until(lambda asked=asked: len(outage.proxy.seen) > asked, "it is seen")  # type: ignore[misc]
        outage.until_quiet()
        assert outage.version == version, name
    assert outage.writes() == writes
    assert is_bound(worker, outage)
    outage.keeps(worker)


def test_nothing_is_listed_of_before_an_edit_that_the_answer_to_a_write_has_brought(outage: Outage) -> None:
    """By the spec of before, which an API server that is behind still has, the agent would act for a moment."""
    outage.start_with(0)
    outage.proxy.answer(500, path="/cpubindingplans$", watch=False, times=math.inf)
    outage.proxy.answer(410, path="/cpubindingplans$", watch=True)
    outage.proxy.cut()
    outage.until(lambda: outage.agent and "list" in str(outage.agent.watches[1].problem()), "it lists in vain")
    outage.edit({"mode": "DryRun"})
    outage.run_pod("llm-1", [1])
    outage.until(lambda: outage.status["mode"] == "DryRun", "the edit is followed")
    version = int(outage.version)
    refused = len(outage.proxy.seen)
    outage.proxy.heal()
    outage.until_quiet()
    lists = [one for one in outage.proxy.seen[refused:] if one.verb == "list" and "cpubindingplans" in one.path]
    assert int(lists[-1].query["resourceVersion"]) >= version


@pytest.mark.parametrize("forgets", [False, True], ids=["goes on", "has forgotten what happened"])
def test_what_happened_to_pods_during_an_outage_is_followed_after_it(outage: Outage, forgets: bool) -> None:
    kept, out, gone = outage.start_with(0, 1, 2)
    outage.proxy.refuse()
    before = outage.writes()
    outage.annotate("llm-1", {"cpubind.dev/enabled": None})
    outage.cluster.pods.delete("llm-2", "prod", grace=0)
    _, (new,) = outage.run_pod("llm-3", [3])
    time.sleep(0.5)
    assert outage.writes() == before
    if forgets:
        outage.cluster.compact()
    outage.proxy.heal()
    outage.until(lambda: is_free(out), "who opted out meanwhile has its CPUs back", 30)
    outage.until_bound([kept, new])
    wait_until_unknown(outage, "llm-2")
    assert is_bound(gone, outage), "its process runs on, and stays bound"
    assert is_bound(kept, outage)
    lists = [one for one in outage.proxy.seen if one.verb == "list" and one.path == "/api/v1/pods"]
    assert len(lists) == (2 if forgets else 1)


def test_new_workers_of_known_pods_are_bound_while_the_api_server_is_away(outage: Outage) -> None:
    outage.start_with(0)
    pod, _ = outage.run_pod("llm-1")
    outage.until(lambda: outage.agent and outage.agent.pods.uid("prod", "llm-1"), "the pod is known")
    outage.proxy.refuse()
    worker = outage.start_worker(1, pod)
    outage.until(lambda: not is_untouched(worker), "it is bound")
    assert worker.pid not in outage.bound()
    outage.proxy.heal()
    outage.until_bound([worker])
    outage.until(lambda: len(outage.events("CpuBound")) == 2, "it is told")


def test_an_agent_that_starts_without_an_api_server_keeps_what_was_bound_and_binds_nobody_else(
    outage: Outage,
) -> None:
    (worker,) = outage.start_with(0)
    version = outage.version
    outage.kill()
    _, (new,) = outage.run_pod("llm-1", [1])
    outage.proxy.refuse()
    outage.hear("Connection refused", outage.start)
    outage.keeps(worker)
    assert is_untouched(new)
    assert outage.version == version
    outage.proxy.heal()
    outage.until_bound([worker, new])
    outage.until(lambda: len(outage.events("CpuBound")) == 2, "the new one is told")


def test_an_agent_whose_first_start_is_without_an_api_server_waits(outage: Outage) -> None:
    _, (worker,) = outage.run_pod("llm-0", [0])
    outage.proxy.hang()
    outage.hear("no answer in time", outage.start)
    time.sleep(0.5)
    assert outage.writes() == 0
    outage.proxy.heal()
    outage.proxy.cut()
    outage.until_bound([worker])


@pytest.mark.parametrize("cluster", ["real"], indirect=True)
@pytest.mark.api
def test_a_token_that_is_written_late_is_not_asked_for_in_a_hot_loop(outage: Outage) -> None:
    """tests/kube has the same of the small server."""
    (worker,) = outage.start_with(0)
    version = outage.version
    outage.cluster.new_token()
    outage.hear("401", lambda: _cut_until_401(outage))
    before = len(outage.proxy.seen)
    time.sleep(2.0)
    rate = (len(outage.proxy.seen) - before) / 2.0
    print(f"{rate} requests a second, by two watches that pause for 0.33 to 0.5 s")
    assert rate <= 8
    outage.keeps(worker)
    outage.hear("answers again", outage.mount_service_account, logging.INFO)
    outage.until_quiet()
    assert outage.version == version


def _cut_until_401(outage: Outage) -> None:
    """The real server takes a token that it has seen for some seconds more."""

    def refused() -> bool:
        outage.proxy.cut()
        time.sleep(0.2)
        return 401 in {one.code for one in outage.proxy.seen[-4:]}

    outage.until(refused, "the old token is refused", 30)


def _stop_and_start(outage: Outage, seconds: float) -> None:
    (worker,) = outage.start_with(0)
    version, lines = outage.version, len(outage.lines())
    outage.cluster.stop()
    begun = time.monotonic()
    outage.until(lambda: any("the API server" in line for line in outage.lines()[lines:]), "it is told")
    outage.keeps(worker)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    assert len(outage.lines()) <= lines + telling.MAX_TOLD
    outage.cluster.start()
    outage.until_quiet()
    assert outage.version == version
    assert outage.bound() == {worker.pid}
    _, (new,) = outage.run_pod("llm-1", [1])
    outage.until_bound([worker, new])


def test_an_api_server_that_is_stopped_and_started_is_found_again(outage: Outage) -> None:
    _stop_and_start(outage, 1.0)


@pytest.mark.api
def test_half_a_minute_without_the_real_api_server_changes_nothing(real_cluster: RealApiServer, tmp_path: Path) -> None:
    """Without a proxy between, and with all its patience."""
    with FaultProxy(real_cluster) as proxy, Outage(real_cluster, tmp_path, proxy) as outage:
        outage.register()
        _stop_and_start(outage, 30.0)
        print(*outage.lines(), sep="\n")
