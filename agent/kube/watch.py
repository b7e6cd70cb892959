"""Follows the objects of one resource that concern this node: one kopf operator in its own thread and loop, supervised.

What is relied on of kopf (1.45):

* It lists, hands out every listed object, then watches from there. It lists again after a 410, and says nothing of what
  went meanwhile: so each LIST is taken whole, on its way through the HTTP session, and later events are told from those
  that it already holds by their resourceVersion.
* Its LIST has no resourceVersion, for which the API server reads all pods of the cluster from etcd. The session adds
  ``resourceVersion=0``: served from the watch cache, and selected there.
* `on.event` writes nothing to the object, whatever happens, as long as the handler returns None.
* It ends on errors in the stream, a 404 or a 410 as status, and a token that was refused twice. Then it is started
  anew, after a pause that grows. Everything else it tries again by itself, for ever with endless `error_backoffs`.
* A resource that is not there when it starts is never looked for again: so it is ended and started anew.
* On its way out it cancels every task of the loop that it runs in: the loop is its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import kopf

from agent import __version__
from agent.kube.access import Access
from agent.kube.plan import version
from agent.model.reason import Problem, Reason, Refused, printable

log = logging.getLogger(__name__)
# kopf tells every failed attempt as an error. What is worth telling is told here, once.
logging.getLogger("kopf").addHandler(logging.NullHandler())
logging.getLogger("kopf").propagate = False

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
SESSION_SECONDS = 3600.0
"""After this the CA is read again."""
CLOSING_SECONDS = 0.05
"""aiohttp closes TLS connections in the rounds of the loop that follow."""
SERVER_SECONDS = 240
"""How long the API server keeps one watch open; it is renewed from where it was."""

Object = Mapping[str, Any]
CountRequest = Callable[[str, str], None]
"""Takes the verb and the status of each request; the status is ``error`` where none came."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is watched: a resource, and which of its objects."""

    group: str
    version: str
    plural: str
    field_selector: str

    @property
    def path(self) -> str:
        prefix = f"/apis/{self.group}" if self.group else "/api"
        return f"{prefix}/{self.version}/{self.plural}"


class Backoffs:
    """Pauses between attempts, endless: doubling from `first` to `last` seconds, each shortened at random by up to a
    third, so that the agents of a fleet don't come back together. kopf iterates over it once a request."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last

    def __iter__(self) -> Iterator[float]:
        pause = self._first
        while True:
            yield pause * random.uniform(2 / 3, 1)  # noqa: S311 - spreading load, not a secret
            pause = min(2 * pause, self._last)


class Watch:
    """Keeps a mirror of the objects of a `Subject` up to date, from `start` to `stop`, through whatever happens."""

    def __init__(
        self,
        subject: Subject,
        access: Access,
        *,
        listed: Callable[[Sequence[Object]], None],
        event: Callable[[str, Object], None],
        count: CountRequest = lambda _verb, _code: None,
        backoffs: Backoffs | None = None,
    ) -> None:
        """`listed` takes all objects of a LIST; `event` takes ADDED, MODIFIED or DELETED and an object. Both are called
        in the watch's own thread and must not wait."""
        self.subject = subject
        self._access = access
        self._listed = listed
        self._event = event
        self._count = count
        self._backoffs = backoffs or Backoffs(1.0, 60.0)
        self._version = 0
        self._answered = 0.0
        self._unauthorized = False
        self._problem: Problem | None = None
        self._stop = threading.Event()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name=f"watch {subject.plural}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends it; what is still under way after `timeout` seconds ends with the process."""
        self._stop.set()
        self._leave.set()
        self._thread.join(timeout)

    def problem(self) -> Problem | None:
        """Why there is no watch just now; None while there is one."""
        return self._problem

    @property
    def answered_at(self) -> float:
        """When the API server last answered, in seconds of time.monotonic; 0 before it ever did."""
        return self._answered

    def _supervise(self) -> None:
        pauses, begun = iter(self._backoffs), time.monotonic()
        while not self._stop.is_set():
            self._leave.clear()
            try:
                asyncio.run(self._operate())
            except (Exception, asyncio.CancelledError) as error:  # whatever ends it, it is started again
                log.debug("watch of %s ended", self.subject.plural, exc_info=True)
                if self._problem is None:
                    self._problem = Problem(Reason.API_UNREACHABLE, f"watch of {self.subject.plural}: {_said(error)}")
            if time.monotonic() - begun > 2 * SERVER_SECONDS:
                pauses = iter(self._backoffs)  # it went well for long
            self._stop.wait(next(pauses))
            begun = time.monotonic()

    async def _operate(self) -> None:
        """One kopf operator, from its start to its end."""
        registry = kopf.OperatorRegistry()
        settings = self._settings()
        sessions: list[aiohttp.ClientSession] = []
        again = iter(self._backoffs)

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            if self._unauthorized:  # kopf asks at once when a token was refused; kubelet writes a new one in its time
                await asyncio.sleep(next(again))
            session = self._session()
            sessions.append(session)
            expires = datetime.now(UTC) + timedelta(seconds=SESSION_SECONDS)
            return kopf.AiohttpSession(server=self._access.server, aiohttp_session=session, expiration=expires)

        @kopf.on.event(self.subject.group, self.subject.version, self.subject.plural, registry=registry)
        async def changed(event: Any, **_: Any) -> None:
            self._take(event)

        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                clusterwide=True,
                standalone=True,
                stop_flag=self._leave,
            )
        finally:
            for session in sessions:
                await session.close()
            await asyncio.sleep(CLOSING_SECONDS)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.watching.server_timeout = SERVER_SECONDS
        settings.watching.connect_timeout = CONNECT_SECONDS
        settings.watching.reconnect_backoff = 0.5
        settings.networking.request_timeout = REQUEST_SECONDS
        settings.networking.connect_timeout = CONNECT_SECONDS
        settings.networking.error_backoffs = self._backoffs
        settings.watching.field_selectors[self.subject.group, self.subject.version, self.subject.plural] = (
            self.subject.field_selector
        )
        return settings

    def _session(self) -> aiohttp.ClientSession:
        """A session that speaks for us: the token as it is at each request, and everything seen on the way."""
        trust = ssl.create_default_context(cafile=str(self._access.ca))
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust),
            middlewares=(self._through,),
            headers={"User-Agent": f"cpubind/{__version__}"},
        )

    async def _through(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        watching = request.url.query.get("watch") == "true"
        listing = request.url.path == self.subject.path and not watching
        verb = "watch" if watching else "list" if listing else "get"
        if listing:
            request.url = request.url.update_query(resourceVersion="0")
        try:
            request.headers["Authorization"] = f"Bearer {self._access.token()}"
            response = await handler(request)
            if listing or request.url.path == "/apis":
                await response.read()
        except Refused as refused:
            self._problem = refused.problem
            raise aiohttp.ClientConnectionError(str(refused.problem)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._count(verb, "error")
            self._problem = Problem(Reason.API_UNREACHABLE, f"{verb} of {self.subject.plural}: {_said(error)}")
            raise
        self._count(verb, str(response.status))
        await self._look_at(response, verb)
        return response

    async def _look_at(self, response: aiohttp.ClientResponse, verb: str) -> None:
        self._answered = time.monotonic()
        self._unauthorized = response.status == 401
        if response.status >= 400:
            said = f"{verb} of {self.subject.plural}: {response.status} {response.reason}"
            missing = response.status == 404
            self._problem = Problem(
                Reason.PLAN_RESOURCE_MISSING if missing and self.subject.group else Reason.API_REFUSED,
                printable(said, 200),
            )
        elif verb == "list":
            document = await response.json()
            self._version = version(document)
            self._listed(document.get("items") or [])
            self._problem = None
        elif verb == "watch":
            self._problem = None
        elif self.subject.group and response.url.path == "/apis":
            groups = (await response.json()).get("groups") or []
            if not any(group.get("name") == self.subject.group for group in groups):
                self._problem = Problem(Reason.PLAN_RESOURCE_MISSING, f"no API group {self.subject.group}")
                self._leave.set()  # kopf would never look again

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, found = event.get("type"), event.get("object")
        if kind not in ("ADDED", "MODIFIED", "DELETED") or not isinstance(found, Mapping):
            return  # None: of the LIST, which was taken whole
        if version(found) > self._version or not self._version:
            self._event(kind, found)


def _said(error: BaseException) -> str:
    return printable(str(error) or type(error).__name__, 120)
