"""Single requests of the API server: each is made once, ends in time, and fails with one line."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.kube import api as api_module
from agent.kube.access import Access
from agent.kube.api import Api, ApiError
from agent.model.reason import Reason
from tests.cluster.client import eventually
from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.fault_proxy import Body, FaultProxy
from tests.kube.follower import NODE

Object = dict[str, Any]

PLAN: Object = {"apiVersion": "cpubind.dev/v1alpha1", "kind": "CpuBindingPlan", "metadata": {"name": NODE}}
EVENT: Object = {
    "metadata": {"name": "llm-0.1", "namespace": "default"},
    "involvedObject": {"kind": "Pod", "namespace": "default", "name": "llm-0"},
    "reason": "CpuBound",
}


@pytest.fixture
def counted() -> Counter[tuple[str, str]]:
    return Counter()


@pytest.fixture
def api(proxy: FaultProxy, account: Path, counted: Counter[tuple[str, str]]) -> Iterator[Api]:
    api = Api(Access(f"https://{proxy.host}:{proxy.port}", account), lambda *what: counted.update([what]))
    yield api
    api.close()


def fails(api: Api) -> ApiError:
    """Asks for the Node, in vain."""
    with pytest.raises(ApiError) as caught:
        api.node(NODE)
    return caught.value


def said(api: Api) -> str:
    return str(fails(api).problem)


def test_what_the_agent_asks_is_counted_by_verb_and_code(
    fake_cluster: FakeApiServer, api: Api, counted: Counter[tuple[str, str]]
) -> None:
    assert api.node(NODE)["metadata"]["uid"]
    api.create_plan(PLAN)
    assert api.apply_status(NODE, {"mode": "DryRun"})["status"] == {"mode": "DryRun"}
    api.create_event(EVENT)
    assert api.patch_event("default", "llm-0.1", {"count": 2})["count"] == 2
    assert fake_cluster.plans.get(NODE)["status"] == {"mode": "DryRun"}
    with pytest.raises(ApiError):
        api.create_plan(PLAN)
    assert counted == {
        ("get", "200"): 1,
        ("create", "200"): 2,
        ("patch", "200"): 2,
        ("create", "409"): 1,
    }


def test_what_is_not_there_is_named(fake_cluster: FakeApiServer, api: Api) -> None:
    fake_cluster.nodes.delete(NODE)
    assert said(api) == f"NodeNotFound: no Node {NODE}"
    fake_cluster.remove_crd()
    with pytest.raises(ApiError, match="PlanResourceMissing: no resource cpubindingplans"):
        api.create_plan(PLAN)


def test_what_is_forbidden_is_said_in_the_servers_words(fake_cluster: FakeApiServer, api: Api) -> None:
    fake_cluster.set_rules([])
    error = fails(api)
    assert (error.status, error.problem.reason) == (403, Reason.API_REFUSED)
    assert error.problem.message.startswith(f'get of nodes: 403 nodes "{NODE}" is forbidden: User "system:service')
    with pytest.raises(ApiError, match="create of events: 403 events is forbidden"):
        api.create_event(EVENT)
    with pytest.raises(ApiError, match=r"patch of cpubindingplans: 403 .* cannot patch resource"):
        api.apply_status(NODE, {})


@pytest.mark.parametrize("code", [401, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_once(
    proxy: FaultProxy, api: Api, counted: Counter[tuple[str, str]], code: int
) -> None:
    proxy.answer(code, b"upstream", headers={"Retry-After": "7"})
    error = fails(api)
    assert (error.status, error.retry_after, error.problem.reason) == (code, 7.0, Reason.API_UNREACHABLE)
    assert (len(proxy.seen), counted) == (1, {("get", str(code)): 1})


@pytest.mark.parametrize("wait", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "1e9", "9" * 400, "٣"])
def test_a_wait_that_is_no_number_of_seconds_is_none(proxy: FaultProxy, api: Api, wait: str) -> None:
    proxy.answer(429, headers={"Retry-After": wait})
    assert fails(api).retry_after == 0.0


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"<html>", b"\xff\xfe", b"null", b"[]", {}, {"metadata": None}, {"metadata": "x"}),
        {"kind": "Status", "metadata": {}},
        {"kind": "Secret", "metadata": {"name": NODE, "uid": "1"}},
        {"kind": "Node", "metadata": {}},
    ],
    ids=[
        *("empty", "truncated", "html", "no text", "null", "list", "no object", "no metadata", "odd metadata"),
        *("Status", "another kind", "no uid"),
    ],
)
@pytest.mark.parametrize("request_", ["node", "plan"])
def test_an_answer_that_makes_no_sense_is_a_failure(
    proxy: FaultProxy, api: Api, counted: Counter[tuple[str, str]], body: Body, request_: str
) -> None:
    proxy.answer(201 if request_ == "plan" else 200, body)
    with pytest.raises(ApiError, match=r"ApiUnreachable: .*: the answer makes no sense") as caught:
        api.node(NODE) if request_ == "node" else api.create_plan(PLAN)
    assert caught.value.status is None
    assert sum(counted.values()) == 1


def test_an_answer_that_breaks_off_is_a_failure(proxy: FaultProxy, api: Api) -> None:
    proxy.truncate()
    assert said(api) == "ApiUnreachable: get of nodes: the answer makes no sense"


@pytest.mark.parametrize("at", ["request", "handshake"])
def test_a_server_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, api: Api, counted: Counter[tuple[str, str]], at: Any
) -> None:
    monkeypatch.setattr(api_module, "TIMEOUT", (0.3, 0.3))
    proxy.hang(at)
    assert said(api) == "ApiUnreachable: get of nodes: no answer in time"
    assert counted == {("get", "error"): 1}
    proxy.heal()
    assert api.node(NODE)


def test_a_connection_that_was_cut_meanwhile_is_no_failure_for_long(proxy: FaultProxy, api: Api) -> None:
    api.node(NODE)
    proxy.cut()
    with contextlib.suppress(ApiError):
        api.node(NODE)
    api.node(NODE)


def test_a_server_that_is_away_is_said_in_the_same_words_each_time(proxy: FaultProxy, api: Api) -> None:
    proxy.refuse()
    assert {said(api) for _ in range(5)} == {"ApiUnreachable: get of nodes: Connection refused"}
    proxy.heal()
    assert api.node(NODE)


def test_a_token_is_read_for_each_request_and_a_new_ca_after_a_failure(
    proxy: FaultProxy, account: Path, api: Api
) -> None:
    api.node(NODE)
    proxy.rotate_token(account)
    api.node(NODE)
    proxy.change_ca()
    assert said(api) == "ApiUnreachable: get of nodes: TLS: unable to get local issuer certificate"
    proxy.service_account_dir(account)
    api.node(NODE)


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_file_of_the_service_account_that_is_missing_is_a_failure_until_it_is_there(
    proxy: FaultProxy, account: Path, api: Api, name: str
) -> None:
    (account / name).unlink()
    assert "No such file or directory" in said(api)
    assert proxy.seen == []
    proxy.service_account_dir(account)
    api.node(NODE)


def test_failures_leave_no_descriptor_behind(proxy: FaultProxy, api: Api) -> None:
    def fail_in_turn() -> None:
        proxy.truncate()
        fails(api)
        proxy.refuse()
        fails(api)
        proxy.heal()
        api.node(NODE)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    fail_in_turn()
    before = descriptors()
    for _ in range(12):
        fail_in_turn()
    eventually(lambda: descriptors() <= before, "all connections but one are closed")


NO_LISTS: list[Body] = [
    {"kind": "CpuBindingPlanList", "metadata": {}},
    {"kind": "CpuBindingPlanList", "metadata": {}, "items": 4711},
    {"kind": "CpuBindingPlanList", "metadata": {}, "items": [4711]},
    {"kind": "SecretList", "metadata": {}, "items": []},
]


@pytest.mark.parametrize("body", NO_LISTS, ids=["no items", "a number", "numbers", "another kind"])
def test_a_list_that_is_none_of_what_was_asked_for_is_a_failure(proxy: FaultProxy, api: Api, body: Body) -> None:
    proxy.answer(200, body)
    with pytest.raises(ApiError, match="ApiUnreachable: list of cpubindingplans: the answer makes no sense"):
        list(api.plans())


def test_many_plans_are_listed_page_by_page_and_counted_without_being_sent(
    monkeypatch: pytest.MonkeyPatch, fake_cluster: FakeApiServer, proxy: FaultProxy, api: Api
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 2)
    names = [f"node-{k}" for k in range(5)]
    assert (list(api.plans()), api.count_plans()) == ([], 0)
    for name in names:
        api.create_plan({**PLAN, "metadata": {"name": name}})
    before = len(proxy.seen)
    assert [plan["metadata"]["name"] for plan in api.plans()] == names
    assert len(proxy.seen) - before == 3
    assert api.count_plans() == 5
    assert [plan["metadata"]["name"] for plan in api.plans("node-3")] == ["node-3"]


def test_a_list_that_always_goes_on_is_given_up(monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, api: Api) -> None:
    monkeypatch.setattr(api_module, "MAX_PAGES", 3)
    body = {"kind": "CpuBindingPlanList", "metadata": {"continue": "x"}, "items": []}
    proxy.answer(200, body, times=10)
    with pytest.raises(ApiError, match="ApiUnreachable: list of cpubindingplans: there is no end to it"):
        list(api.plans())
    assert len(proxy.seen) == 3


def test_a_list_that_breaks_off_between_two_pages_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, api: Api
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 1)
    for name in ("a", "b"):
        api.create_plan({**PLAN, "metadata": {"name": name}})
    plans = api.plans()
    assert next(plans)["metadata"]["name"] == "a"
    proxy.answer(410)
    with pytest.raises(ApiError, match="410"):
        next(plans)


def test_a_review_without_an_answer_is_a_failure_and_no_refusal(proxy: FaultProxy, api: Api) -> None:
    proxy.answer(201, {"kind": "SelfSubjectAccessReview", "metadata": {}, "status": None})
    with pytest.raises(ApiError, match="the answer makes no sense"):
        api.may("list", "", "pods")
