"""What docs/security.md says of the agent's pod and account is so once helm has rendered the chart."""

from __future__ import annotations

import re

from agent.node.capabilities import NEEDS, Feature
from tests.chart.helm import Helm, Rendered, need_helm
from tests.docs.pages import code, one_line, table
from tests.docs.test_security_page import CAPABILITIES, PAGE, SECTIONS, WRITABLE

need_helm()

READS_PODS = "/host/var/lib/kubelet"


def test_the_pod_is_what_the_page_calls_it(plain: Rendered) -> None:
    assert plain.container["securityContext"]["privileged"] is True
    assert plain.container["securityContext"]["runAsUser"] == 0
    assert plain.pod["hostPID"] is True
    assert SECTIONS["What the container reaches"].strip().startswith("Privileged, root, with `hostPID`.")
    assert not {"hostNetwork", "hostIPC"} & plain.pod.keys()


def test_the_folders_that_can_be_written_are_those_of_the_page(plain: Rendered) -> None:
    writable = {path for path, mount in plain.mounts.items() if not mount.get("readOnly")}
    assert writable == {code(row[0])[0] for row in WRITABLE}
    assert plain.mounts[READS_PODS]["readOnly"] is True
    assert f"`{READS_PODS}`" in SECTIONS["What the container reaches"]


def test_the_token_has_the_rights_of_the_page_in_all_namespaces(plain: Rendered) -> None:
    role = plain.the("ClusterRole", "cpubind")
    given = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    said = set()
    for right, _ in table(SECTIONS["What the token reaches"]):
        resource, *verbs = code(right)
        said |= {(resource, verb) for verb in verbs}
    assert given == said
    assert plain.kinds("RoleBinding") == []
    account = plain.the("ServiceAccount")["metadata"]
    assert f"--as=system:serviceaccount:{account['namespace']}:{account['name']}" in PAGE.read_text()


def test_with_the_hosts_network_both_ports_are_the_nodes_alone(helm: Helm) -> None:
    env = helm.render({"hostNetwork": True}).env
    assert {env[f"CPUBIND_{kind}_ADDRESS"].rpartition(":")[0] for kind in ("HEALTH", "METRICS")} == {"127.0.0.1"}


def test_the_restricted_profile_has_just_the_capabilities_of_the_page(helm: Helm) -> None:
    given = helm.render({"profile": "restricted"}).container["securityContext"]
    assert given["privileged"] is given["allowPrivilegeEscalation"] is False
    assert given["capabilities"] == {"drop": ["ALL"], "add": [code(row[0])[0] for row in CAPABILITIES]}
    assert given["seccompProfile"] == {"type": "RuntimeDefault"}
    assert given["readOnlyRootFilesystem"] is True
    page = one_line(SECTIONS["Profile restricted"])
    assert "no privilege escalation, a read-only root file system, seccomp `RuntimeDefault`" in page


def test_the_page_says_how_to_have_fewer_capabilities(helm: Helm) -> None:
    (row,) = [row for row in table(SECTIONS["Giving it less"]) if "capabilities.add" in row[1]]
    fewer = re.findall(r"[A-Z]+(?:_[A-Z]+)+", row[1])
    values = {"profile": "restricted", "securityContext": {"capabilities": {"add": fewer}}}
    assert helm.render(values).container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": fewer}
    lost = {feature for name, need in NEEDS.items() if name.name not in fewer for feature in need.features}
    assert lost == {Feature.EVENTS, Feature.NAMES}, "the third column of the row says what goes"


def test_read_only_reaches_as_far_as_the_page_says(helm: Helm) -> None:
    mounts = helm.render(kubernetes="1.31.0").mounts
    asked = {path for path, mount in mounts.items() if mount.get("recursiveReadOnly") == "IfPossible"}
    assert {"/host/sys/fs/cgroup", "/host/sys", "/host/dev"} <= asked
    assert {path for path, mount in mounts.items() if mount.get("readOnly")} - asked == {READS_PODS}
    assert "follows with Kubernetes 1.31" in one_line(SECTIONS["What the container reaches"])
    assert not [path for path, mount in helm.render(kubernetes="1.30.0").mounts.items() if "recursiveReadOnly" in mount]
