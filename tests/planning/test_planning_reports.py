"""Public reports of people who bind CPUs for NPUs, as cases; each names its report."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from agent.model.cpuset import EMPTY, union
from agent.model.node import DeviceType, Inventory, Npu
from agent.model.plan import Plan
from agent.model.spec import Spec
from tests.planning import hosts
from tests.planning.hosts import cpus
from tests.planning.reading import planned


def of_workers(plan: Plan) -> dict[int, str]:
    return {each.worker.npus[0]: str(each.allotment.pool) for each in plan.workers}


@pytest.mark.parametrize("running", [[0], [2], [0, 2], [2, 0]])
def test_report_1_two_services_whose_npus_share_an_affinity_do_not_take_the_same_cpus(running: list[int]) -> None:
    # vllm-ascend #8600, #8792
    containers = [hosts.shared(f"pod-{npu}", "144-191") for npu in running]
    workers = [hosts.worker(100 - place, npu, f"pod-{npu}") for place, npu in enumerate(running)]
    final = {0: "144-167", 2: "168-191"}
    assert of_workers(planned(hosts.a2_far_pairs().running(containers, workers))) == {
        npu: final[npu] for npu in running
    }


def test_report_2_what_counts_is_the_containers_cpuset_not_what_narrowed_the_process() -> None:
    # vllm-ascend #11307: OMP_PROC_BIND=TRUE had pinned the process to CPU 0. The mask of a process is no part of a
    # plan's input at all: its container's cpuset is.
    plan = planned(hosts.a2_far_pairs().serving([0], "0-191"))
    assert of_workers(plan) == {0: "144-167"}
    assert not {"mask", "cpus", "affinity"} & set(type(plan.workers[0].worker).__dataclass_fields__)


def test_report_10_sixteen_processes_get_sixteen_pools_over_eight_nodes() -> None:
    # vllm-ascend #6889: all of them had landed on NUMA node 0
    inp = hosts.a3(640).serving()
    plan = planned(inp)
    nodes = [inp.topology.nodes_of(each.allotment.pool) for each in plan.workers]
    assert sorted(nodes) == [[node] for node in range(8) for _ in range(2)]
    assert len(union(each.allotment.pool for each in plan.workers)) == 640


@pytest.mark.parametrize("order", list(permutations([3, 4, 11])))
def test_report_12_ids_are_neither_sorted_nor_contiguous(order: tuple[int, ...]) -> None:
    # HAMi #1894: device list "4,3", descending
    made = hosts.a3(320, 1)
    found = Inventory(tuple(Npu(id=npu, card=npu) for npu in order), DeviceType.A3)
    workers = [hosts.worker(100 + npu, npu, "llm") for npu in order]
    plan = planned(replace(made, inventory=found).running([hosts.shared("llm", "0-319")], workers))
    assert of_workers(plan) == {3: "0-106", 4: "107-213", 11: "214-319"}
    assert [npu.id for npu in plan.npus] == [3, 4, 11]


def test_report_13_half_cores_are_not_handed_out() -> None:
    # sglang #39348: 384 CPUs, siblings c and c+192
    inp = hosts.ascend_950_smt(384).serving()
    for each in planned(inp).workers:
        assert len(each.allotment.pool) == 16
        for core in inp.topology.cores:
            assert core <= each.allotment.pool or core.isdisjoint(each.allotment.pool)


def test_report_22_offline_cpus_are_holes_not_shifts() -> None:
    # kubernetes #124066, #71622, #79823
    made = hosts.without(hosts.a3(320), cpus("0,17,100-139"))
    plan = planned(made.serving(allowed="0-319"))
    assert of_workers(plan)[0] == "1-16,18-19"  # 278 CPUs for 16 NPUs: 18 for the first six
    assert union(each.allotment.pool for each in plan.workers) == cpus("1-16,18-99,140-319")


def test_report_22_a_node_that_is_offline_is_no_next_node() -> None:
    made = hosts.without(hosts.a2_far_pairs(), cpus("168-191"))
    # After node 6 comes node 0 then, which is the home of NPUs 1 and 3 where these may use it.
    assert of_workers(planned(made.serving([0, 2]))) == {0: "144-155", 2: "156-167"}
    rows = ["144-167", None, "144-167"]
    alone = replace(made, inventory=Inventory(hosts.npus(rows), DeviceType.A2))
    assert of_workers(planned(alone.serving([0, 2]))) == {0: "0-23", 2: "144-167"}


def test_report_22_one_sibling_offline_leaves_clusters_whole() -> None:
    made = hosts.without(hosts.ascend_950_smt(384), cpus("192,300"))
    plan = planned(made.serving())
    assert all(each.allotment.problem is None for each in plan.workers)
    assert not any(cpus("192,300") & each.allotment.pool for each in plan.workers)


def test_report_23_the_next_node_is_the_next_id_that_has_cpus() -> None:
    # ucx #11581, nri-plugins #339
    layout = {0: EMPTY, 2: cpus("0-15"), 5: EMPTY, 6: cpus("16-31"), 11: cpus("32-47")}
    made = hosts.machine(layout, ["0-15"], DeviceType.A2)
    assert of_workers(planned(made.serving())) == {0: "0-31"}
    last = hosts.machine(layout, ["32-47"], DeviceType.A2)
    assert of_workers(planned(last.serving())) == {0: "0-15,32-47"}


def test_report_23_a_node_without_memory_serves_like_any_other() -> None:
    made = hosts.machine({0: EMPTY, 1: EMPTY, 2: cpus("0-7"), 3: EMPTY}, ["0-7"], DeviceType.A2)
    nodes = tuple(replace(node, has_memory=node.id != 2) for node in made.topology.nodes)
    bare = replace(made, topology=replace(made.topology, nodes=nodes))
    assert of_workers(planned(bare.serving())) == {0: "0-7"}


def test_report_24_isolated_cpus_are_out_by_default_and_in_when_asked_for() -> None:
    # kubernetes #87862, cri-o #2213
    made = hosts.a3(320)
    made = replace(made, topology=replace(made.topology, isolated=cpus("0-31")))
    inp = made.serving()
    plan = planned(inp)
    assert plan.node_cpus == cpus("32-319")
    assert of_workers(plan)[0] == "32-49"
    asked = planned(replace(inp, spec=Spec(include_isolated_cpus=True)))
    assert asked.node_cpus == cpus("0-319")
    assert of_workers(asked)[0] == "0-19"
