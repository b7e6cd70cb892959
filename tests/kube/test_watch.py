"""How one resource is followed: LIST, WATCH, and what a server may say in a stream."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from operator import le
from pathlib import Path

import aiohttp
import pytest

from agent.kube import bounds, traffic, watch
from agent.kube.access import Access
from agent.kube.retry import Backoffs
from agent.kube.traffic import Traffic
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import GONE, Body, FaultProxy
from tests.cluster.manners import Manner
from tests.kube.follower import NODE, PLAN, Follower

Follow = Callable[..., Follower]


def test_what_is_there_comes_at_once_and_what_happens_later_one_by_one(
    fake_cluster: FakeApiServer, follow: Follow
) -> None:
    fake_cluster.pods.run("old", node=NODE)
    fake_cluster.pods.run("foreign", node="another")
    pods = follow()
    pods.until_open()
    assert (pods.names, pods.told) == ({"old"}, [])
    fake_cluster.pods.run("new", node=NODE)
    fake_cluster.pods.annotate("new", {"a": "b"})
    fake_cluster.pods.delete("old", grace=0)
    # kopf keeps the order of what happens to one object, not to several.
    last = {("MODIFIED", "new"), ("DELETED", "old")}
    pods.until(lambda: last <= set(pods.told), "all of it is told")
    assert pods.names == {"new"}
    assert [kind for kind, name in pods.told if name == "new"] == ["ADDED", "MODIFIED"]
    assert [kind for kind, name in pods.told if name == "old"][-1] == "DELETED"
    assert pods.lists == 1


def test_a_watch_is_as_old_as_what_it_heard_last(fake_cluster: FakeApiServer, follow: Follow) -> None:
    pods = follow()
    pods.until_open()
    heard_at = pods.watch._traffic.heard_at
    assert heard_at is not None
    pods.watch._traffic.heard_at = heard_at - 1000
    age = pods.watch.age()
    assert age is not None
    assert age >= 1000
    fake_cluster.pods.run("new", node=NODE)
    pods.until(lambda: pods.names == {"new"}, "it is told")
    age = pods.watch.age()
    assert age is not None
    assert age < 1000


def test_a_watch_that_heard_nothing_yet_is_as_old_as_it_has_asked() -> None:
    access = Access("http://127.0.0.1:1", Path("/nowhere"))
    subject = traffic.Subject("", "v1", "pods", "Pod", "spec.nodeName=a")
    never = watch.Watch(subject, access, listed=lambda _: None, event=lambda _kind, _object: None)
    assert never.age() is None
    never.start()
    try:
        begun_at = never._begun_at
        assert begun_at is not None
        never._begun_at = begun_at - 1000
        age = never.age()
        assert age is not None
        assert age >= 1000
    finally:
        never.stop()


def test_nothing_but_a_list_and_a_watch_of_our_node_is_asked_for(fake_cluster: FakeApiServer, pods: Follower) -> None:
    fake_cluster.pods.run("llm", node=NODE)
    fake_cluster.pods.delete("llm")
    pods.until(lambda: ("MODIFIED", "llm") in pods.told, "the pod is seen to end")
    fake_cluster.pods.delete("llm", grace=0)
    pods.until(lambda: not pods.names, "it is gone")
    asked = [(one.verb, one.query.get("fieldSelector")) for one in pods.requests()]
    assert asked == [("list", f"spec.nodeName={NODE}"), ("watch", f"spec.nodeName={NODE}")]


def test_watches_that_begin_together_are_not_renewed_together(proxy: FaultProxy, follow: Follow) -> None:
    pods = follow()
    pods.until_open()
    (asked,) = pods.requests("watch")
    lengths = {pods.watch._settings().watching.server_timeout for _ in range(50)} | {int(asked.query["timeoutSeconds"])}
    assert len(lengths) > 1
    assert all(watch.SERVER_SECONDS <= (length or 0) <= 1.25 * watch.SERVER_SECONDS for length in lengths)


def test_a_list_comes_from_the_watch_cache_and_is_never_older_than_what_is_known(
    fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    (first,) = pods.requests("list")
    assert first.query["resourceVersion"] == "0"
    newest = fake_cluster.pods.run("new", node=NODE)["metadata"]["resourceVersion"]
    pods.until(lambda: pods.names == {"new"}, "it is told")
    proxy.inject(GONE)
    pods.until_open(lists=2)
    assert pods.requests("list")[-1].query["resourceVersion"] == newest


def test_a_server_that_was_restored_to_older_versions_is_followed(
    fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    pods.watch._traffic.newest = 10**9
    proxy.inject(GONE)
    pods.until_open(lists=2)
    assert listed(pods) == [("0", ON_NODE, 200), (str(10**9), ON_NODE, 504), (None, BY_NAME, 200), ("0", ON_NODE, 200)]
    fake_cluster.pods.run("new", node=NODE)
    pods.until(lambda: pods.names == {"new"}, "it is told")


ON_NODE = ("/api/v1/pods", f"spec.nodeName={NODE}")
BY_NAME = ("/api/v1/namespaces/default/pods", "metadata.name=cpubind")
"""One key of etcd's, which is in no node's way however many pods the cluster has."""


def listed(pods: Follower) -> list[tuple[str | None, tuple[str, str], int]]:
    """Version, what, and the answer of each LIST."""
    return [
        (one.query.get("resourceVersion"), (one.path, one.query["fieldSelector"]), one.code)
        for one in pods.requests("list")
    ]


@pytest.mark.parametrize(
    ("store", "nonsense"),
    [(200, None), (500, None), (504, None), (302, b""), *((200, text) for text in (b"", b"[]", b'{"metadata": null}'))],
)
def test_a_server_that_is_behind_is_asked_for_nothing_of_the_past(
    fake_cluster: FakeApiServer,
    proxy: FaultProxy,
    pods: Follower,
    monkeypatch: pytest.MonkeyPatch,
    store: int,
    nonsense: bytes | None,
) -> None:
    """One whose etcd is cut off, say: its cache has the spec of before, by which somebody would be released."""
    newest = fake_cluster.pods.run("new", node=NODE)["metadata"]["resourceVersion"]
    pods.until(lambda: pods.names == {"new"}, "it is told")
    closes: list[bool] = []
    look = Traffic._look_at

    async def spy(traffic: Traffic, response: aiohttp.ClientResponse, verb: str, what: str) -> None:
        closes.extend([response.request_info.headers.get("Connection") == "close"] if verb == "list" else [])
        await look(traffic, response, verb, what)

    monkeypatch.setattr(Traffic, "_look_at", spy)
    proxy.answer(504, path="/pods$", watch=False)
    if store != 200 or nonsense is not None:
        proxy.answer(store, nonsense, path="/pods$", watch=False)
    proxy.inject(GONE)
    pods.until_open(lists=2)
    assert listed(pods) == [("0", ON_NODE, 200), (newest, ON_NODE, 504), (None, BY_NAME, store), (newest, ON_NODE, 200)]
    assert closes == [False, True], "the next LIST but one goes to another API server, where there are several"


def test_after_a_cut_it_goes_on_from_where_it_was(
    fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    fake_cluster.pods.run("old", node=NODE)
    pods.until(lambda: pods.names == {"old"}, "it is told")
    proxy.refuse()
    fake_cluster.pods.delete("old", grace=0)
    fake_cluster.pods.run("new", node=NODE)
    assert pods.until_problem("ApiUnreachable") == "ApiUnreachable: watch of pods: Connection refused"
    proxy.heal()
    pods.until(lambda: pods.names == {"new"}, "what happened meanwhile is told")
    pods.until_open()
    assert pods.lists == 1


def test_after_a_410_in_the_stream_what_went_meanwhile_is_known_to_be_gone(
    fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    fake_cluster.pods.run("old", node=NODE)
    pods.until(lambda: pods.names == {"old"}, "it is told")
    proxy.refuse()
    fake_cluster.pods.delete("old", grace=0)
    fake_cluster.compact()
    proxy.heal()
    pods.until_open(lists=2)
    assert pods.names == set()
    assert ("DELETED", "old") not in pods.told


def test_after_a_watch_that_is_refused_as_a_whole_it_lists_again(proxy: FaultProxy, pods: Follower) -> None:
    for lists, code in enumerate([400, 404, 405, 410, 422], 2):
        proxy.answer(code, watch=True)
        proxy.cut()
        pods.until_open(lists)


STRANGE_LINES: list[Body] = [
    {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}},
    {"type": "ERROR", "object": {}},
    b"\x00garbage{",
    b"[1, 2]",
    {"object": {"metadata": {"name": "x", "uid": "x"}}},
    {"type": "ADDED", "object": {"metadata": None}},
]


def test_whatever_a_stream_holds_it_is_followed_again(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.2)
    for lists, line in enumerate(STRANGE_LINES, 2):
        assert proxy.inject(line) == 1
        pods.until_open(lists)
        name = f"pod-{lists}"
        fake_cluster.pods.run(name, node=NODE)
        pods.until(lambda name=name: name in pods.names, "events come")  # type: ignore[misc]


def test_an_event_of_an_unknown_type_is_passed_over(
    fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    proxy.inject({"type": "RENAMED", "object": {"metadata": {"name": "x", "uid": "x", "resourceVersion": "999999"}}})
    fake_cluster.pods.run("after", node=NODE)
    pods.until(lambda: "after" in pods.names, "events come")
    assert (pods.lists, [name for _, name in pods.told]) == (1, ["after"])


def test_an_event_that_is_not_understood_is_made_up_for_by_a_list(
    fake_cluster: FakeApiServer, pods: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    pods.fails = True
    fake_cluster.pods.run("odd", node=NODE)
    pods.until(lambda: pods.names == {"odd"}, "it is in the LIST")
    said = [record.message for record in caplog.records if record.name.startswith("agent")]
    assert said == ["an event of pods was not understood"]


def test_what_the_list_holds_already_is_not_told_again(
    fake_cluster: FakeApiServer, proxy: FaultProxy, pods: Follower
) -> None:
    pod = fake_cluster.pods.run("llm", node=NODE)
    pods.until(lambda: pods.names == {"llm"}, "it is told")
    fake_cluster.pods.run("other", node=NODE)
    pods.until(lambda: len(pods.names) == 2, "it is told")
    proxy.inject(GONE)
    pods.until_open(lists=2)
    before = list(pods.told)
    proxy.inject({"type": "MODIFIED", "object": pod})
    fake_cluster.pods.delete("other", grace=0)
    pods.until(lambda: pods.names == {"llm"}, "later events are told")
    assert "llm" not in {name for _, name in pods.told[len(before) :]}


def test_a_watch_that_ends_at_once_each_time_is_not_opened_in_a_hot_loop(
    fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    proxy.answer(200, b"", watch=True, times=math.inf)
    pods = follow(backoffs=Backoffs(0.1, 0.4))
    pods.until(lambda: len(pods.requests("watch")) > 3, "the pauses have grown")
    assert pods.asked_within(0.7) <= 4
    fake_cluster.pods.run("new", node=NODE)
    proxy.heal()
    pods.until(lambda: pods.names == {"new"}, "it is told")
    assert pods.lists == 1


def test_a_410_each_time_is_not_answered_by_lists_in_a_hot_loop(proxy: FaultProxy, follow: Follow) -> None:
    proxy.answer(200, json.dumps(GONE) + "\n", watch=True, times=math.inf)
    pods = follow(backoffs=Backoffs(0.4, 1.6))
    pods.until(lambda: pods.lists >= 3, "the pauses have grown")
    assert pods.asked_within(0.7) <= 2 * 2
    proxy.heal()
    pods.until_open(lists=4)


def test_the_pauses_after_brief_watches_begin_anew_once_one_has_lasted(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.3)
    pods = follow(backoffs=Backoffs(0.1, 100.0))
    pods.until_open()
    for _ in range(4):
        proxy.cut()
        pods.until_open()
    time.sleep(0.4)
    proxy.cut()
    start = time.monotonic()
    pods.until_open()
    assert time.monotonic() - start < 1.0, "the next pause would be 1.1 to 1.6 seconds"


def test_a_stream_that_falls_silent_is_given_up(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(bounds, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(traffic, "ANSWER_SECONDS", 0.3)
    pods = follow()
    pods.until_open()
    pods.until(lambda: (content := pods.watch._traffic._content) and content.lines, "a bookmark")
    proxy.hang()
    assert pods.until_problem("no answer") == "ApiUnreachable: watch of pods: no answer in time"
    fake_cluster.pods.run("new", node=NODE)
    proxy.heal()
    pods.until(lambda: pods.names == {"new"}, "what happened meanwhile is told")
    assert (pods.problem(), pods.lists) == ("", 1)


def test_bookmarks_keep_a_quiet_watch_open(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, follow: Follow
) -> None:
    monkeypatch.setattr(bounds, "SILENT_SECONDS", 1.5)
    fake_cluster.bookmark_interval = 0.2
    pods = follow()
    pods.until_open()
    assert pods.asked_within(3.5) == 0


def test_a_watch_in_which_never_a_bookmark_came_is_quiet_and_not_dead(
    monkeypatch: pytest.MonkeyPatch, follow: Follow
) -> None:
    """The API server sends none of a resource of which nothing has changed since it came up."""
    monkeypatch.setattr(bounds, "SILENT_SECONDS", 0.3)
    plan = follow(PLAN)
    plan.until_open()
    assert plan.asked_within(2.0) == 0
    assert plan.problem() == ""


def test_a_watch_that_the_api_server_does_not_end_in_its_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(watch, "SERVER_SECONDS", 1)
    monkeypatch.setattr(traffic, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(traffic, "ANSWER_SECONDS", 0.3)
    plan = follow(PLAN)
    plan.until_open()
    began = time.monotonic()
    proxy.hang()
    plan.until_problem("no answer")
    assert time.monotonic() - began > 0.7
    proxy.heal()
    plan.until_open()
    assert plan.lists == 1


def test_watches_that_are_dead_time_and_again_are_a_trouble(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(watch, "SERVER_SECONDS", 1)
    monkeypatch.setattr(traffic, "LATE_SECONDS", 0.2)
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.1)
    proxy.mishandle(Manner.SILENCE_MIDWAY, watch=True, times=math.inf)
    plan = follow(PLAN)
    plan.until_problem("it breaks off time and again")
    proxy.heal()
    plan.until_open()


def test_streams_that_have_ended_by_themselves_are_left_in_order(pods: Follower) -> None:
    """Python 3.11.2, which is Debian 12's, cannot abort a TLS stream that was closed twice."""

    class Ended:
        def abort(self) -> None:
            raise AttributeError("'NoneType' object has no attribute '_abort'")

    ended = Ended()
    pods.watch._traffic._streams.add(ended)  # type: ignore[arg-type]
    pods.watch.stop(10)
    assert not pods.alive
    session = pods.watch._traffic._session
    assert session is not None
    assert session.closed


def test_the_kernel_asks_after_an_api_server_that_says_nothing(pods: Follower) -> None:
    (transport,) = pods.until(lambda: list(pods.watch._traffic._streams), "the watch's connection")
    connection = transport.get_extra_info("socket")
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert tuple(connection.getsockopt(socket.IPPROTO_TCP, option) for option in options) == traffic.KEEPALIVE


def test_the_ca_is_read_anew_now_and_then_without_another_list(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, follow: Follow
) -> None:
    monkeypatch.setattr(watch, "SESSION_SECONDS", 0.3)
    pods = follow()
    for sessions in range(1, 4):
        pods.until_open()
        time.sleep(0.35)
        before = pods.watch._traffic._session
        proxy.cut()
        pods.until(lambda before=before: pods.watch._traffic._session is not before, "another session")  # type: ignore[misc]
        assert before is not None
        assert before.closed, sessions
    pods.until_open()
    assert pods.lists == 1


def test_twenty_restarts_leave_no_thread_and_no_descriptor_behind(proxy: FaultProxy, follow: Follow) -> None:
    pods = follow(backoffs=Backoffs(0.01, 0.02))
    pods.until_open()
    before = usage()
    restarts: list[Body] = [b"garbage", {"type": "ERROR", "object": {"code": 500}}]
    for k in range(20):
        proxy.inject(restarts[k % 2])
        pods.until(lambda k=k: pods.lists >= k + 2 and proxy.streams() == 1, "it follows")  # type: ignore[misc]
    pods.until(lambda: all(map(le, usage(), before)), f"{usage()} are no more than {before}")


def usage() -> tuple[int, int]:
    """Threads and open files of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("state", ["new", "open", "refused", "hanging", "deaf", "401", "403", "no CRD"])
def test_it_stops_within_a_second_whatever_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, follow: Follow, state: str
) -> None:
    if state == "no CRD":
        fake_cluster.remove_crd()
    monkeypatch.setattr(traffic, "BRIEF_SECONDS", 0.0)
    one = follow(PLAN, start=state != "new", backoffs=Backoffs(30.0, 60.0))
    if state not in ("new", "no CRD"):
        one.until_open()
    match state:
        case "refused":
            proxy.refuse()
            one.until_problem("refused")
        case "hanging":
            before = len(one.requests("watch"))
            proxy.hang()
            proxy.cut()
            one.until(lambda: len(one.requests("watch")) > before, "it asks")
        case "deaf":
            proxy.hang("handshake")
            time.sleep(0.1)
        case "401" | "403":
            proxy.answer(int(state), times=math.inf)
            proxy.cut()
            one.until_problem(state)
        case "no CRD":
            one.until_problem("PlanResourceMissing")
        case _:
            pass
    start = time.monotonic()
    one.watch.stop()
    assert not one.alive
    assert time.monotonic() - start < 1.0
