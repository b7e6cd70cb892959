"""A status may do without any part that it had: the server must not be left with a null that it then refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.client import ApiClient
from tests.cluster.cluster import Cluster

WHOLE: dict[str, Any] = {
    "mode": "Enforce",
    "topology": {"cpus": "0-7", "numaNodes": [{"id": 0, "cpus": "0-7"}]},
    "bases": [{"domain": "default", "cpus": "0-7"}],
    "uvb": {"cpus": "7", "state": "Planned"},
    "summary": {"npus": 1, "workers": 0, "bound": 0, "failed": 0, "skipped": 0},
    "npus": [{"id": 0, "state": "Idle"}],
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "AsPlanned",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


@pytest.mark.parametrize("part", ["topology", "bases", "uvb", "summary", "npus"])
def test_a_part_that_goes_is_gone_and_the_next_write_is_taken(cluster: Cluster, part: str) -> None:
    cluster.nodes.named("node-a")
    cluster.plans.named("node-a", spec={})
    agent: ApiClient = cluster.as_service_account()
    path = cluster.plans.path("node-a", subresource="status")

    def apply(status: dict[str, Any]) -> dict[str, Any]:
        body = {
            "apiVersion": "cpubind.dev/v1alpha1",
            "kind": "CpuBindingPlan",
            "metadata": {"name": "node-a"},
            "status": status,
        }
        kept: dict[str, Any] = agent.apply(path, body, manager="cpubind-agent")["status"]
        return kept

    apply(WHOLE)
    less = {name: value for name, value in WHOLE.items() if name != part}
    assert apply(less) == less
    assert apply(WHOLE) == WHOLE
