"""An agent that is killed at any moment: after the k-th thing that it does to the host or to its journal, for every k.

Whatever that leaves, the next agent makes the planned state of it, and a restore what was there before the first start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.journal import Journal
from agent.control.observe import Observer
from agent.control.restore import restore_all
from agent.control.steps import HostSteps
from agent.demo.fake_kernel import FakeTask
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.node.procfs import boot_id
from tests.control.rig import Rig, masks

OWN = {1: "5", 2: "100-101,180", 3: "60-70"}
"""Index of a worker's thread -> a mask of its own: within its pool or not, before any re-cutting or after."""


class Killed(BaseException):
    """SIGKILL: nothing of the agent runs any more."""


class Life:
    """Counts what is done, and ends it before more than `lasts` things were."""

    def __init__(self, lasts: int | None) -> None:
        self.lasts = lasts
        self.done = 0

    def effect(self) -> None:
        if self.done == self.lasts:
            raise Killed
        self.done += 1


@contextmanager
def alive(rig: Rig, monkeypatch: pytest.MonkeyPatch, lasts: int | None) -> Iterator[Life]:
    """While this holds, every mask that is written and every step of writing the journal is an effect."""
    life = Life(lasts)
    with monkeypatch.context() as patch:
        write, save = rig.node.kernel.set_affinity, journal_file.save

        def counted_write(tid: int, cpus: CpuSet) -> None:
            life.effect()
            write(tid, cpus)

        def counted_save(path: Path, journal: Journal) -> None:
            life.effect()
            save(path, journal)
            life.effect()

        patch.setattr(rig.node.kernel, "set_affinity", counted_write)
        patch.setattr(journal_file, "save", counted_save)
        yield life


@dataclass
class Scene:
    """Two workers in one container, with threads that have masks of their own, and what they leave behind."""

    rig: Rig
    workers: list[Worker]
    before: dict[int, CpuSet]
    """Thread -> the mask that it had before the first agent. Those that are not in here began later."""

    @classmethod
    def set(cls, folder: Path) -> Scene:
        rig = Rig(folder, "a2")
        pod = rig.node.kubelet.add_pod("llm-0")
        workers = [Worker.start(rig.node, npu, pod, threads=4) for npu in range(2)]
        for worker in workers:
            worker.add_role_threads()
            for index, cpus in OWN.items():
                rig.node.kernel.set_by_other(worker.threads[index].tid, CpuSet.parse(cpus))
        return cls(rig, workers, {task.tid: task.mask for worker in workers for task in worker.threads})

    def first_cut(self) -> None:
        self.rig.settle()

    def have_children(self) -> None:
        """Each worker forks from a thread of every role, and one of the children leaves an orphan."""
        kernel = self.rig.node.kernel
        for worker in self.workers:
            for index in (0, 4, 5):
                child = worker.fork(creator=worker.threads[index].tid)
                orphan = kernel.start_process("leftover", parent=child.tid)
                kernel.end(child.tid)
                orphan.ppid = 1
                kernel.proc.write_names(orphan)
                worker.fork(creator=worker.threads[index].tid)
        self.rig.sweep()

    def second_cut(self) -> None:
        """Others reserve CPUs; the plan is cut anew."""
        self.rig.ask(reservedCpus="0-9,144-150")
        self.rig.sweep(400)
        self.rig.sweep(11)

    def play(self) -> None:
        self.first_cut()
        self.have_children()
        self.second_cut()

    def restart(self) -> None:
        """The next agent; time passes."""
        self.rig.restart()
        self.rig.settle()
        self.rig.sweep(400)
        self.rig.sweep(11)

    def restore(self) -> None:
        """``cpubind restore``."""
        journal, problem = journal_file.load(self.rig.journal_file, boot_id(self.rig.node.root))
        assert problem is None
        root = self.rig.node.root
        kernel, observer = self.rig.node.kernel, Observer(root)
        actor, steps = Actor(root / "proc", kernel), HostSteps(root, kernel, observer.cgroups)
        restored = restore_all(actor, steps, observer, journal)
        assert (restored.journal.taken, restored.act.stuck, restored.steps.stuck) == ("", {}, ())
        journal_file.save(self.rig.journal_file, restored.journal)

    def container(self) -> list[FakeTask]:
        group = self.workers[0].threads[0].cgroup
        return [task for task in self.rig.node.kernel.tasks.values() if task.cgroup == group]

    def astray(self) -> dict[str, str]:
        """Threads of the container that do not have what they had before -> what they have."""
        whole = self.rig.node.kernel.online
        return {
            f"{task.comm} {task.tid}": str(task.mask)
            for task in self.container()
            if task.mask != self.before.get(task.tid, whole)
        }

    def misplaced(self) -> list[str]:
        """Threads of workers that are not where the published plan says."""
        names = {"main": "main", "acl_thread": "acl", "release_thread": "release"}
        found = []
        for worker in self.workers:
            roles = self.rig.npu(worker.npu)["roles"]
            if masks(worker) != {name: {roles[names[name]]} for name in names}:
                found.append(f"worker {worker.pid}: {masks(worker)}, planned {roles}")
        return found


def lives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    play: Callable[[Scene], None],
    before: Callable[[Scene], None] = lambda scene: None,
) -> Iterator[Scene]:
    """The scene as a kill leaves it, for a kill at every moment of the play; last, without one."""
    lasts = 0
    while True:
        scene = Scene.set(tmp_path / str(lasts))
        before(scene)
        try:
            with alive(scene.rig, monkeypatch, lasts):
                play(scene)
        except Killed:
            yield scene
            lasts += 1
            continue
        yield scene
        assert lasts > 20, "the play does little"
        return


def test_undoing_that_is_killed_at_any_moment_is_finished_by_the_next_agent_or_by_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disable(scene: Scene) -> None:
        scene.rig.ask(mode="Disabled")
        scene.rig.sweep()

    for number, scene in enumerate(lives(tmp_path, monkeypatch, disable, before=Scene.play)):
        if number % 2:
            scene.restart()
            assert scene.rig.condition("Restored")["status"] == "True"
        else:
            scene.restore()
        assert scene.astray() == {}


def test_a_restore_after_a_kill_at_any_moment_gives_every_thread_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scene in lives(tmp_path, monkeypatch, Scene.play):
        scene.restore()
        assert scene.astray() == {}


def test_the_next_agent_makes_the_planned_state_of_what_a_kill_at_any_moment_left_and_that_is_restored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for scene in lives(tmp_path, monkeypatch, Scene.play):
        scene.restart()
        assert scene.misplaced() == []
        scene.restore()
        assert scene.astray() == {}
