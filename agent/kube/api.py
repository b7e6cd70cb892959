"""The requests that the agent makes of the API server besides its watches: all that its ClusterRole allows."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client

from agent import __version__
from agent.control.report import API_VERSION, KIND
from agent.kube.access import Access
from agent.kube.bounds import BoundedPool, Limits
from agent.kube.faults import said, status_message
from agent.kube.retry import retry_after
from agent.model.reason import Problem, Reason, Refused, printable

GROUP, _, VERSION = API_VERSION.partition("/")
PLURAL = "cpubindingplans"
FIELD_MANAGER = "cpubind-agent"
TIMEOUT = (5.0, 15.0)
"""Seconds to connect, and for an answer, from its first byte to its last. Without it a half-open connection hangs for
ever."""
PAGE = 100
"""Plans in one answer. One of 64 NPUs with as many workers each as a plan lists is 270 KB, one of 16 NPUs with eight 36
KB: a hundred of either fit into an answer (bounds.py), and those of Kubernetes' 5,000 nodes into 50."""
MAX_PAGES = 1000

Object = dict[str, Any]


class ApiError(Exception):
    """A request that failed. `problem` says it in a line, `status` is that of HTTP, None where no answer came."""

    def __init__(self, problem: Problem, status: int | None = None, retry_after: float = 0.0) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.status = status
        self.retry_after = retry_after
        """Seconds that the API server asked to wait (429, 503)."""


@contextmanager
def _missing_resource_told() -> Iterator[None]:
    """A collection of plans that is not there is a CRD that is not there."""
    try:
        yield
    except ApiError as error:
        if error.status == 404:
            missing = Problem(Reason.PLAN_RESOURCE_MISSING, f"no resource {PLURAL} of {API_VERSION}")
            raise ApiError(missing, 404) from None
        raise


class Api:
    """A client of the API server. Every request has a limit and is made once: whoever calls tries again, later.

    Objects are dicts: the client's typed models refuse what is merely unusual, and cost 20 MiB.
    """

    def __init__(self, access: Access, count: Callable[[str, str], None] = lambda _verb, _code: None) -> None:
        """`count` takes the verb and the status of each request; the status is ``error`` where none came."""
        self._access = access
        self._count = count
        self._lock = threading.Lock()
        self._client: client.ApiClient | None = None
        self._limits = Limits()

    def node(self, name: str) -> Object:
        """The v1.Node. `ApiError` with NodeNotFound where there is none."""
        try:
            return self._request("Node", "get", "GET", f"/api/v1/nodes/{quote(name)}")
        except ApiError as error:
            if error.status == 404:
                raise ApiError(Problem(Reason.NODE_NOT_FOUND, f"no Node {printable(name, 80)}"), 404) from None
            raise

    def create_plan(self, body: Mapping[str, Any]) -> Object:
        """POSTs a plan and returns it as it was made. `ApiError` with PlanResourceMissing without the CRD."""
        with _missing_resource_told():
            return self._of_plans(
                KIND,
                "create",
                lambda api, **how: api.create_cluster_custom_object(GROUP, VERSION, PLURAL, dict(body), **how),
            )

    def apply_status(self, name: str, status: Mapping[str, Any]) -> Object:
        """Server-side apply of ``/status``, taking over every field in it; returns the whole object."""
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "status": dict(status)}
        return self._of_plans(
            KIND,
            "patch",
            lambda api, **how: api.patch_cluster_custom_object_status(
                GROUP,
                VERSION,
                PLURAL,
                name,
                body,
                field_manager=FIELD_MANAGER,
                force=True,
                _content_type="application/apply-patch+yaml",
                **how,
            ),
        )

    def plans(self, name: str = "") -> Iterator[Object]:
        """The plan of one node, or of all, page by page: those of a large cluster fit into no one's memory at once.
        `ApiError` with PlanResourceMissing without the CRD."""
        selector = {"field_selector": f"metadata.name={name}"} if name else {}
        after: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            page = self._page(PAGE, **selector, **after)
            yield from page["items"] or []
            token = page["metadata"].get("continue")
            if not token:
                return
            after = {"_continue": str(token)}
        raise ApiError(Problem(Reason.API_UNREACHABLE, f"list of {PLURAL}: there is no end to it"))

    def count_plans(self) -> int:
        """How many there are: the API server counts those that it does not send. Errors as with `plans`."""
        page = self._page(1)
        rest = page["metadata"].get("remainingItemCount")
        return len(page["items"] or []) + (rest if isinstance(rest, int) else 0)

    def pods(self, node: str) -> list[Object]:
        """The pods of a node, from the watch cache."""
        query = urlencode({"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"})
        return list(self._request("PodList", "list", "GET", f"/api/v1/pods?{query}")["items"] or [])

    def create_event(self, body: Mapping[str, Any]) -> Object:
        """POSTs a v1.Event."""
        namespace = body["metadata"]["namespace"]
        return self._request("Event", "create", "POST", f"/api/v1/namespaces/{quote(namespace)}/events", body)

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Merge-patches a v1.Event."""
        path = f"/api/v1/namespaces/{quote(namespace)}/events/{quote(name)}"
        return self._request("Event", "patch", "PATCH", path, patch, content_type="application/merge-patch+json")

    def may(self, verb: str, group: str, resource: str, subresource: str = "") -> bool:
        """Whether this token may do that, by a SelfSubjectAccessReview."""
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        kind, path = "SelfSubjectAccessReview", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": {"resourceAttributes": attributes}}
        return self._request(kind, "create", "POST", path, body)["status"].get("allowed") is True

    def close(self) -> None:
        """Drops its connections."""
        with self._lock:
            if self._client is not None:
                self._client.rest_client.pool_manager.clear()
            self._client = None

    def _page(self, limit: int, **how: str) -> Object:
        with _missing_resource_told():
            return self._of_plans(
                f"{KIND}List",
                "list",
                lambda api, **rest: api.list_cluster_custom_object(GROUP, VERSION, PLURAL, limit=limit, **how, **rest),
            )

    def _of_plans(self, kind: str, verb: str, call: Callable[..., Any]) -> Object:
        """A call of the CustomObjectsApi."""

        def make(api_client: client.ApiClient) -> Any:
            return call(client.CustomObjectsApi(api_client), _request_timeout=TIMEOUT)

        return self._made(kind, verb, f"{verb} of {PLURAL}", make)

    def _request(
        self,
        kind: str,
        verb: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
    ) -> Object:
        def make(api_client: client.ApiClient) -> Any:
            headers = {"Accept": "application/json", "User-Agent": api_client.user_agent}
            headers |= {"Authorization": api_client.configuration.get_api_key_with_prefix("BearerToken") or ""}
            if body is not None:
                headers["Content-Type"] = content_type
            response = api_client.call_api(method, self._access.server + path, headers, body, _request_timeout=TIMEOUT)
            data: bytes = response.read()  # type: ignore[no-untyped-call]
            if not 200 <= response.status < 300:
                raise client.ApiException(http_resp=response, body=data.decode(errors="replace"), data=None)
            return json.loads(data)

        return self._made(kind, verb, f"{verb} of {_resource(path)}", make)

    def _made(self, kind: str, verb: str, what: str, make: Callable[[client.ApiClient], Any]) -> Object:
        """Makes a request, counts it, and turns whatever it raises into `ApiError`. An answer is an object of this
        kind, or it is none."""
        code, failure = "error", ApiError(Problem(Reason.API_UNREACHABLE, f"{what}: the answer makes no sense"))
        try:
            connected = self._connected()
            self._limits.begin(sum(TIMEOUT))
            answer = make(connected)
        except Refused as refused:
            raise ApiError(refused.problem) from None  # nothing was asked
        except client.ApiException as error:
            if error.status:
                code, failure = str(error.status), _refusal(error, what)
            else:
                failure = ApiError(Problem(Reason.API_UNREACHABLE, f"{what}: {said(error)}"))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self.close()  # the next one reads the CA again
            failure = ApiError(Problem(Reason.API_UNREACHABLE, f"{what}: {said(error)}"))
        except (ValueError, RecursionError):
            pass  # no JSON, or brackets a thousand deep
        else:
            code = "200"
            if _is(answer, kind):
                self._count(verb, code)
                made: Object = answer
                return made
        self._count(verb, code)
        raise failure

    def _connected(self) -> client.ApiClient:
        with self._lock:
            token = self._access.token()
            if self._client is None:
                trust = ssl.create_default_context(cafile=str(self._access.ca))
                configuration = client.Configuration()
                configuration.host = self._access.server
                configuration.proxy = None
                configuration.api_key_prefix = {"BearerToken": "Bearer"}
                self._client = client.ApiClient(configuration)
                self._client.rest_client.pool_manager = BoundedPool(trust, self._limits)
                self._client.user_agent = f"cpubind/{__version__}"
            self._client.configuration.api_key = {"BearerToken": token}
            return self._client


def _is(answer: object, kind: str) -> bool:
    """Whether it is an object of this kind, with all of it that is read here without asking whether it is there."""
    if not isinstance(answer, dict) or answer.get("kind") != kind or not isinstance(answer.get("metadata"), dict):
        return False
    if kind == "Node":
        return isinstance(answer["metadata"].get("uid"), str)
    if kind == "SelfSubjectAccessReview":
        return isinstance(answer.get("status"), dict)
    if kind.endswith("List"):
        items = answer.get("items", 0)
        return items is None or (isinstance(items, list) and all(isinstance(one, dict) for one in items))
    return True


def _resource(path: str) -> str:
    """``pods`` of ``/api/v1/pods?…``, ``events`` of ``/api/v1/namespaces/prod/events/llm-0.1``."""
    parts = path.partition("?")[0].split("/")
    return next((part for part in reversed(parts) if part in ("events", "nodes", "pods")), parts[-1])


def _refusal(error: client.ApiException, what: str) -> ApiError:
    """The Status that the API server answered with, as an `ApiError`."""
    message = status_message(error.body or "")
    ours = error.status < 500 and error.status not in (401, 410, 429)  # else it knows nobody, or is in trouble itself
    text = printable(f"{what}: {error.status} {message or error.reason}", 1000)
    problem = Problem(Reason.API_REFUSED if ours else Reason.API_UNREACHABLE, text)
    return ApiError(problem, error.status, retry_after(error.headers or {}))
