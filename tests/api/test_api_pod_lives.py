"""From a pod's first process to its last: what is bound stays so until it ends, whatever becomes of the pod."""

from __future__ import annotations

from agent.demo.fake_kubelet import OPT_IN, config_hash
from agent.model.cpuset import CpuSet
from agent.model.pods import CONFIG_HASH
from tests.api.rig import KubeRig
from tests.api.scene import (
    ENABLED,
    PLANS,
    delete_by_force,
    helper,
    is_bound,
    is_free,
    is_repaired,
    masks,
    meddle,
    pool,
    restart_container,
    statuses,
    wait_until_unknown,
    writes_to_api,
)


def test_a_pod_that_ran_before_the_agent_is_bound(a2: KubeRig) -> None:
    _, workers = a2.run_pod("llm-0", [0, 1])
    a2.start()
    a2.until_bound(workers)
    assert all(is_bound(worker, a2) for worker in workers)


def test_each_container_of_a_pod_is_served_by_itself_from_its_init_container_on(a2: KubeRig) -> None:
    """Two workers in two containers, an init container that uses an NPU, a sidecar that uses none (#19)."""
    a2.start()
    image = [{"name": name, "image": "image"} for name in ("warm-up", "prefill", "decode", "logs")]
    made = a2.cluster.pods.run(
        "llm-0", node=a2.name, namespace="prod", annotations=OPT_IN, containers=image[1:], initContainers=image[:1]
    )
    names = ("warm-up", "prefill", "decode", "logs")
    pod = a2.node.kubelet.add_pod("llm-0", containers=names, uid=made["metadata"]["uid"])
    first, *rest = statuses(pod.containers)
    waiting = [{**one, "containerID": "", "ready": False, "state": {"waiting": {}}} for one in rest]
    a2.cluster.pods.set_status("llm-0", {"initContainerStatuses": [first], "containerStatuses": waiting}, "prod")
    warm_up = a2.start_worker(0, pod, "warm-up")
    a2.until_bound([warm_up])
    assert a2.npu(0)["workers"][0]["container"] == "warm-up"
    warm_up.end()

    prefill, decode = a2.start_worker(0, pod, "prefill"), a2.start_worker(1, pod, "decode")
    sidecar = helper(a2, pod, "logs")
    a2.cluster.pods.set_status("llm-0", {"phase": "Running", "containerStatuses": rest}, "prod")
    a2.until_bound([prefill, decode])
    listed = {worker["pid"]: worker["container"] for npu in (0, 1) for worker in a2.npu(npu)["workers"]}
    assert listed == {prefill.pid: "prefill", decode.pid: "decode"}
    assert is_bound(prefill, a2)
    assert is_bound(decode, a2)
    assert masks(prefill).isdisjoint(masks(decode))
    assert sidecar.asked is None, "it uses no NPU"


def test_a_worker_that_is_quicker_than_its_containers_status_is_bound_and_named_later(a2: KubeRig) -> None:
    a2.start()
    names = ("vllm", "proxy")
    made = a2.cluster.pods.run("llm-0", node=a2.name, namespace="prod", annotations=OPT_IN, containers=names)
    pod = a2.node.kubelet.add_pod("llm-0", containers=names, uid=made["metadata"]["uid"])
    worker = a2.start_worker(0, pod)
    a2.until_bound([worker])
    assert "container" not in a2.npu(0)["workers"][0]
    a2.cluster.pods.started("llm-0", {one.name: one.id for one in pod.containers}, "prod")
    a2.until(lambda: a2.npu(0)["workers"][0].get("container") == "vllm", "its container is named")


def test_a_container_that_is_started_again_is_bound_again(a2: KubeRig) -> None:
    """Another container id and another process, in the same pod (#18)."""
    a2.start()
    pod, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    worker.end()
    after = restart_container(a2, pod)
    again = a2.start_worker(0, after)
    a2.until_bound([again])
    assert is_bound(again, a2)
    assert a2.bound() == {again.pid}
    assert a2.npu(0)["workers"][0]["container"] == "vllm"

    # The process alone, within the same container.
    again.end()
    third = a2.start_worker(0, after)
    a2.until_bound([third])
    assert is_bound(third, a2)
    assert a2.bound() == {third.pid}


def test_a_terminating_pod_stays_bound_until_its_processes_end(a2: KubeRig) -> None:
    a2.start()
    pod, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    a2.cluster.pods.delete("llm-0", "prod", grace=30)
    assert "deletionTimestamp" in a2.cluster.pods.get("llm-0", "prod")["metadata"]
    meddle(worker)
    a2.until(lambda: is_repaired(worker), "it is kept bound")
    worker.end()
    delete_by_force(a2, "llm-0")  # kubelet, when the last process has ended
    a2.node.kubelet.remove_pod(pod)
    a2.until(lambda: a2.status["summary"]["workers"] == 0, "it is gone from the plan")
    assert not a2.events("CpuReleased")


def test_a_pod_deleted_by_force_stays_bound_until_its_processes_end_even_across_a_restart(a2: KubeRig) -> None:
    a2.start()
    pod, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    cpus = masks(worker)
    delete_by_force(a2, "llm-0")
    wait_until_unknown(a2, "llm-0")
    meddle(worker)
    a2.until(lambda: is_repaired(worker), "it is kept bound")

    a2.kill()
    meddle(worker)
    a2.start()
    a2.until(lambda: is_repaired(worker), "an agent that never saw the pod keeps it bound")
    assert masks(worker) == cpus
    assert a2.bound() == {worker.pid}
    worker.end()
    a2.node.kubelet.remove_pod(pod)
    a2.until(lambda: a2.status["summary"]["workers"] == 0, "it is gone from the plan")
    assert not a2.events("CpuReleased")


def test_a_pod_that_comes_again_by_its_name_says_nothing_about_the_one_before(a2: KubeRig) -> None:
    """A StatefulSet makes prod/llm-0 anew while processes of the old one still run."""
    a2.start()
    _, (old,) = a2.run_pod("llm-0", [0])
    a2.until_bound([old])
    delete_by_force(a2, "llm-0")
    _, (new,) = a2.run_pod("llm-0", [1])
    a2.until_bound([old, new])
    a2.annotate("llm-0", {ENABLED: "false"})
    a2.until(lambda: is_free(new), "the new one is given back")
    a2.until(lambda: a2.bound() == {old.pid}, "the old one is not")
    assert is_bound(old, a2)


def test_a_static_pod_and_one_in_the_hosts_network_are_bound(a2: KubeRig) -> None:
    a2.start()
    _, (static,) = a2.run_pod("llm-a2-0", [0], static=True)
    _, (host_network,) = a2.run_pod("llm-0", [1], hostNetwork=True)
    a2.until_bound([static, host_network])
    assert is_bound(static, a2)
    assert is_bound(host_network, a2)


def test_a_static_pod_is_known_by_the_hash_of_its_manifest_before_its_containers_are(a2: KubeRig) -> None:
    """Its cgroup carries that in place of the uid, and its mirror has it as an annotation."""
    a2.start()
    said = {**OPT_IN, CONFIG_HASH: config_hash("prod", "llm-a2-0")}
    a2.cluster.pods.run("llm-a2-0", node=a2.name, namespace="prod", annotations=said, containers=["vllm"])
    pod = a2.node.kubelet.add_pod("llm-a2-0", static=True)
    worker = a2.start_worker(0, pod)
    a2.until_bound([worker])
    assert said[CONFIG_HASH] in pod.container().cgroup
    assert a2.npu(0)["workers"][0]["pod"] == "llm-a2-0"
    assert is_bound(worker, a2)


def test_a_guaranteed_pod_is_bound_to_its_own_cpus_which_nobody_else_gets(a2: KubeRig) -> None:
    own = CpuSet.parse("144-155")
    a2.start()
    _, (shared,) = a2.run_pod("shared", [1])
    a2.until_bound([shared])
    _, (guaranteed,) = a2.run_pod("guaranteed", [0], own_cpus=own)
    a2.until_bound([shared, guaranteed])
    assert a2.cluster.pods.get("guaranteed", "prod")["status"]["qosClass"] == "Guaranteed"
    worker = a2.npu(0)["workers"][0]
    assert CpuSet.parse(worker.get("pool", a2.npu(0)["pool"])) == own
    assert masks(guaranteed) <= own
    a2.until(lambda: masks(shared).isdisjoint(own), "the other one gives way")
    assert pool(a2, 1).isdisjoint(own)


def test_nothing_holds_up_pods_namespaces_and_nodes_while_the_agent_is_away(a2: KubeRig) -> None:
    """No finalizer, and never a write to a pod: what is deleted is gone at once, agent or not."""
    a2.start()
    _, bound = a2.run_pod("llm-0", [0])
    a2.run_pod("typo", [1], annotations={ENABLED: "yes"})
    _, (out,) = a2.run_pod("out", [2])
    a2.until_bound([*bound, out])
    edited = a2.cluster.pods.annotate("out", {ENABLED: "false"}, "prod")
    versions = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in a2.cluster.pods.list()}
    a2.until(lambda: is_free(out), "the last one has been seen to opt out")
    a2.until(lambda: a2.events("InvalidAnnotation"), "events have been posted")
    a2.settle(0.6)
    assert edited["metadata"]["resourceVersion"] == versions["out"]
    after = {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in a2.cluster.pods.list()}
    assert after == versions, "no pod was written to"
    a2.kill()

    left = [*a2.cluster.pods.list(), *a2.cluster.nodes.list(), *a2.cluster.plans.list()]
    assert len(left) == 5
    assert not [one["metadata"]["name"] for one in left if one["metadata"].get("finalizers")]
    for pod in versions:
        delete_by_force(a2, pod)
    a2.cluster.nodes.delete(a2.name)
    a2.cluster.plans.delete(a2.name)
    assert not a2.cluster.pods.list() + a2.cluster.nodes.list() + a2.cluster.plans.list()
    written = {(one.verb, one.path) for one in writes_to_api(a2)}
    events = "/api/v1/namespaces/prod/events"
    assert written == {("create", PLANS), ("patch", f"{PLANS}/{a2.name}/status"), ("create", events)}
