"""Pods that opt in, on the real kubelet: found through their cgroups, and told the truth."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.release import AgentPod, conditions, workers
from tests.e2e.wait import until
from tests.e2e.workload import OPT_IN, Workload

POOL = 5
"""CPUs that an NPU needs at least."""


@pytest.fixture
def few_cpus(cluster: Cluster) -> None:
    if cluster.cpus >= 2 * POOL:
        pytest.skip(f"{cluster.node} has {cluster.cpus} CPUs, enough for its two NPUs: nothing would fail")


@pytest.mark.usefixtures("few_cpus")
def test_a_worker_on_too_few_cpus_is_told_of_on_its_pod_in_the_plan_and_in_the_metrics(
    agent: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    worker = workload.start(1)
    entry = workload.wait_entry(worker)
    assert (entry["npu"], entry["pid"]) == (1, worker.pid)
    assert (entry["namespace"], entry["pod"], entry["container"]) == (worker.namespace, worker.name, "main")
    assert (entry["state"], entry["reason"]) == ("Failed", "InsufficientCpus")

    (event,) = until(lambda: workload.events(worker, "CpuBindingFailed"), "the pod has an event")
    assert event["type"] == "Warning"
    assert "InsufficientCpus" in event["message"]
    assert event["source"] == {"component": "cpubind-agent", "host": cluster.node}

    plan = cluster.kubectl.get("cbp", cluster.node)
    assert plan["status"]["summary"] == {"npus": 2, "workers": 1, "bound": 0, "failed": 1, "skipped": 0}
    ready = conditions(plan)["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "InsufficientCpus")

    assert agent.metric("cpubind_workers", state="Failed") == 1
    assert agent.metric("cpubind_workers", state="Bound") == 0
    assert agent.metric("cpubind_condition", type="Ready", status="False", reason="InsufficientCpus") == 1
    assert agent.is_ready()


def test_explain_says_where_a_workers_cpus_come_from(agent: AgentPod, workload: Workload) -> None:
    worker = workload.start(0)
    workload.wait_entry(worker)
    by_pod, by_pid = agent.run("explain", f"{worker.namespace}/{worker.name}"), agent.run("explain", str(worker.pid))
    assert by_pod == by_pid
    assert f"Process {worker.pid} (sleep) works on NPU 0" in by_pod
    assert f"It runs in {worker.namespace}/{worker.name}/main, whose effective cpuset is " in by_pod
    assert "npu-smi says that CPUs 0-" in by_pod


def test_a_pod_that_did_not_opt_in_is_left_alone(agent: AgentPod, workload: Workload) -> None:
    stranger = workload.start(0, annotations={})
    # While nobody is awaited npu-smi is asked once a minute; this one is.
    workload.wait_entry(workload.start(1))
    assert workload.entry(stranger) is None
    done = agent.attempt("explain", f"{stranger.namespace}/{stranger.name}")
    assert done.returncode == 1
    assert "uses an NPU and is not to be bound" in done.stderr


def test_a_pod_that_opts_out_is_no_longer_listed(agent: AgentPod, workload: Workload) -> None:
    worker, other = workload.start(0), workload.start(1)
    workload.wait_entry(worker)
    workload.wait_entry(other)
    workload.annotate(worker, "cpubind.dev/enabled=false")
    until(lambda: workload.entry(worker) is None, "it is no longer listed", 10)
    assert workload.entry(other)
    workload.annotate(worker, "cpubind.dev/enabled=true")
    workload.wait_entry(worker, 10)


def test_an_invalid_annotation_is_told_on_its_pod_and_the_others_are_served(
    agent: AgentPod, workload: Workload, cluster: Cluster
) -> None:
    invalid = workload.start(0, annotations={**OPT_IN, "cpubind.dev/memory-migration": "perhaps"})
    other = workload.start(1)
    workload.wait_entry(other)
    (event,) = until(lambda: workload.events(invalid, "InvalidAnnotation"), "the pod has an event")
    assert event["type"] == "Warning"
    assert "cpubind.dev/memory-migration" in event["message"]
    assert "perhaps" in event["message"]
    assert workload.entry(invalid) is None
    assert workload.events(other, "InvalidAnnotation") == []
    workload.annotate(invalid, "cpubind.dev/memory-migration-")
    workload.wait_entry(invalid, 10)


def test_a_worker_in_a_restarted_container_is_found_again(agent: AgentPod, workload: Workload) -> None:
    first = workload.start(0)
    workload.wait_entry(first)
    second = workload.restart(first)
    assert second.pid != first.pid
    entry = workload.wait_entry(second)
    assert (entry["pod"], entry["container"]) == (first.name, "main")
    assert workload.entry(first) is None


def test_a_pod_that_ended_leaves_nothing_in_the_plan(agent: AgentPod, workload: Workload, cluster: Cluster) -> None:
    worker = workload.start(0)
    workload.wait_entry(worker)
    cluster.kubectl("delete", "pod", "-n", worker.namespace, worker.name, "--grace-period=0", "--force")
    until(lambda: workers(cluster.kubectl.get("cbp", cluster.node)) == [], "its process ended with it", 30)
