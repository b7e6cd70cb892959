"""What docs/security.md says of the agent's pod and account is so once helm has rendered the chart."""

from __future__ import annotations

from tests.chart.helm import Helm, Rendered, need_helm
from tests.docs.pages import code, table
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


def test_the_pod_can_have_just_the_capabilities_of_the_page(helm: Helm) -> None:
    named = [code(row[0])[0] for row in CAPABILITIES]
    context = {"privileged": False, "capabilities": {"add": named, "drop": ["ALL"]}}
    given = helm.render({"securityContext": context}).container["securityContext"]
    assert given["privileged"] is False
    assert given["capabilities"]["add"] == named
