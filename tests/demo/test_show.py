"""The demo runs through with any agent that keeps what it promises, and says so of one that does not."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent.demo import show
from agent.demo.check import FakeMasks, astray, unassigned
from agent.demo.profiles import PROFILES
from agent.demo.show import AgentSetup, run_demo
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.node.cgroups import CgroupTree
from agent.node.devices import read_davinci
from agent.node.npu_smi.command import NpuSmiCommand
from agent.node.npu_smi.inventory import read_inventory, read_processes
from agent.node.procfs import ProcFs
from agent.node.sysfs import read_topology


class LittleAgent:
    """As simple as an agent can be: equal slices of the CPUs it first saw, threads put there in every pass."""

    def __init__(self, setup: AgentSetup) -> None:
        self.setup = setup
        self.proc, self.cgroups = ProcFs(setup.root), CgroupTree(setup.root)
        self.topology = read_topology(setup.root, architecture=setup.architecture)
        self.npu_smi = NpuSmiCommand(str(setup.npu_smi))
        self.inventory = read_inventory(self.npu_smi, read_davinci(setup.root)).inventory
        self.document: dict[str, Any] = {}

    def plan_object(self) -> dict[str, Any]:
        return self.document

    def step(self) -> None:
        topology, base = self.topology, self.topology.online
        processes, _ = read_processes(self.npu_smi, self.inventory)
        ids = self.inventory.ids
        plain = self.inventory.device_type is DeviceType.ASCEND_950
        self.parents = {pid: stat.ppid for pid in self.proc.pids() if (stat := self.proc.stat(pid))}
        npus: list[dict[str, Any]] = []
        for npu, pool in zip(ids, base.cut([len(base) // len(ids)] * len(ids)), strict=True):
            cpus = list(pool)
            roles = {"main": str(pool)}
            if not plain:
                roles = {"irq": str(CpuSet(cpus[:2])), "main": str(CpuSet(cpus[2:-2])), "acl": str(cpus[-2])}
                roles["release"] = str(cpus[-1])
            pids = [row.pid for row in processes.rows if row.npu == npu and row.pid in self.parents]
            for pid in pids:
                self.place(pid, roles)
            workers = [{"pid": pid, "state": "Bound"} for pid in pids]
            state = "Bound" if workers else "Idle"
            npus.append({"id": npu, "pool": str(pool), "roles": roles, "state": state, "workers": workers})
        bound = sum(len(npu["workers"]) for npu in npus)
        self.document = {
            "metadata": {"name": self.setup.node},
            "status": {
                "deviceType": self.inventory.device_type.value,
                "topology": {
                    "cpus": str(topology.online),
                    "numaNodes": [{"id": node.id, "cpus": str(node.cpus)} for node in topology.nodes],
                },
                "summary": {"npus": len(npus), "workers": bound, "bound": bound},
                "npus": npus,
            },
        }

    def place(self, pid: int, roles: dict[str, str]) -> None:
        children = [child for child, parent in self.parents.items() if parent == pid]
        for process in (pid, *children):
            allowed = self.cgroups.process_cpus(process) or CpuSet()
            for tid in self.proc.thread_ids(process):
                comm = (self.proc.comm(process, tid) or b"").decode()
                target = CpuSet.parse(roles.get(comm.partition("_")[0]) or roles["main"]) & allowed
                if self.setup.host.get_affinity(tid) != target:
                    self.setup.host.set_affinity(tid, target)


def shown(make: Callable[[AgentSetup], show.DemoAgent], device: str = "atlas300i", **options: Any) -> tuple[int, str]:
    file = io.StringIO()
    console = Console(file=file, width=80)
    status = run_demo(device, serve=bool(options), console=console, make_agent=make)
    return status, file.getvalue()


@pytest.mark.parametrize("device", sorted(PROFILES))
def test_it_runs_through_and_counts_what_happened(device: str) -> None:
    begin = time.process_time()
    status, text = shown(LittleAgent, device)
    assert status == 0, text
    assert time.process_time() - begin < 10, "a demo is over well before half a minute, pauses included"
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    lines = {
        line.rsplit("  ", 1)[0].strip(): line.rsplit("  ", 1)[1].strip() for line in text.splitlines() if "  " in line
    }
    workers = len(PROFILES[device].inventory.npus) - 2
    assert lines["workers bound"] == f"{workers} of {workers}"
    assert lines["threads where the plan says"] == f"{workers * 30} of {workers * 30}"
    # Nine by taskset, then all 30 of each worker with kubelet's rewrite.
    assert lines["drifted threads repaired"] == str(9 + (workers + 1) * 30)
    assert lines["masks set by one more pass"] == "0"
    assert "Every thread of every worker is where the plan says." in text
    assert text.count("NUMA node 0") == 2


def test_an_unknown_device_is_said_to_be_unknown() -> None:
    with pytest.raises(ValueError, match="'b200': choose one of a3, a2, atlas300i, ascend950"):
        shown(LittleAgent, "b200")


def test_an_agent_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle(LittleAgent):
        def place(self, pid: int, roles: dict[str, str]) -> None: ...

    monkeypatch.setattr(show, "PATIENCE", 0.2)
    status, text = shown(Idle)
    assert status == 1
    assert "The demo failed: waited 0.2 s for the worker of NPU 0 to be bound" in text


def test_threads_astray_at_the_end_are_named() -> None:
    class Forgetful(LittleAgent):
        def step(self) -> None:
            super().step()
            status = self.document["status"]
            if status["npus"][1]["state"] == "Idle" and status["npus"][2]["state"] == "Bound":
                pid = status["npus"][0]["workers"][0]["pid"]
                self.setup.host.set_affinity(pid, CpuSet([50]))

    status, text = shown(Forgetful)
    assert status == 1
    assert "astray: 'VLLM::Worker_TP' 41000" in text
    assert "Not everything is in place." in text


def test_serving_says_where_things_are_and_ends_with_the_keyboard(monkeypatch: pytest.MonkeyPatch) -> None:
    roots: list[Path] = []

    def make(setup: AgentSetup) -> LittleAgent:
        roots.append(setup.root)
        assert [pod.name for pod in setup.pods()] == []
        return LittleAgent(setup)

    def interrupted(seconds: float) -> None:
        if seconds == show.SERVE_SECONDS:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    status, text = shown(make, serve=True)
    assert status == 0
    assert f"\n  host root   {roots[0]}\n" in text
    assert f"\n  state file  {roots[0]}/var/lib/cpubind/plan.yaml\n" in text
    assert f"\n      export CPUBIND_HOST_ROOT={roots[0]}\n" in text
    assert text.endswith("\nStopped; the virtual node is gone.\n")
    assert not roots[0].exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_ends_it_without_a_trace(number: signal.Signals) -> None:
    roots: list[Path] = []

    class Interrupted(LittleAgent):
        def step(self) -> None:
            roots.append(self.setup.root)
            signal.raise_signal(number)

    # A shell has what it runs in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    assert shown(Interrupted)[0] == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert not roots[0].exists()


def test_astray_compares_with_what_the_cpuset_leaves(tmp_path: Path) -> None:
    node = VirtualNode(tmp_path, "atlas300i", interrupts=False)
    pod = node.kubelet.add_pod("llm")
    worker = Worker.start(node, 0, pod, threads=2)
    acl, _ = worker.add_role_threads()
    roles = {"irq": "0-1", "main": "2-21", "acl": "22", "release": "23"}
    plan = {
        "status": {
            "topology": {"cpus": "0-95"},
            "npus": [{"id": 0, "pool": "0-23", "roles": roles, "workers": [{"pid": worker.pid}, {"pid": 9}]}],
        }
    }
    masks = FakeMasks(node.kernel)
    assert len(astray(plan, masks)) == 4
    for task in worker.threads:
        role = task.comm.partition("_")[0]
        node.kernel.set_affinity(task.tid, CpuSet.parse(roles.get(role, roles["main"])))
    assert astray(plan, masks) == []
    node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("10-95"))
    assert astray(plan, masks) == [], "the masks and what the plan leaves were cut alike"
    node.kernel.set_by_other(acl.tid, CpuSet.parse("30"))
    assert [(t.tid, t.role, str(t.mask), str(t.target)) for t in astray(plan, masks)] == [(acl.tid, "acl", "30", "22")]
    assert unassigned(plan) == CpuSet.parse("24-95")
