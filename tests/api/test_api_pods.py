"""Pods that opt in are bound, those that opt out are given back."""

from __future__ import annotations

import pytest

from agent.demo.fake_kubelet import OPT_IN
from tests.api.rig import KubeRig
from tests.api.scene import ENABLED, is_bound, is_free, is_untouched
from tests.cluster.client import ApiError


def test_an_annotated_pod_is_bound_and_reported(rig: KubeRig) -> None:
    rig.start()
    _, workers = rig.run_pod("llm-0", [0, 3])
    rig.until_bound(workers)
    (worker,) = rig.npu(3)["workers"]
    told = {"pid": workers[1].pid, "namespace": "prod", "pod": "llm-0", "container": "vllm", "state": "Bound"}
    assert told.items() <= worker.items()
    first = "on NPU 0 (irq 0-1, main 2-37, acl 38, release 39)"
    # Where its workers are found in two passes, there are two events.
    rig.until(lambda: [one for one in rig.events("CpuBound") if first in one["message"]], "the event")
    assert {one["involvedObject"]["name"] for one in rig.events("CpuBound")} == {"llm-0"}


def test_a_pod_without_the_annotation_is_left_alone(rig: KubeRig) -> None:
    rig.start()
    rig.run_pod("batch-0", [0], annotations={})
    rig.until(lambda: rig.npu(0).get("reason") == "NotOptedIn", "it is seen")
    assert rig.writes() == 0


@pytest.mark.parametrize("said", [None, "false"], ids=["annotation removed", "enabled: false"])
def test_a_pod_that_opts_out_while_it_runs_gets_its_cpus_back_and_can_opt_in_again(
    a2: KubeRig, said: str | None
) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    _, (neighbour,) = a2.run_pod("llm-1", [1])
    a2.until_bound([worker, neighbour])
    a2.annotate("llm-0", {ENABLED: said})
    a2.until(lambda: is_free(worker), "its threads may run on the whole cpuset again")
    a2.until(lambda: a2.npu(0).get("reason") == "NotOptedIn" and a2.bound() == {neighbour.pid}, "the plan says so")
    (event,) = a2.until(lambda: a2.events("CpuReleased"), "the event")
    assert event["involvedObject"]["name"] == "llm-0"
    assert f"process {worker.pid}: 28 threads given back to their cpuset" in event["message"]
    assert is_bound(neighbour, a2)

    a2.annotate("llm-0", OPT_IN)
    a2.until_bound([worker, neighbour])
    assert is_bound(worker, a2)


def test_a_pod_that_opts_in_while_it_runs_is_bound(a2: KubeRig) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0], annotations={})
    a2.until(lambda: a2.npu(0).get("reason") == "NotOptedIn", "it is seen")
    assert is_untouched(worker)
    a2.annotate("llm-0", OPT_IN)
    a2.until_bound([worker])
    assert is_bound(worker, a2)


def test_an_annotation_that_cannot_be_used_is_told_once_and_costs_nobody_else_anything(a2: KubeRig) -> None:
    a2.start()
    _, (bad,) = a2.run_pod("typo", [0], annotations={ENABLED: "yes"})
    _, (good,) = a2.run_pod("llm-0", [1])
    a2.until_bound([good])
    (event,) = a2.until(lambda: a2.events("InvalidAnnotation"), "the event")
    assert (event["type"], event["involvedObject"]["name"]) == ("Warning", "typo")
    said = "cpubind.dev/enabled: 'yes' is not true or false; the pod is left as it is; correct the annotation"
    assert event["message"] == f"pod prod/typo: {said}"
    a2.until(lambda: a2.events("CpuBound"), "the other event, which comes after it")
    a2.kill()

    a2.start()
    _, (later,) = a2.run_pod("llm-1", [2])
    a2.until_bound([good, later])
    a2.until(lambda: len(a2.events("CpuBound")) == 2, "later events")
    assert a2.events("InvalidAnnotation") == [event]
    assert is_untouched(bad)


def test_a_bound_pod_stays_bound_when_its_annotation_becomes_unusable(a2: KubeRig) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.until_bound([worker])
    before = a2.writes()
    a2.annotate("llm-0", {"cpubind.dev/irq-binding": "perhaps"})
    a2.until(lambda: a2.events("InvalidAnnotation"), "it is told")
    a2.settle(0.6)
    assert is_bound(worker, a2)
    assert a2.writes() == before


def test_containers_are_chosen_by_annotation(a2: KubeRig) -> None:
    both = ("prefill", "decode")
    said = {
        "one-by-name": {f"{ENABLED}.prefill": "true"},
        "one-of-a-list": {ENABLED: "true", "cpubind.dev/containers": "prefill, sidecar"},
        "all-but-one": {ENABLED: "true", f"{ENABLED}.decode": "false"},
    }
    a2.start()
    chosen, others = [], []
    for k, name in enumerate(said):
        pod, _ = a2.run_pod(name, annotations=said[name], containers=both)
        chosen.append(a2.start_worker(2 * k, pod, "prefill"))
        others.append(a2.start_worker(2 * k + 1, pod, "decode"))
    a2.until_bound(chosen)
    assert a2.bound() == {worker.pid for worker in chosen}
    assert all(is_bound(worker, a2) for worker in chosen)
    a2.until(lambda: all(a2.npu(worker.npu).get("reason") == "NotOptedIn" for worker in others), "they are seen")
    assert all(is_untouched(worker) for worker in others)

    # While it runs, too.
    a2.annotate("all-but-one", {f"{ENABLED}.decode": None, f"{ENABLED}.prefill": "false"})
    a2.until_bound([others[2]])
    a2.until(lambda: is_free(chosen[2]), "it is given back")


def test_a_container_with_a_long_name_cannot_be_named_by_a_key(a2: KubeRig) -> None:
    """The part of a key after the slash holds 63 characters: so says the API server, and docs/annotations.md."""
    fits, long = "c" * (63 - len("enabled.")), "c" * (64 - len("enabled."))
    a2.cluster.pods.run("fits", namespace="prod", annotations={f"{ENABLED}.{fits}": "true"}, containers=[fits])
    with pytest.raises(ApiError, match="63 characters"):
        a2.cluster.pods.run("long", namespace="prod", annotations={f"{ENABLED}.{long}": "true"}, containers=[long])


def test_all_pods_on_npus_can_be_chosen_but_those_that_opt_out(a2: KubeRig) -> None:
    a2.start(pod_selection="AllNpuPods")
    _, (silent,) = a2.run_pod("silent", [0], annotations={})
    _, (out,) = a2.run_pod("out", [1], annotations={ENABLED: "false"})
    _, (inside,) = a2.run_pod("inside", [2])
    pod, _ = a2.run_pod("partly", annotations={f"{ENABLED}.decode": "false"}, containers=("prefill", "decode"))
    prefill, decode = a2.start_worker(3, pod, "prefill"), a2.start_worker(4, pod, "decode")
    a2.until_bound([silent, inside, prefill])
    assert is_untouched(out)
    assert is_untouched(decode)
    assert a2.bound() == {silent.pid, inside.pid, prefill.pid}


def test_namespaces_are_chosen_and_left_out_by_settings(a2: KubeRig) -> None:
    a2.start(namespaces=("prod", "staging"))
    _, (prod,) = a2.run_pod("llm", [0])
    _, (staging,) = a2.run_pod("llm", [1], namespace="staging")
    _, (dev,) = a2.run_pod("llm", [2], namespace="dev")
    a2.until_bound([prod, staging])
    a2.until(lambda: a2.npu(2).get("reason") == "NotOptedIn", "it is seen")
    assert is_untouched(dev)
    a2.stop()

    # With another setting, as after `helm upgrade`: who is not meant any more is given back.
    a2.start(namespaces=(), exclude_namespaces=("staging",))
    a2.until_bound([prod, dev])
    a2.until(lambda: is_free(staging), "it is given back")
    a2.until(lambda: a2.bound() == {prod.pid, dev.pid}, "the plan says so")
