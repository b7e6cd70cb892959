"""What an API server says of itself."""

from __future__ import annotations

from typing import Any

from tests.cluster.objects import PLANS, Kind

Object = dict[str, Any]

VERSION: Object = {"major": "1", "minor": "20", "gitVersion": "v1.20.2", "platform": "linux/amd64"}
HEALTH = ("/healthz", "/livez", "/readyz")

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def document(path: str, kinds: tuple[Kind, ...]) -> Object | None:
    """For `/version`, `/api`, `/api/v1`, `/apis` and what is below; None for what is not served."""
    group: Object = {
        "name": PLANS.group,
        "versions": [{"groupVersion": PLANS.api_version, "version": PLANS.version}],
        "preferredVersion": {"groupVersion": PLANS.api_version, "version": PLANS.version},
    }
    served: dict[str, Object] = {
        "/version": VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/api/v1": _resources("v1", [kind for kind in kinds if not kind.group]),
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group] if PLANS in kinds else []},
    }
    if PLANS in kinds:
        served[f"/apis/{PLANS.group}"] = {"kind": "APIGroup", "apiVersion": "v1", **group}
        served[PLANS.prefix] = _resources(PLANS.api_version, [PLANS])
    return served.get(path.rstrip("/"))


def _resources(version: str, kinds: list[Kind]) -> Object:
    resources: list[Object] = []
    for kind in kinds:
        own = {"singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind}
        resources.append({"name": kind.plural, **own, "verbs": list(_VERBS), "shortNames": list(kind.short)})
        for subresource in kind.subresources:
            verbs = ["get", "patch", "update"] if subresource == "status" else ["create"]
            what = "Binding" if subresource == "binding" else kind.kind
            about = {**own, "singularName": "", "kind": what, "verbs": verbs}
            resources.append({"name": f"{kind.plural}/{subresource}", **about})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
