"""What docs/kubernetes.md, docs/upgrade.md and the examples say of the chart is so once helm has rendered it."""

from __future__ import annotations

import re
from collections import Counter

import yaml

from tests.chart.crd import definition
from tests.chart.helm import Helm, Rendered, need_helm
from tests.docs.pages import EXAMPLES, ROOT, code, commands, one_line, sections, table

need_helm()

PAGE = ROOT / "docs/kubernetes.md"
SECTIONS = sections(PAGE)
REMAINS = sections(ROOT / "docs/upgrade.md")["What remains"]
MOUNTED = table(SECTIONS["What you approve"].partition("What of the host it sees:")[2])


def test_the_chart_mounts_what_the_page_says_and_nothing_else(plain: Rendered) -> None:
    said = {code(row[0])[0]: ("".join(code(row[1])), row[2]) for row in MOUNTED}
    mounted = {
        path: (
            mount["volume"].get("hostPath", {}).get("path", ""),
            "read-only" if mount.get("readOnly") else "writable",
        )
        for path, mount in plain.mounts.items()
    }
    assert said == mounted
    assert all(row[3].strip() for row in MOUNTED)


def test_the_pod_has_the_privileges_that_the_page_names(plain: Rendered) -> None:
    assert plain.pod["hostPID"] is True
    assert "hostNetwork" not in plain.pod
    assert plain.container["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    assert plain.container["resources"]["limits"] == {"memory": "256Mi"}
    assert "no limit on CPU time, and one of 256 MiB on memory" in one_line(SECTIONS["What you approve"])
    capabilities = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", SECTIONS["What you approve"]))
    assert {name.removeprefix("CAP_") for name in capabilities} == {
        *("SYS_NICE", "SYS_PTRACE", "DAC_READ_SEARCH"),
        *("SYS_ADMIN", "NET_ADMIN"),  # the events of processes
    }


def test_the_account_on_the_page_is_the_charts(plain: Rendered) -> None:
    account = plain.the("ServiceAccount")["metadata"]
    assert f"--as=system:serviceaccount:{account['namespace']}:{account['name']}" in PAGE.read_text()


def test_what_helm_removes_is_as_the_page_says(plain: Rendered) -> None:
    kinds = Counter(o["kind"] for o in plain.objects if "helm.sh/hook" not in o["metadata"].get("annotations", {}))
    assert kinds == {
        "CustomResourceDefinition": 1,
        "DaemonSet": 1,
        "ServiceAccount": 1,
        "ClusterRole": 3,
        "ClusterRoleBinding": 1,
    }
    said = "Helm removes the DaemonSet, its service account, the three cluster roles, the binding, and the policy where"
    assert said in one_line(REMAINS)
    assert plain.the("CustomResourceDefinition")["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_everything_that_remains_has_a_command_that_removes_it(plain: Rendered) -> None:
    rows = {row[0]: code(row[1]) for row in table(REMAINS)}
    by_hand = [what for what, how in rows.items() if not how]
    assert by_hand == ["Events", "Annotations of pods, and `enable_cpu_binding`"]
    text = "\n".join(line for how in rows.values() for line in how)
    assert f"kubectl delete crd {definition()['metadata']['name']}" in text
    assert f"kubectl delete namespace {plain.the('DaemonSet')['metadata']['namespace']}" in text
    made = {
        volume["hostPath"]["path"]: volume["hostPath"].get("type")
        for volume in plain.pod["volumes"]
        if "hostPath" in volume
    }
    ours = {path for path, kind in made.items() if kind == "DirectoryOrCreate"}
    removed = set(re.findall(r"(?<= )/[\w./-]+", text))
    # A node without these two could not run anything.
    assert removed == ours - {"/usr/local/sbin", "/var/lib/kubelet/pod-resources"}


def test_the_names_of_roles_and_pods_in_commands_are_the_charts(plain: Rendered) -> None:
    roles = {role["metadata"]["name"] for role in plain.kinds("ClusterRole")}
    daemon = plain.the("DaemonSet")
    labels = {f"{k}={v}" for k, v in daemon["spec"]["template"]["metadata"]["labels"].items()}
    for command in commands(PAGE):
        if (role := command.after("--clusterrole")) is not None:
            assert role in roles
        if command.words[:3] == ("kubectl", "get", "pods") and (label := command.after("-l")) is not None:
            assert label in labels
        for word in command.words:
            if word.startswith(("ds/", "daemonset/")):
                assert word.partition("/")[2] == daemon["metadata"]["name"]


def test_the_two_releases_of_the_examples_have_no_object_in_common(helm: Helm) -> None:
    """And one of them alone has the resource."""
    files = sorted(EXAMPLES.glob("values-*.yaml"))
    releases = {path.stem.replace("values", "cpubind"): yaml.safe_load(path.read_text()) for path in files}
    assert releases.keys() == {"cpubind-a2", "cpubind-a3"}
    rendered = {name: helm.render(values, release=name) for name, values in releases.items()}
    objects = [
        {(o["kind"], o["metadata"]["name"]) for o in one.objects if o["kind"] != "CustomResourceDefinition"}
        for one in rendered.values()
    ]
    assert all(objects)
    assert not objects[0] & objects[1]
    assert [len(one.kinds("CustomResourceDefinition")) for one in rendered.values()] == [0, 1]
    assert {one.pod["nodeSelector"]["npu-pool"] for one in rendered.values()} == {"a2", "a3"}
    assert rendered["cpubind-a2"].env["CPUBIND_MODE"] == "DryRun"
    assert rendered["cpubind-a3"].env["CPUBIND_POD_SELECTION"] == "AllNpuPods"
