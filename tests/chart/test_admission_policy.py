"""The ValidatingAdmissionPolicy: when it is made, and what it lets pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.chart.admission import Denied, Object, Policy
from tests.chart.helm import Helm, need_helm
from tests.control.rig import Rig

need_helm()

API = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
ON = {"admissionPolicy": {"enabled": True}}
CLAIM = "authentication.kubernetes.io/node-name"
AGENT, NODE = "system:serviceaccount:npu-system:cpubind", "npu-a"

NO_NODE = (
    "the token of cpubind's account does not say its node: it was not made for a pod that runs on one, or the API "
    "server's ServiceAccountTokenPodNodeInfo is off"
)
OWN_ALONE = "an agent of cpubind may write the plan of its own node alone"
STATUS_ALONE = "of a plan that is there an agent of cpubind may write the status alone"


@pytest.fixture(scope="module")
def policy(helm: Helm) -> Policy:
    return Policy(helm.render(ON, apis=[API]).the("ValidatingAdmissionPolicy"))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Object:
    """What an agent writes: the plan of a node with two workers."""
    rig = Rig(tmp_path_factory.mktemp("node"), "a2")
    rig.settle()
    document: Object = copy.deepcopy(rig.agent.plan_object())
    document["metadata"] = {"name": NODE, "uid": "5f0c", "resourceVersion": "7", "labels": {"a": "b"}}
    document["spec"] = {"mode": "Enforce", "threadRules": [{"prefix": "ucm_", "role": "main"}]}
    assert document["status"]["npus"]
    return document


def request(
    operation: str,
    after: Object | None,
    before: Object | None = None,
    *,
    status: bool = False,
    user: str = AGENT,
    node: str | None = NODE,
) -> Object:
    """The request of an AdmissionReview, as the API server makes it of a user's."""
    kind = {"group": "cpubind.dev", "version": "v1alpha1", "kind": "CpuBindingPlan"}
    extra = {"authentication.kubernetes.io/pod-name": ["cpubind-x7f2q"]}
    if node is not None:
        extra[CLAIM] = [node]
    named: Object = after or before or {}
    made: Object = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "resource": {"group": "cpubind.dev", "version": "v1alpha1", "resource": "cpubindingplans"},
        "requestKind": kind,
        "name": named["metadata"]["name"],
        "operation": operation,
        "userInfo": {"username": user, "uid": "u", "groups": ["system:serviceaccounts"], "extra": extra},
        "object": after,
        "oldObject": before,
        "dryRun": False,
        "options": {"kind": "PatchOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    if status:
        made["subResource"] = made["requestSubResource"] = "status"
    return made


def changed(plan: Object, **fields: Any) -> Object:
    return {**copy.deepcopy(plan), **fields}


def named(plan: Object, name: str) -> Object:
    return changed(plan, metadata={**plan["metadata"], "name": name})


def test_an_agent_makes_the_plan_of_its_node_and_writes_its_status(policy: Policy, plan: Object) -> None:
    fresh = {key: plan[key] for key in ("apiVersion", "kind", "metadata")}
    assert policy.decide(request("CREATE", fresh)) is None
    assert policy.decide(request("CREATE", changed(plan, status={}))) is None, "with the spec that it had"
    assert policy.decide(request("UPDATE", plan, changed(plan, status={}), status=True)) is None
    without = {key: value for key, value in plan.items() if key != "spec"}
    assert policy.decide(request("UPDATE", without, fresh, status=True)) is None


@pytest.mark.parametrize("status", [True, False])
def test_it_writes_nothing_of_the_plan_of_another_node(policy: Policy, plan: Object, status: bool) -> None:
    other = named(plan, "npu-b")
    answer = policy.decide(request("UPDATE", other, changed(other, status={}), status=status))
    assert answer is not None
    assert OWN_ALONE in answer.messages
    assert (STATUS_ALONE in answer.messages) is not status


def test_it_makes_no_plan_for_another_node(policy: Policy, plan: Object) -> None:
    assert policy.decide(request("CREATE", named(plan, "npu-b"))) == Denied((OWN_ALONE,))
    assert policy.decide(request("CREATE", named(plan, "npu-a-2"))) == Denied((OWN_ALONE,)), "a name that begins alike"


def test_it_changes_no_spec_not_by_way_of_the_status_either(policy: Policy, plan: Object) -> None:
    spec = changed(plan, spec={"mode": "Disabled"})
    assert policy.decide(request("UPDATE", spec, plan)) == Denied((STATUS_ALONE,))
    assert policy.decide(request("UPDATE", spec, plan, status=True)) == Denied((STATUS_ALONE,))
    without = {key: value for key, value in plan.items() if key != "spec"}
    assert policy.decide(request("UPDATE", plan, without, status=True)) == Denied((STATUS_ALONE,))
    assert policy.decide(request("UPDATE", without, plan, status=True)) == Denied((STATUS_ALONE,))


def test_it_deletes_no_plan_its_own_neither(policy: Policy, plan: Object) -> None:
    assert policy.decide(request("DELETE", None, plan)) == Denied((STATUS_ALONE,))
    assert policy.decide(request("DELETE", None, named(plan, "npu-b"))) == Denied((OWN_ALONE, STATUS_ALONE))


def test_a_token_that_does_not_say_its_node_writes_nothing(policy: Policy, plan: Object) -> None:
    """Of a Secret, or by `kubectl create token`, or with the API server's feature turned off."""
    for operation, after, before, status in (("CREATE", plan, None, False), ("UPDATE", plan, plan, True)):
        made = request(operation, after, before, status=status, node=None)
        assert policy.decide(made) == Denied((NO_NODE,))
        del made["userInfo"]["extra"]
        assert policy.decide(made) == Denied((NO_NODE,))
        made["userInfo"]["extra"] = {CLAIM: []}
        assert policy.decide(made) == Denied((NO_NODE,))
        made["userInfo"]["extra"] = {CLAIM: ["npu-b", NODE]}
        assert policy.decide(made) == Denied((NO_NODE,)), "no token says two"


@pytest.mark.parametrize(
    "user",
    [
        "kubernetes-admin",
        "system:serviceaccount:npu-system:default",
        "system:serviceaccount:other:cpubind",
        "system:serviceaccount:kube-system:generic-garbage-collector",
    ],
)
def test_people_and_other_accounts_do_as_they_did(policy: Policy, plan: Object, user: str) -> None:
    for made in (
        request("CREATE", named(plan, "npu-b"), user=user, node=None),
        request("UPDATE", changed(plan, spec={"mode": "Disabled"}), plan, user=user, node=None),
        request("UPDATE", plan, plan, status=True, user=user, node="npu-b"),
        request("DELETE", None, plan, user=user, node=None),
    ):
        assert policy.decide(made) is None


def test_it_is_about_plans_alone(policy: Policy, plan: Object) -> None:
    event = request("CREATE", {"metadata": {"name": "npu-b.1"}}, node=None)
    event["resource"] = {"group": "", "version": "v1", "resource": "events"}
    assert policy.decide(event) is None


def test_each_expression_is_one_that_can_be_false(helm: Helm, plan: Object) -> None:
    """A policy of which a validation is missing lets something pass that the whole one does not."""
    whole = helm.render(ON, apis=[API]).the("ValidatingAdmissionPolicy")
    bad = [
        request("CREATE", plan, node=None),
        request("CREATE", named(plan, "npu-b")),
        request("UPDATE", changed(plan, spec={}), plan),
    ]
    for number, made in enumerate(bad):
        less = copy.deepcopy(whole)
        del less["spec"]["validations"][number]
        assert Policy(whole).decide(made) is not None
        assert Policy(less).decide(made) is None


def test_without_the_value_or_without_the_api_there_is_none(helm: Helm) -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for rendered in (helm.render(apis=[API]), helm.render(ON), helm.render(ON, kubernetes="1.20.2")):
        assert [rendered.kinds(kind) for kind in kinds] == [[], []]
    rendered = helm.render(ON, apis=[API], kubernetes="1.30.0")
    assert [len(rendered.kinds(kind)) for kind in kinds] == [1, 1]
    assert helm.render(None, "admissionPolicy=null").kinds(kinds[0]) == [], "values of a release that is older"


def test_it_is_enforced_and_where_it_cannot_be_evaluated_too(helm: Helm) -> None:
    rendered = helm.render(ON, apis=[API], release="pool-b", namespace="other")
    policy, binding = (rendered.the(f"ValidatingAdmissionPolicy{kind}") for kind in ("", "Binding"))
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["metadata"]["name"] == binding["metadata"]["name"] == "pool-b-cpubind"
    assert {validation["reason"] for validation in policy["spec"]["validations"]} == {"Forbidden"}
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:other:pool-b-cpubind"'


def test_it_is_about_the_account_that_the_agents_have(helm: Helm) -> None:
    rendered = helm.render({**ON, "serviceAccount": {"create": False, "name": "given"}}, apis=[API])
    (condition,) = rendered.the("ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert condition["expression"].endswith(':given"')
    assert rendered.pod["serviceAccountName"] == "given"


def test_the_notes_say_where_it_made_nothing(helm: Helm) -> None:
    assert "admissionPolicy.enabled made nothing" in helm.notes(ON)
    assert "admissionPolicy" not in helm.notes()
