"""An agent that does all of its steps, killed after any of the things that it does to the host or to its journal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.observe import Observer
from agent.control.restore import restore_all
from agent.control.steps import HostSteps
from agent.demo.fake_irqbalance import FakeIrqbalance
from agent.demo.fake_kernel import FakeTask
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.workload import ProcessId
from tests.control.rig import Rig, wait_until
from tests.control.steps import all_irqs, irqs, journal, uvb_thread
from tests.control.test_control_kill import Killed, Life, alive

STEP = 23
"""Every so many moments are tried; each test begins with another of them."""


@contextmanager
def all_alive(rig: Rig, monkeypatch: pytest.MonkeyPatch, lasts: int | None) -> Iterator[Life]:
    """As `alive`, with interrupts and irqbalance. Memory moves in a thread of its own, which ends with the agent."""
    with alive(rig, monkeypatch, lasts) as life, monkeypatch.context() as patch:
        kernel = rig.node.kernel
        place, ban = kernel.set_irq_affinity, kernel.ban_irqs

        def counted_place(irq: int, cpus: CpuSet) -> None:
            life.effect()
            place(irq, cpus)

        def counted_ban(balancer: ProcessId, keep: Collection[int], irqs: Sequence[int]) -> frozenset[int]:
            life.effect()
            held = ban(balancer, keep, irqs)
            life.effect()
            return held

        patch.setattr(kernel, "set_irq_affinity", counted_place)
        patch.setattr(kernel, "ban_irqs", counted_ban)
        yield life


@dataclass
class Scene:
    """A bound container with helpers that chose CPUs of their own, and more of them to come."""

    rig: Rig
    workers: list[Worker]
    helpers: list[FakeTask]
    daemon: FakeIrqbalance | None = None
    before: dict[int, CpuSet] = field(default_factory=dict)
    irqs: dict[int, str] = field(default_factory=dict)

    @classmethod
    def made(cls, folder: Path, profile: str, own: Sequence[str], daemon: bool) -> Scene:
        rig = Rig(folder, profile, interrupts=True)
        rig.ask(helpers="Confine")
        pod = rig.node.kubelet.add_pod("llm-0")
        workers = [Worker.start(rig.node, npu, pod, threads=2, heap=1 << 16) for npu in (0, 1)]
        for worker in workers:
            worker.add_role_threads()
        helpers = []
        for cpus in own:
            helper = rig.node.kernel.start_process("helper", cgroup=pod.container().cgroup)
            threads = [helper, rig.node.kernel.start_thread(helper.tid, "helper")]
            if cpus:
                rig.node.kernel.set_by_other(threads[1].tid, CpuSet.parse(cpus))
            helpers += threads
        scene = cls(rig, workers, helpers, FakeIrqbalance(rig.node, banned=(7,)) if daemon else None)
        scene.before = {task.tid: task.mask for task in scene.tasks()}
        scene.irqs = all_irqs(rig)
        return scene

    def play(self) -> None:
        self.rig.settle()
        worker = Worker.start(self.rig.node, 2, self.workers[0].pod, threads=2, heap=1 << 16)
        self.workers.append(worker)
        self.rig.settle()
        self.rig.ask(helpers="Leave")
        self.rig.sweep()
        self.ask()
        self.rig.sweep(400)
        self.rig.sweep(11)

    def ask(self) -> None:
        """What spec says in the end: other CPUs are set apart than at first."""
        self.rig.ask(helpers="Confine", reservedCpus="0-3")

    def tasks(self) -> list[FakeTask]:
        return [task for task in self.rig.node.kernel.tasks.values() if task.tid != 1]

    def restart(self) -> None:
        self.ask()
        self.rig.restart()
        self.rig.settle()
        self.rig.sweep(400)
        self.rig.sweep(11)

    def restore(self) -> None:
        """``cpubind restore``."""
        root, kernel = self.rig.node.root, self.rig.node.kernel
        observer = Observer(root)
        balancer = self.rig.balancer
        actor = Actor(root / "proc", kernel)
        steps = HostSteps(root, kernel, observer.cgroups, balancer=balancer)
        restored = restore_all(actor, steps, observer, journal(self.rig))
        assert (restored.journal.taken, restored.act.stuck, restored.steps.stuck) == ("", {}, ())
        journal_file.save(self.rig.journal_file, restored.journal)

    def unlike_before(self) -> list[str]:
        """What is not as it was before the first agent."""
        whole = self.rig.node.kernel.online
        found = [
            f"{task.comm} {task.tid}: {task.mask}"
            for task in self.tasks()
            if task.mask != self.before.get(task.tid, whole)
        ]
        found += [f"irq {irq}: {cpus}" for irq, cpus in all_irqs(self.rig).items() if cpus != self.irqs[irq]]
        if self.daemon is not None and self.daemon.banned != [7]:
            found.append(f"banned: {self.daemon.banned}")
        return found

    def unlike_planned(self) -> list[str]:
        """What is not as the published plan says."""
        rig, found = self.rig, []
        status = rig.status
        apart: set[int] = set()
        for entry in status["npus"]:
            roles = entry["roles"]
            apart |= {cpu for role in ("irq", "acl", "release") for cpu in CpuSet.parse(roles.get(role, ""))}
            if not entry.get("workers"):
                continue
            if "irq" in roles and ",".join(irqs(rig, entry["id"])) != str(roles["irq"]).replace("-", ","):
                found.append(f"interrupts of NPU {entry['id']}: {irqs(rig, entry['id'])}")
            (worker,) = (worker for worker in self.workers if worker.npu == entry["id"])
            if str(worker.threads[0].mask) != roles["main"]:
                found.append(f"worker {worker.pid}: {worker.threads[0].mask}")
        for helper in self.helpers:
            own = self.before[helper.tid]
            if helper.mask != own - CpuSet(apart):
                found.append(f"helper {helper.tid}: {helper.mask}, had {own}, off {CpuSet(apart)}")
        if "uvb" in status and str(uvb_thread(rig).mask) != status["uvb"]["cpus"]:
            found.append(f"UVB thread: {uvb_thread(rig).mask}")
        if self.daemon is not None and {*self.daemon.banned} != {7, *self.ours()}:
            found.append(f"banned: {self.daemon.banned}")
        return found

    def ours(self) -> set[int]:
        """The interrupts that were placed."""
        return {irq for irq, cpus in all_irqs(self.rig).items() if cpus != self.irqs[irq]}


SCENES: dict[str, Callable[[Path], Scene]] = {
    "interrupts": lambda folder: Scene.made(folder, "a2", ("", "0-30", "5,145,170-175"), daemon=True),
    "uvb": lambda folder: Scene.made(folder, "ascend950", ("", "8-20", "100-110"), daemon=False),
}


def lives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], Scene], first: int
) -> Iterator[tuple[int, Scene]]:
    lasts = first
    while True:
        scene = made(folder / str(lasts))
        try:
            with all_alive(scene.rig, monkeypatch, lasts):
                scene.play()
        except Killed:
            wait_until(lambda: scene.rig.agent.parts.steps.memory.idle)  # noqa: B023
            yield lasts, scene
            lasts += STEP
        else:
            yield lasts, scene
            assert lasts > 40, "the play does little"
            return
        finally:
            if scene.daemon is not None:
                scene.daemon.__exit__(None, None, None)


@pytest.mark.parametrize("kind", SCENES)
def test_a_restore_after_a_kill_at_any_moment_gives_back_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for lasts, scene in lives(tmp_path, monkeypatch, SCENES[kind], first=0):
        scene.restore()
        assert scene.unlike_before() == [], f"after {lasts} effects"


@pytest.mark.parametrize("kind", SCENES)
def test_the_next_agent_makes_the_planned_state_after_a_kill_at_any_moment_and_that_is_given_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for lasts, scene in lives(tmp_path, monkeypatch, SCENES[kind], first=11):
        scene.restart()
        assert scene.unlike_planned() == [], f"after {lasts} effects"
        scene.restore()
        assert scene.unlike_before() == [], f"after {lasts} effects"
