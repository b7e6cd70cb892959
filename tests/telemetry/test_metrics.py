"""What Prometheus sees."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent import __version__
from agent.model.address import Address
from agent.model.figures import Distribution, Figures
from agent.telemetry.families import FAMILIES, POD_WORKERS, WORKER_STATES
from agent.telemetry.layout import MAX_WORKERS
from agent.telemetry.metrics import FRESH_SECONDS, Metrics, MetricsServer
from tests.docs.metrics_page import PAGE, page
from tests.telemetry.listening import LOOPBACK, ask, port_of

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
    figures = Figures()
    metrics = Metrics(dict, lambda: figures)
    for expected in (0, 1):
        detected = _samples(metrics, "cpubind_drift_detected_total")
        assert detected == [
            ({"kind": "thread"}, expected),
            ({"kind": "cpuset"}, 0),
            ({"kind": "irq"}, 0),
        ]
        repaired = _samples(metrics, "cpubind_drift_repaired_total")
        assert len(repaired) == 9
        found = {(labels["kind"], labels["result"]): value for labels, value in repaired if value}
        assert found == ({("thread", "repaired"): 1} if expected else {})
        detections, repairs = dict(figures.drift_detected), dict(figures.drift_repaired)
        detections["thread"] += 1
        repairs["thread", "repaired"] += 1
        figures = Figures(drift_detected=detections, drift_repaired=repairs)


def test_a_histogram_counts_what_is_up_to_each_bound() -> None:
    distribution = Distribution((0.5, 1.0))
    metrics = Metrics(dict, lambda: Figures(bind_seconds=distribution))
    for value in (0.1, 0.5, 0.7, 1.0, 7.0):
        distribution.observe(value)
    name = "cpubind_bind_duration_seconds"
    assert _samples(metrics, f"{name}_bucket") == [({"le": "0.5"}, 2), ({"le": "1.0"}, 4), ({"le": "+Inf"}, 5)]
    assert _samples(metrics, f"{name}_count") == [({}, 5)]
    [(_, total)] = _samples(metrics, f"{name}_sum")
    assert total == pytest.approx(9.3)


def test_what_kind_of_node_it_is_is_unknown_until_it_is_known() -> None:
    names = ("strategy", "device_type", "architecture", "cgroup", "cpu_manager_policy", "events")
    assert _samples(Metrics(dict), "cpubind_node_info") == [(dict.fromkeys(names, "unknown") | {"events": "off"}, 1)]
    plan = {"status": {"strategy": "GlobalSlice", "deviceType": "A3", "architecture": "aarch64"}}
    figures = Figures(cgroup="v2", cpu_manager_policy="static", event_stream="up")
    known = ("GlobalSlice", "A3", "aarch64", "v2", "static", "up")
    assert _samples(Metrics(lambda: plan, lambda: figures), "cpubind_node_info") == [
        (dict(zip(names, known, strict=True)), 1)
    ]


def test_cpus_are_counted_by_npu_and_role() -> None:
    plan = {"status": {"npus": [{"id": 3, "roles": {"irq": "0-1", "main": "2-7,9", "acl": "8"}}]}}
    assert {
        (labels["npu"], labels["role"]): value for labels, value in _samples(Metrics(lambda: plan), "cpubind_pool_cpus")
    } == {("3", "irq"): 2, ("3", "main"): 7, ("3", "acl"): 1}


def test_pods_are_named_only_where_that_is_asked_for() -> None:
    both = _worker(3)
    plan = _plan([_worker(1), _worker(2, "Failed"), both], [both])
    assert _samples(Metrics(lambda: plan), "cpubind_pod_workers") == []
    assert [
        (labels["namespace"], labels["pod"], labels["state"], value)
        for labels, value in _samples(Metrics(lambda: plan, per_pod=True), "cpubind_pod_workers")
    ] == [("prod", "llm-1", "Bound", 1), ("prod", "llm-2", "Failed", 1), ("prod", "llm-3", "Bound", 1)]


def test_how_many_workers_of_a_pod_are_counted_at_most_is_said() -> None:
    assert f"({MAX_WORKERS} an NPU)" in POD_WORKERS.help


def test_the_age_of_each_watch_is_shown_once_it_has_one() -> None:
    ages: dict[str, float] = {}
    metrics = Metrics(dict, watch_ages=lambda: ages)
    assert _samples(metrics, "cpubind_watch_age_seconds") == []
    ages["pods"] = 12.5
    assert _samples(metrics, "cpubind_watch_age_seconds") == [({"resource": "pods"}, 12.5)]


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


def test_no_label_ever_has_a_value_beyond_those_that_are_listed() -> None:
    """Whatever a plan says, or another version of the agent counts."""
    odd = "x" * 30 + '\n"7f3a'
    plan = {
        "status": {
            **dict.fromkeys(("strategy", "deviceType", "architecture"), odd),
            "npus": [{"id": odd, "roles": {"main": "0-3", odd: "4"}, "workers": [_worker(7, odd, pod=odd)]}],
            "conditions": [{"type": "Ready", "status": odd, "reason": odd}, {"type": odd, "status": "True"}],
        }
    }
    operations: Any = {(odd, odd, odd): 1}
    others: Any = {odd: 1}
    figures = Figures(
        cgroup=odd,
        cpu_manager_policy=odd,
        operations=operations,
        drift_detected=others,
        plan_changes=others,
        query_errors={(odd, odd): 1},  # type: ignore[dict-item]
    )
    metrics = Metrics(lambda: plan, lambda: figures, watch_ages=lambda: {odd: 1.0})
    metrics.api_request(odd, odd)
    text = generate_latest(metrics.registry).decode()
    assert "7f3a" not in text
    assert 'cpubind_condition{reason="other",status="other",type="Ready"} 1.0' in text


def _everything() -> Metrics:
    """With at least one series of each metric."""
    metrics = Metrics(_plan, Figures, per_pod=True)
    metrics.api_request("list", "200")
    metrics.swept(1.0)
    return metrics


def test_what_is_exported_is_what_is_listed() -> None:
    exported = {family.name: (family.type, family.documentation) for family in _everything().registry.collect()}
    assert exported == {
        family.stem: ("info" if family.kind == "info" else family.kind, family.help) for family in FAMILIES
    }
    assert all(family.name.startswith("cpubind_") and family.help.endswith((".", "…")) for family in FAMILIES)
    assert all(label.values or label.form for family in FAMILIES for label in family.labels)


def test_the_page_is_made_of_the_metrics_that_there_are() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_prometheus_finds_nothing_to_mend_in_them() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("NO promtool HERE: install Debian's prometheus")
    text = generate_latest(_everything().registry)
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


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


def test_many_who_ask_at_once_cost_as_much_as_a_few() -> None:
    asked: list[int] = []

    def document() -> dict[str, Any]:
        asked.append(1)
        return {}

    server = MetricsServer(Address(LOOPBACK, 0), Metrics(document))
    port = port_of(server)
    answers: list[tuple[int, str]] = []
    try:
        began = time.monotonic()
        threads = [threading.Thread(target=lambda: answers.append(ask(port, "/metrics")[:2])) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 20
        assert set(answers) == {answers[0]}
        assert len(asked) <= 1 + (time.monotonic() - began) / FRESH_SECONDS
        time.sleep(FRESH_SECONDS)
        before = len(asked)
        assert ask(port, "/metrics")[0] == 200
        assert len(asked) == before + 1, "who asks later gets what is so then"
    finally:
        server.close()


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
