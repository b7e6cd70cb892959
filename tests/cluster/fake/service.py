"""The HTTP side: who asks, may they, and what is answered."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from tests.cluster.client import APPLY_PATCH
from tests.cluster.cluster import AGENT_RULES, USER, Request, Rule
from tests.cluster.fake import discovery, patches, rbac, status
from tests.cluster.fake.rbac import Asked, is_true
from tests.cluster.fake.reading import BOOKMARK_INTERVAL, Query, Watching, listing
from tests.cluster.fake.registry import BUILT_IN, Deletion, Registry
from tests.cluster.objects import PLANS, Kind

Object = dict[str, Any]

ANONYMOUS = "system:anonymous"
ADMIN = "admin"


class Service:
    """Answers requests from a registry. For one thread."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.users: dict[str, str] = {}
        """Who has which token."""
        self.rules: Sequence[Rule] = AGENT_RULES
        self.requests: list[Request] = []
        self.bookmark_interval = BOOKMARK_INTERVAL
        self.crashes: list[str] = []
        """Where this server itself was wrong; a test that has any fails."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request."""
        came = time.time()
        query: dict[str, str] = {}
        for key, value in request.rel_url.query.items():
            query.setdefault(key, value)
        it = rbac.asked(request.method, request.path, query)
        user = ""
        code: int
        body: Object | str
        try:
            user = self._user(request)
            self._authorize(user, it)
            if it.verb == "watch" and it.resource:
                return await self._watch(request, it, query, came, user)
            content = await request.read()
            if (it.group, it.resource, it.verb) == (rbac.REVIEWS, "selfsubjectaccessreviews", "create"):
                code, body = self._review(user, content)
            else:
                code, body = self._answer(it, query, request, content)
        except status.StatusError as refusal:
            code, body = refusal.code, refusal.body
        except Exception:  # whatever it is, the test shall learn of it
            self.crashes.append(traceback.format_exc())
            code, body = 500, status.failure(500, "InternalError", "the fake API server has a fault of its own")
        self._record(user, it, query, code, came)
        if isinstance(body, str):
            return web.Response(status=code, text=body)
        return web.json_response(body, status=code, dumps=_dumps)

    def _user(self, request: web.BaseRequest) -> str:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer":
            return ANONYMOUS
        if token not in self.users:
            raise status.unauthorized()
        return self.users[token]

    def _authorize(self, user: str, it: Asked) -> None:
        if not self._may(user, it):
            raise rbac.forbidden(user, it)

    def _may(self, user: str, it: Asked) -> bool:
        rules: list[Rule] = [rbac.PUBLIC]
        if user != ANONYMOUS:
            rules += [rbac.DISCOVERY, rbac.BASIC_USER, *self.rules]
        return user == ADMIN or rbac.allows(rules, it)

    def _review(self, user: str, content: bytes) -> tuple[int, Object]:
        review = json.loads(content)
        allowed = self._may(user, rbac.reviewed(review["spec"]))
        return 201, {**review, "metadata": {"creationTimestamp": None}, "status": {"allowed": allowed}}

    def _record(self, user: str, it: Asked, query: Query, code: int, came: float) -> None:
        if user == USER:
            self.requests.append(Request(it.verb, it.path, dict(query), user, code, came))

    async def _watch(
        self, request: web.BaseRequest, it: Asked, query: Query, came: float, user: str
    ) -> web.StreamResponse:
        kind = self._kind(it)
        watching = Watching(self.registry.store, kind, it.namespace, query, self.bookmark_interval)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        self._record(user, it, query, 200, came)
        try:
            await response.prepare(request)
            async for line in watching.lines():
                # Clients know a bookmark by how its line begins.
                head = f'{{"type":"{line["type"]}","object":'
                await response.write(f"{head}{_dumps(line['object'])}}}\n".encode())
            await response.write_eof()
        except ConnectionError:
            pass  # whoever watched is gone
        finally:
            watching.close()
        return response

    def _answer(self, it: Asked, query: Query, request: web.BaseRequest, body: bytes) -> tuple[int, Object | str]:
        if not it.resource:
            return self._discover(it)
        if query.get("dryRun"):
            raise status.not_modelled("dry runs")
        kind = self._kind(it)
        if it.subresource and it.subresource not in kind.subresources:
            raise status.not_modelled(f"{kind.plural}/{it.subresource}")
        key = (it.namespace, it.name)
        if not it.name or it.verb == "list":
            return self._collection(kind, it, query, request, body)
        if it.verb == "get":
            return 200, self.registry.get(kind, key)
        if it.verb == "delete" and not it.subresource:
            return 200, self.registry.delete(kind, key, _deletion(query, body))
        if it.verb == "update" and it.subresource in ("", "status"):
            thing = patches.whole_object(kind, body)
            return 200, self.registry.replace(kind, key, thing, it.subresource, _manager(query, request))
        if it.verb == "patch" and it.subresource in ("", "status"):
            return 200, self._patch(kind, it, query, request, body)
        if it.verb == "create" and it.subresource == "binding":
            binding = json.loads(body)
            if binding["metadata"]["name"] != it.name:
                raise status.bad_request("name in URL does not match name in Binding object")
            self.registry.bind(key, binding["target"]["name"])
            return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        raise status.method_not_allowed()

    def _collection(
        self, kind: Kind, it: Asked, query: Query, request: web.BaseRequest, body: bytes
    ) -> tuple[int, Object]:
        if it.verb == "list":
            return 200, listing(self.registry.store, kind, it.namespace, query)
        if kind.namespaced and not it.namespace:
            raise status.method_not_allowed()
        if it.verb == "create":
            thing = patches.whole_object(kind, body)
            return 201, self.registry.create(kind, it.namespace, thing, _manager(query, request))
        if it.verb == "deletecollection":
            whole = listing(self.registry.store, kind, it.namespace, query)
            for item in whole["items"]:
                key = (item["metadata"].get("namespace", ""), item["metadata"]["name"])
                self.registry.delete(kind, key, _deletion(query, body))
            return 200, whole
        if kind.group:
            raise status.bad_request("name must be provided")
        raise status.method_not_allowed()

    def _patch(self, kind: Kind, it: Asked, query: Query, request: web.BaseRequest, body: bytes) -> Object:
        media = patches.patch_type(kind, request.content_type)
        if len(query.get("fieldManager", "")) > 128:
            too_long = "Too long: must have at most 128 bytes"
            raise _bad_options(status.Fault("fieldManager", "FieldValueTooLong", too_long))
        key = (it.namespace, it.name)
        if media == APPLY_PATCH:
            if not query.get("fieldManager"):
                raise _bad_options(status.required("fieldManager", "is required for apply patch"))
            if kind != PLANS or it.subresource != "status":
                raise status.not_modelled("server-side apply but to the status of plans")
            config = patches.applied_configuration(body)
            force = is_true(query.get("force"))
            return self.registry.apply_status(key, config, query["fieldManager"], force=force)
        self.registry.get(kind, key)  # one that is not there is not found, whatever the patch
        patch = patches.merge_patch(body, media)
        manager = _manager(query, request)
        return self.registry.change(kind, key, lambda old: patches.merged(old, patch), it.subresource, manager)

    def _discover(self, it: Asked) -> tuple[int, Object | str]:
        if it.path in discovery.HEALTH:
            return 200, "ok"
        served = (*BUILT_IN, PLANS) if self.registry.plans else BUILT_IN
        document = discovery.document(it.path, served)
        if document is None:
            raise status.no_such_page()
        if it.verb != "get":
            raise status.method_not_allowed()
        return 200, document

    def _kind(self, it: Asked) -> Kind:
        served = (*BUILT_IN, PLANS) if self.registry.plans else BUILT_IN
        for kind in served:
            if (kind.group, kind.version, kind.plural) == (it.group, it.version, it.resource):
                return kind
        raise status.no_such_page() if it.group else status.no_such_resource()


def _deletion(query: Query, body: bytes) -> Deletion:
    options = json.loads(body) if body else {}
    policy = query.get("propagationPolicy") or options.get("propagationPolicy") or "Background"
    if policy != "Background":
        raise status.not_modelled(f"deletion in the {policy}")
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    preconditions = options.get("preconditions") or {}
    return Deletion(
        None if grace is None else int(grace), preconditions.get("uid"), preconditions.get("resourceVersion")
    )


def _bad_options(fault: status.Fault) -> status.StatusError:
    return status.invalid("PatchOptions", "meta.k8s.io", "", [fault])


def _manager(query: Query, request: web.BaseRequest) -> str:
    return query.get("fieldManager") or request.headers.get("User-Agent", "").partition("/")[0]


def _dumps(document: object) -> str:
    """Fields come in the order of their names, as of every object that a CRD defines."""
    return json.dumps(document, sort_keys=True)
