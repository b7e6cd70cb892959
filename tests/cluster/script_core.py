"""Questions about pods, nodes, events and rights."""

from __future__ import annotations

from typing import Any

from tests.cluster.client import MERGE_PATCH
from tests.cluster.objects import PLANS
from tests.cluster.script import PLAN, STRATEGIC, Script, event, plan, pod

Object = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"


def who(to: Script) -> None:
    for client in (to.cluster.admin, to.agent, to.nobody, to.stranger):
        for path in ("/api/v1/pods", "/healthz", "/apis/nope.dev/v1/x", "/api/v1/zorks", f"{PLAN}/x", PLAN):
            to.ask("GET", path, who=client)
        to.ask("GET", f"/apis/{PLANS.group}", who=client)
    for path in ("/nope", "/metrics"):
        to.ask("GET", path, who=to.agent)


def pods(to: Script) -> None:
    whole = {"cpu": "2", "memory": "1Gi"}
    to.ask("POST", PODS, pod("a"))
    to.ask("POST", PODS, pod("a"))
    to.ask("POST", PODS, pod("b", metadata={"name": "b", "namespace": "other"}))
    to.ask("POST", "/api/v1/namespaces/nope/pods", pod("b"))
    twice = [{"name": "c", "image": "i"}] * 2
    for containers in ([], [{"name": "C_"}], twice):
        to.ask("POST", PODS, pod("b", containers=containers))
    init = [{"name": "init", "image": "i"}]
    to.ask("POST", PODS, pod("b", nodeName="n1", terminationGracePeriodSeconds=7, initContainers=init))
    for name, resources in (
        ("c", {"limits": whole, "requests": whole}),
        ("d", {"limits": whole}),
        ("e", {"requests": {"cpu": "2000m"}}),
        ("f", {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "1.5", "memory": "1Gi"}}),
        ("g", {"limits": {"cpu": "2"}}),
    ):
        image = [{"name": "c", "image": "i:1", "resources": resources}]
        to.ask("POST", PODS, pod(name, containers=image, nodeName="n1" if name == "c" else ""))
    for method, path in (
        ("POST", "/api/v1/pods"),
        ("DELETE", "/api/v1/pods"),
        ("PUT", PODS),
        ("POST", f"{PODS}/a"),
    ):
        to.ask(method, path, pod("x"))
    for selector in ("spec.nodeName=n1", "spec.nodeName!=n1,metadata.namespace=default", "spec.nodeName="):
        to.names(PODS, fieldSelector=selector)
    for selector in ("app=x", "app!=x", "!app", "app"):
        to.names(PODS, labelSelector=selector)
    to.names(PODS, limit=2)
    to.names(PODS, limit=3, fieldSelector="status.phase=Pending")
    for selector in ("spec.foo=x", "zork"):
        to.ask("GET", PODS, query={"fieldSelector": selector})
    to.ask("GET", "/api/v1/namespaces/nope/pods")


def pod_changes(to: Script) -> None:
    for patch in (
        {"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "Failed"}},
        {"metadata": {"annotations": {"a": None}}},
        {"metadata": {"labels": None}},
    ):
        to.ask("PATCH", f"{PODS}/c", patch, MERGE_PATCH)
    to.ask("PATCH", f"{PODS}/c", {"metadata": {"annotations": {"s": "t"}}}, STRATEGIC)
    owners = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]
    metadata = {"annotations": {"status": "1"}, "ownerReferences": owners}
    status = {"phase": "Running", "hostIP": "1.2.3.4"}
    patch = {"status": status, "metadata": metadata, "spec": {"nodeName": "q"}}
    to.ask("PATCH", f"{PODS}/c/status", patch, MERGE_PATCH)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "n1"},
    }
    to.ask("POST", f"{PODS}/a/binding", binding)
    to.ask("POST", f"{PODS}/a/binding", binding)
    to.ask("GET", f"{PODS}/a")
    now = to.ask("GET", f"{PODS}/e")
    changed = {**now, "metadata": {**now["metadata"], "annotations": {"put": "y"}}}
    to.ask("PUT", f"{PODS}/e", changed)
    to.ask("PUT", f"{PODS}/e", changed)
    del changed["metadata"]["resourceVersion"]
    to.ask("PUT", f"{PODS}/e", changed)


def pod_ends(to: Script) -> None:
    for name, query in (
        *[("b", query) for query in ({}, {"gracePeriodSeconds": 3}, {"gracePeriodSeconds": 30}, {})],
        *[("d", {}), ("d", {}), ("b", {"gracePeriodSeconds": 0}), ("b", {})],
    ):
        to.ask("DELETE", f"{PODS}/{name}", query=query)
    to.ask("DELETE", f"{PODS}/c", {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
    to.ask("PATCH", f"{PODS}/a", {"metadata": {"finalizers": ["a.b/c"]}}, MERGE_PATCH)
    to.ask("DELETE", f"{PODS}/a", query={"gracePeriodSeconds": 0})
    to.ask("GET", f"{PODS}/a")
    to.ask("PATCH", f"{PODS}/a", {"metadata": {"finalizers": None}}, MERGE_PATCH)
    to.ask("GET", f"{PODS}/a")


def nodes(to: Script) -> None:
    nodes = "/api/v1/nodes"
    to.ask("POST", nodes, {"metadata": {"name": "n1"}})
    to.ask("POST", nodes, {"metadata": {"name": "n2"}, "status": {"phase": "x"}, "spec": {"unschedulable": True}})
    to.ask("PATCH", f"{nodes}/n1", {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "x"}}, MERGE_PATCH)
    patch = {"status": {"phase": "Running"}, "metadata": {"labels": {"c": "d"}}, "spec": {"unschedulable": True}}
    to.ask("PATCH", f"{nodes}/n1/status", patch, MERGE_PATCH)
    for selector in ("spec.unschedulable=true", "spec.unschedulable=false", "metadata.name=n1"):
        to.names(nodes, fieldSelector=selector)
    to.ask("DELETE", f"{nodes}/n1")
    to.ask("DELETE", nodes)


def events(to: Script) -> None:
    on_plan = {"kind": "CpuBindingPlan", "name": "x"}
    new = {"eventTime": "2026-11-30T00:00:00.000000Z", "action": "x", "reportingInstance": "n"}
    for body in (
        event("a"),
        event("a"),
        event("b", involvedObject=on_plan),
        event("c", involvedObject={"kind": "Pod", "name": "x", "namespace": "other"}),
        event("d", type="Zork"),
        event("E_8"),
        {"metadata": {"name": "f"}},
        event("g", reportingComponent="cpubind", **new),
        event("h", reportingComponent="cpubind", involvedObject=on_plan, **new),
    ):
        to.ask("POST", EVENTS, body, who=to.agent)
    to.ask("POST", "/api/v1/namespaces/kube-system/events", event("d", involvedObject=on_plan), who=to.agent)
    nowhere = {"kind": "Pod", "namespace": "nope", "name": "x"}
    to.ask("POST", "/api/v1/namespaces/nope/events", event("d", involvedObject=nowhere), who=to.agent)
    to.ask("PATCH", f"{EVENTS}/a", {"count": 2}, MERGE_PATCH, who=to.agent)
    to.ask("PATCH", f"{EVENTS}/a", {"count": 3}, STRATEGIC, who=to.agent)
    to.ask("PATCH", f"{EVENTS}/nope", {"count": 3}, MERGE_PATCH, who=to.agent)
    to.ask("PATCH", f"{EVENTS}/a", {"involvedObject": {"namespace": "other"}}, MERGE_PATCH, who=to.agent)
    to.names(EVENTS, fieldSelector="involvedObject.name=x,reason=CpuBound")
    to.ask("DELETE", f"{EVENTS}/a")


def rights(to: Script) -> None:
    for method, path in (
        ("GET", f"{PODS}/x/log"),
        ("GET", "/api/v1/namespaces"),
        ("GET", "/api/v1/namespaces/default"),
        ("DELETE", PLAN),
        ("GET", EVENTS),
    ):
        to.ask(method, path, who=to.agent)
    to.ask("GET", "/api/v1/nodes", who=to.agent, query={"watch": "true"})
    to.ask("GET", PLAN, who=to.agent, query={"watch": "false", "fieldSelector": "metadata.name=x"})
    named = {"apiGroups": ["cpubind.dev"], "resources": ["cpubindingplans"], "resourceNames": ["x"], "verbs": ["*"]}
    to.cluster.set_rules([named, {"apiGroups": ["*"], "resources": ["*/status"], "verbs": ["get"]}])
    for query in ({}, {"fieldSelector": "metadata.name=x"}, {"fieldSelector": "metadata.name=y"}):
        to.ask("GET", PLAN, who=to.agent, query=query)
    to.ask("POST", PLAN, plan("x"), who=to.agent)
    for path in (f"{PLAN}/x", f"{PODS}/x/status", f"{PODS}/x"):
        to.ask("GET", path, who=to.agent)
