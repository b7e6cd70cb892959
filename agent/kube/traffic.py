"""The HTTP session that kopf speaks through: who we are, what is asked besides, and what is learned on the way.

Where kopf (1.45) would ask too often, or too long in vain, it is mended here:

* It opens the next watch the moment that one ends: a server that ends each at once is asked a thousand times a second.
  So a watch that was brief is followed by a pause, which grows. And a server that goes takes the watches of a whole
  fleet with it: so one that ended before its time is followed by a pause of random length.
* A LIST that breaks off is asked for again twice a second. It is read here, and a broken one is an error of the
  connection, for which there are pauses that grow.
* It keeps a session, and the CA that it trusts, through all attempts of a request, which are endless. A session whose
  CA does not vouch for the server is ended: kopf then asks for another one, with the CA as it is then.
* It waits as long as a 429 says, be it a day.
* It reads whatever comes, however much. Answers, and single events of a watch, are bounded (bounds.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from agent import __version__
from agent.kube import bounds
from agent.kube.access import Access
from agent.kube.bounds import BoundedContent
from agent.kube.faults import said, status_message
from agent.kube.plan import version
from agent.kube.retry import MAX_PAUSE, Backoffs, Spread, retry_after
from agent.model.reason import Problem, Reason, Refused, printable

ANSWER_SECONDS = 20.0
"""How long an answer may take; of a watch its beginning."""
BRIEF_SECONDS = 5.0
"""A watch that ends sooner has not ended well."""
EARLY_SECONDS = 2.0
"""A watch that ends so much before its time was cut. The API server ends one up to a second early."""
LATE_SECONDS = 10.0
"""A watch that the API server has not ended so long after its time is dead."""
KEEPALIVE = (30, 10, 4)
"""TCP_KEEPIDLE, TCP_KEEPINTVL in seconds, TCP_KEEPCNT: a host that is gone without a word, and with it a watch in which
nothing would come for minutes anyway, is noticed after 70 s. The kernel's own idea are two hours."""
MAX_BRIEF, MAX_MUTE = 2, 1
"""So many watches one after the other may be brief, or mute, before it is a trouble."""
REST_SECONDS = 0.5
"""Between a watch and the LIST that follows it."""

Object = Mapping[str, Any]
CountRequest = Callable[[str, str], None]
"""Takes the verb and the status of each request; the status is ``error`` where none came."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is watched: a resource, and which of its objects."""

    group: str
    version: str
    plural: str
    kind: str
    field_selector: str
    namespaced: bool = False
    """Whether its objects are in namespaces. Those of all are watched."""


class Traffic:
    """What passes between the operators of one `Subject`, one after the other, and the API server."""

    def __init__(
        self,
        subject: Subject,
        access: Access,
        *,
        listed: Callable[[Sequence[Object]], None],
        count: CountRequest,
        backoffs: Backoffs,
        spread: Spread,
    ) -> None:
        self._subject = subject
        self._access = access
        self._listed = listed
        self._count = count
        self._backoffs = backoffs
        self._spread = spread
        self._problem: Problem | None = None
        self.failed_at: float | None = None
        """When something went wrong last; monotonic, in seconds, as the others."""
        self.well_at: float | None = None
        """Since when nothing has been wrong, or was last."""
        self.heard_at: float | None = None
        """When the API server last listed, opened a watch or told of a change."""
        self.version = 0
        """resourceVersion of the last LIST; what is not newer is in it."""
        self.newest = 0
        """The newest that was seen: what is listed must not be older."""
        self.leave: Callable[[], None] = lambda: None
        """Ends the operator."""
        self.rest: Callable[[float], None] = lambda _seconds: None
        """Sets how long the operator pauses before its next LIST."""
        self._session: aiohttp.ClientSession | None = None
        self._refused = False
        self._logins: Iterator[float] = iter(backoffs)
        self._watched_at: float | None = None
        self._ends_at = 0.0  # when the API server is to end the watch
        self._content: BoundedContent | None = None
        self._streams: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._lasted = 0.0
        self._brief = self._mute = 0
        self.broken = False
        """Whether the last watch ended by what came in it."""
        self._follows_list = False
        self._refused_watch = False
        self._pauses: Iterator[float] = iter(backoffs)

    @property
    def problem(self) -> Problem | None:
        """Why there is no watch just now; None while there is one."""
        return self._problem

    @problem.setter
    def problem(self, problem: Problem | None) -> None:
        now = time.monotonic()
        if problem is not None:
            self.failed_at = now
        elif self._problem is not None or self.well_at is None:
            self.well_at = now
        self._problem = problem

    async def open(self) -> aiohttp.ClientSession:
        """A new session, with the CA as it is now.

        After a 401 kopf asks for one at once. kubelet writes a new token in its time, so this waits.
        """
        if self._refused:
            await asyncio.sleep(next(self._logins))
        while True:
            try:
                trust = ssl.create_default_context(cafile=str(self._access.ca))
                break
            except OSError as error:
                self.problem = Problem(Reason.API_UNREACHABLE, f"{self._access.ca} cannot be used: {said(error)}")
                await asyncio.sleep(next(self._logins))
        await self.close()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust),
            middlewares=(self._through,),
            headers={"User-Agent": f"cpubind/{__version__}"},
        )
        return self._session

    async def close(self) -> None:
        # A watch that is left is closed by TLS's own good-bye, for which asyncio waits until the API server answers it.
        for transport in list(self._streams):
            with contextlib.suppress(AttributeError):  # of Python 3.11.2, where the stream has ended by itself
                transport.abort()
        if self._session is not None:
            await self._session.close()

    async def _through(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        verb = "watch" if request.url.query.get("watch") == "true" else "list"
        what = f"{verb} of {self._subject.plural}"
        if verb == "list":
            # From the watch cache, which must not be behind what is known already: another API server's may be.
            request.url = request.url.update_query(resourceVersion=str(self.newest))
            if self._problem is not None:
                request.headers["Connection"] = "close"  # another API server may know better
            self.rest(max(REST_SECONDS, self._due()))
            self._follows_list = True
        else:
            if not self._follows_list:
                await self._rest_between()
            self._follows_list = False
        try:
            request.headers["Authorization"] = f"Bearer {self._access.token()}"
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await handler(request)
                content = BoundedContent(response.content)
                response.content = content  # type: ignore[assignment]
                if verb != "watch" or response.status != 200:
                    await response.read()
        except Refused as refused:
            self.problem = refused.problem
            raise aiohttp.ClientConnectionError(str(refused.problem)) from None
        except (aiohttp.ClientError, OSError) as error:
            self._count(verb, "error")
            session = request.session
            if not session.closed:  # else it is us who end it
                self.problem = Problem(Reason.API_UNREACHABLE, f"{what}: {said(error)}")
            if isinstance(error, aiohttp.ClientSSLError):
                self._refused = True
                await session.close()
                raise RuntimeError("this session ends: another CA may vouch for the API server") from error
            if isinstance(error, aiohttp.ClientConnectionError | TimeoutError):
                raise
            raise aiohttp.ClientConnectionError(said(error)) from error
        self._count(verb, str(response.status))
        if verb == "watch":
            self._content = content
            if response.connection is not None and response.connection.transport is not None:
                self._streams.add(response.connection.transport)
                _keep_alive(response.connection.transport)
        await self._look_at(response, verb, what)
        return response

    async def _look_at(self, response: aiohttp.ClientResponse, verb: str, what: str) -> None:
        self._refused = response.status == 401
        if response.status >= 300:
            await self._look_at_refusal(response, verb, what)
            return
        if verb == "watch":
            seconds = float(response.url.query.get("timeoutSeconds", 0))
            self._watched_at = time.monotonic()
            self._ends_at = self._watched_at + seconds
            if self._content is not None:
                self._content.patience = seconds + LATE_SECONDS
        else:
            try:
                self._take_list(json.loads(await response.read()))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self.problem = Problem(Reason.API_UNREACHABLE, f"{what}: the answer makes no sense")
                raise aiohttp.ClientConnectionError(str(self.problem)) from None
        self.heard_at = time.monotonic()
        self._logins = iter(self._backoffs)
        if verb == "watch":
            self._refused_watch = False
        if not self.broken and not self._refused_watch:  # a LIST between two watches that are refused heals nothing
            self.problem = None
        elif verb == "watch":
            asyncio.get_running_loop().call_later(BRIEF_SECONDS, self._holds, self._content, self._watched_at)

    def lost(self, why: str) -> None:
        """The watch ended by what came in it: that the next one opens does not mean that all is well. What was wrong
        first is what is told, until all is well: the rest follows from it."""
        if self.broken:
            self.problem = self._problem
            return
        self.broken = True
        self.problem = Problem(Reason.API_UNREACHABLE, f"watch of {self._subject.plural}: {why}")

    def heard(self) -> None:
        """An event came that makes sense."""
        self.heard_at = time.monotonic()
        self.broken, self.problem = False, None

    def _holds(self, content: BoundedContent | None, watched_at: float | None) -> None:
        """All is well where this watch, opened then, still goes on and has said something: one whose lines all break
        off goes on until the first of them, which is a minute where nothing happens. Where none comes in that time,
        the API server has nothing to say."""
        if content is None or content is not self._content or watched_at is None or _is_over(content):
            return
        if (self.failed_at or 0.0) > watched_at:
            return
        if not content.lines and time.monotonic() - watched_at < bounds.SILENT_SECONDS:
            asyncio.get_running_loop().call_later(BRIEF_SECONDS, self._holds, content, watched_at)
            return
        self.broken, self.problem = False, None

    async def _look_at_refusal(self, response: aiohttp.ClientResponse, verb: str, what: str) -> None:
        if response.status == 404 and self._subject.group:
            self._miss()
            return
        self._refused_watch = verb == "watch"
        ours = response.status < 500 and response.status not in (401, 410, 429)  # else it is in trouble
        # Those of others may hold times and numbers: each would be another problem.
        message = status_message(await response.read()) if ours else ""
        said_so = f"{what}: {response.status} {response.reason}{': ' if message else ''}{message}"
        self.problem = Problem(Reason.API_REFUSED if ours else Reason.API_UNREACHABLE, printable(said_so, 250))
        if response.status < 400:
            raise aiohttp.ClientConnectionError("no redirect is followed: the token is for this server")
        if verb == "list" and response.status in (410, 504) and self.newest and await self._is_restored(response.url):
            self.newest = 0
        if response.status == 429 and not 0 < retry_after(response.headers) <= MAX_PAUSE:
            raise aiohttp.ClientConnectionError("429, to be tried again after a pause of ours")

    async def _is_restored(self, url: URL) -> bool:
        """Whether the versions that we know are none of the store's, as after it was restored. Else this API server is
        behind, and a LIST of it would be of the past: of a plan that somebody has changed since. A LIST without a
        version is of the store itself, and says how far that is, be it empty. One object, by its whole name, is one
        key of etcd's; for any other selector the API server reads all of the cluster's until one fits."""
        assert self._session is not None
        if self._subject.namespaced:
            url = url.parent / "namespaces/default" / self._subject.plural
        one = url.with_query(fieldSelector="metadata.name=cpubind")
        try:
            headers = {"Authorization": f"Bearer {self._access.token()}"}
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._session.get(one, headers=headers, allow_redirects=False, middlewares=()) as response,
            ):
                body = await BoundedContent(response.content).read()
        except (Refused, aiohttp.ClientError, OSError):
            self._count("list", "error")
            return False
        self._count("list", str(response.status))
        try:
            at = version(json.loads(body)) if response.status == 200 else 0
        except (ValueError, AttributeError, RecursionError):
            at = 0
        return 0 < at < self.newest

    def _take_list(self, document: Any) -> None:
        items = document["items"]
        if document["kind"] != f"{self._subject.kind}List" or not all(
            isinstance(one["metadata"], dict) for one in items
        ):
            raise ValueError("no list of these")
        self.version = version(document)
        self.newest = max(self.newest, self.version)
        self._listed(items)

    def _miss(self) -> None:
        subject = self._subject
        said_so = f"no resource {subject.plural} of {subject.group}/{subject.version}: is the CRD installed?"
        self.problem = Problem(Reason.PLAN_RESOURCE_MISSING, said_so)

    async def _rest_between(self) -> None:
        """Pauses between a watch and the next one, if there is cause for it: once, whatever becomes of the next one."""
        cut = self._watched_at is not None and time.monotonic() < self._ends_at - EARLY_SECONDS
        await asyncio.sleep(self._due())
        self._watched_at = None
        if cut:
            await self._spread.resume()

    def _due(self) -> float:
        """How long to pause after a watch that was brief."""
        if self._watched_at is None:
            return 0.0
        if self._content is not None:
            ended_at = self._content.ended_at or time.monotonic()
            self._lasted = ended_at - self._watched_at
            self._brief = self._brief + 1 if self._lasted < BRIEF_SECONDS else 0
            dead = self._content.given_up
            self._mute = self._mute + 1 if dead and not self._content.lines else 0
            ended_well = not dead and ended_at >= max(self._watched_at + BRIEF_SECONDS, self._ends_at - EARLY_SECONDS)
            if ended_well and (self.failed_at or 0.0) <= self._watched_at:
                self.broken = False
            self._content = None
            if self._brief > MAX_BRIEF or self._mute > MAX_MUTE:
                self.lost("it breaks off time and again")
        if self._lasted >= BRIEF_SECONDS:
            self._pauses = iter(self._backoffs)
            return 0.0
        return next(self._pauses)


def _keep_alive(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    for option, value in zip((socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT), KEEPALIVE, strict=True):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _is_over(content: BoundedContent) -> bool:
    return content.ended_at is not None or bool(content.at_eof())
