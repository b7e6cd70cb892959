"""What people see of an agent that was installed from the chart's folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tarfile
from datetime import datetime
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object, call, output
from tests.e2e.node import Shell
from tests.e2e.release import CHART, NAMESPACE, AgentPod, Release, conditions, notes
from tests.e2e.wait import patience, until


def test_helm_finds_no_fault_with_the_chart(release: Release) -> None:
    assert "0 chart(s) failed" in release.helm("lint", "--strict", str(CHART))


def test_the_agent_starts_within_seconds_and_keeps_far_from_its_memory_limit(agent: AgentPod, shell: Shell) -> None:
    (status,) = agent.pod()["status"]["containerStatuses"]
    started = datetime.fromisoformat(status["state"]["running"]["startedAt"])
    ready = next(c for c in agent.pod()["status"]["conditions"] if c["type"] == "Ready")
    took = (datetime.fromisoformat(ready["lastTransitionTime"]) - started).total_seconds()
    assert took < 20 * patience()

    memory = {
        line.split()[0]: int(line.split()[1]) / 1024
        for pid in shell.pids(status["containerID"].partition("://")[2])
        for line in shell(f"cat /proc/{pid}/status").splitlines()
        if line.startswith(("VmRSS", "VmHWM"))
    }
    print(f"ready after {took:g} s; {memory}")
    assert 20 < memory["VmRSS:"] < 128
    assert memory["VmHWM:"] < 192


def test_the_plan_is_named_after_its_node_and_owned_by_it(agent: AgentPod, cluster: Cluster) -> None:
    plan = until(lambda: _reported(cluster), "a plan with a status")
    node = cluster.kubectl.get("node", cluster.node)
    assert plan["metadata"]["name"] == cluster.node
    assert plan["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": cluster.node, "uid": node["metadata"]["uid"]}
    ]
    assert plan["spec"] == {}
    status = plan["status"]
    assert (status["deviceType"], status["strategy"], status["mode"]) == ("A2", "TopoAffinity", "Enforce")
    assert [npu["id"] for npu in status["npus"]] == [0, 1]
    assert status["summary"]["npus"] == 2
    assert conditions(plan)["TopologyDiscovered"]["status"] == "True"
    # Another kubelet ran here for other tests, and an agent that comes while one starts says so.
    until(
        lambda: conditions(cluster.kubectl.get("cbp", cluster.node))["Degraded"]["reason"] == "AsPlanned", "all is well"
    )


def _degraded(cluster: Cluster) -> object:
    return conditions(cluster.kubectl.get("cbp", cluster.node))["Degraded"]["reason"]


def _reported(cluster: Cluster) -> Object | None:
    plan = cluster.kubectl.get("cbp", cluster.node)
    return plan if plan.get("status") else None


def test_kubectl_shows_the_plan_in_columns(agent: AgentPod, cluster: Cluster) -> None:
    status = until(lambda: _reported(cluster), "a plan with a status")["status"]
    head, row = cluster.kubectl("get", "cbp").splitlines()
    assert head.split() == [
        "NAME",
        "DEVICE",
        "STRATEGY",
        "MODE",
        "NPUS",
        "WORKERS",
        "BOUND",
        "FAILED",
        "READY",
        "REASON",
        "AGE",
    ]
    assert row.split()[:8] == [cluster.node, "A2", "TopoAffinity", "Enforce", "2", "0", "0", "0"]
    head, row = cluster.kubectl("get", "cpubindingplans", "-o", "wide").splitlines()
    assert head.split()[-2:] == ["HASH", "MESSAGE"]
    assert status["planHash"] in row.split()


def test_kubectl_explains_and_describes_the_plan(agent: AgentPod, cluster: Cluster) -> None:
    # kubectl keeps for ten minutes what resources there are; this lets it look again.
    assert "cbp" in cluster.kubectl("api-resources", "--api-group=cpubind.dev")
    explained = cluster.kubectl("explain", "cbp.status.npus")
    for field in ("pool", "roles", "workers", "reason"):
        assert re.search(rf"^ +{field}\b", explained, re.MULTILINE)
    assert "idle" in explained
    assert "Plan Hash:" in cluster.kubectl("describe", "cbp", cluster.node)
    if cluster.cpus < 10:
        event = re.compile(r"^ +Warning +InsufficientCpus .* cpubind-agent ", re.MULTILINE)
        until(lambda: event.search(cluster.kubectl("describe", "cbp", cluster.node)), "the plan's event is shown")


def test_people_can_look_from_beside_the_agent(agent: AgentPod, cluster: Cluster) -> None:
    doctor = agent.run("doctor")
    assert not re.search(r"^fail", doctor, re.MULTILINE)
    for check in ("kernel", "npu-smi", "API server", "rights", "CpuBindingPlan"):
        assert re.search(rf"^ok +{check}:", doctor, re.MULTILINE), doctor
    status = until(lambda: _reported(cluster), "a plan with a status")["status"]
    # Both exit with 1 where no NPU can have its CPUs.
    plan, verify = agent.attempt("plan"), agent.attempt("verify")
    assert status["planHash"] in plan.stdout
    assert "nothing to compare" in verify.stdout
    if cluster.cpus < 10:
        assert plan.returncode == verify.returncode == 1
        assert plan.stderr.startswith("cpubind: InsufficientCpus: NPU 0: an NPU needs 5 CPUs")


def test_the_agents_image_has_a_shell_for_npu_smi_and_no_other_tool(agent: AgentPod) -> None:
    """libdcmi runs `mount | grep` to tell a container from a machine."""
    kubectl, where = agent.kubectl, ("-n", NAMESPACE, agent.name, "--")
    assert kubectl("exec", *where, "sh", "-c", "mount | grep -Eo ' on / '").strip() == "on /"
    for tool in ("cat", "ls", "apt-get", "dpkg", "perl", "pip", "curl"):
        assert kubectl.attempt("exec", *where, tool).returncode != 0, tool


def test_a_support_bundle_comes_out_of_the_agents_pod(agent: AgentPod, tmp_path: Path) -> None:
    command = [agent.kubectl.path, "exec", "-n", NAMESPACE, agent.name, "--", "cpubind", "capture", "-o", "-"]
    with (tmp_path / "node.tar.gz").open("wb") as file:
        env = {**os.environ, "KUBECONFIG": agent.kubectl.kubeconfig}
        subprocess.run(command, stdout=file, env=env, check=True, timeout=60 * patience())
    with tarfile.open(tmp_path / "node.tar.gz") as bundle:
        assert {"snapshot.json", "journal.json"} <= {member.name.removeprefix("./") for member in bundle}


def test_helm_test_passes(agent: AgentPod, release: Release) -> None:
    assert re.search(r"Phase: +Succeeded", release.helm("test", release.name, "--namespace", NAMESPACE))


def test_every_command_of_the_notes_that_looks_or_labels_works(agent: AgentPod, release: Release) -> None:
    commands = [line.strip() for line in notes(release).splitlines() if line.startswith("  kubectl ")]
    looking = [line for line in commands if line.split()[1] in ("label", "get", "describe", "explain", "patch")]
    assert len(looking) >= 6
    for line in looking:
        kubectl(agent, line.replace("NODE", release.cluster.node))
    try:
        plan = until(lambda: _in_mode(release.cluster, "DryRun"), "the plan follows its spec")
        assert plan["spec"] == {"mode": "DryRun"}
    finally:
        agent.kubectl(
            "patch", "cbp", release.cluster.node, "--type", "json", "-p", '[{"op":"remove","path":"/spec/mode"}]'
        )
    until(lambda: _in_mode(release.cluster, "Enforce"), "the plan follows its spec back")


def _in_mode(cluster: Cluster, mode: str) -> Object | None:
    plan = cluster.kubectl.get("cbp", cluster.node)
    return plan if plan["status"]["mode"] == mode else None


def kubectl(agent: AgentPod, line: str) -> str:
    """Runs a command line that begins with kubectl."""
    _, *args = shlex.split(line, comments=True)
    return output(call(agent.kubectl.path, *args, env={"KUBECONFIG": agent.kubectl.kubeconfig}, seconds=60))
