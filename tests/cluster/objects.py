"""The objects of one kind, as an administrator handles them: raw documents, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cluster.client import MERGE_PATCH, ApiClient, ApiError

Object = dict[str, Any]
Listed = list[Object]
Names = list[str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource as discovery has it."""

    kind: str
    plural: str
    singular: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = False
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ("status",)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """`/api/v1` or `/apis/GROUP/VERSION`."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """Of one object, of a namespace's, or of all."""
        parts = [self.prefix]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join(part for part in (*parts, self.plural, name, subresource) if part)


NODES = Kind("Node", "nodes", "", short=("no",))
PODS = Kind("Pod", "pods", "", namespaced=True, short=("po",), subresources=("binding", "status"))
EVENTS = Kind("Event", "events", "", namespaced=True, short=("ev",), subresources=())
NAMESPACES = Kind("Namespace", "namespaces", "", short=("ns",))
PLANS = Kind("CpuBindingPlan", "cpubindingplans", "cpubindingplan", "cpubind.dev", "v1alpha1", short=("cbp",))


class Objects:
    """All objects of a kind. `namespace` counts for namespaced kinds alone. Refusals are `ApiError`."""

    def __init__(self, client: ApiClient, kind: Kind) -> None:
        self.client = client
        self.kind = kind

    def path(self, name: str = "", namespace: str = "default", subresource: str = "") -> str:
        return self.kind.path(name, namespace, subresource)

    def get(self, name: str, namespace: str = "default") -> Object:
        return self.client.request("GET", self.path(name, namespace))

    def find(self, name: str, namespace: str = "default") -> Object | None:
        """None where it is not there."""
        try:
            return self.get(name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, **query: str) -> Listed:
        """Of all namespaces; `fieldSelector` and the like are given by their own names."""
        items: Listed = self.client.request("GET", self.kind.path(), query=query)["items"]
        return items

    def names(self, **query: str) -> Names:
        return sorted(item["metadata"]["name"] for item in self.list(**query))

    def version(self) -> str:
        """The resourceVersion from which to watch what comes next."""
        version: str = self.client.request("GET", self.kind.path())["metadata"]["resourceVersion"]
        return version

    def create(self, document: Object) -> Object:
        """The namespace is the document's own, or `default`."""
        namespace = document.get("metadata", {}).get("namespace", "default")
        whole = {"apiVersion": self.kind.api_version, "kind": self.kind.kind, **document}
        return self.client.request("POST", self.path(namespace=namespace), whole)

    def named(self, name: str, **fields: Any) -> Object:
        """Creates an object of which there is no more to say than its name and these fields."""
        return self.create({"metadata": {"name": name}, **fields})

    def replace(self, document: Object) -> Object:
        metadata = document["metadata"]
        return self.client.request("PUT", self.path(metadata["name"], metadata.get("namespace", "")), document)

    def merge_patch(self, name: str, patch: Object, namespace: str = "default", subresource: str = "") -> Object:
        path = self.path(name, namespace, subresource)
        return self.client.request("PATCH", path, patch, content_type=MERGE_PATCH)

    def annotate(self, name: str, annotations: Mapping[str, str | None], namespace: str = "default") -> Object:
        """None removes an annotation."""
        return self.merge_patch(name, {"metadata": {"annotations": dict(annotations)}}, namespace)

    def set_status(self, name: str, status: Object, namespace: str = "default") -> Object:
        """Merges into `status`, as its controller or kubelet would."""
        return self.merge_patch(name, {"status": status}, namespace, "status")

    def delete(self, name: str, namespace: str = "default", grace: int | None = None) -> None:
        """`grace` in seconds: 0 is what `kubectl delete --force` says. One that is gone already is no error."""
        query = {} if grace is None else {"gracePeriodSeconds": str(grace)}
        answer = self.client.ask("DELETE", self.path(name, namespace), query=query)
        if answer.code not in (200, 202, 404):
            raise ApiError(answer.code, answer.document, answer.text)

    def clear(self) -> None:
        """Deletes all of them, at once, finalizers or not."""
        for item in self.list():
            metadata = item["metadata"]
            name, namespace = metadata["name"], metadata.get("namespace", "")
            if metadata.get("finalizers"):
                self.merge_patch(name, {"metadata": {"finalizers": None}}, namespace)
            self.delete(name, namespace, grace=0)


class Pods(Objects):
    """Pods. What kubelet and scheduler do is for the test to do."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client, PODS)

    def run(
        self,
        name: str,
        *,
        node: str = "",
        namespace: str = "default",
        annotations: Mapping[str, str] | None = None,
        containers: Iterable[str | Object] = ("main",),
        **spec: Any,
    ) -> Object:
        """Creates a pod; a container is its name or its document. Without a node it waits for `bind`."""
        wanted = [{"name": one, "image": "image"} if isinstance(one, str) else one for one in containers]
        metadata = {"name": name, "namespace": namespace, "annotations": dict(annotations or {})}
        place = {"nodeName": node} if node else {}
        return self.create({"metadata": metadata, "spec": {"containers": wanted, **place, **spec}})

    def bind(self, name: str, node: str, namespace: str = "default") -> None:
        """What the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.client.request("POST", self.path(name, namespace, "binding"), body)

    def started(self, name: str, ids: Mapping[str, str], namespace: str = "default") -> Object:
        """What kubelet says of a pod whose containers run; `ids` are container ids by container, without a scheme."""
        statuses = [
            {
                "name": container,
                "containerID": f"containerd://{container_id}",
                "image": "image",
                "imageID": "image",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for container, container_id in ids.items()
        ]
        return self.set_status(name, {"phase": "Running", "containerStatuses": statuses}, namespace)
