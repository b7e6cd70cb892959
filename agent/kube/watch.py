"""Follows the objects of one resource that concern this node: one kopf operator in its own thread and loop, supervised.

What is relied on of kopf (1.45):

* It lists, hands out every listed object, then watches from there. It lists again after a 410, and says nothing of what
  went meanwhile: so each LIST is taken whole, on its way through the HTTP session (traffic.py), and later events are
  told from those that it already holds by their resourceVersion.
* Its LIST has no resourceVersion, for which the API server reads all pods of the cluster from etcd. The session adds
  one, ``0`` at first: served from the watch cache, and selected there.
* `on.event` writes nothing to the object, whatever happens, as long as the handler returns None. What a handler raises
  is lost: here it ends the operator, so that a LIST makes up for the event.
* It ends on errors in the stream, on what is no JSON there, and on a 4xx but for 401, 403 and 429. Then it is started
  anew, after a pause that grows. Everything else it tries again by itself, for ever with endless `error_backoffs`.
* What it would find out of the API server's resources at its start is known, and given to it (discovery.py).
* On its way out it cancels every task of the loop that it runs in: the loop is its own. It is ended by cancelling it.
  A stop flag is no good: waiting for it goes on when an operator ends by itself, and if it is a `threading.Event`
  then in a thread of the loop's executor, so that `asyncio.run` never returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from agent.kube import discovery
from agent.kube.access import Access
from agent.kube.faults import said
from agent.kube.plan import version
from agent.kube.retry import Backoffs, Spread
from agent.kube.traffic import ANSWER_SECONDS, LATE_SECONDS, REST_SECONDS, CountRequest, Object, Subject, Traffic
from agent.model.reason import Problem

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
"""How long, at least, the API server keeps one watch open; it is renewed from where it was. Each watch has a length of
its own, up to a quarter more: those that began together, after an outage, are not renewed together for ever."""
NONSENSE = "what came makes no sense"


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
        spread: Spread | None = None,
    ) -> None:
        """`listed` takes all objects of a LIST; `event` takes ADDED, MODIFIED or DELETED and an object. Both are called
        in the watch's own thread and must not wait."""
        self.subject = subject
        self._access = access
        self._event = event
        self._backoffs = backoffs or Backoffs(1.0, 60.0)
        self._spread = spread or Spread(0)
        self._traffic = Traffic(
            subject, access, listed=listed, count=count, backoffs=self._backoffs, spread=self._spread
        )
        self._begun_at: float | None = None
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"watch {subject.plural}", daemon=True)

    def start(self) -> None:
        self._begun_at = time.monotonic()
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends it; what is still under way after `timeout` seconds ends with the process. Where there are several, they
        end side by side if all were stopped with no timeout before."""
        self._stop.set()
        if (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(self._traffic.leave)
        if self._thread.is_alive():
            self._thread.join(timeout)

    def know(self, found: Object) -> None:
        """Takes an object that the API server gave elsewhere: what is listed from now on must not be older, or the
        mirror would go back to before somebody's edit. Safe from any thread."""
        self._traffic.newest = max(self._traffic.newest, version(found))

    def problem(self) -> Problem | None:
        """Why there is no watch just now; None while there is one."""
        return self._traffic.problem

    def age(self) -> float | None:
        """Seconds since the API server last listed, opened a watch or told of a change, or before the first time since
        `start`: who starts in an outage has heard nothing for as long. A watch of which nothing is wrong is renewed
        within five minutes. None before `start`."""
        since = self._begun_at if self._traffic.heard_at is None else self._traffic.heard_at
        return None if since is None else max(0.0, time.monotonic() - since)

    def fails_beside(self, other: Watch) -> bool:
        """Whether it has failed while nothing was wrong with the other one: then it is no outage of the server's."""
        failed_at, well_at = self._traffic.failed_at, other._traffic.well_at
        if self.problem() is None or other.problem() is not None or failed_at is None or well_at is None:
            return False
        return failed_at > well_at

    def _supervise(self) -> None:
        pauses = iter(self._backoffs)
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                asyncio.run(self._operate())
            except (Exception, asyncio.CancelledError) as error:  # whatever ends it, it is started again
                log.debug("watch of %s ended", self.subject.plural, exc_info=True)
                if self._traffic.problem is None or self._traffic.broken:
                    why = "it was cancelled" if isinstance(error, asyncio.CancelledError) else said(error)
                    if isinstance(error, ValueError | TypeError | KeyError | AttributeError):
                        why = NONSENSE
                    self._traffic.lost(why)
            if time.monotonic() - begun > 2 * SERVER_SECONDS:
                pauses = iter(self._backoffs)  # it went well for long
            self._stop.wait(next(pauses))

    async def _operate(self) -> None:
        """One kopf operator, from its start to its end."""
        traffic, leave = self._traffic, asyncio.Event()
        traffic.leave = leave.set
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_mutter)
        if self._stop.is_set():
            return
        discovery.watched(self.subject)
        leaving, work = asyncio.create_task(leave.wait()), asyncio.create_task(self._follow(leave))
        try:
            await asyncio.wait((leaving, work), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            for task in (leaving, work):
                task.cancel()
            await asyncio.gather(leaving, work, return_exceptions=True)
            await traffic.close()
            await asyncio.sleep(CLOSING_SECONDS)

    async def _follow(self, leave: asyncio.Event) -> None:
        await self._spread.start()
        registry = kopf.OperatorRegistry()
        traffic, settings = self._traffic, self._settings()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            session = await traffic.open()
            expires = datetime.now(UTC) + timedelta(seconds=SESSION_SECONDS)
            return kopf.AiohttpSession(server=self._access.server, aiohttp_session=session, expiration=expires)

        @kopf.on.event(self.subject.group, self.subject.version, self.subject.plural, registry=registry)
        async def changed(event: Any, **_: Any) -> None:
            try:
                self._take(event)
            except Exception:
                log.exception("an event of %s was not understood", self.subject.plural)
                leave.set()

        def rest(seconds: float) -> None:
            settings.watching.reconnect_backoff = seconds

        traffic.rest = rest
        await kopf.operator(registry=registry, settings=settings, clusterwide=True, standalone=True)

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.process.ultimate_exiting_timeout = None  # it would kill the process if an end took ten minutes
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.posting.enabled = False
        seconds = random.randint(SERVER_SECONDS, SERVER_SECONDS * 5 // 4)  # noqa: S311
        settings.watching.server_timeout = seconds
        # Kopf's own notion of a watch that fell silent is 70 s. BoundedContent knows better, and comes first.
        settings.watching.inactivity_timeout = seconds + CONNECT_SECONDS + ANSWER_SECONDS + 2 * LATE_SECONDS
        settings.watching.connect_timeout = CONNECT_SECONDS
        settings.watching.reconnect_backoff = REST_SECONDS
        settings.networking.request_timeout = REQUEST_SECONDS
        settings.networking.connect_timeout = CONNECT_SECONDS
        settings.networking.error_backoffs = self._backoffs
        settings.watching.field_selectors[self.subject.group, self.subject.version, self.subject.plural] = (
            self.subject.field_selector
        )
        return settings

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, found = event.get("type"), event.get("object")
        if kind not in ("ADDED", "MODIFIED", "DELETED") or not isinstance(found, Mapping):
            return  # None: of the LIST, which was taken whole
        if found.get("kind") != self.subject.kind:
            self._traffic.lost(NONSENSE)
            self._traffic.leave()
            return
        self._traffic.heard()
        self.know(found)
        number = version(found)
        if number > self._traffic.version or not self._traffic.version:
            self._event(kind, found)


def _mutter(_loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """What tasks of kopf's end with, and connections that we end: asyncio would tell it as an error."""
    log.debug("%s", context.get("message"), exc_info=context.get("exception"))
