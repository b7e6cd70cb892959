"""What etcd and the watch cache do: objects, one revision for each write, history for watches."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.objects import Kind

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


class TooOldError(Exception):
    """A version whose history is forgotten; `oldest` is the first that is not."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"{asked} is older than {oldest}")
        self.asked = asked
        self.oldest = oldest


@dataclass(frozen=True, slots=True)
class Change:
    """One write. `before` or `after` is None where the object was not there yet, or is gone."""

    revision: int
    before: Object | None
    after: Object | None


@dataclass(slots=True)
class _Shelf:
    """All objects of a kind."""

    oldest: int
    objects: dict[Key, Object] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    followers: set[asyncio.Queue[Change | None]] = field(default_factory=set)


class Store:
    """Objects in it are never altered: a write puts another one in its place. For one thread."""

    def __init__(self) -> None:
        # A server that is new to a test has written some things of its own before.
        self.revision = 100
        self._shelves: dict[Kind, _Shelf] = {}

    def add_kind(self, kind: Kind) -> None:
        self._shelves[kind] = _Shelf(self.revision)

    def drop_kind(self, kind: Kind) -> None:
        """Its objects are deleted, its watches told so and ended."""
        shelf = self._shelves[kind]
        for key in sorted(shelf.objects):
            self.delete(kind, key)
        self._end(shelf)
        del self._shelves[kind]

    def renew(self, kind: Kind) -> None:
        """What the server does when a CRD changes: another storage, that has all objects and no history."""
        shelf = self._shelves[kind]
        shelf.oldest = self.revision
        shelf.history.clear()
        self._end(shelf)

    def has(self, kind: Kind) -> bool:
        return kind in self._shelves

    def get(self, kind: Kind, key: Key) -> Object | None:
        return self._shelves[kind].objects.get(key)

    def objects(self, kind: Kind) -> list[tuple[Key, Object]]:
        """By namespace and name."""
        return sorted(self._shelves[kind].objects.items())

    def put(self, kind: Kind, thing: Object) -> Object:
        """Returns it as it is now: with its resourceVersion."""
        metadata = thing["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        before = self.get(kind, key)
        self.revision += 1
        after = {**thing, "metadata": {**metadata, "resourceVersion": str(self.revision)}}
        self._shelves[kind].objects[key] = after
        self._tell(kind, Change(self.revision, before, after))
        return after

    def delete(self, kind: Kind, key: Key) -> Object:
        before = self._shelves[kind].objects.pop(key)
        self.revision += 1
        self._tell(kind, Change(self.revision, before, None))
        return before

    def latest(self, kind: Kind) -> int:
        """The last revision that concerned this kind, which is what a watch cache knows."""
        shelf = self._shelves[kind]
        return shelf.history[-1].revision if shelf.history else shelf.oldest

    def has_changed(self, kind: Kind) -> bool:
        """Whether anything of this kind was written since the server came up."""
        return bool(self._shelves[kind].history)

    def since(self, kind: Kind, revision: int) -> list[Change]:
        """What happened after a revision. `TooOldError` where that is forgotten."""
        shelf = self._shelves[kind]
        if revision < shelf.oldest:
            raise TooOldError(revision, shelf.oldest)
        return [change for change in shelf.history if change.revision > revision]

    def follow(self, kind: Kind) -> asyncio.Queue[Change | None]:
        """A queue that gets every change from now on, and None when it ends."""
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        self._shelves[kind].followers.add(queue)
        return queue

    def unfollow(self, kind: Kind, queue: asyncio.Queue[Change | None]) -> None:
        if kind in self._shelves:
            self._shelves[kind].followers.discard(queue)

    def compact(self) -> None:
        """Forgets how it came to be as it is; every watch ends."""
        self.revision += 1
        for shelf in self._shelves.values():
            shelf.oldest = self.revision
            shelf.history.clear()
            self._end(shelf)

    def _tell(self, kind: Kind, change: Change) -> None:
        shelf = self._shelves[kind]
        shelf.history.append(change)
        for queue in shelf.followers:
            queue.put_nowait(change)

    def _end(self, shelf: _Shelf) -> None:
        for queue in shelf.followers:
            queue.put_nowait(None)
        shelf.followers.clear()


def at(thing: Object, revision: int) -> Object:
    """An object as a watch shows it that tells of its end: with the version of that."""
    return {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(revision)}}
