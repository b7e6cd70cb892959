"""What kopf (1.45) would ask the API server for about its resources, which is known.

At the start of each operator kopf reads the discovery documents of all groups that it may have to do with: seven or
eight requests, of some 25 KB together, before the LIST that is wanted. Those of a fleet would be four in five of what
it asks for when it starts. The resources that are watched here, and those that kopf wants to know of besides, are the
same on every cluster. Whether there is a resource the LIST says, by 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextvars import ContextVar
from typing import Any

from kopf._cogs.clients import scanning
from kopf._cogs.structs.references import Resource

from agent.kube.traffic import Subject

_BACKBONE = (
    Resource("", "v1", "namespaces", kind="Namespace", singular="namespace", namespaced=False),
    Resource("", "v1", "events", kind="Event", singular="event", namespaced=True),
    Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False),
)
"""kopf waits for these before it begins, though it is told to ask for none of them."""

ROUNDS = 100
"""Of the event loop. kopf's orchestrator misses what is found before it has come to wait for that, some five rounds
after the start; nothing in it waits for anything else."""

_subject: ContextVar[Subject] = ContextVar("subject")


def watched(subject: Subject) -> None:
    """Makes it what operators find that are run in this context."""
    _subject.set(subject)


async def _scan_resources(**_: Any) -> Collection[Resource]:
    subject = _subject.get()
    for _round in range(ROUNDS):
        await asyncio.sleep(0)
    verbs = frozenset({"list", "watch"})
    return {*_BACKBONE, Resource(subject.group, subject.version, subject.plural, verbs=verbs)}


scanning.scan_resources = _scan_resources
