"""Cpusets of cgroup v2, written as kubelet writes them, under workers that are bound.

This kernel (6.1) gives every thread of a cgroup the whole cpuset when that is written. What a kernel does that
remembers masks (6.2 and later), tests/host shows.
"""

from __future__ import annotations

from tests.vm.conftest import Told
from tests.vm.masks import astray, by_tid, npu, places, worker
from tests.vm.test_vm_nodes import A2


def test_workers_are_bound_within_a_cpuset_that_shrank(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]["shrunk"]
    print(f"repaired after {facts['seconds']} s")
    assert facts["settled"], facts["log"]
    # CPUs 0 and 1 went; what is left of NPU 0's pool is cut anew, and the other pools are as they were.
    expected = A2 | {0: places("4-5", acl="6", release="7")}
    for number, masks in expected.items():
        assert astray(worker(facts, number), masks) == []
    assert npu(facts["status"], 0)["pool"] == "2-7"


def test_they_have_their_pools_again_when_it_is_as_wide_as_before(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]["widened"]
    assert facts["settled"], facts["log"]
    for number, masks in A2.items():
        assert astray(worker(facts, number), masks) == []


def test_kubelets_writes_are_never_taken_for_a_second_binder(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]
    for step in ("shrunk", "widened", "other"):
        reasons = {condition["reason"] for condition in facts[step]["status"]["conditions"]}
        assert "CpuBindingConflict" not in reasons
        assert not [line for line in facts[step]["log"] if "CpuBindingConflict" in line]


def test_writing_another_containers_cpuset_changes_nothing_for_the_workers(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]
    other = facts["other"]
    assert by_tid(other["threads"]) == by_tid(other["before"])
    assert other["status"] == facts["later"]["status"]
    # Its own threads were left to kubelet.
    assert {thread["mask"] for thread in other["bystander"]} == {"0-30"}


def test_undo_gives_every_thread_its_whole_cpuset(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]["disabled"]
    assert facts["status"]["mode"] == "Disabled"
    assert {thread["mask"] for thread in [*facts["threads"], *facts["child"]]} == {"0-31"}


def test_after_undo_threads_follow_their_cpuset(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]
    assert {thread["mask"] for thread in facts["disabled_shrunk"]["threads"]} == {"8-31"}
    assert {thread["mask"] for thread in facts["disabled_widened"]["threads"]} == {"0-31"}
