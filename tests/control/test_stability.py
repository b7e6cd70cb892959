"""A serving node through a hundred admissions of pods that own CPUs, and their removals: who is moved (design 4.9)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent.demo.fake_kubelet import VirtualPod
from agent.demo.workload import Worker
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.spec import Spec
from tests.control.rig import Rig, masks

ADMISSIONS = 100
MOST_OF_A_NODE = 32
"""CPUs of one NUMA node, which has 80, that the pods own at the same time. An NPU keeps the five that it needs."""


class Churn:
    """Guaranteed pods of 2 to 16 CPUs come and go, always the same ones."""

    def __init__(self, rig: Rig) -> None:
        self._kubelet = rig.node.kubelet
        self._nodes = [node.cpus for node in rig.node.topology.nodes]
        self._random = random.Random(9)
        self.pods: list[VirtualPod] = []
        self.admitted = 0

    def next(self) -> CpuSet:
        """One comes or goes. The CPUs that it takes or gives back."""
        size = self._random.choice((2, 4, 8, 16))
        free = self._random.choice(self._nodes) & self._kubelet.shared
        if self.pods and (len(free) - size < 80 - MOST_OF_A_NODE or self._random.random() < 0.4):
            return self.remove(self._random.randrange(len(self.pods)))
        own = CpuSet(sorted(free)[:size])  # as kubelet packs them
        self.pods.append(self._kubelet.add_pod(f"batch-{self.admitted}", own_cpus=own, annotations={}))
        self.admitted += 1
        return own

    def remove(self, k: int) -> CpuSet:
        pod = self.pods.pop(k)
        self._kubelet.remove_pod(pod)
        return union(container.own_cpus for container in pod.containers)


@pytest.mark.parametrize("remembers_masks", [True, False])
def test_only_those_whose_cpus_are_given_away_change_and_no_memory_moves(tmp_path: Path, remembers_masks: bool) -> None:
    rig = Rig(tmp_path, "a3")
    rig.node.kernel.remembers_masks = remembers_masks
    workers = [Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}")) for npu in range(16)]
    for worker in workers:
        worker.add_role_threads()
    rig.settle()
    rig.events()
    first, memory = rig.pools(), rig.node.kernel.calls["move_pages"]
    assert memory > 0, "each worker's was moved at its first binding"
    churn, given, steps, changed = Churn(rig), EMPTY, 0, 0

    before = first

    def look(cpus: CpuSet) -> None:
        nonlocal given, steps, changed, before
        steps += 1
        given = given - cpus if cpus <= given else given | cpus
        rig.sweep(15)
        status = rig.agent.plan_object()["status"]
        now = {npu["id"]: npu["pool"] for npu in status["npus"]}
        # What a pod took is all that a pool is short of, and nobody else's pool moved.
        assert {npu: CpuSet.parse(pool) for npu, pool in now.items()} == {
            npu: CpuSet.parse(pool) - given for npu, pool in first.items()
        }
        changed, before = changed + sum(now[npu] != before[npu] for npu in now), now
        conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
        assert (status["summary"]["bound"], conditions["Ready"], conditions["Degraded"]) == (16, "True", "False")
        for worker in workers:
            roles = status["npus"][worker.npu]["roles"]
            expected = {"main": {roles["main"]}, "acl_thread": {roles["acl"]}, "release_thread": {roles["release"]}}
            assert masks(worker) == expected

    while churn.admitted < ADMISSIONS:
        look(churn.next())
    while churn.pods:
        look(churn.remove(0))

    # Cut anew each time, all of 16 pools would have changed in each of 200 steps.
    assert (steps, changed) == (200, 200)
    assert rig.pools() == first
    assert rig.node.kernel.calls["move_pages"] == memory
    detected = rig.agent.drift().detected
    assert detected["thread"] == 0
    assert (detected["cpuset"] == 0) is remembers_masks
    told = {reason for reason, _ in rig.events()}
    assert told == ({"CpuBound"} if remembers_masks else {"CpuBound", "CpuBindingRepaired"})


def test_after_a_change_that_leaves_the_base_as_it_was_a_pod_with_cpus_of_its_own_moves_nobody_else(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, "a3")
    for npu in range(16):
        Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}"))
    rig.settle()
    rig.ask(strategy="NumaSlice")
    for _ in range(3):
        rig.sweep(15)
    before = rig.pools()
    rig.node.kubelet.add_pod("batch", own_cpus=CpuSet.span(0, 15), annotations={})
    for _ in range(3):
        rig.sweep(15)
    now = rig.pools()
    assert {npu for npu in now if now[npu] != before[npu]} == {0}


@pytest.mark.parametrize("of_the_plan", [True, False])
def test_a_change_that_a_restart_comes_between_is_cut_in_all_the_same(tmp_path: Path, of_the_plan: bool) -> None:
    """What the chart says of a whole fleet changes with the agents."""
    rig = Rig(tmp_path, "a3")
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    if of_the_plan:
        rig.ask(reservedCpus="0-15")
        rig.sweep()
        rig.restart()
    else:
        rig.restart(spec=Spec(reserved_cpus=CpuSet.span(0, 15)))
    rig.settle()
    assert (rig.pools()[0], rig.pools()[1]) == ("16-39", "40-79")
    rig.sweep(11)
    assert {len(CpuSet.parse(pool)) for pool in rig.pools().values()} == {39}
    settled = rig.pools()
    rig.restart()
    rig.settle()
    rig.sweep(400)
    assert rig.pools() == settled
