"""This node's CpuBindingPlan as the API server has it: a `PlanStore` that a watch feeds and a publisher writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent.model.reason import Reason, Refused, printable

GRACE_SECONDS = 15.0
"""For this long an agent that has asked waits for the node's pods before it reports: without them it would say
less than it will know in a moment."""


class PlanResource:
    """A mirror of one object, and what is to be written of it. Safe from any thread; nothing here waits."""

    def __init__(
        self,
        node: str,
        *,
        pods_listed: Callable[[], bool],
        changed: Callable[[], None],
        grace: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called when somebody changed what the agent reads of it, or it came or went. `grace` is how
        many seconds from now on it is left to the pods to be listed before anything is reported."""
        self.node = node
        self._grace = grace
        self._pods_listed = pods_listed
        self._changed = changed
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self.stirred = threading.Event()
        """Set when the publisher may have something to do."""
        self._known = False
        self._object: Mapping[str, Any] | None = None
        self._read: Mapping[str, Any] | None = None  # what the agent's pass under way goes by
        self._wanted: Mapping[str, Any] | None = None
        self._wanted_of: object = None  # uid of the object that it is about

    # Fed by the watch

    def replace(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """What a LIST gave: this node's plan, or nothing."""
        found = next((one for one in objects if _name(one) == self.node), None)
        with self._lock:
            changed = self._take(found)
        self._tell(changed)

    def apply(self, kind: str, document: Mapping[str, Any]) -> None:
        """One event of a WATCH, or the answer to a write of our own (MODIFIED)."""
        if _name(document) != self.node:
            return
        # The two come in threads of their own: between the look at what there is and its change neither may come in
        # between, or an edit of somebody's would be lost to the older answer.
        with self._lock:
            present = self._object
            if kind == "DELETED":
                # The deletion of an older object can arrive after its successor was made.
                if present is not None and _uid(present) != _uid(document):
                    return
                changed = self._take(None)
            elif present is not None and _older(document, present):
                return
            else:
                changed = self._take(document)
        self._tell(changed)

    def _take(self, found: Mapping[str, Any] | None) -> bool:
        """Whether that matters to the agent. The lock is held."""
        changed = not self._known or _of_people(found) != _of_people(self._object)
        self._known, self._object = True, found
        return changed

    def _tell(self, changed: bool) -> None:
        self.stirred.set()
        if changed:
            self._changed()

    # The agent's side: a PlanStore

    @property
    def generation(self) -> int:
        """Of what `spec` told last: an edit that came since is not in what is reported now."""
        number = self._read.get("metadata", {}).get("generation", 0) if self._read else 0
        return number if isinstance(number, int) else 0

    @property
    def known(self) -> bool:
        return self._known

    @property
    def open(self) -> bool:
        return self._known and (self._pods_listed() or self._clock() - self._started > self._grace)

    @property
    def own(self) -> bool:
        """Made by an agent, which gives it its Node as owner; or not there, when the agent is about to make it."""
        if not self._read:
            return True
        owners = self._read.get("metadata", {}).get("ownerReferences")
        return any(
            isinstance(owner, Mapping) and owner.get("kind") == "Node" and owner.get("name") == self.node
            for owner in (owners if isinstance(owners, list) else ())
        )

    def spec(self) -> Mapping[str, Any] | None:
        self._read = present = self._object
        if present is None:
            return None
        spec = present.get("spec")
        if spec is None:
            return {}
        if not isinstance(spec, Mapping):  # a schema that somebody loosened
            raise Refused(Reason.INVALID_SPEC, f"spec: {printable(repr(spec), 60)} is not a mapping")
        return spec

    def read(self) -> dict[str, Any]:
        return dict(self._object or {})

    def write(self, document: Mapping[str, Any]) -> None:
        with self._lock:
            about = _uid(self._read)
            if document is self._wanted and about == self._wanted_of:
                return  # the publisher knows it, and when to try again
            self._wanted, self._wanted_of = document, about
        self.stirred.set()

    # The publisher's side

    def both(self) -> tuple[bool, Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """(whether it is known what there is, the object that there is, what the agent wants it to be).

        None is wanted while the agent has not looked at this object yet, or not yet seen that it went: what it says of
        one says nothing of the next, which may be somebody else's.
        """
        with self._lock:
            wanted = self._wanted if self._wanted_of == _uid(self._object) else None
            return self._known, self._object, wanted


def _name(document: Mapping[str, Any]) -> object:
    return document.get("metadata", {}).get("name")


def _uid(document: Mapping[str, Any] | None) -> object:
    return document.get("metadata", {}).get("uid") if document is not None else None


def _of_people(document: Mapping[str, Any] | None) -> object:
    """What of an object makes the agent look again: all but its own status."""
    if document is None:
        return None
    metadata = document.get("metadata", {})
    return (_uid(document), metadata.get("generation"), metadata.get("ownerReferences"), document.get("spec"))


def _older(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether it is an earlier version of the same object. Versions are numbers of the store's, ascending."""
    return _uid(one) == _uid(other) and version(one) < version(other)


def version(document: Mapping[str, Any]) -> int:
    """metadata.resourceVersion of an object or a list; 0 where it is none that can be compared."""
    text = document.get("metadata", {}).get("resourceVersion", "")
    usable = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20
    return int(text) if usable else 0
