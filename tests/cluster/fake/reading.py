"""Lists and watches."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from tests.cluster.fake.rbac import is_true
from tests.cluster.fake.selectors import Selects, field_selector, label_selector
from tests.cluster.fake.status import StatusError, bad_request, expired, failure, internal, not_modelled
from tests.cluster.fake.store import Change, Store, TooOldError, at
from tests.cluster.objects import EVENTS, NODES, PODS, Kind

Object = dict[str, Any]
Query = Mapping[str, str]

BOOKMARK_INTERVAL = 60.0
"""Seconds between two bookmarks of a watch; it gets two more shortly before its end. None comes as long as nothing of
the kind has changed since the server came up."""
_LONGEST_WATCH = 1800.0


def listing(store: Store, kind: Kind, namespace: str, query: Query) -> Object:
    """The List that a GET answers."""
    version, limit, _ = _version(query), _number(query, "limit"), _number(query, "timeoutSeconds")
    if query.get("resourceVersionMatch") == "Exact":
        raise not_modelled("lists of exact versions")
    if version > store.revision:
        raise _too_large(version, store.revision)
    selects = _selects(kind, namespace, query)
    things = [(key, thing) for key, thing in store.objects(kind) if selects(thing)]
    # A list that any version is good enough for comes from the watch cache: whole, and in no order that one may trust.
    cached = query.get("resourceVersion") == "0"
    if cached:
        things.reverse()
    revision = store.latest(kind) if cached else store.revision
    metadata: Object = {"resourceVersion": str(revision)}
    if kind.group:
        metadata["continue"] = ""
    if "continue" in query:
        revision, after = _continued(store, kind, query["continue"])
        metadata["resourceVersion"] = str(revision)
        things = [(key, thing) for key, thing in things if key > after]
    if limit and not cached and len(things) > limit:
        rest = len(things) - limit
        things = things[:limit]
        token = json.dumps({"rv": revision, "after": things[-1][0]}).encode()
        metadata["continue"] = base64.urlsafe_b64encode(token).decode()
        if not query.get("fieldSelector") and not query.get("labelSelector"):
            metadata["remainingItemCount"] = rest
    items = [_item(kind, thing) for _, thing in things]
    return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": items}


class Watching:
    """One watch. Made at once, so that nothing is missed; `lines` then runs until its time is over."""

    def __init__(self, store: Store, kind: Kind, namespace: str, query: Query, bookmark_interval: float) -> None:
        self._store = store
        self._kind = kind
        self._selects = _selects(kind, namespace, query)
        self._from = _version(query)
        seconds = _number(query, "timeoutSeconds")
        self._until = time.monotonic() + (seconds or _LONGEST_WATCH)
        self._bookmarks: Iterator[float] = iter(())
        if is_true(query.get("allowWatchBookmarks")) and kind != EVENTS:
            self._bookmarks = self._bookmark_times(bookmark_interval, announced=bool(seconds))
        self._first: list[Object] = []
        self._ends = False
        self._begin()
        self._queue = store.follow(kind)

    def close(self) -> None:
        self._store.unfollow(self._kind, self._queue)

    async def lines(self) -> AsyncIterator[Object]:
        for event in self._first:
            yield event
        bookmark = next(self._bookmarks, self._until)
        while not self._ends:
            try:
                wait = min(bookmark, self._until) - time.monotonic()
                change = await asyncio.wait_for(self._queue.get(), max(wait, 0))
            except TimeoutError:
                if time.monotonic() >= self._until:
                    return
                bookmark = next(self._bookmarks, self._until)
                if self._store.has_changed(self._kind):
                    yield {"type": "BOOKMARK", "object": self._bookmark()}
                continue
            if change is None:
                return
            if change.revision > self._from and (seen := self._event(change)):
                yield seen

    def _begin(self) -> None:
        if not self._from:
            now = [thing for _, thing in self._store.objects(self._kind) if self._selects(thing)]
            self._first = [{"type": "ADDED", "object": thing} for thing in now]
            return
        try:
            past = self._store.since(self._kind, self._from)
        except TooOldError as error:
            self._first = [{"type": "ERROR", "object": expired(error.asked, error.oldest)}]
            self._ends = True
            return
        self._first = [event for change in past if (event := self._event(change))]

    def _event(self, change: Change) -> Object | None:
        """A change as this watch sees it: what comes to fit its selector is new to it, what ceases to is gone."""
        was = change.before is not None and self._selects(change.before)
        if change.after is not None and self._selects(change.after):
            return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
        if was and change.before is not None:
            return {"type": "DELETED", "object": at(change.before, change.revision)}
        return None

    def _bookmark(self) -> Object:
        version = str(self._store.latest(self._kind))
        empty: Object = {"spec": {"containers": None}, "status": {}} if self._kind == PODS else {}
        if self._kind == NODES:
            empty = {"spec": {}, "status": {}}
        metadata = {"resourceVersion": version, "creationTimestamp": None}
        return {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": metadata, **empty}

    def _bookmark_times(self, interval: float, *, announced: bool) -> Iterator[float]:
        then = time.monotonic() + interval
        while then < self._until - 2:
            yield then
            then += interval
        if announced:
            yield from (self._until - 2, self._until - 1)


def _selects(kind: Kind, namespace: str, query: Query) -> Selects:
    by_field = field_selector(kind, query.get("fieldSelector", ""))
    by_label = label_selector(query.get("labelSelector", ""))

    def selects(thing: Object) -> bool:
        here = not namespace or thing["metadata"].get("namespace") == namespace
        return here and by_field(thing) and by_label(thing)

    return selects


def _item(kind: Kind, thing: Object) -> Object:
    """Built-in kinds are not named in each item of a list, custom resources are."""
    return thing if kind.group else {key: value for key, value in thing.items() if key not in ("kind", "apiVersion")}


def _version(query: Query) -> int:
    text = query.get("resourceVersion", "")
    if text and not text.isdecimal():
        raise internal(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text or 0)


def _number(query: Query, name: str) -> int:
    text = query.get(name, "")
    try:
        return int(text or 0)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def _continued(store: Store, kind: Kind, token: str) -> tuple[int, tuple[str, str]]:
    try:
        where = json.loads(base64.urlsafe_b64decode(token))
        revision, after = int(where["rv"]), (str(where["after"][0]), str(where["after"][1]))
    except (ValueError, KeyError, TypeError, IndexError):
        raise bad_request("continue key is not valid") from None
    try:
        store.since(kind, revision)
    except TooOldError:
        message = "The provided continue parameter is too old to display a consistent list result."
        raise StatusError(410, failure(410, "Expired", message)) from None
    return revision, after


def _too_large(asked: int, current: int) -> StatusError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    details = {"causes": [cause], "retryAfterSeconds": 1}
    return StatusError(504, failure(504, "Timeout", message, details))
