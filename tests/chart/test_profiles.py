"""What the agent's container may do, by `profile`, and what people change of it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.node.capabilities import NEEDS
from tests.chart.helm import Helm, need_helm

need_helm()

FIVE = [capability.name for capability in NEEDS]

RESTRICTED = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"], "add": FIVE},
    "seccompProfile": {"type": "RuntimeDefault"},
    "readOnlyRootFilesystem": True,
    "runAsUser": 0,
    "runAsGroup": 0,
}


def context(helm: Helm, profile: str, **changes: Any) -> dict[str, Any]:
    rendered = helm.render({"profile": profile, "securityContext": changes})
    found: dict[str, Any] = rendered.container["securityContext"]
    return found


def test_privileged_is_what_it_is_without_a_word(helm: Helm) -> None:
    plain = helm.render().container["securityContext"]
    assert plain == context(helm, "privileged")
    assert plain["privileged"] is True
    assert plain["readOnlyRootFilesystem"] is True


def test_restricted_has_the_five_that_the_agent_has_a_use_for_and_nothing_else(helm: Helm) -> None:
    assert context(helm, "restricted") == RESTRICTED
    pod = helm.render({"profile": "restricted"}).pod
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & pod.keys()


def test_a_field_that_is_given_replaces_that_of_the_profile_and_no_other(helm: Helm) -> None:
    fewer = ["SYS_NICE", "SYS_PTRACE", "DAC_READ_SEARCH"]
    found = context(helm, "restricted", capabilities={"add": fewer})
    assert found == {**RESTRICTED, "capabilities": {"drop": ["ALL"], "add": fewer}}
    own = {"type": "Localhost", "localhostProfile": "profiles/cpubind.json"}
    assert context(helm, "restricted", seccompProfile=own) == {**RESTRICTED, "seccompProfile": own}
    assert context(helm, "restricted", readOnlyRootFilesystem=False)["readOnlyRootFilesystem"] is False


def test_null_takes_a_field_out(helm: Helm) -> None:
    found = helm.render({"profile": "restricted"}, "securityContext.seccompProfile=null").container["securityContext"]
    assert RESTRICTED.keys() - found.keys() == {"seccompProfile"}
    assert "seccompProfile" not in context(helm, "restricted", seccompProfile=None)


def test_all_capabilities_are_enough(helm: Helm) -> None:
    every = {"add": ["ALL"]}
    assert context(helm, "privileged", privileged=False, capabilities=every)["capabilities"] == every


def test_what_was_given_before_there_were_profiles_means_the_same(helm: Helm) -> None:
    """`--reuse-values` after an upgrade of the chart: all of the old values, and no profile."""
    before = {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0, "runAsGroup": 0}
    assert helm.render({"securityContext": before}, "profile=null").container["securityContext"] == before
    less = {**before, "privileged": False, "capabilities": {"add": ["SYS_NICE"]}}
    assert helm.render({"securityContext": less}, "profile=null").container["securityContext"] == less


@pytest.mark.parametrize("profile", ["privileged", "restricted"])
def test_openshift_admits_the_profile_and_no_more(helm: Helm, profile: str) -> None:
    scc = helm.render({"profile": profile, "openshift": {"scc": {"create": True}}}).the("SecurityContextConstraints")
    restricted = profile == "restricted"
    assert scc["allowPrivilegedContainer"] is not restricted
    assert scc["allowPrivilegeEscalation"] is not restricted
    assert scc["allowedCapabilities"] == (FIVE if restricted else [])
    assert scc["readOnlyRootFilesystem"] is True


def test_the_notes_tell_what_restricted_does_without(helm: Helm) -> None:
    notes = helm.notes({"profile": "restricted"})
    assert "Profile restricted" in notes
    assert "refuses move_pages: no memory is moved" in notes
    assert "pod-security.kubernetes.io/enforce=privileged" in notes, "hostPID and hostPath need it all the same"
    assert "move_pages" not in helm.notes({"profile": "restricted", "memoryMigration": False})
    unconfined = {"seccompProfile": {"type": "Unconfined"}}
    assert "move_pages" not in helm.notes({"profile": "restricted", "securityContext": unconfined})
    assert "Profile" not in helm.notes()


@pytest.mark.parametrize(("kubernetes", "recursive"), [("1.20.2", False), ("1.30.4", False), ("1.31.0", True)])
def test_where_kubernetes_can_what_is_mounted_below_a_read_only_folder_is_read_only_too(
    helm: Helm, kubernetes: str, recursive: bool
) -> None:
    """RecursiveReadOnlyMounts is on by default since 1.31; before, the field is unknown or dropped."""
    mounts = helm.render(kubernetes=kubernetes).mounts
    read_only = {path for path, mount in mounts.items() if mount.get("readOnly")}
    asked = {path: mount["recursiveReadOnly"] for path, mount in mounts.items() if "recursiveReadOnly" in mount}
    # The API server refuses it for a mount that follows the host's.
    following = {path for path, mount in mounts.items() if "mountPropagation" in mount}
    assert following == {"/host/var/lib/kubelet"}
    assert asked == (dict.fromkeys(read_only - following, "IfPossible") if recursive else {})
    assert "/host/sys/fs/cgroup" in read_only
