"""The whole way, on a real ARM64 node: chart, image, kubelet's static CPU manager, and masks read inside the pods.

One story on one node, told in order: each test goes on where the one before it ended, with both pods bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from agent.model.cpuset import CpuSet
from tests.e2e.arm_node import open_arm_node, profile_of
from tests.e2e.cluster import Cluster
from tests.e2e.kubectl import Object
from tests.e2e.masks import Threads, look, planned, watched
from tests.e2e.node import Shell, StandIn
from tests.e2e.release import AgentPod, Release, conditions, workers
from tests.e2e.removal import documented, follow
from tests.e2e.wait import more_patience, until
from tests.e2e.workload import Worker, Workload

SLOW = 5
"""Everything on an emulated node takes ten times as long and more; most of what is waited for is not on the node."""
NAMESPACE = "cpubind-e2e-arm"
EXCLUSIVE = 5
FURTHER = 2
STATE = "/var/lib/kubelet/cpu_manager_state"
STAND_IN = ["python3", "-m", "agent.demo.standin_worker", "--acl", "--release", "--threads", "3"]


@pytest.fixture(scope="module")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster with the guest as its node for tests, cleared of what other tests installed."""
    with more_patience(SLOW), open_arm_node(cluster, tmp_path_factory.mktemp("guest")) as found:
        Release(cluster, tmp_path_factory.mktemp("helm-before")).remove()
        cluster.kubectl("label", "nodes", "--all", "cpubind.dev/node-")
        yield found


@pytest.fixture(scope="module")
def shell(node: Cluster) -> Shell:
    node.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    opened = Shell(node, NAMESPACE)
    opened.start()
    return opened


@pytest.fixture(scope="module")
def stand_in(shell: Shell) -> StandIn:
    made = StandIn(shell, profile_of(shell))
    made.install()
    return made


@pytest.fixture(scope="module")
def release(node: Cluster, stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The chart with the values that its users give: this node needs no leave to have another architecture."""
    node.kubectl("label", "node", node.node, "cpubind.dev/node=true", "--overwrite")
    plain = {"allowAnyArchitecture": None, "sweepInterval": None, "statusInterval": 2}
    made = Release(node, tmp_path_factory.mktemp("helm"), plain=plain)
    made.install()
    return made


@pytest.fixture(scope="module")
def agent(release: Release) -> AgentPod:
    return AgentPod(release)


@pytest.fixture(scope="module")
def workload(node: Cluster, shell: Shell, stand_in: StandIn) -> Workload:
    return Workload(node, shell, stand_in, NAMESPACE)


class Pods(NamedTuple):
    """Two pods whose processes work on an NPU each."""

    exclusive: Worker
    """Guaranteed, with CPUs of its own."""
    shared: Worker


@pytest.fixture(scope="module")
def pods(agent: AgentPod, workload: Workload) -> Pods:
    return Pods(
        workload.start(0, cpus=EXCLUSIVE, command=STAND_IN, stdin=True), workload.start(1, command=STAND_IN, stdin=True)
    )


def plan_of(node: Cluster) -> Object:
    return node.kubectl.get("cbp", node.node)


def both_bound(node: Cluster, pods: Pods) -> Object | None:
    plan = plan_of(node)
    states = {entry["pid"]: entry["state"] for entry in workers(plan)}
    return plan if states == {pod.pid: "Bound" for pod in pods} and _ready(plan) else None


def _ready(plan: Object) -> bool:
    return bool(conditions(plan)["Ready"]["status"] == "True")


def wait_bound(node: Cluster, pods: Pods) -> tuple[Threads, Threads]:
    """Until the plan calls both bound and they are where it says, each thread by its name. kubelet may write a cpuset
    in between, which costs the threads their masks until the agent's next sweep."""

    def in_place() -> tuple[Threads, Threads] | None:
        if (plan := both_bound(node, pods)) is None:
            return None
        seen = look(node.kubectl, pods.exclusive), look(node.kubectl, pods.shared)
        for pod, threads in zip(pods, seen, strict=True):
            assert threads.as_planned(planned(plan, pod)), (threads, plan["status"]["npus"])
        return seen

    return until(in_place, "both are bound, and where the plan says", 60)


def granted(shell: Shell) -> tuple[dict[str, CpuSet], CpuSet]:
    """What kubelet's static CPU manager gave to each pod of its own, by uid, and what it left to all others."""
    state = json.loads(shell(f"cat /node{STATE}"))
    assert state["policyName"] == "static"
    own = {uid: CpuSet.parse(containers["main"]) for uid, containers in state.get("entries", {}).items()}
    return own, CpuSet.parse(state["defaultCpuSet"])


def test_workers_of_both_pods_are_bound_within_the_cpus_that_kubelet_gave_them(
    node: Cluster, pods: Pods, shell: Shell
) -> None:
    exclusive, shared = wait_bound(node, pods)
    header, line = node.kubectl("get", "cbp", node.node).splitlines()
    shown = dict(zip(header.split(), line.split(), strict=True))
    assert (shown["NAME"], shown["DEVICE"], shown["MODE"]) == (node.node, "A2", "Enforce")
    assert (shown["NPUS"], shown["WORKERS"], shown["BOUND"], shown["FAILED"]) == ("2", "2", "2", "0")
    assert plan_of(node)["status"]["architecture"] == "aarch64"

    own, rest = granted(shell)
    assert own == {pods.exclusive.uid: exclusive.cpuset}
    assert len(exclusive.cpuset) == EXCLUSIVE
    assert shared.cpuset == rest
    assert exclusive.cpuset.isdisjoint(rest)
    for threads in (exclusive, shared):
        by_name = {name: threads.masks[tid] for tid, name in threads.names.items()}
        assert len(set(by_name.values())) == 3, "main, acl_thread and release_thread have CPUs of their own"
        assert all(mask <= threads.cpuset for mask in by_name.values())


def test_a_further_pod_with_cpus_of_its_own_costs_the_others_only_these(
    node: Cluster, pods: Pods, shell: Shell, workload: Workload
) -> None:
    exclusive, shared = wait_bound(node, pods)
    before = plan_of(node)
    further = workload.start(None, annotations={}, cpus=FURTHER)
    taken = until(lambda: granted(shell)[0].get(further.uid), "kubelet gives it CPUs of its own")
    lost = taken & _pool(before, pods.shared)
    assert lost, f"kubelet took {taken}: nothing of {_pool(before, pods.shared)}"
    until(lambda: _pool(plan_of(node), pods.shared) == _pool(before, pods.shared) - lost, "the pool has lost them", 60)
    until(lambda: look(node.kubectl, pods.shared).cpuset == shared.cpuset - taken, "kubelet narrowed the cpuset", 60)

    assert wait_bound(node, pods)[0] == exclusive
    after = plan_of(node)
    assert after["status"]["bases"] == before["status"]["bases"]
    assert _pool(after, pods.exclusive) == _pool(before, pods.exclusive)


def _pool(plan: Object, worker: Worker) -> CpuSet:
    (entry,) = (entry for entry in workers(plan) if entry["pid"] == worker.pid)
    (npu,) = (npu for npu in plan["status"]["npus"] if npu["id"] == entry["npu"])
    return CpuSet.parse(entry.get("pool") or npu["pool"])


def test_an_agent_that_restarts_changes_no_mask(node: Cluster, pods: Pods, shell: Shell, agent: AgentPod) -> None:
    before = wait_bound(node, pods)
    with watched(shell, *pods) as seen:
        agent.wait_ready(other_than=agent.delete(), seconds=120)
        until(lambda: both_bound(node, pods), "the new agent says how it is", 60)
    assert all(len(masks) == 1 for masks in seen.values()), seen
    assert wait_bound(node, pods) == before


def test_an_upgrade_with_another_value_changes_no_mask(
    node: Cluster, pods: Pods, shell: Shell, release: Release, agent: AgentPod
) -> None:
    before, old = wait_bound(node, pods), agent.name
    with watched(shell, *pods) as seen:
        release.install(log={"level": "debug"})
        until(lambda: both_bound(node, pods), "the new agent says how it is", 60)
    assert agent.name != old
    assert all(len(masks) == 1 for masks in seen.values()), seen
    assert wait_bound(node, pods) == before


def test_a_pod_whose_annotation_is_taken_off_gets_its_cpuset_back_and_nobody_else(
    node: Cluster, pods: Pods, workload: Workload
) -> None:
    exclusive, _ = wait_bound(node, pods)
    workload.annotate(pods.shared, "cpubind.dev/enabled-")
    until(lambda: look(node.kubectl, pods.shared).let_go(), "the threads have their cpuset")
    assert look(node.kubectl, pods.exclusive) == exclusive
    workload.annotate(pods.shared, "cpubind.dev/enabled=true")
    wait_bound(node, pods)


def test_all_threads_get_their_cpuset_back_when_the_plan_says_disabled(node: Cluster, pods: Pods) -> None:
    wait_bound(node, pods)
    patch = ("patch", "cbp", node.node, "--type=merge", "-p")
    node.kubectl(*patch, '{"spec":{"mode":"Disabled"}}')
    node.kubectl("wait", "cbp", node.node, "--for=condition=Restored", "--timeout=5m", seconds=300)
    assert all(look(node.kubectl, pod).let_go() for pod in pods)
    node.kubectl(*patch, '{"spec":{"mode":null}}')
    wait_bound(node, pods)


def test_the_commands_of_the_documents_give_all_threads_back_and_leave_nothing(
    node: Cluster, pods: Pods, shell: Shell, release: Release, agent: AgentPod
) -> None:
    wait_bound(node, pods)
    log = agent.logs()
    assert " ERROR " not in log
    assert "Traceback" not in log
    steps, rest = documented()
    *before, uninstall = steps
    for line in before:
        follow(release, line)
    assert conditions(plan_of(node))["Restored"]["status"] == "True"
    assert all(look(node.kubectl, pod).let_go() for pod in pods)
    follow(release, uninstall)
    agent.wait_gone()
    for line in rest:
        if "clusterrolebinding" not in line:  # nobody made any
            follow(release, line, shell)
    left = node.kubectl("get", "namespaces,crds,clusterroles,clusterrolebindings", "-o", "name")
    assert {name for name in left.split() if "cpubind" in name} <= {f"namespace/{NAMESPACE}", "namespace/cpubind-e2e"}
    assert shell("ls -d /node/var/lib/cpubind /node/run/cpubind /node/usr/local/dcmi || true") == ""
    assert all(look(node.kubectl, pod).let_go() for pod in pods)
