"""What the agent's token may not do; each is tried on the pod prod/llm-0, the Node a2-0, or its plan."""

from __future__ import annotations

from typing import Any

from tests.api.scene import PLANS
from tests.cluster.client import APPLY_PATCH, JSON, MERGE_PATCH, ApiClient

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


def answers(client: ApiClient) -> dict[str, int]:
    """The HTTP status with which each is answered."""
    return {
        what: client.ask(method, path, body, content_type=media, query={"fieldManager": "x"}).code
        for what, (method, path, body, media) in FORBIDDEN.items()
    }
