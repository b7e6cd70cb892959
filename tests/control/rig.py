"""An agent on a virtual node, whose clock the test moves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from agent.control.act import Actor
from agent.control.happenings import Happening
from agent.control.loop import Agent, Parts
from agent.control.observe import Chooser, Observer, everything
from agent.control.statefile import StateFile
from agent.control.steps import HostSteps
from agent.control.store import PlanStore
from agent.control.timings import Timings
from agent.demo.profiles import Profile
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.spec import Spec
from agent.model.workload import KubeletState, Pod
from agent.node.irqbalance import Irqbalance
from agent.node.kubelet import read_cpu_manager_state
from agent.node.npu_smi.watch import PATIENCE
from agent.node.procfs import boot_id


class Rig:
    """One host with one agent; `restart` ends the agent and starts another on the same files."""

    def __init__(self, folder: Path, profile: str | Profile = "a3", *, interrupts: bool = False, **parts: Any) -> None:
        """Without `interrupts`, which take their time, the NPUs have none and the agent is not to bind any."""
        self.folder = folder
        self.interrupts = interrupts
        self.node = VirtualNode(folder / "root", profile, interrupts=interrupts)
        self.now = 1000.0
        self.uptime = 0.0
        """Seconds since boot, by which start times of processes count."""
        self.parts = parts
        self.told: list[Happening] = []
        self._pods: tuple[Pod, ...] = ()
        self.agent = self.restart()

    def restart(self, **parts: Any) -> Agent:
        """A new agent on this host, as after an upgrade."""
        self.parts |= parts
        chooses: Chooser = self.parts.get("chooses", everything)
        state: PlanStore = self.parts.get("state") or StateFile(self.state_file)
        observer = Observer(
            self.node.root,
            architecture=self.parts.get("architecture", "aarch64"),
            chooses=chooses,
            pods=self.pods,
            kubelet=lambda: KubeletState(*read_cpu_manager_state(self.node.root)),
        )
        self.agent = Agent(
            Parts(
                node=self.node.name,
                observer=observer,
                npu_smi=self.node.npu_smi,
                actor=Actor(
                    self.node.root / "proc",
                    self.node.kernel,
                    clock=lambda: self.now,
                    timings=Timings(lambda: self.uptime),
                ),
                steps=HostSteps(
                    self.node.root,
                    self.node.kernel,
                    observer.cgroups,
                    npu_smi=self.node.npu_smi,
                    balancer=self.balancer,
                    clock=lambda: self.now,
                ),
                defaults=replace(self.parts.get("spec", Spec()), irq_binding=self.interrupts),
                state=state,
                news=self.parts.get("news"),
                tell=self.told.extend,
                journal=self.journal_file,
                boot_id=boot_id(self.node.root),
                clock=lambda: self.now,
                wall_clock=lambda: 1_800_000_000 + self.now,
                force_dry_run=self.parts.get("force_dry_run", False),
            )
        )
        return self.agent

    def pods(self) -> tuple[Pod, ...]:
        """The pods as a watch has them: the same object while nothing changed."""
        pods = tuple(pod.model() for pod in self.node.kubelet.pods)
        if pods != self._pods:
            self._pods = pods
        return self._pods

    @property
    def balancer(self) -> Irqbalance:
        """Finds an `agent.demo.fake_irqbalance`."""
        return Irqbalance(self.node.root, stand_in=os.getpid())

    @property
    def state_file(self) -> Path:
        return self.folder / "plan.yaml"

    @property
    def journal_file(self) -> Path:
        return self.folder / "journal.json"

    def settle(self, seconds: float = 70.0) -> None:
        """Lets time pass, npu-smi answer, and the agent take that in."""
        if self.agent.passes and not (self.node.root / "var/lib/fake-npu-smi/hang").exists():
            self._hear_npu_smi()  # else one that was asked just now would seem to hang
        self.now += seconds
        self.agent.step()
        self._hear_npu_smi()
        self.agent.step()
        self._take_in_memory()

    def sweep(self, seconds: float = 5.0) -> None:
        """One pass, without npu-smi having anything new to say."""
        if seconds >= PATIENCE:
            self._hear_npu_smi()  # else it would seem to hang
        self.now += seconds
        self.agent.step()
        self._take_in_memory()

    def _hear_npu_smi(self) -> None:
        """Until it has answered, if it is being asked."""
        for _ in range(1000):
            if self.agent.watch.poll(self.now, awaiting=False).due is not None:
                break
            time.sleep(0.005)

    def _take_in_memory(self) -> None:
        """Another pass, where memory was moved by the last one."""
        memory = self.agent.parts.steps.memory
        wait_until(lambda: memory.idle)
        if memory.outcomes != self.agent.last_steps.memory:
            self.agent.step()

    @property
    def status(self) -> dict[str, Any]:
        """`status` as the state file has it."""
        status: dict[str, Any] = yaml.safe_load(self.state_file.read_text())["status"]
        return status

    def npu(self, npu: int) -> dict[str, Any]:
        entry: dict[str, Any] = next(entry for entry in self.status["npus"] if entry["id"] == npu)
        return entry

    def pools(self) -> dict[int, str]:
        return {entry["id"]: entry.get("pool", "") for entry in self.status["npus"]}

    def condition(self, kind: str) -> dict[str, Any]:
        entry: dict[str, Any] = next(entry for entry in self.status["conditions"] if entry["type"] == kind)
        return entry

    def ask(self, **spec: Any) -> None:
        """People edit `spec`; the next pass sees it."""
        self.state_file.write_text(yaml.safe_dump({"spec": spec}))

    def events(self) -> list[tuple[str, str]]:
        """Reason and pod of what was told since this was asked last."""
        told = [(happening.reason.value, happening.pod) for happening in self.told]
        self.told.clear()
        return told

    def writes(self) -> int:
        """sched_setaffinity calls of the agent so far."""
        return self.node.kernel.calls["sched_setaffinity"]


def wait_until(done: Callable[[], bool]) -> None:
    """For what another thread does."""
    for _ in range(2000):
        if done():
            return
        time.sleep(0.005)
    raise AssertionError("nothing happened for ten seconds")


def masks(worker: Worker) -> dict[str, set[str]]:
    """Where the threads of each role may run, as the kernel has it; `main` for all others."""
    found: dict[str, set[str]] = {}
    for task in worker.threads:
        name = task.comm if task.comm in ("acl_thread", "release_thread") else "main"
        found.setdefault(name, set()).add(str(task.mask))
    return found


def narrow(worker: Worker, cpus: str) -> None:
    """Every thread of a worker is put on these CPUs by somebody else."""
    for task in worker.threads:
        worker.node.kernel.set_by_other(task.tid, CpuSet.parse(cpus))
