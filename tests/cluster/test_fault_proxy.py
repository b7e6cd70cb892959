"""What the fault proxy does to those who talk through it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from tests.cluster.client import ApiClient, ApiError, eventually
from tests.cluster.cluster import FIELD_MANAGER, Cluster
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import GONE, FaultProxy
from tests.cluster.objects import PLANS

PODS = "/api/v1/pods"
UNREACHABLE = urllib3.exceptions.HTTPError


@pytest.fixture
def proxy(fake_cluster: FakeApiServer) -> Iterator[FaultProxy]:
    with FaultProxy(fake_cluster) as proxy:
        yield proxy


def client_of(proxy: FaultProxy, token: str, timeout: float = 10.0) -> ApiClient:
    return ApiClient(proxy.host, proxy.port, proxy.ca, token, timeout)


@pytest.fixture
def agent(proxy: FaultProxy, fake_cluster: FakeApiServer) -> Iterator[ApiClient]:
    """Talks to the small API server through the proxy, as the service account; patient for a second."""
    client = client_of(proxy, fake_cluster.token, timeout=1.0)
    yield client
    client.close()


def test_requests_and_watches_pass_as_they_are(cluster: Cluster, tmp_path: Path) -> None:
    with FaultProxy(cluster) as proxy:
        folder = proxy.service_account_dir(tmp_path / "account")
        agent = ApiClient(proxy.host, proxy.port, (folder / "ca.crt").read_text(), (folder / "token").read_text())
        query = {"fieldSelector": "spec.nodeName=a,metadata.namespace!=x", "resourceVersion": "0"}
        agent.request("GET", PODS, query=query)
        assert cluster.requests()[-1].query == query
        assert agent.ask("GET", "/api/v1/nodes").code == 403
        plan = {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "a"}}
        agent.request("POST", PLANS.path(), plan)
        agent.apply(PLANS.path("a", subresource="status"), {**plan, "status": {"mode": "x"}}, manager=FIELD_MANAGER)
        with agent.watch(PODS, {"resourceVersion": cluster.pods.version()}) as watch:
            cluster.pods.run("p", node="a")
            watch.wait_for("ADDED", "p")
        agent.close()
        assert cluster.plans.get("a")["status"] == {"mode": "x"}
        assert [(one.verb, one.code) for one in proxy.seen] == [
            ("list", 200),
            ("list", 403),
            ("create", 201),
            ("patch", 200),
            ("watch", 200),
        ]


def test_a_new_token_is_written_with_the_proxys_own_ca(
    fake_cluster: FakeApiServer, proxy: FaultProxy, tmp_path: Path
) -> None:
    folder = proxy.service_account_dir(tmp_path)
    before = (folder / "token").read_text()
    assert proxy.rotate_token(folder) == (folder / "token").read_text() == fake_cluster.token != before
    assert (folder / "ca.crt").read_text() == proxy.ca != fake_cluster.ca


def test_a_refused_connection_is_an_error_until_it_heals(proxy: FaultProxy, agent: ApiClient) -> None:
    with agent.watch(PODS) as watch:
        proxy.refuse()
        watch.wait_for_end()
    with pytest.raises(UNREACHABLE):
        agent.ask("GET", PODS)
    proxy.heal()
    assert agent.ask("GET", PODS).code == 200


def test_streams_are_cut_once(proxy: FaultProxy, agent: ApiClient) -> None:
    with agent.watch(PODS) as watch:
        assert proxy.streams() == 1
        assert proxy.cut() >= 1
        watch.wait_for_end()
    assert agent.ask("GET", PODS).code == 200
    eventually(lambda: proxy.streams() == 0, "the stream is gone")


def test_what_hangs_is_taken_and_never_answered(
    fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient
) -> None:
    with agent.watch(PODS, {"resourceVersion": fake_cluster.pods.version()}) as watch:
        proxy.hang()
        with pytest.raises(urllib3.exceptions.ReadTimeoutError):
            agent.ask("GET", PODS)
        fake_cluster.pods.run("p", node="a")
        proxy.heal()
        assert agent.ask("GET", PODS).code == 200
        fake_cluster.pods.run("q", node="a")
        time.sleep(0.3)
        assert watch.events == []  # half-open: it neither ends nor says a word, healed or not
        proxy.cut()
        watch.wait_for_end()


def test_a_half_open_watch_does_not_end_with_the_servers(
    fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient
) -> None:
    with agent.watch(PODS, {"timeoutSeconds": "1"}) as watch:
        proxy.hang()
        with pytest.raises(AssertionError, match="did not end"):
            watch.wait_for_end(1.8)


def test_a_handshake_can_hang_too(proxy: FaultProxy, agent: ApiClient) -> None:
    proxy.hang(at="handshake")
    began = time.monotonic()
    with pytest.raises(UNREACHABLE):
        agent.ask("GET", PODS)
    assert time.monotonic() - began > 0.9, "it was refused"
    proxy.heal()
    assert agent.ask("GET", PODS).code == 200


def test_answers_are_delayed(proxy: FaultProxy, agent: ApiClient) -> None:
    proxy.delay(0.3)
    began = time.monotonic()
    agent.ask("GET", PODS)
    assert time.monotonic() - began > 0.3
    proxy.delay(5)
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        agent.ask("GET", PODS)


@pytest.mark.parametrize("code", [403, 410, 429, 500])
def test_the_next_answers_are_what_a_test_says(proxy: FaultProxy, agent: ApiClient, code: int) -> None:
    proxy.answer(code, path="/pods$", headers={"Retry-After": "3"}, times=2)
    assert agent.ask("GET", "/api/v1").code == 200
    for _ in range(2):
        answer = agent.ask("GET", PODS)
        assert (answer.code, answer.document["code"], answer.headers["Retry-After"]) == (code, code, "3")
    assert agent.ask("GET", PODS).code == 200
    assert [one.code for one in proxy.seen] == [200, code, code, 200]


def test_a_fault_may_be_for_watches_or_for_one_method_alone(
    fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient
) -> None:
    proxy.answer(410, watch=True, times=math.inf)
    proxy.answer(503, method="POST", times=math.inf)
    assert agent.ask("GET", PODS).code == 200
    for _ in range(3):
        with pytest.raises(ApiError, match="410"):
            agent.watch(PODS)
    assert agent.ask("POST", PLANS.path(), {}).code == 503
    assert fake_cluster.requests()[-1].verb == "list", "it was passed on"
    proxy.heal()
    agent.watch(PODS).close()


def test_bodies_may_be_wrong(fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient) -> None:
    proxy.answer(200, "<html>")
    proxy.answer(200, {"kind": "PodList", "items": None})
    assert agent.ask("GET", PODS).text == "<html>"
    assert agent.ask("GET", PODS).document == {"kind": "PodList", "items": None}
    proxy.truncate()
    with pytest.raises(json.JSONDecodeError):
        json.loads(agent.ask("GET", PODS).text)
    assert agent.ask("GET", PODS).document["kind"] == "PodList"


def test_a_watch_may_end_in_the_middle_of_a_line(
    fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient
) -> None:
    fake_cluster.pods.run("p", node="a")
    proxy.truncate(watch=True)
    with agent.watch(PODS) as watch:
        watch.wait_for_end()
        assert watch.events == []


def test_lines_are_put_into_open_watches(fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient) -> None:
    with agent.watch(PODS) as pods, agent.watch(PLANS.path()) as plans:
        assert proxy.inject(GONE, path="plans") == 1
        assert plans.wait_for("ERROR")["object"]["code"] == 410
        assert pods.events == []
        fake_cluster.pods.run("p", node="a")
        pods.wait_for("ADDED", "p")
        assert proxy.inject("garbage") == 2
        pods.wait_for_end()  # this client gives up on what is no JSON


def test_a_server_that_is_gone_is_gone_behind_the_proxy_too(
    fake_cluster: FakeApiServer, proxy: FaultProxy, agent: ApiClient
) -> None:
    with agent.watch(PODS) as watch:
        fake_cluster.stop()
        watch.wait_for_end()
    with pytest.raises(UNREACHABLE):
        agent.ask("GET", PODS)
    fake_cluster.start()
    assert agent.ask("GET", PODS).code == 200
