"""What a fleet asked of its API server, as that server's metrics and audit log tell it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.fleet_counts import busiest_second, etcd_bytes, sort_of, sorts, totals, unselected
from tests.cluster.cluster import Request

PLANS = "/apis/cpubind.dev/v1alpha1/cpubindingplans"

METRICS = """\
# HELP apiserver_request_total Counter of apiserver requests
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",contentType="application/json",resource="pods",verb="LIST",version="v1"} 3
apiserver_request_total{code="504",contentType="application/json",resource="pods",verb="LIST",version="v1"} 1
apiserver_request_total{code="200",contentType="application/vnd.kubernetes.protobuf",resource="pods",verb="LIST"} 7
apiserver_request_total{code="201",contentType="application/json",resource="pods",verb="POST",version="v1"} 50
apiserver_request_total{code="200",contentType="application/json",resource="cpubindingplans",verb="APPLY"} 2
apiserver_response_sizes_bucket{resource="pods",verb="LIST",le="1000"} 9
apiserver_response_sizes_sum{resource="pods",verb="LIST",version="v1"} 1.5e+03
apiserver_response_sizes_sum{resource="nodes",verb="GET",version="v1"} 500
apiserver_response_sizes_sum{resource="secrets",verb="LIST",version="v1"} 99999
apiserver_watch_events_total{group="",kind="Pod",version="v1"} 20
apiserver_watch_events_total{group="cpubind.dev",kind="CpuBindingPlan",version="v1alpha1"} 4
apiserver_watch_events_total{group="",kind="Secret",version="v1"} 1000
apiserver_watch_events_sizes_sum{group="",kind="Pod",version="v1"} 2048
apiserver_registered_watchers{group="",kind="Pod",version="v1"} 3
apiserver_registered_watchers{group="cpubind.dev",kind="CpuBindingPlan",version="v1alpha1"} 2
process_cpu_seconds_total 12.5
process_resident_memory_bytes 3.5e+08
"""


def request(
    verb: str = "list", path: str = "/api/v1/pods", *, at: float = 0.0, query: Mapping[str, str] | None = None
) -> Request:
    return Request(verb, path, query or {}, time=at)


def test_of_the_metrics_only_what_agents_ask_counts() -> None:
    found = totals(METRICS)
    assert found.answered == {("pods", "LIST"): 4.0, ("cpubindingplans", "APPLY"): 2.0}
    assert found.answer_bytes == 2000.0
    assert found.events == {"Pod": 20.0, "CpuBindingPlan": 4.0}
    assert found.event_bytes == {"Pod": 2048.0, "CpuBindingPlan": 0.0}
    assert (found.watchers, found.cpu_seconds, found.rss_bytes) == (5.0, 12.5, 3.5e8)


def test_etcd_tells_what_it_has_in_use() -> None:
    text = "etcd_mvcc_db_total_size_in_bytes 99\netcd_mvcc_db_total_size_in_use_in_bytes 1.5e+06\n"
    assert etcd_bytes(text) == 1.5e6


@pytest.mark.parametrize(
    ("verb", "path", "sort"),
    [
        ("list", "/api/v1/pods", "list pods"),
        ("watch", PLANS, "watch plan"),
        ("create", PLANS, "create plan"),
        ("patch", f"{PLANS}/a3-0/status", "patch status"),
        ("get", "/api/v1/nodes/a3-0", "get node"),
        ("create", "/api/v1/namespaces/prod/events", "create event"),
        ("patch", "/api/v1/namespaces/default/events/a3-0.1", "patch event"),
        ("get", "/api/v1", "discovery"),
        ("get", "/apis", "discovery"),
    ],
)
def test_requests_are_of_few_sorts(verb: str, path: str, sort: str) -> None:
    assert sort_of(request(verb, path)) == sort
    assert sorts([request(verb, path)] * 3) == {sort: 3}


def test_the_busiest_second_is_any_second() -> None:
    assert busiest_second([]) == 0
    assert busiest_second([request(at=at) for at in (5.0, 0.9, 1.0, 1.5, 1.8, 2.0)]) == 4
    assert busiest_second([request(at=at) for at in (1.0, 2.0, 3.0)]) == 1


def test_a_list_of_everybody_or_from_etcd_is_found() -> None:
    fine = {"fieldSelector": "spec.nodeName=a", "resourceVersion": "0"}
    bad = [{"fieldSelector": "spec.nodeName=a"}, {"resourceVersion": "0"}, fine | {"resourceVersion": ""}]
    assert unselected([request(query=fine), request("watch", query=fine), request("create", PLANS)]) == 0
    assert unselected([request(verb, query=query) for query in bad for verb in ("list", "watch")]) == 6
