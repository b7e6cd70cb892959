"""A list of questions to an API server, asked of the small one and of the real one: the answers must be the same.

A few answers are not asked for, where only the wording of Go's decoders differs.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.cluster.client import APPLY_PATCH, JSON, MERGE_PATCH, ApiClient
from tests.cluster.cluster import FIELD_MANAGER, Cluster, our_crd
from tests.cluster.objects import PLANS

Object = dict[str, Any]
Answer = tuple[int, Any]

STRATEGIC = "application/strategic-merge-patch+json"
PLAN = PLANS.path()


class Script:
    """Asks, and keeps each question with its answer in `told`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.told: list[tuple[str, Answer]] = []
        self.agent = cluster.as_service_account()
        self.nobody = ApiClient(cluster.host, cluster.port, cluster.ca, None)
        self.stranger = ApiClient(cluster.host, cluster.port, cluster.ca, "nobody's")
        self._names = (f"s{number}" for number in itertools.count())
        cluster.install_crd(crd())

    def close(self) -> None:
        self.nobody.close()
        self.stranger.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Object | str | None = None,
        content_type: str = JSON,
        *,
        who: ApiClient | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Object:
        client = who or self.cluster.admin
        asked = {key: str(value) for key, value in (query or {}).items()}
        answer = client.ask(method, path, body, content_type=content_type, query=asked)
        shown = "" if method == "PUT" else str(body)[:200]
        self.told.append((f"{method} {path} {asked} {shown}", (answer.code, plain(answer.document or answer.text))))
        return answer.document

    def names(self, path: str, **query: object) -> None:
        """A list, of which names count and what the list says of itself."""
        asked = {key: str(value) for key, value in query.items()}
        document = self.cluster.admin.request("GET", path, query=asked)
        names = sorted(item["metadata"]["name"] for item in document["items"])
        about = {key: value for key, value in document["metadata"].items() if key != "resourceVersion"}
        token = about.pop("continue", "")
        self.told.append((f"names of {path} {asked}", (200, [names, about, bool(token)])))

    def apply(
        self, name: str, status: Object, *, manager: str = FIELD_MANAGER, force: str = "true", **more: object
    ) -> None:
        body = {**plan(name), "status": status, **more}
        self.ask("PATCH", f"{PLAN}/{name}/status", body, APPLY_PATCH, query={"fieldManager": manager, "force": force})

    def sequence(self, *steps: Object | tuple[Object, str]) -> None:
        name = next(self._names)
        self.ask("POST", PLAN, plan(name, spec={}), query={"fieldManager": FIELD_MANAGER})
        for step in steps:
            if isinstance(step, tuple):
                path = f"{PLAN}/{name}/status"
                self.ask("PATCH", path, {"status": step[0]}, MERGE_PATCH, query={"fieldManager": step[1]})
            else:
                self.apply(name, step)


def crd() -> Object:
    """Ours, with a status that has a field of each sort."""
    document = copy.deepcopy(our_crd())
    text = {"type": "string"}
    condition = {"type": "object", "required": ["type"], "properties": {"type": text, "status": text}}
    by_type = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    root = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    root["status"]["properties"] |= {
        "atom": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"a": text, "b": {"type": "object", "properties": {"c": text}}},
        },
        "summary": {"type": "object", "properties": {"npus": {"type": "integer"}, "workers": {"type": "integer"}}},
        "list": {"type": "array", **by_type, "items": condition},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
        "free": {"type": "object", "additionalProperties": text},
        "deep": {
            "type": "object",
            "properties": {"x": {"type": "object", "properties": {"y": text, "z": text}}},
        },
        "null": {"type": "object", "nullable": True, "properties": {"y": text}},
        "number": {"type": "number", "maximum": 5},
        "time": {"type": "string", "format": "date-time"},
    }
    return document


def plan(name: str, **fields: Any) -> Object:
    return {"apiVersion": PLANS.api_version, "kind": PLANS.kind, "metadata": {"name": name}, **fields}


def pod(name: str, metadata: Mapping[str, Any] | None = None, **spec: Any) -> Object:
    containers = [{"name": "c", "image": "i"}]
    about = {"name": name, "labels": {"app": "x"}} if metadata is None else metadata
    return {"metadata": about, "spec": {"containers": containers, **spec}, "status": {"phase": "Running"}}


def event(name: str, **fields: Any) -> Object:
    on_pod = {"kind": "Pod", "namespace": "default", "name": "x", "apiVersion": "v1"}
    return {"metadata": {"name": name}, "involvedObject": on_pod, "reason": "CpuBound", "count": 1, **fields}


def keyed(**statuses: str) -> list[Object]:
    """Items of a list map."""
    return [{"type": kind, "status": status} for kind, status in statuses.items()]


def plain(value: Any) -> Any:
    """An answer without what is different each time, and without managedFields of what nobody applies to."""
    if isinstance(value, dict):
        return dict(_plain_fields(value))
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, str):
        value = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", value)
        value = re.sub(r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z", "TIME", value)
        return re.sub(r"current: \d+", "current: N", value)
    return value


def _plain_fields(document: Object) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if key == "resourceVersion":
            yield key, "VERSION" if value else value
        elif key == "managedFields":
            owners = [{**one, "fieldsV1": _of_plans(one["fieldsV1"])} for one in value]
            of_plans = [plain(one) for one in owners if one["fieldsV1"]]
            if of_plans and of_plans[0]["apiVersion"] == PLANS.api_version:
                yield key, sorted(of_plans, key=lambda one: (one["operation"], one["manager"]))
        else:
            yield key, plain(value)


def _of_plans(fields: Object) -> Object:
    return {key: value for key, value in fields.items() if key in ("f:spec", "f:status")}
