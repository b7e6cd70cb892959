"""Who asks for what, and whether rules of a ClusterRole allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.cluster import Rule
from tests.cluster.fake.selectors import exact_name
from tests.cluster.fake.status import StatusError, about, failure, resource_name

_VERBS = {"POST": "create", "GET": "get", "HEAD": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

DISCOVERY: Rule = {
    "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"],
    "verbs": ["get"],
}
"""system:discovery, which everybody has who is known."""
REVIEWS = "authorization.k8s.io"
BASIC_USER: Rule = {"apiGroups": [REVIEWS], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]}
"""The part of system:basic-user that is modelled; everybody has it who is known."""
PUBLIC: Rule = {"nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"], "verbs": ["get"]}
"""system:public-info-viewer, which everybody has."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the authorizer sees it; without a resource it is about the path."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def asked(method: str, path: str, query: Mapping[str, str]) -> Asked:
    """Reads a request's path as Kubernetes does."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return Asked(method.lower(), path)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    verb = _VERBS.get(method, "")
    if not name and verb == "get":
        verb = "watch" if is_true(query.get("watch")) else "list"
        name = exact_name(query.get("fieldSelector", ""))
    elif not name and verb == "delete":
        verb = "deletecollection"
    return Asked(verb, path, group, version, resource, subresource, namespace, name)


def reviewed(spec: Mapping[str, Any]) -> Asked:
    """What an access review asks about."""
    if path := spec.get("nonResourceAttributes"):
        return Asked(path.get("verb", ""), path.get("path", ""))
    what = spec.get("resourceAttributes") or {}
    names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    return Asked(path="", **{name: what.get(name, "") for name in names})


def is_true(text: str | None) -> bool:
    """A boolean of a query: the server takes whatever is given for true, but these two."""
    return text is not None and text.lower() not in ("false", "0")


def allows(rules: Sequence[Rule], it: Asked) -> bool:
    return any(_allows(rule, it) for rule in rules)


def forbidden(user: str, it: Asked) -> StatusError:
    if not it.resource:
        message = f'forbidden: User "{user}" cannot {it.verb} path "{it.path}"'
        return StatusError(403, failure(403, "Forbidden", message, {}))
    what = resource_name(it.resource, it.group) + (f' "{it.name}"' if it.name else "")
    where = f'in the namespace "{it.namespace}"' if it.namespace else "at the cluster scope"
    resource = f'resource "{it.full_resource}" in API group "{it.group}"'
    message = f'{what} is forbidden: User "{user}" cannot {it.verb} {resource} {where}'
    return StatusError(403, failure(403, "Forbidden", message, about(it.resource, it.group, it.name)))


def _allows(rule: Rule, it: Asked) -> bool:
    if not {it.verb, "*"} & set(rule["verbs"]):
        return False
    if not it.resource:
        return any(_covers(url, it.path) for url in rule.get("nonResourceURLs", ()))
    named = rule.get("resourceNames", ())
    return (
        bool({it.group, "*"} & set(rule.get("apiGroups", ())))
        and any(_is(resource, it) for resource in rule.get("resources", ()))
        and (not named or it.name in named)
    )


def _is(resource: str, it: Asked) -> bool:
    return resource in ("*", it.full_resource) or (bool(it.subresource) and resource == f"*/{it.subresource}")


def _covers(url: str, path: str) -> bool:
    return url == path or (url.endswith("*") and path.startswith(url[:-1]))
