"""How one resource is followed through what happens to the API server and to our access to it."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.kube import traffic, watch
from agent.kube.retry import MAX_PAUSE, Backoffs
from tests.cluster.fake.status import expired
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import Body, FaultProxy
from tests.kube.follower import NODE, PLAN, PODS, Follower, Hurried

Follow = Callable[..., Follower]

ALL_PODS = "/api/v1/pods"


# The token


def test_a_token_that_is_refused_is_not_tried_in_a_hot_loop_and_a_new_one_is_taken_at_once(
    fake_cluster: FakeApiServer, proxy: FaultProxy, account: Path, follow: Follow
) -> None:
    pods = follow(backoffs=Backoffs(0.1, 0.4))
    pods.until_open()
    for _ in range(2):
        fake_cluster.new_token()
        proxy.cut()
        pods.until(lambda: pods.requests()[-3:][0].code == 401, "it was refused some times")
        assert pods.until_problem("401").startswith("ApiUnreachable: watch of pods: 401 Unauthorized")
        assert pods.asked_within(0.6) <= 3
        proxy.service_account_dir(account)
        pods.until_open()
    fake_cluster.pods.run("new", node=NODE)
    pods.until(lambda: pods.names == {"new"}, "events come")
    assert pods.lists == 1


def test_the_pauses_between_logins_begin_anew_once_a_token_was_taken(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, account: Path, follow: Follow
) -> None:
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.0)
    pods = follow(backoffs=Backoffs(0.1, 100.0))
    for _ in range(3):
        pods.until_open()
        fake_cluster.new_token()
        proxy.cut()
        pods.until_problem("401")
        time.sleep(0.5)
        proxy.service_account_dir(account)
        start = time.monotonic()
        pods.until_open()
        assert time.monotonic() - start < 1.5


def test_a_token_is_read_for_each_request(
    fake_cluster: FakeApiServer, proxy: FaultProxy, account: Path, pods: Follower
) -> None:
    proxy.rotate_token(account)
    proxy.cut()
    pods.until(lambda: len(pods.requests("watch")) == 2, "the watch is renewed")
    pods.until_open()
    assert {request.code for request in pods.requests()} == {200}


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_file_of_the_service_account_that_is_not_there_yet_is_waited_for(
    proxy: FaultProxy, account: Path, follow: Follow, name: str
) -> None:
    (account / name).unlink()
    pods = follow()
    assert str(account)[:40] in pods.until_problem("No such file or directory")
    assert pods.requests() == []
    proxy.service_account_dir(account)
    pods.until_open()


# TLS


@pytest.mark.parametrize("subject", [PODS, PLAN], ids=["pods", "plan"])
def test_a_new_ca_is_taken_once_its_file_is_there(
    proxy: FaultProxy, account: Path, follow: Follow, subject: Any
) -> None:
    one = follow(subject, backoffs=Backoffs(0.1, 0.4))
    one.until_open()
    proxy.change_ca()
    assert "watch of" in one.until_problem("ApiUnreachable")
    one.until_problem("TLS: unable to get local issuer certificate")
    time.sleep(0.5)
    proxy.service_account_dir(account)
    one.until_open()
    assert one.lists == 1


def test_a_ca_that_does_not_fit_at_the_start_is_not_tried_in_a_hot_loop(
    proxy: FaultProxy, account: Path, follow: Follow
) -> None:
    proxy.change_ca()
    pods = follow(backoffs=Backoffs(0.2, 0.4))
    assert pods.until_problem("TLS") == "ApiUnreachable: list of pods: TLS: unable to get local issuer certificate"
    before = sum(pods.counted.values())
    time.sleep(1.0)
    assert 0 < sum(pods.counted.values()) - before <= 8, "two requests an attempt"
    proxy.service_account_dir(account)
    pods.until_open()


# Answers

BROKEN_LISTS: list[Body] = [
    b'{"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [{"met',
    b"",
    b"<html>a portal</html>",
    b"[]",
    b"null",
    {},
    {"kind": "Pod", "metadata": {"resourceVersion": "1"}, "items": []},
    {"kind": "SecretList", "metadata": {"resourceVersion": "1"}, "items": []},
    {"kind": "PodList", "metadata": {"resourceVersion": "1"}},
    {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": 1}]},
]


def test_a_list_that_makes_no_sense_says_nothing_about_pods(
    fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    fake_cluster.pods.run("llm", node=NODE)
    for body in BROKEN_LISTS:
        proxy.answer(200, body, path=ALL_PODS, watch=False)
    pods = follow(backoffs=Backoffs(0.05, 0.05))
    assert pods.until_problem("pods") == "ApiUnreachable: list of pods: the answer makes no sense"
    assert pods.lists == 0
    pods.until_open()
    assert (pods.names, len(pods.requests("list"))) == ({"llm"}, len(BROKEN_LISTS) + 1)


def test_an_event_about_another_kind_is_taken_for_none(
    fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    """Its name may be that of the plan, whose spec it would be."""
    fake_cluster.plans.named(NODE)
    plan = follow(PLAN)
    plan.until_open()
    proxy.inject({"type": "MODIFIED", "object": {"kind": "Secret", "metadata": {"name": NODE, "uid": "1"}}})
    plan.until_open(lists=2)
    assert plan.told == []


def test_watches_that_end_at_once_are_not_taken_for_well_and_what_was_wrong_first_is_told(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    """A pause follows on each of them, which is longer than a watch has to last."""
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.2)
    proxy.answer(200, b"\x00{\n", path=ALL_PODS, watch=True)
    proxy.answer(200, b"", path=ALL_PODS, watch=True, times=math.inf)
    pods = follow(backoffs=Backoffs(0.6, 0.6))
    pods.until_problem(watch.NONSENSE)
    said = set()
    end = time.monotonic() + 4.0
    while time.monotonic() < end:
        said.add(pods.problem())
        time.sleep(0.02)
    assert len(pods.requests("watch")) > traffic.MAX_BRIEF + 1
    assert said == {f"ApiUnreachable: watch of pods: {watch.NONSENSE}"}
    proxy.heal()
    pods.until_open()


def test_a_watch_whose_every_line_breaks_off_is_not_well_until_the_next_line(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    """Where nothing happens, the next one is a bookmark."""
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.1)
    proxy.truncate(path=ALL_PODS, watch=True, times=math.inf)
    pods = follow()
    pods.until_problem(watch.NONSENSE)
    said = set()
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        said.add(pods.problem())
        time.sleep(0.02)
    assert said == {f"ApiUnreachable: watch of pods: {watch.NONSENSE}"}
    proxy.heal()
    pods.until_open()


def test_a_watch_lasts_until_it_ends_and_not_until_the_next_request(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    """Which follows after a pause that is longer than a watch has to last: else none was ever too brief."""
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", traffic.REST_SECONDS / 2)
    proxy.answer(200, {"type": "ERROR", "object": expired(1, 2)}, path=ALL_PODS, watch=True, times=math.inf)
    pods = follow()
    pods.until_problem("it breaks off time and again")
    proxy.heal()
    pods.until_open()


def test_a_list_between_two_watches_that_are_refused_heals_nothing(proxy: FaultProxy, follow: Follow) -> None:
    proxy.delay(0.1)
    proxy.answer(404, path=ALL_PODS, watch=True, times=math.inf)
    pods = follow()
    pods.until_problem("404")
    lists, said = pods.lists, set()
    while pods.lists < lists + 2:
        said.add(pods.problem()[:50])
        time.sleep(0.02)
    assert said == {"ApiRefused: watch of pods: 404 Not Found: answered"}
    proxy.heal()
    pods.until_open()


def test_a_list_that_breaks_off_is_not_asked_for_in_a_hot_loop(proxy: FaultProxy, follow: Follow) -> None:
    proxy.truncate(path=ALL_PODS, times=math.inf)
    pods = follow(backoffs=Backoffs(0.1, 0.4))
    pods.until(lambda: len(pods.requests("list")) > 3, "the pauses have grown")
    assert pods.asked_within(0.7) <= 4
    proxy.heal()
    pods.until_open()


def test_what_is_forbidden_for_a_while_is_said_with_the_servers_words(
    fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    fake_cluster.set_rules([])
    pods = follow()
    said = pods.until_problem("403")
    assert said.startswith('ApiRefused: list of pods: 403 Forbidden: pods is forbidden: User "system:serviceaccount:')
    assert 'cannot list resource "pods"' in said
    fake_cluster.set_rules()
    pods.until_open()


def test_a_storm_of_errors_is_outlived(proxy: FaultProxy, pods: Follower) -> None:
    for code in (500, 502, 503, 504):
        proxy.answer(code, b"upstream connect error", times=2)
    proxy.cut()
    assert pods.until_problem("503") == "ApiUnreachable: watch of pods: 503 Service Unavailable"
    pods.until_open()
    assert pods.lists == 1


def test_the_token_goes_to_nobody_else(proxy: FaultProxy, follow: Follow) -> None:
    with socket.create_server((proxy.host, 0)) as other:
        address = f"https://{proxy.host}:{other.getsockname()[1]}/"
        proxy.answer(307, b"", headers={"Location": address}, path=ALL_PODS, times=3)
        pods = follow()
        assert pods.until_problem("307").startswith("ApiRefused: list of pods: 307 ")
        pods.until_open()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_what_a_429_asks_for_is_waited_for(proxy: FaultProxy, follow: Follow) -> None:
    proxy.answer(429, path=ALL_PODS, headers={"Retry-After": "1"})
    pods = follow(backoffs=Backoffs(0.01, 0.02))
    pods.until_open()
    refused, granted = pods.requests("list")
    assert refused.code == 429
    assert granted.time - refused.time >= 1.0


def test_what_no_server_would_ask_for_is_not(proxy: FaultProxy, follow: Follow) -> None:
    body = {"kind": "Status", "status": "Failure", "code": 429, "details": {"retryAfterSeconds": 86400}}
    for wait in (str(int(MAX_PAUSE) + 1), "86400", "-5", "Wed, 21 Oct 2026 07:28:00 GMT", ""):
        proxy.answer(429, body, path=ALL_PODS, headers={"Retry-After": wait} if wait else {})
    pods = follow()
    pods.until_open()


def test_a_slow_server_is_a_server(proxy: FaultProxy, follow: Follow) -> None:
    proxy.delay(0.3)
    pods = follow()
    pods.until(lambda: pods.lists == 1, "it lists")
    pods.until_open()
    assert ("list", "error") not in pods.counted


@pytest.mark.parametrize(("at", "subject"), [("request", PLAN), ("handshake", PODS)], ids=["request", "handshake"])
def test_a_server_that_hangs_from_the_start_is_told_of_and_found_again(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow, at: Any, subject: Any
) -> None:
    monkeypatch.setattr(traffic, "ANSWER_SECONDS", 0.3)
    proxy.hang(at)
    one = follow(subject)
    one.until_problem("no answer in time")
    proxy.heal()
    one.until_open()


def test_whatever_an_error_is_it_reads_the_same_each_time(proxy: FaultProxy, follow: Follow) -> None:
    """The log tells what is new: a text with an address in memory would be new at every attempt."""
    proxy.refuse()
    pods = follow(backoffs=Backoffs(0.01, 0.02))
    said = set()
    for _ in range(5):
        before = sum(pods.counted.values())
        pods.until(lambda before=before: sum(pods.counted.values()) > before, "it tries again")  # type: ignore[misc]
        said.add(pods.until_problem("refused"))
    assert said == {"ApiUnreachable: list of pods: Connection refused"}


def test_a_watch_that_is_left_is_closed_whether_or_not_the_api_server_says_good_bye(
    proxy: FaultProxy, pods: Follower
) -> None:
    pods.until_open()
    before = _sockets_to(proxy)
    assert before
    proxy._background.loop.call_soon_threadsafe(time.sleep, 1.0)
    pods.watch.stop()
    assert not _sockets_to(proxy)


def _sockets_to(proxy: FaultProxy) -> list[int]:
    """Ports of this process that are connected to it, this side of each."""
    found = psutil.Process().net_connections("tcp4")
    there = [one for one in found if one.status not in ("LISTEN", "TIME_WAIT")]
    return [one.laddr.port for one in there if one.raddr.port == proxy.port]


# The resource

MISSING = "PlanResourceMissing: no resource cpubindingplans of cpubind.dev/v1alpha1: is the CRD installed?"


def test_a_crd_that_comes_later_is_found(fake_cluster: FakeApiServer, follow: Follow) -> None:
    fake_cluster.remove_crd()
    plan = follow(PLAN)
    plan.until(lambda: len(plan.requests()) > 2, "it looks again")
    assert plan.problem() == MISSING
    assert {request.path for request in plan.requests()} == {"/apis/cpubind.dev/v1alpha1/cpubindingplans"}
    fake_cluster.install_crd()
    plan.until_open()
    fake_cluster.plans.named(NODE)
    plan.until(lambda: plan.names == {NODE}, "the plan is told")


def test_a_crd_that_goes_and_comes_is_followed(fake_cluster: FakeApiServer, follow: Follow) -> None:
    fake_cluster.plans.named(NODE)
    plan = follow(PLAN)
    plan.until_open()
    fake_cluster.remove_crd()
    plan.until(lambda: plan.problem() == MISSING, "it is missed")
    assert plan.told == [("DELETED", NODE)]
    fake_cluster.install_crd()
    plan.until_open(lists=2)
    assert plan.names == set()


# Hours of it (5,000 nodes that ask every three seconds are 1,666 requests a second; these are to be some dozens)

QUARTER = 900.0
"""Of an hour, in seconds: the pauses have long grown to what they are from then on."""
TROUBLE = ["no CRD", "403", "401", "410", "connection refused"]


@pytest.mark.parametrize("trouble", TROUBLE)
def test_hours_of_trouble_cost_the_api_server_few_requests(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow, trouble: str
) -> None:
    monkeypatch.setattr(watch, "CLOSING_SECONDS", 0.01)
    pauses = Hurried(1.0, 60.0, speed=5000.0)
    plan = follow(PLAN, start=False, backoffs=pauses)
    match trouble:
        case "no CRD":
            fake_cluster.remove_crd()
        case "403":
            fake_cluster.set_rules([])
        case "connection refused":
            proxy.refuse()
        case code:
            proxy.answer(int(code), path="/cpubindingplans", times=math.inf)
    plan.watch.start()
    plan.until(lambda: pauses.total > QUARTER, "the time has passed", 30)
    asked = sum(plan.counted.values()) * QUARTER / pauses.total
    assert 15 <= asked <= 40, plan.counted
