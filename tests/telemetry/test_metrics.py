"""What Prometheus sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent import __version__
from agent.control.drift import DriftTotals
from agent.model.address import Address
from agent.telemetry.metrics import WORKER_STATES, Metrics, MetricsServer
from tests.telemetry.listening import LOOPBACK, ask, port_of

DOCS = Path(__file__).parents[2] / "docs/metrics.md"

Labels = dict[str, str]


def _worker(pid: int, state: str = "Bound", **more: object) -> dict[str, object]:
    return {"pid": pid, "namespace": "prod", "pod": f"llm-{pid}", "state": state, **more}


def _plan(*npus: list[dict[str, object]], mode: str = "Enforce", **summary: int) -> dict[str, Any]:
    """A plan whose k-th NPU has these workers."""
    return {
        "metadata": {"name": "a3-0"},
        "status": {
            "mode": mode,
            "summary": summary,
            "npus": [{"id": k, "pool": "0-9", "state": "Idle", "workers": of} for k, of in enumerate(npus)],
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "InsufficientCpus", "message": "NPU 3 …"},
                {"type": "Degraded", "status": "False", "reason": "AsPlanned", "message": ""},
            ],
        },
    }


def _samples(metrics: Metrics, name: str) -> list[tuple[Labels, float]]:
    """The series of a metric, as a scraper reads them."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return [(dict(one.labels), one.value) for family in families for one in family.samples if one.name == name]


def _workers(plan: Mapping[str, Any]) -> dict[str, float]:
    return {labels["state"]: value for labels, value in _samples(Metrics(lambda: plan), "cpubind_workers") if value}


def test_before_there_is_a_plan_every_state_of_a_worker_is_there_with_none() -> None:
    metrics = Metrics(dict)
    assert _samples(metrics, "cpubind_build_info") == [({"version": __version__}, 1)]
    assert _samples(metrics, "cpubind_npus") == [({}, 0)]
    assert _samples(metrics, "cpubind_workers") == [({"state": state}, 0) for state in WORKER_STATES]
    assert _samples(metrics, "cpubind_condition") == []
    assert _samples(metrics, "cpubind_last_sweep_timestamp_seconds") == []


def test_workers_are_counted_by_their_state() -> None:
    plan = _plan(
        [_worker(1), _worker(2, "Failed")], [], [_worker(3), _worker(4, "Partial")], workers=4, bound=2, failed=2
    )
    assert _workers(plan) == {"Bound": 2, "Failed": 1, "Partial": 1}


def test_a_worker_on_several_npus_counts_once() -> None:
    both = _worker(1)
    assert _workers(_plan([both], [both], [both], workers=1, bound=1)) == {"Bound": 1}


def test_workers_that_the_plan_counts_and_does_not_list_are_counted_in_their_state() -> None:
    listed = [_worker(pid) for pid in range(14)] + [_worker(14, "Partial"), _worker(15, "Skipped")]
    plan = _plan(listed, workers=30, bound=20, failed=3, skipped=4)
    assert _workers(plan) == {"Bound": 20, "Partial": 1, "Failed": 2, "Skipped": 4, "Pending": 3}
    assert sum(_workers(plan).values()) == 30
    plan = _plan([_worker(pid, "Planned") for pid in range(16)], mode="DryRun", workers=20)
    assert _workers(plan) == {"Planned": 20}


def test_each_condition_is_one_series_that_changes_with_it() -> None:
    plan = _plan()
    metrics = Metrics(lambda: plan)
    ready = {"type": "Ready", "status": "False", "reason": "InsufficientCpus"}
    degraded = {"type": "Degraded", "status": "False", "reason": "AsPlanned"}
    assert _samples(metrics, "cpubind_condition") == [(ready, 1), (degraded, 1)]
    plan["status"]["conditions"][0] |= {"status": "True", "reason": "AsPlanned"}
    ready = {"type": "Ready", "status": "True", "reason": "AsPlanned"}
    assert _samples(metrics, "cpubind_condition") == [(ready, 1), (degraded, 1)]


def test_series_of_pods_that_are_gone_are_gone_and_none_names_a_pod() -> None:
    plan = _plan([], [])
    metrics = Metrics(lambda: plan)
    before = generate_latest(metrics.registry)
    for pid in range(1000):
        plan = _plan([_worker(pid)], [_worker(pid + 5000, "Failed")], workers=2, bound=1, failed=1)
        scraped = generate_latest(metrics.registry)
        assert b"llm-" not in scraped
        assert scraped.count(b"\n") == before.count(b"\n")
    plan = _plan([], [])
    assert generate_latest(metrics.registry) == before


def test_the_last_sweep_is_shown_by_its_unix_time() -> None:
    metrics = Metrics(dict)
    metrics.swept(1_767_225_600.25)
    metrics.swept(1_767_225_605.5)
    assert _samples(metrics, "cpubind_last_sweep_timestamp_seconds") == [({}, 1_767_225_605.5)]


def test_api_requests_are_counted_by_verb_and_code() -> None:
    metrics = Metrics(dict)
    for verb, code in [("list", "200"), ("patch", "409"), ("list", "200"), ("list", "error")]:
        metrics.api_request(verb, code)
    assert _samples(metrics, "cpubind_api_requests_total") == [
        ({"verb": "list", "code": "200"}, 2),
        ({"verb": "patch", "code": "409"}, 1),
        ({"verb": "list", "code": "error"}, 1),
    ]


def test_odd_verbs_and_codes_make_no_series_of_their_own() -> None:
    metrics = Metrics(dict)
    for k in range(50):
        metrics.api_request(f"GET /api/v1/pods/{k}", f"ConnectionError({k})")
    assert _samples(metrics, "cpubind_api_requests_total") == [({"verb": "other", "code": "error"}, 50)]


def test_drift_is_counted_by_kind_and_by_what_came_of_it_and_every_series_is_there_from_the_start() -> None:
    totals = DriftTotals()
    totals.add("thread", "repaired")
    totals.add("irq", "left")
    for metrics, expected in ((Metrics(dict), {}), (Metrics(dict, lambda: totals), {"thread": 1.0, "irq": 1.0})):
        detected = _samples(metrics, "cpubind_drift_detected_total")
        assert detected == [({"kind": kind}, expected.get(kind, 0)) for kind in ("thread", "cpuset", "irq")]
        repaired = _samples(metrics, "cpubind_drift_repaired_total")
        assert len(repaired) == 9
        found = {(labels["kind"], labels["result"]): value for labels, value in repaired if value}
        assert found == ({("thread", "repaired"): 1, ("irq", "left"): 1} if expected else {})


def test_there_are_no_created_series() -> None:
    metrics = Metrics(dict)
    metrics.api_request("list", "200")
    assert b"_created" not in generate_latest(metrics.registry)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("Bound"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "status",
                    "npus",
                    "workers",
                    "state",
                    "pid",
                    "summary",
                    "bound",
                    "failed",
                    "conditions",
                    "type",
                    "reason",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(_JSON)
@example({"status": {"npus": [{"workers": [{"pid": [1], "state": {}}, {"state": "Bound"}, {"state": "Bound"}]}]}})
@example({"status": {"conditions": [{"type": 'a"\n\\', "status": True, "reason": None}, {"type": 'a"\n\\'}]}})
def test_a_document_of_any_form_gives_metrics_that_can_be_read(document: Any) -> None:
    metrics = Metrics(lambda: document)
    assert len(_samples(metrics, "cpubind_workers")) == len(WORKER_STATES)
    labels = [tuple(sorted(labels.items())) for labels, _ in _samples(metrics, "cpubind_condition")]
    assert len(labels) == len(set(labels)), "Prometheus refuses a scrape with the same series twice"


def _everything() -> Metrics:
    """With at least one series of each metric."""
    metrics = Metrics(_plan)
    metrics.api_request("list", "200")
    metrics.swept(1.0)
    return metrics


def test_the_docs_list_every_metric_with_its_type_its_labels_and_its_meaning() -> None:
    rows = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in re.findall(
            r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+?) \|$", DOCS.read_text(), re.MULTILINE
        )
    }
    exported = {
        family.samples[0].name: (
            "gauge" if family.type == "info" else family.type,
            {name for sample in family.samples for name in sample.labels},
            family.documentation,
        )
        for family in _everything().registry.collect()
    }
    assert rows == exported


def test_the_docs_list_the_states_of_workers() -> None:
    said = re.search(r"`state` is one of (.+?);", DOCS.read_text(), re.DOTALL)
    assert said is not None
    assert tuple(re.findall(r"`(\w+)`", said[1])) == WORKER_STATES


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = MetricsServer(Address(LOOPBACK, 0), _everything())
    yield port_of(server)
    server.close()


def test_metrics_are_served_under_metrics_and_nothing_anywhere_else(port: int) -> None:
    status, body, headers = ask(port, "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "cpubind_npus 0.0\n" in body
    for path in ("/", "/healthz", "/metrics/"):
        assert ask(port, path)[:2] == (404, "not found\n")


def test_a_scraper_gets_openmetrics_when_it_asks_for_it(port: int) -> None:
    _, body, headers = ask(port, "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith("# EOF\n")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            [
                "application/openmetrics-text",
                "text/plain",
                ";",
                ",",
                "version=",
                "escaping=",
                "1.0.0",
                "x",
                "9",
                ".",
                "-1",
                " ",
            ]
        ),
        max_size=10,
    ).map("".join)
)
@example("application/openmetrics-text;version=x")
def test_whatever_a_scraper_accepts_it_is_served(port: int, accept: str) -> None:
    assert ask(port, "/metrics", headers={"Accept": accept})[0] == 200
