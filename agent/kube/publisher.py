"""Writes what the agent reports to the API server: the plan's object, its status, and events. In a thread of its own,
so that an API server that hangs holds up nothing on the host.

The first change goes out at once, then at most one write in `interval` seconds, the last state always; nothing while
nothing changes. What the API server has is known from the watch, so that an agent that starts anew writes nothing where
nothing changed. After a failure it pauses, longer each time.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.control.happenings import Happening
from agent.control.report import API_VERSION, KIND
from agent.kube.api import Api, ApiError
from agent.kube.events import EventBook, Post, Recount, Subject
from agent.kube.plan import PlanResource
from agent.kube.retry import MAX_PAUSE, Backoffs
from agent.kube.telling import cause
from agent.model.reason import Problem, Reason, printable

log = logging.getLogger(__name__)

MAX_WAITING = 200
"""Happenings that wait for the API server; the oldest are dropped."""
MAX_LOST = 20
"""How many reasons for which events are lost the log is told of."""
SOON_SECONDS = 0.3
MAX_UNKNOWN = 40
RETRY_SCHEMA_SECONDS = 600.0
LAST_SECONDS = 2.0
"""How long the last write may take when the agent is stopped."""

_UNDECLARED = re.compile(r"\.status((?:\.[A-Za-z0-9]+|\[[^\]]*\])+): field not declared in schema")
_INDEX = re.compile(r"\[[^\]]*\]")
_NO_RIGHT = re.compile(r" cannot (create|patch) resource ")
"""How every authorizer's refusal reads, other than that of a namespace that is ending."""

Path = tuple[str, ...]
_Closed = dict[tuple[type, str], ApiError]
"""What can't be written, a new event or a count, in which namespace; and how that was refused."""


class _Line:
    """One kind of write: why it failed last, and when it may be tried again."""

    def __init__(self, backoffs: Backoffs) -> None:
        self._backoffs = backoffs
        self._pauses = iter(backoffs)
        self.problem: Problem | None = None
        self.not_before = 0.0
        self.raced = False
        """Whether it failed last because somebody else was quicker."""

    def failed(self, now: float, at_least: float = 0.0) -> float:
        """Returns when to try again."""
        self.not_before = now + max(next(self._pauses), at_least)
        return self.not_before

    def went_well(self) -> None:
        self.problem, self._pauses, self.raced = None, iter(self._backoffs), False


class Publisher:
    """Makes the API server's copy of the plan like the agent's."""

    def __init__(
        self,
        api: Api,
        plan: PlanResource,
        pod_uid: Callable[[str, str], str],
        *,
        resource_missing: Callable[[], bool] = lambda: False,
        made: Callable[[Mapping[str, Any]], None] = lambda _object: None,
        interval: float = 10.0,
        backoffs: Backoffs | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`pod_uid` gives the uid of a living pod by namespace and name, or "". `resource_missing` says whether it is
        known that no plan can be made: then nobody has to be asked. `made` takes each plan that a write was answered
        with."""
        self._api = api
        self._plan = plan
        self._pod_uid = pod_uid
        self._resource_missing = resource_missing
        self._made = made
        self._interval = interval
        self._backoffs = backoffs or Backoffs(1.0, 60.0)
        self._clock = clock
        self._wall_clock = wall_clock
        self._book = EventBook(plan.node, str(wall_clock()))
        self._waiting: deque[Happening] = deque(maxlen=MAX_WAITING)
        # What keeps plans from being written does not keep events from being posted, and the other way round.
        self._plans, self._events = _Line(self._backoffs), _Line(self._backoffs)
        self._lost: set[tuple[Reason, str]] = set()
        self._next_write = 0.0
        self._answer: tuple[object, object] = (None, None)
        self._unknown: frozenset[Path] = frozenset()
        self._unknown_since = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits, within two seconds, and ends."""
        self._stop.set()
        self._plan.stirred.set()
        self._thread.join(LAST_SECONDS)

    def tell(self, happenings: Sequence[Happening]) -> None:
        """Takes what happened, for events."""
        if happenings:
            self._waiting.extend(happenings)
            self._plan.stirred.set()

    @property
    def problem(self) -> Problem | None:
        """Why the plan can't be written just now. It can't be told in the plan, then."""
        return self._plans.problem

    @property
    def events_problem(self) -> Problem | None:
        """Why events can't be posted just now."""
        return self._events.problem

    def outdated(self) -> Problem | None:
        """SchemaOutdated while fields of the status are left out."""
        if not self._unknown:
            return None
        fields = ", ".join(sorted(".".join(path) for path in self._unknown))
        return Problem(Reason.SCHEMA_OUTDATED, printable(f"status fields left out: {fields}", 200))

    def _run(self) -> None:
        while not self._stop.is_set():
            due = self._turn()
            self._plan.stirred.wait(max(0.05, due - self._clock()))
            self._plan.stirred.clear()
        self._plans.not_before = self._events.not_before = self._next_write = 0.0
        self._turn()

    def _turn(self) -> float:
        """One round; returns when the next one is due, on the clock."""
        now = self._clock()
        return min(self._attempt(self._plans, self._write, now), self._attempt(self._events, self._post_events, now))

    def _attempt(self, line: _Line, work: Callable[[float], float], now: float) -> float:
        """Does what is to be done, unless it failed just before; returns when to come again."""
        if now < line.not_before:
            return line.not_before
        try:
            due = work(now)
        except ApiError as error:
            # Somebody made it, or deleted it, just now: the watch brings that. Where it does not, it is no race.
            raced = error.status in (404, 409) and error.problem.reason is Reason.API_REFUSED
            if not raced or line.raced:
                line.problem = error.problem
            line.raced = raced
            return line.failed(now, min(error.retry_after, MAX_PAUSE))
        except Exception as error:
            problem = Problem(Reason.API_REFUSED, f"a fault of the agent's own: {type(error).__name__}")
            if line.problem != problem:
                log.exception("a write to the API server failed")
            line.problem = problem
            return line.failed(now)
        line.went_well()
        return due

    def _write(self, now: float) -> float:
        """Makes the object where there is none, and applies its status where that differs."""
        known, present, wanted = self._plan.both()
        later = now + 60.0
        if not known or wanted is None:
            return later
        if present is None:
            if self._resource_missing():
                return later  # the watch stirs when it is there
            self._create(wanted)
            return now + SOON_SECONDS  # the agent is about to report on the generation that it has now
        status = wanted.get("status", {})
        trimmed = _without(status, self._unknown)
        theirs = present.get("status", {})
        again = bool(self._unknown) and now - self._unknown_since > RETRY_SCHEMA_SECONDS
        if not again and (trimmed == theirs or self._answer == (trimmed, theirs)):
            return later
        if now < self._next_write:
            return self._next_write
        if again:
            self._unknown_since = now
        self._apply(status, frozenset() if again else self._unknown)
        self._next_write = now + self._interval
        return later

    def _create(self, wanted: Mapping[str, Any]) -> None:
        node = self._api.node(self._plan.node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._plan.node, "uid": node["metadata"]["uid"]}
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": self._plan.node,
                "labels": {"app.kubernetes.io/managed-by": "cpubind"},
                "ownerReferences": [owner],
            },
            "spec": dict(wanted.get("spec", {})),
        }
        made = self._api.create_plan(body)
        log.info("made the plan %s", self._plan.node)
        self._made(made)
        self._plan.apply("MODIFIED", made)

    def _apply(self, status: Mapping[str, Any], without: frozenset[Path]) -> None:
        """Applies a status without the fields of these paths, and without those that the schema turns out to lack."""
        while True:
            trimmed = _without(status, without)
            try:
                made = self._api.apply_status(self._plan.node, trimmed)
                break
            except ApiError as error:
                unknown = {_path(match[1]) for match in _UNDECLARED.finditer(error.problem.message)}
                if unknown <= without or len(without) >= MAX_UNKNOWN:
                    raise
                without |= unknown
                self._unknown_since = self._clock()
        self._unknown = without
        self._answer = (trimmed, made.get("status", {}))
        self._made(made)
        self._plan.apply("MODIFIED", made)

    def _post_events(self, now: float) -> float:
        """Posts what waits. What can't be written in a namespace waits on and holds up nothing else: of all that is of
        its kind there, one is tried."""
        closed: _Closed = {}
        kept: list[Happening] = []
        try:
            while self._waiting:
                happening = self._waiting.popleft()
                subject = self._subject(happening)
                if subject is None:
                    continue
                kept.append(happening)
                if self._post(happening, subject, closed):
                    kept.pop()
        finally:
            # Others came meanwhile: of what is too much the oldest goes. A full deque drops at its other end.
            room = MAX_WAITING - len(self._waiting)
            self._waiting.extendleft(reversed(kept[-room:] if room else []))
        for error in closed.values():
            raise error
        return now + 60.0

    def _post(self, happening: Happening, subject: Subject, closed: _Closed) -> bool:
        """Whether nothing more is to be done for this one; `closed` grows by what can't be written."""
        sent = self._book.admit(happening, subject, self._wall_clock())
        kind = type(sent), subject.namespace
        if kind in closed:
            self._book.failed(happening, subject, again=True)
            return False
        try:
            if isinstance(sent, Post):
                self._api.create_event(sent.body)
            elif isinstance(sent, Recount):
                self._api.patch_event(sent.namespace, sent.name, sent.patch)
        except ApiError as error:
            if error.status == 409 and isinstance(sent, Post):
                return True  # by another run, or by an attempt whose answer was lost
            if error.status == 404 and isinstance(sent, Recount):
                self._book.forget(happening, subject)
                return self._post(happening, subject, closed)
            waits = error.status is None or error.status in (401, 429) or error.status > 500
            # A right may be missing for a moment: an API server that starts knows of none yet. 500 is the answer where
            # an admission webhook can't be reached, which may be one for a few namespaces.
            no_right = error.status == 403 and _NO_RIGHT.search(error.problem.message) is not None
            waits_here = no_right or error.status == 500
            self._book.failed(happening, subject, again=waits or waits_here)
            if waits:
                raise
            if waits_here:
                closed[kind] = error
                return False
            if error.status in (403, 404, 409):  # a limit, a namespace that is ending: it is not worth more
                log.debug("event %s on %s: %s", happening.reason, subject.name, error.problem)
            elif cause(error.problem) not in self._lost and len(self._lost) < MAX_LOST:
                self._lost.add(cause(error.problem))
                log.warning("an event is lost: %s", error.problem)
        return True

    def _subject(self, happening: Happening) -> Subject | None:
        """The object of an event, with its uid; None where it is gone."""
        if happening.pod:
            uid = self._pod_uid(happening.namespace, happening.pod)
            return Subject(uid, happening.pod, happening.namespace) if uid else None
        _, present, _ = self._plan.both()
        uid = present.get("metadata", {}).get("uid", "") if present else ""
        return Subject(uid, self._plan.node) if uid else None


def _path(text: str) -> Path:
    """``.npus[0].memory`` as names; a field is left out of every entry of a list."""
    return tuple(_INDEX.sub("", text).strip(".").split("."))


def _without(value: Any, paths: frozenset[Path]) -> Any:
    """A document without the fields of these paths."""
    if not paths:
        return value
    if isinstance(value, list):
        return [_without(entry, paths) for entry in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _without(entry, frozenset(path[1:] for path in paths if path[0] == key and len(path) > 1))
        for key, entry in value.items()
        if (key,) not in paths
    }
