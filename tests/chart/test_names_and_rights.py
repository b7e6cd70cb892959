"""What a release may do on the cluster, and what it is called there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from agent.cli.doctor import RIGHTS
from tests.chart.crd import SOURCE, definition
from tests.chart.helm import Helm, Rendered, need_helm

need_helm()

AGENT = {
    ("", "pods", ("list", "watch")),
    ("", "nodes", ("get",)),
    ("", "events", ("create", "patch")),
    ("cpubind.dev", "cpubindingplans", ("list", "watch", "create")),
    ("cpubind.dev", "cpubindingplans/status", ("patch",)),
}
"""Design section 7, Rights: all of them."""

NAMESPACED = {"ServiceAccount", "DaemonSet", "Pod"}


def rules(role: dict[str, Any]) -> set[tuple[str, str, tuple[str, ...]]]:
    return {
        (group, resource, tuple(rule["verbs"]))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_agent_may_do_what_the_design_lists_and_nothing_else(plain: Rendered) -> None:
    role = plain.the("ClusterRole", "cpubind")
    assert rules(role) == AGENT
    assert all(rule.keys() == {"apiGroups", "resources", "verbs"} for rule in role["rules"])
    (binding,) = plain.kinds("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == "cpubind"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "cpubind", "namespace": "npu-system"}]
    assert plain.kinds("Role") == plain.kinds("RoleBinding") == []


def test_doctor_asks_for_exactly_these_rights(plain: Rendered) -> None:
    given = {
        (verb, group, *(resource.split("/") if "/" in resource else (resource, "")))
        for group, resource, verbs in rules(plain.the("ClusterRole", "cpubind"))
        for verb in verbs
    }
    assert given == set(RIGHTS)


def test_people_can_be_given_the_right_to_look_and_the_right_to_set(plain: Rendered) -> None:
    viewer, editor = plain.the("ClusterRole", "cpubind-viewer"), plain.the("ClusterRole", "cpubind-editor")
    look = {
        ("cpubind.dev", "cpubindingplans", ("get", "list", "watch")),
        ("cpubind.dev", "cpubindingplans/status", ("get",)),
    }
    assert rules(viewer) == look
    changes = next(verbs for _, resource, verbs in rules(editor) if resource == "cpubindingplans")
    assert set(changes) == {"get", "list", "watch", "create", "update", "patch", "delete"}
    assert ("cpubind.dev", "cpubindingplans/status", ("get",)) in rules(editor), "status is the agent's"
    aggregated = {
        role["metadata"]["name"]: {
            label.rpartition("-to-")[2] for label in role["metadata"]["labels"] if "/aggregate-to-" in label
        }
        for role in (viewer, editor)
    }
    assert aggregated == {"cpubind-viewer": {"view", "edit", "admin"}, "cpubind-editor": {"edit", "admin"}}


def test_without_rbac_no_role_is_made(helm: Helm) -> None:
    rendered = helm.render({"rbac": {"create": False}})
    assert rendered.kinds("ClusterRole") == rendered.kinds("ClusterRoleBinding") == []


def test_the_resource_is_the_one_source_with_the_note_that_keeps_it(plain: Rendered) -> None:
    crd = copy.deepcopy(plain.the("CustomResourceDefinition"))
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd["metadata"].pop("labels")["app.kubernetes.io/instance"] == "cpubind"
    assert crd == definition() == yaml.safe_load(SOURCE.read_text())


def test_a_release_can_leave_the_resource_to_another(helm: Helm) -> None:
    assert helm.render({"crds": {"install": False}}).kinds("CustomResourceDefinition") == []


def names(rendered: Rendered, kinds: set[str] | None = None) -> set[tuple[str, str]]:
    return {
        (o["kind"], o["metadata"]["name"])
        for o in rendered.objects
        if (o["kind"] in kinds if kinds else o["kind"] not in NAMESPACED)
    }


def test_releases_side_by_side_share_no_name(helm: Helm) -> None:
    values = {"openshift": {"scc": {"create": True}}}
    first = helm.render(values, release="cpubind")
    second = helm.render({**values, "crds": {"install": False}}, release="pool-b")
    assert len(names(second)) == 5, "three roles, a binding, the security context"
    assert names(first) & names(second) == set()
    assert names(first, NAMESPACED) & names(second, NAMESPACED) == set()
    assert ("ClusterRole", "pool-b-cpubind-viewer") in names(second)


def test_nothing_is_cut_from_the_longest_release_name(helm: Helm) -> None:
    one, other = (helm.render(release=f"{'r' * 52}{end}") for end in "ab")
    assert one.the("DaemonSet")["metadata"]["name"] != other.the("DaemonSet")["metadata"]["name"]
    assert len(one.the("DaemonSet")["metadata"]["name"]) <= 63


def test_names_can_be_chosen(helm: Helm) -> None:
    assert helm.render({"fullnameOverride": "binder"}).the("DaemonSet")["metadata"]["name"] == "binder"
    renamed = helm.render({"nameOverride": "binder"}, release="a")
    assert renamed.the("DaemonSet")["metadata"]["name"] == "a-binder"
    assert renamed.the("DaemonSet")["metadata"]["labels"]["app.kubernetes.io/name"] == "binder"


def test_a_service_account_of_somebody_else_is_used_and_not_made(helm: Helm) -> None:
    rendered = helm.render({"serviceAccount": {"create": False, "name": "given"}})
    assert rendered.kinds("ServiceAccount") == []
    assert rendered.pod["serviceAccountName"] == "given"
    assert rendered.the("ClusterRoleBinding")["subjects"][0]["name"] == "given"


def test_no_other_pod_gets_the_accounts_token_unasked(plain: Rendered) -> None:
    assert plain.the("ServiceAccount")["automountServiceAccountToken"] is False
    assert plain.pod["automountServiceAccountToken"] is True


def test_every_object_has_the_recommended_labels_and_its_place(helm: Helm) -> None:
    rendered = helm.render({"openshift": {"scc": {"create": True}}})
    wanted = {f"app.kubernetes.io/{x}" for x in ("name", "instance", "version", "component", "part-of", "managed-by")}
    for item in rendered.objects:
        assert wanted <= item["metadata"]["labels"].keys(), item["kind"]
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert item["metadata"].get("namespace") == ("npu-system" if item["kind"] in NAMESPACED else None)
    assert wanted <= rendered.the("DaemonSet")["spec"]["template"]["metadata"]["labels"].keys()


def test_openshift_admits_what_the_pod_asks_for(helm: Helm) -> None:
    assert helm.render().kinds("SecurityContextConstraints") == []
    rendered = helm.render({"openshift": {"scc": {"create": True}}, "hostNetwork": True})
    scc = rendered.the("SecurityContextConstraints")
    assert scc["users"] == ["system:serviceaccount:npu-system:cpubind"]
    assert scc["groups"] == []
    assert scc["allowHostPID"] is scc["allowPrivilegedContainer"] is scc["allowHostDirVolumePlugin"] is True
    assert scc["allowHostNetwork"] is True
    used = {next(key for key in volume if key != "name") for volume in rendered.pod["volumes"]}
    assert used <= set(scc["volumes"])


@pytest.mark.parametrize("privileged", [True, False])
def test_openshift_admits_no_more_than_that(helm: Helm, privileged: bool) -> None:
    capabilities = ["SYS_NICE", "SYS_PTRACE", "DAC_READ_SEARCH"]
    own = {"privileged": True} if privileged else {"privileged": False, "capabilities": {"add": capabilities}}
    scc = helm.render({"openshift": {"scc": {"create": True}}, "securityContext": own}).the(
        "SecurityContextConstraints"
    )
    assert scc["allowPrivilegedContainer"] is privileged
    assert scc["allowedCapabilities"] == ([] if privileged else capabilities)
    assert scc["allowHostNetwork"] is scc["allowHostIPC"] is False
