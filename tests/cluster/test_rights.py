"""What the agent's service account may do on both API servers, and what is told of what it did."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.client import MERGE_PATCH, ApiError, eventually
from tests.cluster.cluster import FIELD_MANAGER, NAMESPACE, USER, Cluster, Request, apply_status
from tests.cluster.objects import PLANS

Object = dict[str, Any]


def test_the_service_account_may_do_what_the_agent_does(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    cluster.nodes.named("a")
    agent.request("GET", "/api/v1/pods")
    agent.request("GET", "/api/v1/nodes/a")
    agent.request(
        "POST", PLANS.path(), {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": "a"}}
    )
    apply_status(cluster, "a", {"mode": "Enforce"})
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "name": "p"}}
    agent.request("POST", "/api/v1/namespaces/default/events", event)
    agent.request("PATCH", "/api/v1/namespaces/default/events/e", {"count": 2}, content_type=MERGE_PATCH)


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/api/v1/namespaces/default/pods/p", 'get resource "pods" in API group "" in the namespace "default"'),
        ("PATCH", "/api/v1/namespaces/default/pods/p", 'patch resource "pods" in API group ""'),
        ("DELETE", "/api/v1/namespaces/default/pods/p", 'delete resource "pods" in API group ""'),
        ("GET", "/api/v1/nodes", 'list resource "nodes" in API group "" at the cluster scope'),
        ("PATCH", PLANS.path("a"), 'patch resource "cpubindingplans" in API group "cpubind.dev" at the cluster scope'),
        ("PUT", PLANS.path("a"), 'update resource "cpubindingplans" in API group "cpubind.dev"'),
        ("DELETE", PLANS.path("a"), 'delete resource "cpubindingplans" in API group "cpubind.dev"'),
        ("GET", PLANS.path("a", subresource="status"), 'get resource "cpubindingplans/status"'),
    ],
)
def test_the_service_account_may_do_no_more(cluster: Cluster, method: str, path: str, what: str) -> None:
    body: Object | None = {} if method in ("PATCH", "PUT") else None
    with pytest.raises(ApiError) as refused:
        cluster.as_service_account().request(method, path, body, content_type=MERGE_PATCH)
    assert f'User "{USER}" cannot {what}' in refused.value.message
    assert (refused.value.code, refused.value.status["reason"]) == (403, "Forbidden")


def test_rights_can_be_taken_and_given_back(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    cluster.set_rules([])
    assert agent.ask("GET", "/api/v1/pods").code == 403
    assert agent.ask("GET", "/api/v1").code == 200  # discovery is for everybody
    cluster.set_rules()
    assert agent.ask("GET", "/api/v1/pods").code == 200


def test_the_service_account_may_ask_what_it_may_do(cluster: Cluster) -> None:
    agent = cluster.as_service_account()

    def allowed(**attributes: str) -> bool:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        body = {**review, "spec": {"resourceAttributes": attributes}}
        answer = agent.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool(answer["status"]["allowed"])

    assert allowed(verb="watch", resource="pods")
    assert not allowed(verb="patch", resource="pods")
    assert allowed(verb="patch", group="cpubind.dev", resource="cpubindingplans", subresource="status")
    assert not allowed(verb="patch", group="cpubind.dev", resource="cpubindingplans")
    cluster.set_rules([])
    assert not allowed(verb="watch", resource="pods")


def test_a_rule_may_name_one_object(cluster: Cluster) -> None:
    rule = {"apiGroups": ["cpubind.dev"], "resources": ["cpubindingplans"], "resourceNames": ["a"], "verbs": ["list"]}
    cluster.set_rules([rule])
    agent = cluster.as_service_account()
    assert agent.ask("GET", PLANS.path()).code == 403
    assert agent.ask("GET", PLANS.path(), query={"fieldSelector": "metadata.name=a"}).code == 200
    assert agent.ask("GET", PLANS.path(), query={"fieldSelector": "metadata.name=b"}).code == 403


def test_a_new_token_replaces_the_old_one(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.service_account_dir(tmp_path / "account")
    assert (folder / "namespace").read_text() == NAMESPACE
    assert (folder / "ca.crt").read_text() == cluster.ca
    assert (folder / "token").read_text() == cluster.token
    before = cluster.as_service_account()
    assert before.ask("GET", "/api/v1/pods").code == 200
    assert cluster.rotate_token(folder) == (folder / "token").read_text() == cluster.token
    assert cluster.as_service_account().ask("GET", "/api/v1/pods").code == 200
    eventually(lambda: before.ask("GET", "/api/v1/pods").code == 401, "the old token is refused", 15)


def test_a_token_says_when_it_expires(cluster: Cluster) -> None:
    part = cluster.token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert claims["sub"] == USER
    assert claims["exp"] > time.time() + 600


def test_every_request_is_told_with_its_query(cluster: Cluster) -> None:
    agent = cluster.as_service_account()
    agent.ask("GET", "/api/v1/pods", query={"fieldSelector": "spec.nodeName=a", "resourceVersion": "0"})
    between = time.time()
    agent.ask("GET", "/api/v1/secrets")
    query = {"fieldSelector": "metadata.name=a", "allowWatchBookmarks": "true"}
    with agent.watch(PLANS.path(), query):
        told = [(one.verb, one.path, one.code, one.user) for one in cluster.requests()]
        assert told == [
            ("list", "/api/v1/pods", 200, USER),
            ("list", "/api/v1/secrets", 403, USER),
            ("watch", PLANS.path(), 200, USER),
        ]
        assert cluster.requests()[0].query == {"fieldSelector": "spec.nodeName=a", "resourceVersion": "0"}
        assert cluster.requests()[2].query == {"watch": "true", "timeoutSeconds": "60", **query}
        assert [one.path for one in cluster.requests(between)] == ["/api/v1/secrets", PLANS.path()]


def test_requests_of_others_are_not_told(cluster: Cluster) -> None:
    cluster.pods.names()
    assert cluster.requests() == []


def test_a_body_does_not_hide_a_request(cluster: Cluster) -> None:
    cluster.plans.named("a")
    apply_status(cluster, "a", {"mode": "Enforce"})
    told: list[Request] = cluster.requests()
    assert [(one.verb, one.path) for one in told] == [("patch", PLANS.path("a", subresource="status"))]
    assert told[0].query == {"fieldManager": FIELD_MANAGER, "force": "true"}
