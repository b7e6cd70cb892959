"""How much the agent asks of the API server: next to nothing, and nothing at all while nothing changes."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

from agent.demo.workload import Worker
from tests.api.rig import KubeRig
from tests.api.scene import requests, writes_to_plans


def churn(worker: Worker, rounds: int, pause: float) -> None:
    """Threads come and go in a worker."""
    kernel = worker.node.kernel
    for _ in range(rounds):
        made = [*worker.grow(3), *worker.add_role_threads()]
        time.sleep(pause)
        for task in made:
            kernel.end(task.tid)


def test_nothing_is_asked_while_nothing_changes_however_threads_come_and_go(a2: KubeRig) -> None:
    """Sweeps of 50 ms, and a clock a hundred times as fast: what would be minutes."""
    a2.speed = 100
    a2.start(sweep_interval=0.05, status_interval=0.1)
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    a2.until(lambda: a2.events("CpuBound"), "the event")
    version, begun = a2.settle(0.6), time.time()
    writes = a2.writes()
    agent = a2.agent
    assert agent is not None
    passes = agent.agent.passes
    churn(worker, 8, 0.15)
    assert agent.agent.passes > passes + 10
    assert a2.writes() > writes, "new threads were bound all the same"
    assert requests(a2, begun) == []
    assert a2.version == version


def test_the_status_is_written_at_once_then_once_in_an_interval_and_the_last_state_always(a2: KubeRig) -> None:
    interval = 0.6
    a2.start(status_interval=interval)
    a2.until(lambda: a2.status, "the first report")
    a2.settle(0.8)
    begun = time.time()
    pod, (first,) = a2.run_pod("llm-0", [0])
    a2.until_bound([first])
    assert time.time() - begun < interval, "the first change goes out at once"
    for _ in range(10):
        worker = a2.start_worker(1, pod, threads=2)
        time.sleep(0.15)
        worker.end()
    last = a2.start_worker(3, pod, threads=2)
    a2.until_bound([first, last])
    a2.settle(0.8)
    assert a2.bound() == {first.pid, last.pid}
    written = [one.time for one in writes_to_plans(a2, begun)]
    print(f"{len(written)} writes in {written[-1] - written[0]:.1f} s")
    assert len(written) >= 3
    assert min(later - earlier for earlier, later in pairwise(written)) > 0.9 * interval


def test_pods_and_plan_of_this_node_are_all_that_is_listed_and_watched(a2: KubeRig) -> None:
    cluster = a2.cluster
    for name in ("a2-1", "a3-0"):
        a2.register(name)
        cluster.plans.named(name)
    for k, node in enumerate(("a2-1", "a2-1", "")):
        cluster.pods.run(f"foreign-{k}", node=node, namespace="prod", annotations={"cpubind.dev/enabled": "true"})
    agent = a2.start()
    _, workers = a2.run_pod("llm-0", [0])
    a2.until_bound(workers)
    cluster.pods.annotate("foreign-0", {"cpubind.dev/enabled": "yes"}, "prod")
    cluster.plans.merge_patch("a2-1", {"spec": {"mode": "DryRun"}})
    cluster.pods.run("foreign-3", node="a2-1", namespace="prod")
    a2.edit({"reservedCpus": "0"})
    a2.until(lambda: a2.status["observedGeneration"] == 2, "later events have been seen")
    assert [pod.name for pod in agent.pods.pods()] == ["llm-0"]
    assert agent.plan.read()["metadata"]["name"] == a2.name
    assert not a2.events("InvalidAnnotation")

    reads = [one for one in requests(a2) if one.verb in ("list", "watch", "get")]
    pods = [one for one in reads if one.path == "/api/v1/pods"]
    plans = [one for one in reads if one.path == "/apis/cpubind.dev/v1alpha1/cpubindingplans"]
    assert Counter(one.verb for one in pods) == Counter(one.verb for one in plans) == {"list": 1, "watch": 1}
    assert {one.query["fieldSelector"] for one in pods} == {f"spec.nodeName={a2.name}"}
    assert {one.query["fieldSelector"] for one in plans} == {f"metadata.name={a2.name}"}
    assert [one.query["resourceVersion"] for one in [*pods, *plans] if one.verb == "list"] == ["0", "0"]
    assert all(one.query["resourceVersion"] != "0" for one in [*pods, *plans] if one.verb == "watch")
    others = [one for one in reads if one not in pods + plans]
    assert {one.verb for one in others} == {"get"}
    assert {one.path for one in others} == {f"/api/v1/nodes/{a2.name}"}
    assert all(one.user == "system:serviceaccount:cpubind-system:cpubind" for one in requests(a2))


def test_a_start_asks_for_little(a2: KubeRig) -> None:
    """At the start of a fleet each request counts ten thousand times."""
    a2.start()
    a2.until(lambda: a2.status, "the first report")
    a2.settle(0.6)
    asked = Counter(one.verb for one in requests(a2))
    assert asked == {"list": 2, "watch": 2, "get": 1, "create": 1, "patch": 1}
