"""Removal, as people are told to."""

from __future__ import annotations

from tests.e2e.node import Shell
from tests.e2e.release import NAMESPACE, AgentPod, Release, conditions
from tests.e2e.removal import documented, follow, leftovers, of_the_host
from tests.e2e.wait import until
from tests.e2e.workload import Workload


def test_the_commands_of_the_documents_remove_the_release_and_all_that_it_left(
    agent: AgentPod, release: Release, workload: Workload, shell: Shell
) -> None:
    kubectl, node = release.cluster.kubectl, release.cluster.node
    steps, _ = documented()
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

    _remove_what_remains(release, shell)
    left = kubectl("get", "namespaces,crds,clusterroles,clusterrolebindings", "-o", "name")
    assert [name for name in left.split() if "cpubind" in name] == ["namespace/cpubind-e2e"]
    assert shell("ls -d /node/var/lib/cpubind /node/run/cpubind /node/usr/local/dcmi || true") == ""


def _remove_what_remains(release: Release, shell: Shell) -> None:
    kubectl = release.cluster.kubectl
    for role in ("viewer", "editor"):  # as people made them who followed the page
        kubectl("create", "clusterrolebinding", f"cpubind-{role}s", f"--clusterrole=cpubind-{role}", "--group=some")
    try:
        for line in documented()[1]:
            follow(release, line, shell)
    finally:
        kubectl("label", "node", release.cluster.node, "cpubind.dev/node=true", "--overwrite")


def test_a_removed_release_leaves_the_host_as_it_found_it(installed: Release, workload: Workload, shell: Shell) -> None:
    """Masks of threads and of interrupts, irqbalance's list, and every file and folder that an installation makes."""
    release, agent = installed, AgentPod(installed)
    release.remove()
    for line in documented()[1]:
        if line.startswith("rm"):
            shell(f"{line.replace(' /', ' /node/')} 2>/dev/null || true")
    worker = workload.start(0)
    before = of_the_host(shell, worker)
    assert "affinity list" in before
    assert "smp_affinity_list" in before

    release.install()
    workload.wait_entry(worker)
    assert "var/lib/cpubind/journal.json" in of_the_host(shell, worker)
    for line in documented()[0]:
        follow(release, line)
        if "upgrade" in line:
            agent.wait_rolled_out()
    agent.wait_gone()
    release.touched()
    _remove_what_remains(release, shell)
    assert of_the_host(shell, worker) == before


def test_a_namespace_that_is_deleted_with_the_agent_in_it_moves_nothing_and_what_it_leaves_can_be_removed(
    agent: AgentPod, release: Release, workload: Workload, shell: Shell
) -> None:
    kubectl, node = release.cluster.kubectl, release.cluster.node
    worker = workload.start(0)
    workload.wait_entry(worker)
    masks = shell(f"taskset -acp {worker.pid}")
    plan = kubectl.get("cbp", node)
    release.touched()
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    agent.wait_gone()
    until(lambda: not kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"), "the namespace is gone", 60)
    assert shell(f"taskset -acp {worker.pid}") == masks
    assert kubectl.get("cbp", node)["metadata"]["uid"] == plan["metadata"]["uid"]
    assert shell("ls /node/var/lib/cpubind").split() == ["journal.json"]
    assert "clusterrole.rbac.authorization.k8s.io/cpubind" in kubectl("get", "clusterroles", "-o", "name").split()

    release.install()  # under the same name, in the same namespace: it takes over what is there
    assert until(lambda: kubectl.get("cbp", node), "the plan")["metadata"]["uid"] == plan["metadata"]["uid"]
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    release.touched()
    agent.wait_gone()
    until(lambda: not kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"), "the namespace is gone", 60)
    (line,) = (line for line in leftovers() if line.startswith("kubectl delete clusterrole,"))
    follow(release, line)
    left = kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()
    assert [name for name in left if "cpubind" in name] == []
