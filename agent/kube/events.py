"""Events on pods and on the node's plan, folded and limited (design section 7). Pure: time is given to it.

For each object and reason five are posted at once, then one in ten minutes; for the whole node thirty a minute. One
that says what an earlier one said raises that one's count. What is over the limit is counted into the next of its kind
that says the same, or lost: the plan says what is so.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agent.control.happenings import Happening
from agent.control.report import API_VERSION, KIND

BURST = 5
REFILL_SECONDS = 600.0
NODE_EVENTS = 30
NODE_SECONDS = 60.0
REMEMBER_SECONDS = 3000.0
"""The API server keeps an event for an hour; one that is older is posted anew."""
MAX_REMEMBERED = 1000
COMPONENT = "cpubind-agent"
PLAN_NAMESPACE = "default"
"""Where events of an object without a namespace have to be."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about."""

    uid: str
    name: str
    namespace: str = ""
    """Empty for the node's plan."""

    def reference(self) -> dict[str, str]:
        """As an ObjectReference."""
        if self.namespace:
            about = {"apiVersion": "v1", "kind": "Pod", "namespace": self.namespace}
        else:
            about = {"apiVersion": API_VERSION, "kind": KIND}
        return {**about, "name": self.name, "uid": self.uid}


@dataclass(frozen=True, slots=True)
class Post:
    """A new v1.Event."""

    body: Mapping[str, Any]
    standing: bool
    """That one of this name is there already is no fault, and nothing more is to be done."""


@dataclass(frozen=True, slots=True)
class Recount:
    """A merge patch of one that was posted."""

    namespace: str
    name: str
    patch: Mapping[str, Any]


@dataclass(slots=True)
class _Bucket:
    """Tokens that come back with time."""

    size: int
    refill: float
    tokens: float
    at: float

    def has(self, now: float) -> bool:
        # A clock that was set back takes none away: the next would come when it has caught up.
        self.tokens = min(float(self.size), self.tokens + max(0.0, now - self.at) / self.refill)
        self.at = now
        return self.tokens >= 1


@dataclass(slots=True)
class _Posted:
    name: str
    at: float
    count: int = 1
    first: float = 0.0


@dataclass(slots=True)
class EventBook:
    """Decides what is posted. Times are seconds since the epoch."""

    node: str
    start: str
    """Tells the events of this run of the agent from those of others."""
    _number: int = 0
    """Of the next event: one that is sent again, since no answer came, has the name that it had."""
    _sent: deque[float] = field(default_factory=lambda: deque(maxlen=NODE_EVENTS))
    _buckets: OrderedDict[tuple[str, str], _Bucket] = field(default_factory=OrderedDict)
    _posted: OrderedDict[tuple[str, str, str], _Posted] = field(default_factory=OrderedDict)

    def admit(self, happening: Happening, subject: Subject, now: float) -> Post | Recount | None:
        """What to send for something that happened; None where it is over the limit, or standing and told before."""
        key = (subject.uid, happening.reason.value, happening.message)
        posted = self._posted.get(key)
        if posted is not None:
            if happening.standing:
                return None
            if now - posted.at > REMEMBER_SECONDS:
                del self._posted[key]
                posted = None
            else:
                posted.count += 1
        if not self._take(key[:2], now):
            return None
        if posted is not None:
            return Recount(
                subject.namespace or PLAN_NAMESPACE,
                posted.name,
                {"count": posted.count, "lastTimestamp": _timestamp(now)},
            )
        # A standing one has the same name in every run, so that the API server knows whether it was told.
        run = "" if happening.standing else f"{self.start}/{self._number}"
        self._number += 1
        digest = hashlib.sha256("\0".join((*key, run)).encode()).hexdigest()[:16]
        # A name that is cut at a dot or a hyphen would be none any more: each part ends in a letter or a digit.
        name = f"{subject.name[:230].rstrip('.-')}.{digest}"
        self._posted[key] = _Posted(name, now)
        while len(self._posted) > MAX_REMEMBERED:
            self._posted.popitem(last=False)
        return Post(self._body(name, happening, subject, now), happening.standing)

    def failed(self, happening: Happening, subject: Subject, *, again: bool) -> None:
        """A post that did not arrive: the next of its kind is a new one. One that is to be sent `again` has cost
        nothing: an API server that is away for long would use up what may be said when it is back."""
        key = (subject.uid, happening.reason.value, happening.message)
        posted = self._posted.get(key)
        if again and posted is not None and posted.count > 1:
            posted.count -= 1
        elif self._posted.pop(key, None) is not None and again:
            self._number -= 1
        if again and key[:2] in self._buckets and self._sent:
            self._buckets[key[:2]].tokens += 1
            self._sent.pop()

    def forget(self, happening: Happening, subject: Subject) -> None:
        """The API server keeps this one no more: the next of its kind is a new one, and this was none."""
        self.failed(happening, subject, again=True)
        self._posted.pop((subject.uid, happening.reason.value, happening.message), None)

    def _take(self, key: tuple[str, str], now: float) -> bool:
        bucket = self._buckets.setdefault(key, _Bucket(BURST, REFILL_SECONDS, BURST, now))
        self._buckets.move_to_end(key)
        while len(self._buckets) > MAX_REMEMBERED:
            self._buckets.popitem(last=False)
        busy = len(self._sent) == NODE_EVENTS and 0 <= now - self._sent[0] < NODE_SECONDS
        if busy or not bucket.has(now):
            return False
        bucket.tokens -= 1
        self._sent.append(now)
        return True

    def _body(self, name: str, happening: Happening, subject: Subject, now: float) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": subject.namespace or PLAN_NAMESPACE},
            "involvedObject": subject.reference(),
            "reason": happening.reason.value,
            "message": happening.message,
            "type": "Warning" if happening.warning else "Normal",
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": f"cpubind.dev/{COMPONENT}",
            "reportingInstance": self.node,
            "firstTimestamp": _timestamp(now),
            "lastTimestamp": _timestamp(now),
            "count": 1,
        }


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
