"""Metrics for Prometheus. Which there are, and what they say: `agent.telemetry.families`, and docs/metrics.md.

State is read from the CpuBindingPlan when somebody scrapes, so that nothing goes stale and no series outlives what it
speaks of. Labels have few values, whatever runs on a node; what goes on with one pod is in the plan itself, and
here only where that is asked for.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agent import __version__
from agent.model.address import Address
from agent.model.figures import (
    IRQ_STATES,
    MEMORY_RESULTS,
    PLAN_CHANGES,
    THREAD_ROLES,
    Distribution,
    Figures,
)
from agent.model.reason import Problem
from agent.model.spec import Role
from agent.telemetry import families as f
from agent.telemetry.families import Family
from agent.telemetry.listener import NOT_FOUND, RETRY_SECONDS, Listener, Request, Response
from agent.telemetry.text import cpus, entries, mapping, number, word
from agent.telemetry.tls import TlsFiles

Values = tuple[str, ...]
Samples = dict[Values, float]
Document = Mapping[str, Any]

FRESH_SECONDS: Final = 0.25
"""For how long an answer is given again. Nobody scrapes so often who means well."""


class Metrics:
    """Everything that is exported, in a registry of its own. All methods are safe from any thread."""

    def __init__(
        self,
        document: Callable[[], Document],
        figures: Callable[[], Figures | None] = lambda: None,
        *,
        watch_ages: Callable[[], Mapping[str, float]] = dict,
        per_pod: bool = False,
    ) -> None:
        """`document` gives the CpuBindingPlan as it is now; empty before there is one. `figures` what was counted, None
        before anything was; `watch_ages` the seconds since each watch was heard, or began. `per_pod` exports what has
        pods for labels."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._document, self._figures, self._watch_ages, self._per_pod = document, figures, watch_ages, per_pod
        self._swept_at: float | None = None
        self._lock = threading.Lock()
        self._requests: Samples = {}
        self.registry.register(_Collector(self._collect))

    def api_request(self, verb: str, code: str) -> None:
        """Counts a request: `verb` as Kubernetes has it (``list``, ``patch``), `code` such as ``200``, or ``error``."""
        values = f.API_REQUESTS.fitted((verb, code))
        with self._lock:
            self._requests[values] = self._requests.get(values, 0) + 1

    def swept(self, at: float) -> None:
        """A pass has ended at this Unix time."""
        self._swept_at = at

    def _collect(self) -> Iterator[Metric]:
        status = mapping(mapping(self._document()).get("status"))
        figures = self._figures() or Figures()
        with self._lock:
            requests = dict(self._requests)
        swept_at = self._swept_at
        yield _metric(f.BUILD, {(__version__,): 1})
        yield _metric(f.NODE, {_node(status, figures): 1})
        yield from _of_the_plan(status)
        if self._per_pod:
            yield _metric(f.POD_WORKERS, _pods(status))
        yield from _of_figures(figures)
        yield _metric(f.LAST_SWEEP, {} if swept_at is None else {(): swept_at})
        yield _metric(f.API_REQUESTS, requests)
        yield _metric(f.WATCH_AGE, {(name,): age for name, age in self._watch_ages().items()})


class MetricsServer:
    """Serves ``/metrics``. A port in use is a problem, not an end."""

    def __init__(
        self, address: Address, metrics: Metrics, *, tls: TlsFiles | None = None, retry: float = RETRY_SECONDS
    ) -> None:
        """Serves until `close`, in threads of its own; tries again every `retry` seconds for an address in use."""
        self._metrics = metrics
        self._lock = threading.Lock()
        self._answers: dict[str, Response] = {}
        self._until = 0.0
        self.listener = Listener("metrics", address, self._answer, retry=retry, tls=tls)

    def problem(self) -> Problem | None:
        """PortInUse while the address can't be had, TlsUnusable while there is no certificate to serve with."""
        return self.listener.problem()

    def close(self) -> None:
        self.listener.close()

    def _answer(self, request: Request) -> Response:
        if request.path != "/metrics":
            return NOT_FOUND
        accept = request.headers.get("accept", "")
        try:
            return self._exposition(accept)
        except (TypeError, ValueError):
            if not accept:
                raise
            return self._exposition("")  # prometheus-client stumbles over versions that are none

    def _exposition(self, accept: str) -> Response:
        """One for all who ask at about the same time: however many do, it costs as much as a few."""
        encode, content_type = choose_encoder(accept)
        with self._lock:
            now = time.monotonic()
            if now >= self._until:
                self._answers.clear()
                self._until = now + FRESH_SECONDS
            answer = self._answers.get(content_type)
            if answer is None:
                answer = Response(HTTPStatus.OK, encode(self._metrics.registry), content_type)
                self._answers[content_type] = answer
            return answer


class _Collector(Collector):
    def __init__(self, collected: Callable[[], Iterable[Metric]]) -> None:
        self._collected = collected

    def describe(self) -> Iterator[Metric]:
        """The names alone, without asking anybody."""
        return (_metric(family, {}) for family in f.FAMILIES if family.kind != "histogram")

    def collect(self) -> Iterator[Metric]:
        return iter(self._collected())


def _metric(family: Family, samples: Mapping[Any, float]) -> Metric:
    """Its samples by the values of their labels. Those that come to the same values count together."""
    names = [label.name for label in family.labels]
    fitted: Samples = {}
    for values, value in samples.items():
        labels = family.fitted(values)
        fitted[labels] = fitted.get(labels, 0) + value
    if family.kind == "info":
        info = InfoMetricFamily(family.stem, family.help, labels=())
        for labels in fitted:
            info.add_metric((), dict(zip(names, labels, strict=True)))
        return info
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(family.stem, family.help, labels=names)
    for labels, value in fitted.items():
        metric.add_metric(labels, value)
    return metric


def _histogram(family: Family, samples: Mapping[Any, Distribution]) -> Metric:
    metric = HistogramMetricFamily(family.stem, family.help, labels=[label.name for label in family.labels])
    for values, distribution in samples.items():
        counts = list(distribution.counts)  # it may go on counting
        bounds = [*map(str, distribution.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        metric.add_metric(family.fitted(values), buckets, distribution.total)
    return metric


def _of_figures(figures: Figures) -> Iterator[Metric]:
    yield _metric(f.THREADS, {(role,): figures.threads.get(role, 0) for role in THREAD_ROLES})
    yield _metric(f.OVERLAP, {(): figures.overlap})
    yield _metric(f.IRQS, {(state,): figures.irqs.get(state, 0) for state in IRQ_STATES})
    yield _metric(f.LOCALITY, {(str(npu),): ratio for npu, ratio in figures.locality.items()})
    yield _metric(f.SWITCHES, {(str(npu), role): count for (npu, role), count in figures.switches.items()})
    yield _metric(f.OPERATIONS, figures.operations)
    yield _histogram(f.BIND_SECONDS, {(): figures.bind_seconds})
    yield _histogram(f.START_TO_BOUND, {(): figures.start_to_bound})
    yield _histogram(f.EVENT_TO_PINNED, {(): figures.event_to_pinned})
    yield _metric(f.DRIFT_DETECTED, {(kind,): count for kind, count in figures.drift_detected.items()})
    yield _metric(f.DRIFT_REPAIRED, figures.drift_repaired)
    yield _metric(f.MEMORY, {(result,): figures.memory_bytes.get(result, 0) for result in MEMORY_RESULTS})
    yield _metric(f.PLAN_CHANGES_TOTAL, {(why,): figures.plan_changes.get(why, 0) for why in PLAN_CHANGES})
    yield _metric(f.JOURNAL, {(): figures.journal_entries})
    yield _metric(f.EVENT_STREAM, {(): figures.event_stream == "up"})
    yield _histogram(f.QUERY_DURATION, {(command,): seconds for command, seconds in figures.query_seconds.items()})
    yield _metric(f.QUERY_ERRORS, figures.query_errors)


def _node(status: Document, figures: Figures) -> Values:
    said = [word(status.get(key), 40) for key in ("strategy", "deviceType")]
    architecture = word(status.get("architecture"), 40) or "unknown"
    return (*said, architecture, figures.cgroup, figures.cpu_manager_policy, figures.event_stream)


def _of_the_plan(status: Document) -> Iterator[Metric]:
    """From a document of unknown form: what is not as expected counts for nothing."""
    npus = entries(status.get("npus"))
    yield _metric(f.NPUS, {(): len(npus)})
    yield _metric(f.WORKERS, {(state,): count for state, count in _workers(status, npus).items()})
    conditions = {
        kind: (kind, word(entry.get("status"), 16), word(entry.get("reason"), 64))
        for entry in entries(status.get("conditions"))
        if (kind := word(entry.get("type"), 64)) in f.CONDITIONS
    }
    yield _metric(f.CONDITION, dict.fromkeys(conditions.values(), 1))
    pools: Samples = {}
    for npu in npus:
        roles = mapping(npu.get("roles"))
        for role in Role:
            if role in roles:
                pools[str(number(npu.get("id"))), role.value] = len(cpus(roles[role]))
    yield _metric(f.POOL, pools)


def _pods(status: Document) -> Samples:
    """Of the workers that the plan lists, sixteen of an NPU."""
    seen = {
        worker.get("pid"): tuple(word(worker.get(key), 253) for key in ("namespace", "pod", "state"))
        for npu in entries(status.get("npus"))
        for worker in entries(npu.get("workers"))
        if isinstance(worker.get("pid"), int) and worker.get("pod")
    }
    return dict(Counter(seen.values()))


def _workers(status: Document, npus: list[Document]) -> dict[str, int]:
    """Workers by state. One that is on several NPUs is listed with each of them, and counts once.

    The plan lists sixteen workers an NPU. What its summary counts beyond these is added to the state that it says;
    of those that it counts as nothing but workers, the mode tells what they are.
    """
    states: dict[object, str] = {}
    for npu in npus:
        for k, worker in enumerate(entries(npu.get("workers"))):
            states[worker.get("pid") if isinstance(worker.get("pid"), int) else (id(npu), k)] = word(
                worker.get("state"), 16
            )
    counts = Counter(states.values())
    summary = mapping(status.get("summary"))
    groups = {
        "Bound": ("bound", ("Bound",)),
        "Failed": ("failed", ("Failed", "Partial")),
        "Skipped": ("skipped", ("Skipped",)),
    }
    for state, (key, of) in groups.items():
        counts[state] += max(0, number(summary.get(key), 0) - sum(counts[one] for one in of))
    rest = number(summary.get("workers"), 0) - counts.total()
    counts["Planned" if status.get("mode") == "DryRun" else "Pending"] += max(0, rest)
    return {state: counts[state] for state in f.WORKER_STATES}
