"""What a request costs a real API server beside others' pods and watches: the measurement itself, in small."""

from __future__ import annotations

import pytest

from benchmarks.fleet_server import measure
from tests.cluster.real_apiserver import missing_assets

pytestmark = [
    pytest.mark.api,
    pytest.mark.skipif(missing_assets() is not None, reason=missing_assets() or ""),
]


def test_each_size_has_its_figure_and_a_list_from_the_watch_cache_costs_less_than_one_from_etcd() -> None:
    found = measure([40, 1500], [0, 30])
    assert list(found["LIST"]) == [
        "pods of one node, among 40",
        "pods of one node, among 1500",
        "the same without resourceVersion, among 1500",
    ]
    assert list(found["write"]) == ["a plan's status, beside 0 watches", "a plan's status, beside 30 watches"]
    costs = [figure.value for figure in found["LIST"].values()]
    assert 0 < costs[1] < costs[2] / 2
    assert all(figure.value > 0 for figure in found["write"].values())
