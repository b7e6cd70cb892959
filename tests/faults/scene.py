"""The node on which faults are tried: an agent with everything to do, and what must never come of a fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent.demo.fake_files import scratch
from agent.demo.fake_irqbalance import FakeIrqbalance
from agent.demo.profiles import PROFILES, Profile, small
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, NumaNode, Topology
from tests.control.pods import by_annotation
from tests.control.rig import Rig
from tests.faults.injector import Injector

OWN = CpuSet.parse("36-47")
"""CPUs of the container that owns its CPUs."""


def small950() -> Profile:
    """An Ascend 950 with 64 CPUs, two threads a core, and an NPU on each of its two NUMA nodes."""
    model = PROFILES["ascend950"]
    every = CpuSet.span(0, 63)
    halves = (CpuSet.parse("0-15,32-47"), CpuSet.parse("16-31,48-63"))
    chosen = tuple(replace(model.inventory.npus[k], affinity=half) for k, half in enumerate(halves))
    topology = Topology(
        online=every,
        root=every,
        nodes=tuple(NumaNode(k, half) for k, half in enumerate(halves)),
        cores=tuple(CpuSet([core, core + 32]) for core in range(32)),
        possible=every,
    )
    return replace(model, name="small950", topology=topology, inventory=Inventory(chosen, DeviceType.ASCEND_950))


@dataclass(frozen=True, slots=True)
class Masks:
    """Where everything on the node may run."""

    threads: Mapping[int, str]
    irqs: Mapping[int, str]
    banned: frozenset[int]
    """What irqbalance leaves alone."""

    def moved(self, later: Masks, *, but_to: Masks | None = None) -> dict[str, tuple[str, str]]:
        """What is elsewhere later, of what is there at both times; leaving out what is where `but_to` has it."""
        found = {}
        for kind, of in (("thread", "threads"), ("interrupt", "irqs")):
            before, after, right = (getattr(masks, of) if masks else {} for masks in (self, later, but_to))
            for number, mask in before.items():
                now = after.get(number, mask)
                if now not in (mask, right.get(number)):
                    found[f"{kind} {number}"] = (mask, now)
        allowed = self.banned | (but_to.banned if but_to else frozenset())
        if not self.banned <= later.banned <= allowed:
            found["irqbalance"] = (str(sorted(self.banned)), str(sorted(later.banned)))
        return found


class Scene:
    """Two workers in shared pods, one of them not listed by npu-smi, one in a pod that owns its CPUs, each with a
    child; interrupts, irqbalance, memory and helpers. On an Ascend 950 a worker for each NPU, and UVB threads."""

    def __init__(self, folder: Path, device: str = "a2") -> None:
        self.device = device
        profile = small(64, 4, 4) if device == "a2" else small950()
        self.rig = Rig(folder, profile, interrupts=device == "a2", chooses=by_annotation)
        self.rig.ask(helpers="Confine")
        self.node = self.rig.node
        self.injector = Injector(self.node.root, folder)
        kubelet = self.node.kubelet
        self.workers = [
            Worker.start(self.node, 0, kubelet.add_pod("llm-0"), threads=3),
            Worker.start(self.node, 1, kubelet.add_pod("llm-1"), threads=3, listed=device != "a2"),
        ]
        if device == "a2":
            self.workers.append(Worker.start(self.node, 2, kubelet.add_pod("own-0", own_cpus=OWN), threads=3))
        for worker in self.workers:
            worker.add_role_threads()
            worker.fork()
        self.balancer = FakeIrqbalance(self.node, banned=(5,))
        self.free = self.masks()

    def settle(self) -> None:
        """Everything is read anew, and all is done that there is to do."""
        self.rig.settle()
        self.rig.sweep()
        self.rig.sweep()

    def passes(self) -> Iterator[None]:
        """Some passes, in which everything is read anew at least once; yields after each."""
        self.rig.sweep()
        yield
        for seconds in (70.0, 700.0):
            self.rig.settle(seconds)
            yield

    def masks(self) -> Masks:
        threads = {tid: str(task.mask) for tid, task in self.node.kernel.tasks.items()}
        folder = self.node.root / "proc/irq"
        irqs = {irq.number: (folder / f"{irq.number}/smp_affinity_list").read_text().strip() for irq in self.node.irqs}
        return Masks(threads, irqs, frozenset(self.balancer.banned))

    def another_worker(self) -> Worker:
        """Somebody starts on an NPU that is idle."""
        npu = 3 if self.device == "a2" else 1
        return Worker.start(self.node, npu, self.node.kubelet.add_pod("llm-2"), threads=3, memory_mib=2000)

    @property
    def status(self) -> dict[str, Any]:
        """What the agent reports, whether or not it could be written."""
        status: dict[str, Any] = self.rig.agent.plan_object().get("status", {})
        return status

    def reasons(self) -> set[str]:
        """All that is not as planned."""
        return set(_reasons(self.status)) - {"AsPlanned", "NoWorkers", "Pending", "NpusChanging", "NotEnforced"}

    def report(self) -> dict[str, Any]:
        """What is reported, without times and counters."""
        return {key: value for key, value in self.status.items() if key != "conditions"} | {
            "conditions": {c["type"]: (c["status"], c["reason"]) for c in self.status.get("conditions", [])}
        }

    def close(self) -> None:
        self.rig.agent.watch.close()
        self.balancer.stop()


@contextmanager
def scene(folder: Path, device: str = "a2") -> Iterator[Scene]:
    """A scene through whose injector the agent looks at it."""
    with ExitStack() as stack:
        made = Scene(folder, device)
        stack.callback(made.close)
        stack.enter_context(made.injector.installed())
        yield made


@cache
def bound(device: str) -> Masks:
    """Where everything is on the same node once all are bound and nothing ever went wrong. Pids are the same there."""
    memory = scratch()
    with TemporaryDirectory(dir=memory) as folder, scene(Path(folder), device) as undisturbed:
        undisturbed.settle()
        undisturbed.another_worker()
        undisturbed.settle()
        assert undisturbed.reasons() == set()
        return undisturbed.masks()


def _reasons(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _reasons(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _reasons(each, key)
    elif key == "reason" or key.endswith("Reason"):
        yield str(value)
