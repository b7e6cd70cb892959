"""Removal, as people are told to."""

from __future__ import annotations

from tests.e2e.node import Shell
from tests.e2e.release import AgentPod, Release, conditions, notes
from tests.e2e.removal import documented, follow
from tests.e2e.workload import Workload


def test_the_notes_tell_the_same_steps_as_the_documents(release: Release) -> None:
    told = notes(release).partition("Remove it")[2].partition("What remains")[0].replace("CHART", "charts/cpubind")
    commands = [set(line.split()) for line in told.splitlines() if line.startswith("  ")]
    steps = [set(line.split()) for line in documented()[0]]
    assert len(commands) == 3
    for command in commands:
        assert any(command <= step for step in steps), command


def test_the_commands_of_the_documents_remove_the_release_and_all_that_it_left(
    agent: AgentPod, release: Release, workload: Workload, shell: Shell
) -> None:
    kubectl, node = release.cluster.kubectl, release.cluster.node
    steps, rest = documented()
    *before, uninstall = steps
    assert ["kubectl", "wait"] in [line.split()[:2] for line in before]
    assert uninstall.startswith("helm uninstall ")
    workload.wait_entry(workload.start(0))

    release.touched()
    for line in before:
        follow(release, line)
        agent.wait_rolled_out()
    plan = kubectl.get("cbp", node)
    assert conditions(plan)["Restored"]["status"] == "True"
    assert plan["status"]["mode"] == "Disabled"
    follow(release, uninstall)
    agent.wait_gone()
    left = kubectl("get", "clusterroles,clusterrolebindings,serviceaccounts,daemonsets,pods", "-A", "-o", "name")
    assert [name for name in left.split() if "cpubind" in name] == []
    assert kubectl.get("cbp", node)["metadata"]["uid"] == plan["metadata"]["uid"], "plans outlive the release"

    for role in ("viewer", "editor"):  # as people made them who followed the page
        kubectl("create", "clusterrolebinding", f"cpubind-{role}s", f"--clusterrole=cpubind-{role}", "--group=some")
    try:
        for line in rest:
            follow(release, line, shell)
    finally:
        kubectl("label", "node", node, "cpubind.dev/node=true", "--overwrite")
    left = kubectl("get", "namespaces,crds,clusterroles,clusterrolebindings", "-o", "name")
    assert [name for name in left.split() if "cpubind" in name] == ["namespace/cpubind-e2e"]
    assert shell("ls -d /node/var/lib/cpubind /node/run/cpubind /node/usr/local/dcmi || true") == ""
