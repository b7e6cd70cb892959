"""Field and label selectors of lists and watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.fake.status import bad_request, not_modelled
from tests.cluster.objects import EVENTS, NODES, PODS, Kind

Object = dict[str, Any]
Selects = Callable[[Object], bool]

_EVERYWHERE = frozenset({"metadata.name", "metadata.namespace"})
_FIELDS = {
    PODS: {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase"}
    | {"status.podIP", "status.nominatedNodeName"},
    NODES: {"spec.unschedulable"},
    EVENTS: {f"involvedObject.{key}" for key in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")}
    | {"reason", "reportingComponent", "source", "type"},
}
"""What can be selected by, beside name and namespace."""


def field_selector(kind: Kind, text: str) -> Selects:
    """`spec.nodeName=a,metadata.namespace!=b`. 400 for what the kind can't be selected by."""
    terms = [_term(kind, term) for term in text.split(",") if term]
    return lambda thing: all((_value(thing, path) == value) is equal for path, equal, value in terms)


def exact_name(text: str) -> str:
    """The name that `metadata.name=NAME` asks for, which the authorizer takes for the request's name; else empty."""
    terms = [term.replace("==", "=", 1) for term in text.split(",")]
    return next((term[len("metadata.name=") :] for term in terms if term.startswith("metadata.name=")), "")


def label_selector(text: str) -> Selects:
    """Equality, inequality and presence, which is all that is modelled."""
    if "(" in text:
        raise not_modelled("label selectors of sets")
    terms = [_label_term(term) for term in text.split(",") if term]
    return lambda thing: all(term(thing.get("metadata", {}).get("labels") or {}) for term in terms)


def _term(kind: Kind, term: str) -> tuple[str, bool, str]:
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        path, found, value = term.partition(sign)
        if found:
            if path not in _EVERYWHERE | _FIELDS.get(kind, set()):
                raise bad_request(f"field label not supported: {path}")
            return path, equal, value
    raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")


def _value(thing: Object, path: str) -> str:
    value: Any = thing
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or value is None:
        # `spec.unschedulable=false` is what a node without the field has.
        return str(bool(value)).lower() if path == "spec.unschedulable" else ""
    return str(value)


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    for sign, equal in (("!=", False), ("==", True), ("=", True)):
        key, found, value = term.partition(sign)
        if found:
            return lambda labels: (labels.get(key.strip()) == value.strip()) is equal
    if term.startswith("!"):
        return lambda labels: term[1:].strip() not in labels
    return lambda labels: term.strip() in labels
