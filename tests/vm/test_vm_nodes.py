"""Nodes of each kind with real workers: every thread is where the plan puts it, as `taskset -p` reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.vm.conftest import Told
from tests.vm.masks import astray, by_tid, npu, places, worker

A2 = {
    0: places("2-5", acl="6", release="7"),
    1: places("10-13", acl="14", release="15"),
    2: places("18-29", acl="30", release="31"),
}
"""NPUs 0 and 1, at home on 0-7, share that and the next node; NPU 2, at home on 16-23, has both nodes from there."""

A3 = {
    0: places("2-3", acl="4", release="5"),
    1: places("8-9", acl="10", release="11"),
    3: places("19", acl="20", release="21"),
    5: places("29", acl="30", release="31"),
}
"""32 CPUs over six NPUs: two of six CPUs, then four of five."""


def _in_place(facts: Mapping[str, Any], expected: Mapping[int, Mapping[str, str]]) -> None:
    assert facts["settled"], facts["log"]
    assert len(facts["workers"]) == len(expected)
    for number, masks in expected.items():
        assert astray(worker(facts, number), masks) == []
        assert npu(facts["status"], number)["state"] == "Bound"


def test_an_a2_node_has_every_thread_of_its_workers_in_place(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]["bound"]
    assert {len(worker(facts, number)) for number in A2} == {9}
    _in_place(facts, A2)


def test_an_acl_thread_that_comes_later_and_a_child_of_the_first_one_find_their_places(told: Told) -> None:
    facts = told("n4c32")["nodes.a2"]["later"]
    _in_place(facts, A2)
    assert by_tid(facts["threads"])[facts["late"][0]] == A2[0]["acl_thread"]
    # It began with the mask of the thread that forked it, and has its name, too.
    assert [thread["mask"] for thread in facts["child"]] == [A2[0][""]]


def test_an_a3_node_is_cut_evenly_and_idle_dies_keep_their_share(told: Told) -> None:
    facts = told("n4c32")["nodes.a3"]["bound"]
    _in_place(facts, A3)
    assert npu(facts["status"], 2)["pool"] == "12-16"
    assert npu(facts["status"], 2)["state"] == "Idle"


def test_a_node_with_memory_only_numa_nodes_plans_over_those_that_have_cpus(told: Told) -> None:
    facts = told("n4mem2")["memory.memory_only"]["bound"]
    # After node 1 comes node 0: nodes 2 and 3 have no CPUs.
    _in_place(facts, {0: places("2-13", acl="14", release="15")})
    assert npu(facts["status"], 0)["numaNodes"] == [0, 1]


def test_ascend_950_gets_clusters_of_eight_cores(told: Told) -> None:
    facts = told("n4c32")["ascend950.one_thread"]["bound"]
    assert facts["status"]["deviceType"] == "Ascend950"
    _in_place(facts, {0: {"": "8-15"}, 1: {"": "16-23"}})


def test_with_two_threads_a_core_a_cluster_of_ascend_950_has_sixteen_cpus(told: Told) -> None:
    facts = told("n2c32smt")["ascend950.two_threads"]["bound"]
    _in_place(facts, {0: {"": "0-15"}, 1: {"": "16-31"}})


@pytest.mark.parametrize("topology", ["n4c32", "n2c32smt", "n4mem2"])
def test_it_is_an_arm64_kernel_that_all_of_this_ran_on(told: Told, topology: str) -> None:
    name = {"n4c32": "nodes.a2", "n2c32smt": "ascend950.two_threads", "n4mem2": "memory.memory_only"}[topology]
    assert told(topology)[name]["bound"]["status"]["architecture"] == "aarch64"
