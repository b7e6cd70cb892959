"""What the agent writes, as the real API server hands it to admission, and what the chart's policy makes of that.

v1.20 has no ValidatingAdmissionPolicy and no node in its tokens: a webhook of the test gets the requests, the claim is
added to them, and the policy's expressions are evaluated by a CEL library (`tests.chart.admission`).
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.api.outage import hurry
from tests.api.rig import KubeRig
from tests.api.scene import is_untouched
from tests.chart.admission import Denied, Policy
from tests.chart.helm import Helm, find_helm, need_helm
from tests.cluster.background import Background, free_port
from tests.cluster.certificates import HOST, Certificates
from tests.cluster.client import ApiClient, eventually
from tests.cluster.cluster import NAMESPACE, SERVICE_ACCOUNT, USER
from tests.cluster.objects import PLANS
from tests.cluster.real_apiserver import RealApiServer
from tests.cluster.tls_server import TlsServer

need_helm()

pytestmark = pytest.mark.api

API = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
CLAIM = "authentication.kubernetes.io/node-name"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

Object = dict[str, Any]


class Witness:
    """A webhook that the API server asks about every write of a plan. It remembers all, and answers by `decide`."""

    def __init__(self, cluster: RealApiServer) -> None:
        self._cluster = cluster
        self._certificates = Certificates()
        self._background = Background("witness")
        self._port = free_port()
        self._server = TlsServer(self._answer, self._port, self._certificates.for_server())
        self.requests: list[Object] = []
        self.decide: Callable[[Object], Denied | None] = lambda request: None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        review = await request.json()
        self.requests.append(review["request"])
        denied = self.decide(review["request"])
        review["response"] = {"uid": review["request"]["uid"], "allowed": denied is None}
        if denied is not None:
            review["response"]["status"] = {"code": 403, "message": "; ".join(denied.messages)}
        return web.json_response(review)

    @contextmanager
    def at_work(self) -> Iterator[Witness]:
        self._background.run(self._server.start())
        self._cluster.admin.request("POST", WEBHOOKS, self._configuration())
        try:
            yield self
        finally:
            self._cluster.admin.request("DELETE", f"{WEBHOOKS}/witness")
            self._background.run(self._server.stop())
            self._background.close()

    def _configuration(self) -> Object:
        rule = {
            "apiGroups": ["cpubind.dev"],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["cpubindingplans", "cpubindingplans/status"],
        }
        client = {
            "url": f"https://{HOST}:{self._port}/",
            "caBundle": base64.b64encode(self._certificates.ca.encode()).decode(),
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "witness"},
            "webhooks": [
                {
                    "name": "witness.cpubind.dev",
                    "clientConfig": client,
                    "rules": [rule],
                    "failurePolicy": "Fail",
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }


@pytest.fixture
def witness(real_cluster: RealApiServer) -> Iterator[Witness]:
    with Witness(real_cluster).at_work() as made:
        # The API server takes a moment to hear of the configuration.
        probe = {"apiVersion": "cpubind.dev/v1alpha1", "kind": "CpuBindingPlan", "metadata": {"name": "probe"}}

        def heard() -> bool:
            real_cluster.admin.request("POST", PLANS.path(), probe)
            real_cluster.admin.request("DELETE", f"{PLANS.path()}/probe")
            return bool(made.requests)

        eventually(heard, "the webhook is asked", 20)
        yield made


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    program = find_helm()
    assert program is not None
    values = {
        "admissionPolicy": {"enabled": True},
        "serviceAccount": {"create": False, "name": SERVICE_ACCOUNT},
    }
    rendered = Helm(program, tmp_path).render(values, namespace=NAMESPACE, apis=[API])
    return Policy(rendered.the("ValidatingAdmissionPolicy"))


def of(request: Object, node: str) -> Object:
    """A request as a newer API server would make it of a token of an agent on a node."""
    made = copy.deepcopy(request)
    made["userInfo"].setdefault("extra", {})[CLAIM] = [node]
    return made


def test_what_an_agent_writes_passes_with_its_own_nodes_token_and_with_no_other(
    real_cluster: RealApiServer, witness: Witness, policy: Policy, tmp_path: Path
) -> None:
    with KubeRig(real_cluster, tmp_path, "a2", status_interval=0.3) as rig:
        rig.register()
        rig.start()
        _, (worker,) = rig.run_pod("llm-0", [0])
        rig.until_bound([worker])
        rig.edit({"mode": "DryRun"})
        rig.until(lambda: rig.status["mode"] == "DryRun", "the agent follows")
        name = rig.name
    agents = [one for one in witness.requests if one["userInfo"]["username"] == USER]
    kinds = {(one["operation"], one.get("subResource", "")) for one in agents}
    assert kinds == {("CREATE", ""), ("UPDATE", "status")}
    for one in agents:
        assert one["object"]["metadata"]["name"] == name
        assert policy.decide(of(one, name)) is None, one
        assert policy.decide(of(one, "another")) is not None
        assert policy.decide(one) is not None, "v1.20 does not say the node"
    people = [one for one in witness.requests if one["userInfo"]["username"] != USER]
    assert {one["operation"] for one in people} == {"CREATE", "UPDATE", "DELETE"}
    assert [policy.decide(one) for one in people] == [None] * len(people)


def test_a_spec_in_what_is_applied_to_the_status_does_not_come_to_admission(
    real_cluster: RealApiServer, witness: Witness, policy: Policy
) -> None:
    """The API server itself takes the spec of the object that is there."""
    plan = {"apiVersion": "cpubind.dev/v1alpha1", "kind": "CpuBindingPlan", "metadata": {"name": "npu-a"}}
    real_cluster.admin.request("POST", PLANS.path(), {**plan, "spec": {"mode": "Enforce"}})
    witness.requests.clear()
    applied = {**plan, "spec": {"mode": "Disabled"}, "status": {"mode": "Enforce"}}
    agent = ApiClient(HOST, real_cluster.port, real_cluster.ca, real_cluster.token)
    agent.apply(f"{PLANS.path()}/npu-a/status", applied, manager="somebody")
    agent.close()
    (made,) = witness.requests
    assert made["subResource"] == "status"
    assert made["object"]["spec"] == made["oldObject"]["spec"] == {"mode": "Enforce"}
    assert policy.decide(of(made, "npu-a")) is None
    assert policy.decide(of(made, "npu-b")) is not None


def test_an_agent_whose_token_says_no_node_binds_all_the_same_and_says_what_it_is_refused(
    real_cluster: RealApiServer,
    witness: Witness,
    policy: Policy,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurry(monkeypatch)
    witness.decide = policy.decide
    with KubeRig(real_cluster, tmp_path, "a2", status_interval=0.3) as rig:
        rig.register()
        rig.start()
        _, (worker,) = rig.run_pod("llm-0", [0])
        rig.until(lambda: not is_untouched(worker), "the worker is bound", 30)
        rig.until(lambda: "ApiRefused" in caplog.text, "it is said", 30)
        assert "the token of cpubind's account does not say its node" in caplog.text
        assert rig.plan() == {}
        witness.decide = lambda request: policy.decide(of(request, rig.name))
        rig.until(lambda: rig.bound() == {worker.pid}, "the plan is written", 60)
