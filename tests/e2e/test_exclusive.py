"""A container that owns its CPUs under kubelet's static CPU manager is known for it by each kind of evidence alone."""

from __future__ import annotations

import json
import re

import pytest

from agent.model.cpuset import CpuSet
from tests.e2e.node import Shell
from tests.e2e.release import NAMESPACE, AgentPod, Release, conditions
from tests.e2e.wait import until
from tests.e2e.workload import Worker, Workload

STATE = "/var/lib/kubelet/cpu_manager_state"
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

pytestmark = pytest.mark.usefixtures("static_cpu_manager")


@pytest.fixture
def static_cpu_manager(shell: Shell) -> None:
    state = json.loads(shell(f"cat /node{STATE} || echo '{{}}'"))
    if state.get("policyName") != "static":
        pytest.skip("the node's kubelet does not run with cpuManagerPolicy: static")


@pytest.fixture
def owner(workload: Workload, shell: Shell) -> Worker:
    """A Guaranteed pod with a CPU of its own, whose process is on NPU 0."""
    made = workload.start(0, cpus=1)
    until(lambda: len(cpuset(shell, made)) == 1, "kubelet gives it a CPU of its own")
    return made


def cpuset(shell: Shell, worker: Worker) -> CpuSet:
    """Where its process may run, as the kernel has it."""
    (line,) = re.findall(r"^Cpus_allowed_list:\s*(\S+)$", shell(f"cat /proc/{worker.pid}/status"), re.MULTILINE)
    return CpuSet.parse(line)


def test_by_the_cpu_manager_s_state(agent: AgentPod, owner: Worker, workload: Workload, shell: Shell) -> None:
    state = json.loads(shell(f"cat /node{STATE}"))
    assert CpuSet.parse(state["entries"][owner.uid]["main"]) == cpuset(shell, owner)
    is_owner(agent, owner, workload, shell, "cpu_manager_state")


def test_by_kubelet_s_pod_resources(installed: Release, owner: Worker, workload: Workload, shell: Shell) -> None:
    hide(installed, STATE)
    is_owner(AgentPod(installed), owner, workload, shell, "pod-resources")
    assert _degraded(installed) == "AsPlanned"


def test_by_quality_of_service_alone(installed: Release, owner: Worker, workload: Workload, shell: Shell) -> None:
    hide(installed, STATE, SOCKET)
    is_owner(AgentPod(installed), owner, workload, shell, "Guaranteed with a limit of 1 CPUs and a cpuset of as many")
    assert _degraded(installed) == "KubeletStateUnreadable"


def _degraded(release: Release) -> str:
    plan = release.cluster.kubectl.get("cbp", release.cluster.node)
    return str(conditions(plan)["Degraded"]["reason"])


def hide(release: Release, *paths: str) -> None:
    """Lays something that says nothing over files of kubelet's: no grant is recorded there, and nobody listens."""
    name = "says-nothing"
    nothing = {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {"nothing": "{}"}}
    release.cluster.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ConfigMap", **nothing},
    )
    release.install(
        extraVolumes=[{"name": name, "configMap": {"name": name}}],
        extraVolumeMounts=[
            {"name": name, "mountPath": f"/host{path}", "subPath": "nothing", "readOnly": True} for path in paths
        ],
    )


def is_owner(agent: AgentPod, owner: Worker, workload: Workload, shell: Shell, evidence: str) -> None:
    """The agent takes the container's CPUs for its own, and nobody else's NPU for one that has any of them."""
    agent.wait_ready()
    own = cpuset(shell, owner)
    said = agent.run("explain", f"{owner.namespace}/{owner.name}")
    assert f"These CPUs are its container's own: {own}, by {evidence}." in said

    def planned() -> bool:
        entry = workload.entry(owner)
        return entry is not None and f"only 1 ({own})" in entry.get("message", "")

    until(planned, "the plan says so, too")
    npus = agent.kubectl.get("cbp", agent.release.cluster.node)["status"]["npus"]
    assert CpuSet.parse(npus[0]["pool"]) == own
    assert CpuSet.parse(npus[1]["pool"]).isdisjoint(own)
