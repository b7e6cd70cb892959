"""With the agent's token nothing can be done but what the agent does: no pod, no Node and no plan's spec is changed."""

from __future__ import annotations

import pytest

from tests.api.forbidden import FORBIDDEN, SPEC, answers
from tests.api.rig import KubeRig
from tests.api.scene import PLANS, requests
from tests.cluster.client import MERGE_PATCH
from tests.cluster.cluster import FIELD_MANAGER


@pytest.fixture
def served(a2: KubeRig) -> KubeRig:
    """A node with a bound pod, and an agent that did all this with its own rights."""
    a2.start()
    _, workers = a2.run_pod("llm-0", [0])
    a2.until_bound(workers)
    a2.until(lambda: a2.events("CpuBound"), "the event")
    return a2


def test_the_agents_token_changes_no_pod_no_node_and_no_spec(served: KubeRig) -> None:
    assert {one.code for one in requests(served)} <= {200, 201}
    served.settle(0.6)
    pods, nodes, plan = served.cluster.pods.list(), served.cluster.nodes.list(), served.plan()
    assert answers(served.cluster.as_service_account()) == dict.fromkeys(FORBIDDEN, 403)
    assert (served.cluster.pods.list(), served.cluster.nodes.list(), served.plan()) == (pods, nodes, plan)


def test_a_spec_in_an_apply_of_the_status_is_not_taken(served: KubeRig) -> None:
    """The one write to an existing plan that the token may do, with a spec smuggled in."""
    path = f"{PLANS}/{served.name}/status"
    body = {"apiVersion": "cpubind.dev/v1alpha1", "kind": "CpuBindingPlan", "metadata": {"name": served.name}, **SPEC}
    client = served.cluster.as_service_account()
    client.apply(path, body | {"status": served.status}, manager=FIELD_MANAGER)
    client.request("PATCH", path, SPEC, content_type=MERGE_PATCH)
    assert served.plan()["spec"] == {}
    assert served.plan()["metadata"]["generation"] == 1
