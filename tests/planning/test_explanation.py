"""What `explain` says of a plan is what the plan says, with the numbers of each step."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, NumaNode
from agent.model.plan import Base, Plan, PlanInput
from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from agent.model.spec import Helpers, Mode, Rebalance, Spec, Steps, Strategy
from agent.model.workload import Container
from agent.planning.explanation import explain_npu, explain_worker
from agent.planning.plan import make_plan
from tests.planning import hosts
from tests.planning.hosts import cpus, host_sized


def of_npu(inp: PlanInput, npu_id: int) -> str:
    plan = make_plan(inp)
    npu = plan.npu(npu_id)
    assert npu is not None
    return "\n".join(explain_npu(inp, plan, npu))


def of_worker(inp: PlanInput, steps: Steps | None = None, at: int = 0) -> str:
    plan = make_plan(inp)
    return "\n".join(explain_worker(inp, plan, plan.workers[at], steps))


def told(inp: PlanInput, plan: Plan) -> list[list[str]]:
    return [explain_npu(inp, plan, npu) for npu in plan.npus] + [explain_worker(inp, plan, w) for w in plan.workers]


@host_sized
@given(hosts.busy())
def test_whatever_a_host_looks_like_every_npu_and_worker_is_explained_in_sentences(inp: PlanInput) -> None:
    plan = make_plan(inp)
    for lines in told(inp, plan):
        assert len(set(lines)) == len(lines)
        for line in lines:
            assert line.isprintable()
            assert line.endswith((".", ")"))
            assert "None" not in line
    for npu in plan.npus:
        if npu.allotment.roles:
            assert f"pool {npu.allotment.pool} = main {npu.allotment.roles.main}" in explain_npu(inp, plan, npu)[0]


@host_sized
@given(hosts.weird())
def test_of_a_host_that_is_none_nothing_is_raised(inp: PlanInput) -> None:
    told(inp, make_plan(inp))


@host_sized
@given(hosts.plain())
def test_where_there_is_one_domain_the_share_that_is_told_is_the_pool(inp: PlanInput) -> None:
    plan = make_plan(inp)
    for npu in plan.npus:
        lines = explain_npu(inp, plan, npu)
        shares = [match[1] for line in lines if (match := re.match(r"Its share is ([\d,-]+)\.", line))]
        assert shares in ([], [str(npu.allotment.pool)])
        if npu.allotment.roles is not None:
            assert bool(shares) == ("clusters of" not in "".join(lines))


def test_a_slice_is_told_with_its_division() -> None:
    text = of_npu(hosts.a3(320).running(spec=Spec(reserved_cpus=cpus("0-3"))), 3)
    assert "The node plans with CPUs 4-319 (online 0-319, less reserved 0-3)." in text
    assert "shared domain default with NPUs 0-15, running or not" in text
    assert "device type is A3, as npu-smi shows. Strategy GlobalSlice, which A3 has." in text
    assert "316 CPUs over 16 NPUs: 19 each, the first 12 one more" in text
    assert "it is number 3, counted from 0" in text
    assert "Its share is 64-83." in text
    assert "first two take interrupts (SQ on 64, CQ on 65), the last two the ACL thread (82)" in text
    assert "the release thread (83); the 16 between are main" in text
    assert "No process that is to be bound runs on it" in text


def test_a_pool_on_two_numa_nodes_names_the_strategy_that_would_avoid_it() -> None:
    inp = hosts.a3(320).running(spec=Spec(reserved_cpus=cpus("0-3")))
    assert "lies on NUMA nodes 1, 2; with spec.strategy NumaSlice it would be cut from one" in of_npu(inp, 3)
    better = replace(inp, spec=replace(inp.spec, strategy=Strategy.NUMA_SLICE))
    text = of_npu(better, 3)
    assert "Strategy NumaSlice, since spec.strategy asks for it" in text
    assert "Its 40 allowed CPUs 40-79 are divided evenly over NPUs 2-3." in text
    assert "lies on NUMA nodes" not in text


def test_npus_that_share_a_home_are_told_with_their_next_node_and_their_group() -> None:
    text = of_npu(hosts.a2_far_pairs().serving([2], "144-191"), 2)
    assert "npu-smi says that CPUs 144-167 are near it; of these 144-167 can be cut from." in text
    assert "They lie on NUMA node 6; the next node adds 168-191." in text
    assert "NPUs 0,2 reach for the same 48 CPUs: 24 each, what is left over to the last; it is number 1" in text
    assert "NPUs 1,3-7 claim nothing" in text
    assert "Its share is 168-191." in text


def test_extensions_that_meet_somebody_s_home_are_told() -> None:
    rows = ["0-23", "24-47", "48-71", "72-95"]
    text = of_npu(hosts.machine(hosts.even_nodes(4, 24), rows, DeviceType.A2).serving(), 0)
    assert "NPUs 1,3 reach for some of these, too: CPUs near an NPU go before those of a next node" in text
    assert "Its share is 0-23." in text


def test_an_npu_without_a_plan_says_why_and_what_would_change_it() -> None:
    text = of_npu(hosts.a2_far_pairs().serving([1], "144-191"), 1)
    assert "NPU 1: no CPUs. AffinityOutsideCpuset" in text
    assert "of these none can be cut from" in text
    assert f"What would change it: {REMEDIES[Reason.AFFINITY_OUTSIDE_CPUSET]}." in text


def test_clusters_are_told_with_the_cores_that_were_left_out() -> None:
    inp = hosts.ascend_950_smt().running(spec=Spec(reserved_cpus=cpus("0")))
    text = of_npu(inp, 1)
    assert "NUMA node 0, which has 95 whole cores that can be cut from: 11 clusters of 8." in text
    assert "NPUs 0-3 take them in order of ids, running or not; it is number 1" in text
    assert "CPUs 192 are left out: another thread of their core may not be used." in text
    assert "All 16 CPUs are main: on Ascend950 no CPU is set apart for a role." in text


def test_a_container_with_cpus_of_its_own_is_told_by_its_evidence() -> None:
    inp = hosts.a3().running(
        [hosts.exclusive("own", "2-17", [3]), hosts.shared("llm", "0-1,18-639")],
        [hosts.worker(1, 3, "own"), hosts.worker(2, 4, "llm")],
    )
    text = of_worker(inp)
    assert "These CPUs are its container's own: 2-17, by cpu_manager_state." in text
    assert "Allocated to it: NPU 3." in text
    assert "for its NPU 3 alone" in text
    assert "the container's only NPU, so that it gets all of its CPUs" in text
    assert "change when kubelet gives the container others, and with nothing else" in text
    other = of_worker(inp, at=1)
    assert "Left out are NPU 3: of another domain" in other
    assert "CPUs 2-17 belong to containers of their own and are left out." in other


@pytest.mark.parametrize(
    ("rebalance", "said"),
    [(Rebalance.NEVER, "OnGrow would cut anew then"), (Rebalance.ON_GROW, "it is cut anew when CPUs come back")],
)
def test_a_domain_that_lost_cpus_says_what_waits_and_when_it_is_cut_anew(rebalance: Rebalance, said: str) -> None:
    inp = hosts.a3().serving([0], "8-639")
    base = Base("default", cpus("0-639"), tuple(range(16)))
    text = of_npu(replace(inp, bases=(base,), spec=Spec(rebalance=rebalance)), 0)
    assert "The domain was cut from CPUs 0-639; of these 8-639 can be used now." in text
    assert "Its share is 0-39." in text
    assert "Of its share 0-7 may not be used now" in text
    assert said in text


def test_steps_that_are_skipped_are_told_with_who_switched_them_off() -> None:
    inp = hosts.a3().serving([0])
    plain = of_worker(inp)
    assert "Interrupts of its NPU go to CPUs 0-1." in plain
    assert "Its private memory is moved to NUMA node 0 once" in plain
    assert "left alone (helpers: Leave)" in plain
    by_pod = of_worker(inp, Steps(irq_binding=False, memory_migration=False, helpers=Helpers.CONFINE))
    assert "Interrupts are skipped: the pod's annotation cpubind.dev/irq-binding says false." in by_pod
    assert "Memory is skipped: the pod's annotation cpubind.dev/memory-migration says false." in by_pod
    assert "kept off the CPUs that are set apart (helpers: Confine)" in by_pod
    by_spec = of_worker(replace(inp, spec=Spec(irq_binding=False, memory_migration=False, mode=Mode.DISABLED)))
    assert "Interrupts are skipped: spec.irqBinding is false." in by_spec
    assert "Memory is skipped: spec.memoryMigration is false." in by_spec
    assert "None of this is done: the mode is Disabled." in by_spec
    assert "Interrupts are skipped: those of Ascend950 stay" in of_worker(hosts.ascend_950_smt().serving([0]))


def docker(key: str, allowed: str) -> Container:
    return Container(key=key, cpus=cpus(allowed))


def test_a_worker_of_another_domain_than_its_npu_s_first_is_told_how_that_was_cut() -> None:
    inp = hosts.a3().running(
        [docker("a", "0-319"), docker("b", "160-639")], [hosts.worker(1, 3, "a"), hosts.worker(2, 3, "b")]
    )
    first, second = of_worker(inp), of_worker(inp, at=1)
    by_pid = {text.split()[1]: text for text in (first, second)}
    assert "320 CPUs over 16 NPUs: 20 each" in by_pid["1"]
    assert "480 CPUs over 16 NPUs: 30 each" in by_pid["2"]
    assert "its share of another shared domain" in by_pid["1"]


def test_memory_that_has_nowhere_to_go_is_told() -> None:
    inp = hosts.a3().serving([0])
    nodes = tuple(NumaNode(node.id, node.cpus, has_memory=node.id == 7) for node in inp.topology.nodes)
    text = of_worker(replace(inp, topology=replace(inp.topology, nodes=nodes)))
    assert "Memory is skipped: all memory is on one NUMA node (OneNumaNode)." in text


def test_a_process_on_several_npus_says_what_would_be_better() -> None:
    inp = hosts.a3().running([hosts.shared("llm", CpuSet.span(0, 639))], [hosts.worker(1, [0, 1], "llm")])
    text = of_worker(inp)
    assert "works on NPUs 0-1" in text
    assert "Interrupts of each of its NPUs" in text
    assert "Memory is skipped: the process uses 2 NPUs (MultipleNpus)." in text
    assert f"What would change it: {REMEDIES[Reason.MULTIPLE_NPUS]}." in text
