"""What an API server was asked by a fleet and sent to it: from its own metrics and its audit log. Pure: no clock, no
requests.

Metrics tell no client from another. But what the agents ask, nobody else does while they are counted: nodes and pods
are only written by whoever plays scheduler and kubelet, and read by the agents alone. The audit log holds the requests
of the agents' service account and no other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.cluster.cluster import Request

_LINE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)$", re.MULTILINE)
_LABEL = re.compile(r'([a-zA-Z_]+)="([^"]*)"')

READ = {("pods", "LIST"), ("cpubindingplans", "LIST"), ("nodes", "GET")}
WRITTEN = {("cpubindingplans", "POST"), ("cpubindingplans", "PATCH"), ("cpubindingplans", "APPLY")} | {
    ("events", "POST"),
    ("events", "PATCH"),
}
KINDS = ("Pod", "CpuBindingPlan")
"""What is watched."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters of an API server at one moment, since its start."""

    answered: Mapping[tuple[str, str], float]
    """(resource, verb) -> answers to what agents ask."""
    answer_bytes: float
    """Of these, without watches."""
    events: Mapping[str, float]
    """Kind -> events that were sent to watches, bookmarks among them."""
    event_bytes: Mapping[str, float]
    watchers: float
    """Open watches of these kinds, now."""
    cpu_seconds: float
    rss_bytes: float


Samples = list[tuple[str, dict[str, str], float]]


def samples(text: str, *names: str) -> Samples:
    """(name, labels, value) of metrics in the text format, of these names alone."""
    return [
        (name, dict(_LABEL.findall(labels or "")), float(value))
        for name, labels, value in _LINE.findall(text)
        if name in names
    ]


def totals(text: str) -> Totals:
    """From what an API server serves at ``/metrics``."""
    wanted = READ | WRITTEN
    answered: dict[tuple[str, str], float] = {}
    size = 0.0
    for name, labels, value in samples(text, "apiserver_request_total", "apiserver_response_sizes_sum"):
        asked = labels["resource"], labels["verb"]
        if asked not in wanted:
            continue
        if name == "apiserver_response_sizes_sum":
            size += value
        elif labels["contentType"] == "application/json":  # the API server itself speaks protobuf
            answered[asked] = answered.get(asked, 0.0) + value
    sent, sizes = (
        {kind: _sum(text, name, kind=kind) for kind in KINDS}
        for name in ("apiserver_watch_events_total", "apiserver_watch_events_sizes_sum")
    )
    return Totals(
        answered=answered,
        answer_bytes=size,
        events=sent,
        event_bytes=sizes,
        watchers=sum(_sum(text, "apiserver_registered_watchers", kind=kind) for kind in KINDS),
        cpu_seconds=_sum(text, "process_cpu_seconds_total"),
        rss_bytes=_sum(text, "process_resident_memory_bytes"),
    )


def _sum(text: str, name: str, **wanted: str) -> float:
    return sum(value for _, labels, value in samples(text, name) if wanted.items() <= labels.items())


def etcd_bytes(text: str) -> float:
    """What etcd has in use, from what it serves at ``/metrics``."""
    return _sum(text, "etcd_mvcc_db_total_size_in_use_in_bytes")


def sort_of(request: Request) -> str:
    """What a request is, in a word or two."""
    parts = request.path.split("/")
    if "events" in parts:
        return f"{request.verb} event"
    if "cpubindingplans" in parts:
        return f"{request.verb} {'status' if parts[-1] == 'status' else 'plan'}"
    if "pods" in parts:
        return f"{request.verb} pods"
    return "get node" if "nodes" in parts else "discovery"


def sorts(requests: Sequence[Request]) -> Counter[str]:
    """How many requests there were of each sort."""
    return Counter(map(sort_of, requests))


def busiest_second(requests: Sequence[Request]) -> int:
    """The most requests that came within any second."""
    times = sorted(request.time for request in requests)
    most, first = 0, 0
    for last, time in enumerate(times):
        while time - times[first] >= 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def unselected(requests: Sequence[Request]) -> int:
    """LISTs and WATCHes of more than one node's objects, and LISTs that are not answered from the watch cache but for
    those of one object by its name."""
    return sum(
        not (selector := request.query.get("fieldSelector", ""))
        or not (request.query.get("resourceVersion") or selector.startswith("metadata.name="))
        for request in requests
        if request.verb in ("list", "watch")
    )
