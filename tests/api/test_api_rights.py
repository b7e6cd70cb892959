"""With the agent's token nothing can be done but what the agent does: no pod, no Node and no plan's spec is changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.rig import KubeRig
from tests.api.scene import PLANS
from tests.cluster.client import APPLY_PATCH, JSON, MERGE_PATCH
from tests.cluster.cluster import FIELD_MANAGER

POD = "/api/v1/namespaces/prod/pods/llm-0"
STRATEGIC = "application/strategic-merge-patch+json"
SPEC = {"spec": {"mode": "Disabled"}}

FORBIDDEN: dict[str, tuple[str, str, dict[str, Any] | None, str]] = {
    "annotate a pod": ("PATCH", POD, {"metadata": {"annotations": {"a": "b"}}}, MERGE_PATCH),
    "patch a pod": ("PATCH", POD, {"metadata": {"labels": {"a": "b"}}}, STRATEGIC),
    "put a finalizer on a pod": ("PATCH", POD, {"metadata": {"finalizers": ["cpubind.dev/x"]}}, MERGE_PATCH),
    "patch a pod's status": ("PATCH", f"{POD}/status", {"status": {"phase": "Failed"}}, MERGE_PATCH),
    "delete a pod": ("DELETE", POD, None, JSON),
    "evict a pod": ("POST", f"{POD}/eviction", {"kind": "Eviction", "apiVersion": "policy/v1beta1"}, JSON),
    "run in a pod": ("POST", f"{POD}/exec", None, JSON),
    "make a pod": ("POST", "/api/v1/namespaces/prod/pods", {"metadata": {"name": "x"}}, JSON),
    "read a pod by name": ("GET", POD, None, JSON),
    "patch its spec": ("PATCH", f"{PLANS}/a2-0", SPEC, MERGE_PATCH),
    "apply its spec": ("PATCH", f"{PLANS}/a2-0", SPEC, APPLY_PATCH),
    "put its plan": ("PUT", f"{PLANS}/a2-0", SPEC, JSON),
    "put its status": ("PUT", f"{PLANS}/a2-0/status", SPEC, JSON),
    "delete its plan": ("DELETE", f"{PLANS}/a2-0", None, JSON),
    "delete all plans": ("DELETE", PLANS, None, JSON),
    "label its Node": ("PATCH", "/api/v1/nodes/a2-0", {"metadata": {"labels": {"a": "b"}}}, MERGE_PATCH),
    "list Nodes": ("GET", "/api/v1/nodes", None, JSON),
    "read Secrets": ("GET", "/api/v1/namespaces/prod/secrets", None, JSON),
    "read events": ("GET", "/api/v1/namespaces/prod/events", None, JSON),
}


@pytest.fixture
def served(a2: KubeRig) -> KubeRig:
    """A node with a bound pod, and an agent that did all this with its own rights."""
    a2.start()
    _, workers = a2.run_pod("llm-0", [0])
    a2.until_bound(workers)
    a2.until(lambda: a2.events("CpuBound"), "the event")
    return a2


def test_the_agents_token_changes_no_pod_no_node_and_no_spec(served: KubeRig) -> None:
    assert {one.code for one in served.cluster.requests()} <= {200, 201}
    served.settle(0.6)
    pods, nodes, plan = served.cluster.pods.list(), served.cluster.nodes.list(), served.plan()
    client = served.cluster.as_service_account()
    answers = {
        what: client.ask(method, path, body, content_type=media, query={"fieldManager": "x"}).code
        for what, (method, path, body, media) in FORBIDDEN.items()
    }
    assert answers == dict.fromkeys(FORBIDDEN, 403)
    assert (served.cluster.pods.list(), served.cluster.nodes.list(), served.plan()) == (pods, nodes, plan)


def test_a_spec_in_an_apply_of_the_status_is_not_taken(served: KubeRig) -> None:
    """The one write to an existing plan that the token may do, with a spec smuggled in."""
    path = f"{PLANS}/{served.name}/status"
    body = {"apiVersion": "cpubind.dev/v1alpha1", "kind": "CpuBindingPlan", "metadata": {"name": served.name}, **SPEC}
    client = served.cluster.as_service_account()
    client.apply(path, body | {"status": served.status}, manager=FIELD_MANAGER)
    client.request("PATCH", path, SPEC, content_type=MERGE_PATCH)
    assert served.plan()["spec"] == {}
    assert served.plan()["metadata"]["generation"] == 1
