"""Metrics for Prometheus. What there is of each is in docs/metrics.md.

State is read from the CpuBindingPlan when somebody scrapes, so that nothing goes stale and no series outlives what it
speaks of. Nothing is labelled with pods, processes or NPUs: what goes on on one node is in the plan itself.
"""

from __future__ import annotations

import re
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from agent import __version__
from agent.model.address import Address
from agent.model.outcome import DRIFT_KINDS, REPAIR_RESULTS, DriftKind, RepairResult
from agent.model.reason import Problem
from agent.telemetry.listener import NOT_FOUND, RETRY_SECONDS, Listener, Request, Response
from agent.telemetry.text import entries, mapping, number, word

WORKER_STATES: Final = ("Bound", "Partial", "Pending", "Planned", "Failed", "Skipped")
"""States of workers (design section 7)."""

NO_ANSWER: Final = "error"
"""The code of an API request that was not answered."""

_CODE: Final = re.compile(r"[1-5][0-9][0-9]")
_VERB: Final = re.compile(r"[a-z]{1,16}")


class Drift(Protocol):
    """Threads and interrupts that had moved away, since the agent began."""

    @property
    def detected(self) -> Mapping[DriftKind, int]: ...

    @property
    def repaired(self) -> Mapping[tuple[DriftKind, RepairResult], int]: ...


class Metrics:
    """Everything that is exported, in a registry of its own. All methods are safe from any thread."""

    def __init__(
        self, document: Callable[[], Mapping[str, Any]], drift: Callable[[], Drift | None] = lambda: None
    ) -> None:
        """`document` gives the CpuBindingPlan as it is now; empty before there is one. `drift` what had moved away."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._swept_at: float | None = None
        self._requests = Counter(
            "cpubind_api_requests",
            f"Requests to the Kubernetes API server by verb and HTTP status code; `{NO_ANSWER}` without an answer.",
            ("verb", "code"),
            registry=self.registry,
        )
        self.registry.register(_PlanCollector(document))
        self.registry.register(_DriftCollector(drift))
        self.registry.register(_SweepCollector(lambda: self._swept_at))

    def api_request(self, verb: str, code: str) -> None:
        """Counts a request: `verb` as Kubernetes has it (``list``, ``patch``), `code` such as ``200``, or ``error``."""
        verb = verb if _VERB.fullmatch(verb) else "other"
        self._requests.labels(verb, code if _CODE.fullmatch(code) else NO_ANSWER).inc()

    def swept(self, at: float) -> None:
        """A pass has ended at this Unix time."""
        self._swept_at = at


class MetricsServer:
    """Serves ``/metrics``. A port in use is a problem, not an end."""

    def __init__(self, address: Address, metrics: Metrics, *, retry: float = RETRY_SECONDS) -> None:
        """Serves until `close`, in threads of its own; tries again every `retry` seconds for an address in use."""
        self._metrics = metrics
        self.listener = Listener("metrics", address, self._answer, retry=retry)

    def problem(self) -> Problem | None:
        """PortInUse while the address can't be had."""
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
        encode, content_type = choose_encoder(accept)
        return Response(HTTPStatus.OK, encode(self._metrics.registry), content_type)


class _SweepCollector(Collector):
    """Absent before the first sweep: 0 would say that the last one was in 1970."""

    def __init__(self, swept_at: Callable[[], float | None]) -> None:
        self._swept_at = swept_at

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "cpubind_last_sweep_timestamp_seconds", "Unix time at which the last pass of the loop ended; absent before."
        )
        if (at := self._swept_at()) is not None:
            family.add_metric((), at)
        yield family


class _DriftCollector(Collector):
    """Every series is there from the start: a counter that begins with 1 has no rate."""

    def __init__(self, drift: Callable[[], Drift | None]) -> None:
        self._drift = drift

    def describe(self) -> Iterator[Metric]:
        """The names alone, without asking anybody."""
        return _drift_families(None)

    def collect(self) -> Iterator[Metric]:
        return _drift_families(self._drift())


def _drift_families(drift: Drift | None) -> Iterator[Metric]:
    detected = CounterMetricFamily(
        "cpubind_drift_detected",
        "Threads and interrupts found elsewhere than where they had been put.",
        labels=["kind"],
    )
    repaired = CounterMetricFamily(
        "cpubind_drift_repaired",
        "What came of threads and interrupts found elsewhere, by result.",
        labels=["kind", "result"],
    )
    for kind in DRIFT_KINDS:
        detected.add_metric([kind], drift.detected[kind] if drift else 0)
        for result in REPAIR_RESULTS:
            repaired.add_metric([kind, result], drift.repaired[kind, result] if drift else 0)
    yield detected
    yield repaired


class _PlanCollector(Collector):
    """Reads a document of unknown form: what is not as expected counts for nothing."""

    def __init__(self, document: Callable[[], Mapping[str, Any]]) -> None:
        self._document = document

    def describe(self) -> Iterator[Metric]:
        """The names alone, without asking for the plan."""
        return _families({})

    def collect(self) -> Iterator[Metric]:
        return _families(mapping(mapping(self._document()).get("status")))


def _families(status: Mapping[str, Any]) -> Iterator[Metric]:
    yield InfoMetricFamily("cpubind_build", "Version of the agent; always 1.", value={"version": __version__})

    npus = entries(status.get("npus"))
    yield GaugeMetricFamily("cpubind_npus", "NPUs in the plan; 0 while there is none.", value=len(npus))

    workers = GaugeMetricFamily("cpubind_workers", "NPU workers that are to be bound, by state.", labels=("state",))
    for state, count in _workers(status, npus).items():
        workers.add_metric((state,), count)
    yield workers

    conditions = GaugeMetricFamily(
        "cpubind_condition", "1 for each condition of the plan as it is now.", labels=("type", "status", "reason")
    )
    listed = {
        kind: (kind, word(entry.get("status"), 16), word(entry.get("reason"), 64))
        for entry in entries(status.get("conditions"))
        if (kind := word(entry.get("type"), 64))
    }
    for labels in listed.values():
        conditions.add_metric(labels, 1)
    yield conditions


def _workers(status: Mapping[str, Any], npus: list[Mapping[str, Any]]) -> dict[str, int]:
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
    counts = Counts(states.values())
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
    return {state: counts[state] for state in WORKER_STATES}
