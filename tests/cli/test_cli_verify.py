"""verify: 0 and a sentence where all is in place; 1, the list and what to do where something is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.control.vectors import CQ, SQ
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from tests.cli.conftest import Cpubind


@pytest.fixture(autouse=True)
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "aarch64")


@pytest.fixture
def node(tmp_path: Path) -> VirtualNode:
    return VirtualNode(tmp_path / "root", "a2")


@pytest.fixture
def worker(node: VirtualNode) -> Worker:
    """On NPU 0, with all its threads and interrupts in place: pool 144-167."""
    started = Worker.start(node, 0, node.kubelet.add_pod("llm-0"))
    started.add_role_threads()
    for task in started.threads:
        role = {"acl_thread": "166", "release_thread": "167"}.get(task.comm, "146-165")
        node.kernel.set_affinity(task.tid, CpuSet.parse(role))
    for action, cpu in ((SQ, "144"), (CQ, "145")):
        for irq in node.irqs_of(0, action):
            node.set_irq(irq, CpuSet.parse(cpu))
    return started


def host(node: VirtualNode) -> list[object]:
    node.kernel.sync()
    return ["--host-root", node.root, "--npu-smi", node.npu_smi.path, "--node-name", node.name]


def reports(node: VirtualNode, **irq: Any) -> None:
    """The agent has written this of NPU 0."""
    state = node.root / "var/lib/cpubind/plan.yaml"
    state.parent.mkdir(parents=True, exist_ok=True)
    status: dict[str, Any] = {"npus": [{"id": 0, "state": "Bound", **irq}]}
    state.write_text(yaml.safe_dump({"kind": "CpuBindingPlan", "status": status}))


@pytest.mark.usefixtures("worker")
def test_where_all_is_in_place_it_says_so(cpubind: Cpubind, node: VirtualNode) -> None:
    result = cpubind("verify", *host(node))
    assert (result.status, result.out, result.err) == (0, "every thread of 1 workers is in place\n", "")


def test_threads_and_interrupts_that_moved_are_listed_with_where_they_belong(
    cpubind: Cpubind, node: VirtualNode, worker: Worker, tmp_path: Path
) -> None:
    (tid,) = worker.drift(CpuSet.parse("0-3"), 1)
    first = node.irqs_of(0, CQ)[0]
    node.set_irq(first, CpuSet.parse("7"))
    result = cpubind("verify", *host(node))
    assert result.status == 1
    assert result.out.splitlines() == [
        f"process {worker.pid} thread {tid} (VLLM::Worker_TP, main): on 0-3, planned 146-165",
        f"interrupt {first} ({CQ} of NPU 0): on 7, planned 145",
    ]
    said, advice = result.err.splitlines()
    assert said == ("cpubind: Drift: 1 threads not in place, 0 of 1 workers not planned, 1 interrupts not in place")
    assert "does one run (cpubind doctor says so), is its mode Enforce?" in advice
    cpubind("capture", "-o", tmp_path / "b", *host(node))
    replayed = cpubind("verify", "--snapshot", tmp_path / "b")
    assert (replayed.status, replayed.out) == (1, result.out)
    assert "the masks are those of the time of the capture" in replayed.err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"mode": "Disabled"}, "nobody puts them back: the agent last reported mode Disabled"),
        ({"mode": "Enforce", "planHash": "0123456789ab"}, "the agent last reported another plan (0123456789ab, here"),
        ({"npus": [{"id": 0, "state": "Idle"}]}, "the agent last reported no process PID: does it run"),
        ({"npus": [{"id": 0, "workers": [], "workersOmitted": 1}]}, "an agent puts them back within a sweep"),
        ({"npus": [{"id": 0, "workers": [{"pid": [1]}, {"pid": "PID"}]}]}, "an agent puts them back within a sweep"),
        ({"mode": ["?"], "planHash": 7, "npus": "?"}, "an agent puts them back within a sweep"),
    ],
)
def test_an_agent_that_was_told_something_else_is_not_said_to_put_threads_back(
    cpubind: Cpubind, node: VirtualNode, worker: Worker, written: dict[str, Any], said: str
) -> None:
    """Its --select and its flags are in no file."""
    worker.drift(CpuSet.parse("0-3"), 1)
    state = node.root / "var/lib/cpubind/plan.yaml"
    state.parent.mkdir(parents=True)
    state.write_text(yaml.safe_dump({"status": written}).replace("PID", str(worker.pid)))
    result = cpubind("verify", *host(node))
    assert result.status == 1
    assert result.err.splitlines()[-1].startswith(f"cpubind: {said.replace('PID', str(worker.pid))}")
    what_if = cpubind("verify", "--reserved-cpus", "144-147", *host(node)).err
    assert ("planned here is what the flags of this command ask for" in what_if) is (
        written.get("planHash") not in (None, 7)
    )


def test_interrupts_that_somebody_else_keeps_moving_are_listed(
    cpubind: Cpubind, node: VirtualNode, worker: Worker
) -> None:
    (first, *_) = node.irqs_of(0, SQ)
    node.set_irq(first, CpuSet.parse("7"))
    reports(node, irq="Partial", irqReason="CpuBindingConflict", irqMessage="somebody else keeps moving its interrupts")
    result = cpubind("verify", *host(node))
    assert result.status == 1
    assert f"interrupt {first} ({SQ} of NPU 0): on 7, planned 144" in result.out


def test_a_node_that_cannot_be_read_now_is_told_by_what_the_agent_last_reported(
    cpubind: Cpubind, node: VirtualNode, worker: Worker
) -> None:
    reports(node, state="Bound", workers=[{"pid": worker.pid, "namespace": "prod", "pod": "llm-0", "state": "Bound"}])
    assert f"Process {worker.pid}" in cpubind("explain", "prod/llm-0", *host(node)).out, "who knows pods is the agent"
    node.npu_smi.fail()
    for subject in ("llm-0", "prod/llm-0", worker.pid, "npu:0"):
        told = cpubind("explain", subject, *host(node))
        assert told.status == 1
        assert f"The agent last reported process {worker.pid} as Bound." in told.out
        assert told.err.startswith(
            "cpubind: DriverNotReady: npu-smi info: dcmi module initialize failed. ret is -8005;"
        )


def test_interrupts_that_the_agent_cannot_place_are_told_and_are_no_drift(
    cpubind: Cpubind, node: VirtualNode, worker: Worker
) -> None:
    node.set_irq(node.irqs_of(0, SQ)[0], CpuSet.parse("7"))
    reports(node, irq="Skipped", irqReason="IrqReadOnly", irqMessage="/proc/irq is mounted read-only")
    result = cpubind("verify", *host(node))
    assert result.status == 0
    assert "interrupts of NPU 0 are not compared: the agent reports Skipped (IrqReadOnly: /proc/irq" in result.err
    reports(node, irq="Bound")
    assert cpubind("verify", *host(node)).status == 1
    told = cpubind("explain", worker.pid, *host(node)).out
    assert "The agent last reported NPU 0 as Bound." not in told, "it knows nothing of this process"
    assert "The agent last reported the interrupts of NPU 0 as Bound." in cpubind("explain", "npu:0", *host(node)).out


def test_interrupts_that_spec_leaves_alone_are_not_compared(
    cpubind: Cpubind, node: VirtualNode, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.set_irq(node.irqs_of(0, SQ)[0], CpuSet.parse("7"))
    assert cpubind("verify", *host(node)).status == 1
    monkeypatch.setenv("CPUBIND_IRQ_BINDING", "false")
    assert cpubind("verify", *host(node)).status == 0
    assert worker.alive


def test_a_worker_without_a_plan_is_named_with_what_to_do(cpubind: Cpubind, node: VirtualNode, worker: Worker) -> None:
    assert worker.pod is not None
    node.kernel.write_cpuset(worker.pod.container().cgroup, CpuSet.parse("0-3"))
    result = cpubind("verify", *host(node))
    assert result.status == 1
    assert f"process {worker.pid} (VLLM::Worker_TP): not planned: AffinityOutsideCpuset" in result.out
    assert result.err.splitlines()[-1] == "cpubind: what would change it: cpubind explain PID"
    explained = cpubind("explain", worker.pid, *host(node)).out
    npu = cpubind("plan", "-o", "json", *host(node)).npu(0)
    remedy = next(line for line in explained.splitlines() if line.startswith("What would change it: "))
    assert npu["message"].endswith("; " + remedy.removeprefix("What would change it: ").rstrip("."))
    told = cpubind("explain", "npu:0", *host(node)).out
    assert f"In short, as status.npus[].message has it: {npu['reason']}: {npu['message']}." in told


def test_an_idle_npu_says_who_uses_it_all_the_same(cpubind: Cpubind, node: VirtualNode) -> None:
    node.hold(node.kernel.start_process("python").tid, [(1, 100)], "python")
    told = cpubind("explain", "npu:1", "--select", "uid=4711", *host(node)).out
    assert "NotOptedIn: in use by process" in told
    assert "not to be bound: it is in no pod that is known; without Kubernetes it is --select that leaves it" in told
    assert "annotate its pod" not in told
