"""The agent's pod: where it runs, what it sees of the node, how it is looked after and replaced."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from agent import __version__
from tests.chart.helm import Helm, Rendered, need_helm
from tests.e2e.removal import documented

need_helm()


def test_the_chart_is_clean(helm: Helm) -> None:
    said = helm.lint()
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


def test_it_sees_the_hosts_processes_and_is_what_npu_smi_needs(plain: Rendered) -> None:
    assert plain.pod["hostPID"] is True
    assert "hostNetwork" not in plain.pod
    assert "hostIPC" not in plain.pod
    assert plain.container["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    assert plain.container["args"] == ["run"]


def test_no_port_is_opened_on_the_node(helm: Helm) -> None:
    """In the host's network a containerPort becomes a hostPort."""
    for values in ({}, {"hostNetwork": True}):
        rendered = helm.render(values)
        assert "ports" not in rendered.container
        assert "hostPort" not in rendered.text


def test_the_image_is_of_the_agents_version_and_never_latest(plain: Rendered) -> None:
    assert plain.container["image"] == f"cpubind:{__version__}"
    assert "latest" not in plain.text
    assert plain.container["imagePullPolicy"] == "IfNotPresent"


def test_a_digest_pins_the_image(helm: Helm) -> None:
    digest = f"sha256:{'0a' * 32}"
    image = {"repository": "registry.example:5000/npu/cpubind", "tag": "1.2", "digest": digest}
    assert helm.render({"image": image}).container["image"] == f"registry.example:5000/npu/cpubind@{digest}"
    image["digest"] = ""
    assert helm.render({"image": image}).container["image"] == "registry.example:5000/npu/cpubind:1.2"


HOST = {
    "/host/proc": ("/proc", True),
    "/host/sys": ("/sys", False),
    "/host/sys/fs/cgroup": ("/sys/fs/cgroup", False),
    "/host/dev": ("/dev", False),
    "/host/var/lib/cpubind": ("/var/lib/cpubind", True),
    "/host/run/cpubind": ("/run/cpubind", True),
    "/host/run/irqbalance": ("/run/irqbalance", False),
    "/host/var/lib/kubelet": ("/var/lib/kubelet", False),
    "/host/var/lib/kubelet/pod-resources": ("/var/lib/kubelet/pod-resources", False),
    "/host/usr/local/sbin": ("/usr/local/sbin", False),
    "/usr/local/Ascend/driver": ("/usr/local/Ascend/driver", False),
    "/usr/local/dcmi": ("/usr/local/dcmi", False),
}
"""Path in the container to path on the node, and whether it is written there."""


def test_it_sees_these_folders_of_the_node_and_writes_three_of_them(plain: Rendered) -> None:
    mounts = dict(plain.mounts)
    assert "emptyDir" in mounts.pop("/tmp")["volume"]
    seen = {
        path: (mount["volume"]["hostPath"]["path"], not mount.get("readOnly", False)) for path, mount in mounts.items()
    }
    assert seen == HOST
    assert {volume["name"] for volume in plain.pod["volumes"]} == {m["name"] for m in plain.container["volumeMounts"]}


def test_a_node_without_driver_irqbalance_or_state_lets_the_pod_start(plain: Rendered) -> None:
    """hostPath of type Directory would hang; what every node has needs no type, and nothing is made by mistake."""
    types = {path: m["volume"]["hostPath"].get("type") for path, m in plain.mounts.items() if path != "/tmp"}
    always_there = {path for path, kind in types.items() if kind is None}
    assert always_there == {"/host/proc", "/host/sys", "/host/sys/fs/cgroup", "/host/dev"}
    assert types["/host/var/lib/kubelet"] == "Directory", "a wrong rootDir is an event on the pod, not an empty folder"
    assert {kind for path, kind in types.items() if path not in {*always_there, "/host/var/lib/kubelet"}} == {
        "DirectoryOrCreate"
    }


def test_volumes_that_kubelet_unmounts_go_from_the_agents_view_too(plain: Rendered) -> None:
    spreading = {path: m["mountPropagation"] for path, m in plain.mounts.items() if "mountPropagation" in m}
    assert spreading == {"/host/var/lib/kubelet": "HostToContainer"}


def test_the_paths_of_the_node_can_be_others(helm: Helm) -> None:
    rendered = helm.render(
        {
            "npuSmi": {"path": "/opt/npu/bin/npu-smi"},
            "driver": {"path": "/opt/npu/driver", "extraPaths": ["/opt/npu/dcmi", "/opt/npu/more"]},
            "kubelet": {"rootDir": "/srv/kubelet"},
        }
    )
    hosts = {path: m["volume"].get("hostPath", {}).get("path") for path, m in rendered.mounts.items()}
    assert hosts["/host/opt/npu/bin"] == "/opt/npu/bin"
    assert rendered.env["CPUBIND_NPU_SMI"] == "/host/opt/npu/bin/npu-smi"
    assert {hosts[path] for path in ("/opt/npu/driver", "/opt/npu/dcmi", "/opt/npu/more")} <= hosts.keys()
    assert rendered.env["CPUBIND_NPU_SMI_LIBRARY_PATH"] == "/opt/npu/driver/lib64/driver:/opt/npu/driver/lib64/common"
    assert hosts["/host/var/lib/kubelet"] == "/srv/kubelet", "the agent looks where kubelet usually is"
    assert hosts["/host/var/lib/kubelet/pod-resources"] == "/srv/kubelet/pod-resources"
    assert "/usr/local/Ascend/driver" not in hosts


def test_a_node_whose_npu_smi_needs_no_driver_folder_mounts_none(helm: Helm) -> None:
    rendered = helm.render({"driver": {"path": "", "extraPaths": []}})
    assert {path for path in rendered.mounts if not path.startswith("/host/")} == {"/tmp"}
    assert "CPUBIND_NPU_SMI_LIBRARY_PATH" not in rendered.env


def test_probes_ask_the_health_listener(helm: Helm, plain: Rendered) -> None:
    for name, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert plain.container[name]["httpGet"] == {"path": path, "port": 8086}
    assert helm.render({"health": {"port": 18086}}).container["livenessProbe"]["httpGet"]["port"] == 18086


def test_a_busy_node_does_not_get_its_agent_killed(plain: Rendered) -> None:
    """On a slow machine importing kopf alone takes 41 s."""
    start, live = plain.container["startupProbe"], plain.container["livenessProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120
    assert live["periodSeconds"] * live["failureThreshold"] >= 60


def test_in_the_hosts_network_only_the_node_itself_can_ask(helm: Helm) -> None:
    rendered = helm.render({"hostNetwork": True})
    assert rendered.pod["hostNetwork"] is True
    assert rendered.pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert rendered.env["CPUBIND_HEALTH_ADDRESS"] == "127.0.0.1:8086"
    assert rendered.env["CPUBIND_METRICS_ADDRESS"] == "127.0.0.1:9486"
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert rendered.container[name]["httpGet"]["host"] == "127.0.0.1"


def test_it_goes_to_nodes_with_npus_whatever_their_taints(plain: Rendered) -> None:
    required = plain.pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = {
        rule["key"]: rule["values"]
        for term in required["nodeSelectorTerms"]
        for rule in term["matchExpressions"]
        if len(term["matchExpressions"]) == 1 and rule["operator"] == "In"
    }
    assert terms == {
        "accelerator": ["huawei-Ascend910", "huawei-Ascend310P", "huawei-Ascend310"],
        "feature.node.kubernetes.io/pci-1200_19e5.present": ["true"],
        "cpubind.dev/node": ["true"],
    }
    assert len(required["nodeSelectorTerms"]) == 3, "any of them"
    assert plain.pod["tolerations"] == [{"operator": "Exists"}]
    assert "nodeSelector" not in plain.pod


def test_a_pool_of_nodes_can_be_chosen(helm: Helm) -> None:
    rendered = helm.render({"nodeSelector": {"pool": "a"}, "affinity": None, "tolerations": []})
    assert rendered.pod["nodeSelector"] == {"pool": "a"}
    assert not {"affinity", "tolerations"} & rendered.pod.keys()


def test_it_never_makes_kubernetes_evict_a_pod(helm: Helm, plain: Rendered) -> None:
    assert "priorityClassName" not in plain.pod
    assert helm.render({"priorityClassName": "mine"}).pod["priorityClassName"] == "mine"


def test_memory_is_bounded_above_the_budget_and_cpu_is_not(plain: Rendered) -> None:
    """Design section 9: 96 MiB."""
    assert plain.container["resources"] == {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"memory": "256Mi"},
    }


@pytest.mark.parametrize(("kubernetes", "surges"), [("1.20.2", None), ("1.21.14", None), ("1.22.0", 0), ("1.34.1", 0)])
def test_agents_are_replaced_a_tenth_at_a_time_without_surge(helm: Helm, kubernetes: str, surges: int | None) -> None:
    """maxSurge came with 1.22; a client that checks fields refuses it before, and nothing surges then."""
    rendered = helm.render(kubernetes=kubernetes)
    strategy = rendered.the("DaemonSet")["spec"]["updateStrategy"]
    assert strategy["type"] == "RollingUpdate"
    assert strategy["rollingUpdate"].get("maxSurge") == surges
    assert strategy["rollingUpdate"]["maxUnavailable"] == "10%"
    assert rendered.pod["terminationGracePeriodSeconds"] == 10


def test_agents_can_be_replaced_by_hand(helm: Helm) -> None:
    rendered = helm.render({"updateStrategy": {"type": "OnDelete"}})
    assert rendered.the("DaemonSet")["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_what_people_add_is_there(helm: Helm) -> None:
    volume = {"name": "more", "configMap": {"name": "more"}}
    added: dict[str, Any] = {
        "podAnnotations": {"a": "1"},
        "podLabels": {"team": "x"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://p"}],
        "extraVolumes": [volume],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"annotations": {"b": "2"}},
    }
    rendered = helm.render(added)
    template = rendered.the("DaemonSet")["spec"]["template"]
    assert template["metadata"]["annotations"]["a"] == "1"
    assert template["metadata"]["labels"]["team"] == "x"
    assert rendered.env["HTTPS_PROXY"] == "http://p"
    assert rendered.mounts["/more"]["volume"] == volume
    assert rendered.pod["imagePullSecrets"] == [{"name": "pull"}]
    assert rendered.the("ServiceAccount")["metadata"]["annotations"] == {"b": "2"}


def test_the_daemonset_finds_its_own_pods_and_not_those_of_a_test(plain: Rendered) -> None:
    selector = plain.the("DaemonSet")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= plain.the("DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    assert not selector.items() <= plain.the("Pod")["metadata"]["labels"].items()


def test_helm_test_asks_with_the_agents_account_and_no_other_right(helm: Helm, plain: Rendered) -> None:
    pod = plain.the("Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["serviceAccountName"] == plain.pod["serviceAccountName"]
    assert pod["spec"]["restartPolicy"] == "Never"
    (container,) = pod["spec"]["containers"]
    assert container["args"] == ["doctor", "--cluster"]
    assert container["image"] == plain.container["image"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostPID", "hostNetwork"} & pod["spec"].keys()
    assert all("hostPath" not in volume for volume in pod["spec"]["volumes"])
    assert pod["spec"]["affinity"] == plain.pod["affinity"], "the image fits nodes of the agent alone"
    assert pod["spec"]["tolerations"] == plain.pod["tolerations"]


def test_the_notes_tell_how_to_look_how_to_opt_in_and_how_to_remove(helm: Helm) -> None:
    notes = helm.notes()
    for line in (
        "kubectl label namespace npu-system pod-security.kubernetes.io/enforce=privileged --overwrite",
        "kubectl get cbp -o wide",
        'cpubind.dev/enabled: "true"',
        "helm test cpubind --namespace npu-system",
        "kubectl delete crd cpubindingplans.cpubind.dev",
    ):
        assert line in notes
    order = [
        notes.index("--set mode=Disabled"),
        # By the chart's own share a fleet of more than ten nodes would take longer than the lines below wait, and by
        # OnDelete no agent would hear of it.
        notes.index("--set updateStrategy.type=RollingUpdate --set updateStrategy.rollingUpdate.maxUnavailable=100%"),
        notes.index("kubectl rollout status daemonset/cpubind --namespace npu-system"),
        notes.index("kubectl wait cbp --all --for=condition=Restored"),
        notes.index("helm uninstall cpubind --namespace npu-system"),
        notes.index("rm -r /var/lib/cpubind"),
    ]
    assert order == sorted(order)
    assert 'cpubind.dev/enabled: "false"' in helm.notes({"podSelection": "AllNpuPods"})
    second = helm.notes({"crds": {"install": False}})
    assert "cbp --all" not in second, "the plans of the first release are not disabled"
    assert "kubectl wait cbp/NODE-1 cbp/NODE-2 --for=condition=Restored" in second


def test_the_notes_remove_a_release_by_the_same_steps_as_the_documents(helm: Helm) -> None:
    told = helm.notes().partition("Remove it")[2].partition("What remains")[0].replace("CHART", "charts/cpubind")
    commands = [line for line in told.replace("\\\n", " ").splitlines() if line.startswith("  ")]
    steps = [line.replace("--namespace cpubind", "--namespace npu-system") for line in documented()[0]]
    assert [shlex.split(line, comments=True) for line in commands] == [shlex.split(line) for line in steps]


def test_the_rendered_text_is_yaml_without_doubled_keys(plain: Rendered) -> None:
    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            assert len(keys) == len(set(keys)), node.start_mark
            return super().construct_mapping(node, deep)

    assert len(list(yaml.load_all(plain.text, Loader=Strict))) >= 7
