"""A restart or an upgrade of an agent that does all of its steps is seen by nobody; ``cpubind restore`` undoes them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.journal import Journal
from agent.control.observe import Observer
from agent.control.restore import Restored, restore_all
from agent.control.steps import HostSteps
from agent.demo.fake_irqbalance import FakeIrqbalance
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from tests.control.pods import free, is_free
from tests.control.rig import Rig
from tests.control.steps import all_irqs, effects, journal, moved, uvb_thread


def busy(folder: Path, profile: str) -> tuple[Rig, list[Worker]]:
    """Two workers beside a helper, everything asked for and done."""
    rig = Rig(folder, profile, interrupts=True)
    rig.ask(helpers="Confine")
    pod = rig.node.kubelet.add_pod("llm-0")
    workers = [Worker.start(rig.node, npu, pod, threads=3) for npu in (0, 3)]
    for worker in workers:
        worker.add_role_threads()
    rig.node.kernel.start_process("api_server", cgroup=pod.container().cgroup)
    rig.settle()
    rig.settle()
    return rig, workers


def written(rig: Rig) -> dict[str, Any]:
    """All that an agent leaves: what it wrote to the host, its journal, its status."""
    kept = rig.journal_file.stat()
    return {"effects": effects(rig), "journal": (kept.st_ino, kept.st_mtime_ns), "status": rig.status}


@pytest.mark.parametrize("profile", ["a2", "a3", "ascend950"])
def test_an_agent_that_starts_anew_writes_nothing_anywhere_and_tells_nothing(tmp_path: Path, profile: str) -> None:
    rig, _ = busy(tmp_path, profile)
    before = written(rig)
    rig.events()
    for _ in range(2):
        rig.restart()
        rig.settle()
        for _ in range(3):
            rig.sweep()
        assert written(rig) == before
    assert rig.events() == []
    assert [w["memory"] for npu in before["status"]["npus"] for w in npu.get("workers", [])] == ["Moved", "Moved"]


def test_nor_does_one_that_finds_npu_smi_silent(tmp_path: Path) -> None:
    rig, _ = busy(tmp_path, "a2")
    before = written(rig)
    rig.node.npu_smi.fail()
    rig.restart()
    rig.settle()
    rig.sweep()
    assert (written(rig)["effects"], written(rig)["journal"]) == (before["effects"], before["journal"])


def test_two_workers_of_one_npu_with_other_cpus_each_do_not_take_turns(tmp_path: Path) -> None:
    """Which one an agent sees first must not decide where the interrupts of their NPU are."""
    rig = Rig(tmp_path, "a3", interrupts=True)
    online = rig.node.kernel.online
    workers = []
    for name, cpus in (("b", CpuSet(cpu for cpu in online if cpu % 4)), ("a", online)):
        path = f"/docker/{name * 64}"
        rig.node.kernel.cgroups.create(path, cpus)
        worker = Worker.start(rig.node, 1, rig.node.kubelet.add_pod(f"llm-{name}"), threads=2)
        rig.node.kernel.move(worker.pid, path)
        workers.append(worker)
    rig.node.hold(workers[0].pid, [], "")
    rig.settle()
    rig.node.hold(workers[0].pid, [(1, 900)], "python3")
    rig.settle()
    assert {worker["state"] for worker in rig.npu(1)["workers"]} == {"Bound"}
    assert any("roles" in worker for worker in rig.npu(1)["workers"])
    before = all_irqs(rig)
    rig.restart()
    rig.settle()
    assert all_irqs(rig) == before


def restore(rig: Rig) -> Restored:
    """``cpubind restore``."""
    root, kernel = rig.node.root, rig.node.kernel
    observer = Observer(root)
    steps = HostSteps(root, kernel, observer.cgroups, balancer=rig.balancer)
    restored = restore_all(Actor(root / "proc", kernel), steps, observer, journal(rig))
    journal_file.save(rig.journal_file, restored.journal)
    return restored


def test_a_restore_gives_back_interrupts_their_bans_and_helpers(tmp_path: Path) -> None:
    rig, workers = busy(tmp_path, "a2")
    with FakeIrqbalance(rig.node, banned=(7,)) as daemon:
        rig.sweep(31)
        assert moved(rig) == {0, 3}
        assert len(daemon.banned) == 1 + 2 * 17
        restored = restore(rig)
        assert daemon.banned == [7]
    assert restored.steps.returned == {"interrupts": 34, "threads of helpers": 1}
    assert (restored.journal.taken, restored.steps.stuck) == ("", ())
    assert moved(rig) == set()
    tasks = rig.node.kernel.tasks.values()
    assert all(is_free(worker) for worker in workers)
    assert free(*(task for task in tasks if task.comm == "api_server"))


def test_a_restore_gives_back_uvb_threads(tmp_path: Path) -> None:
    rig, workers = busy(tmp_path, "ascend950")
    assert not free(uvb_thread(rig))
    restored = restore(rig)
    assert restored.steps.returned == {"UVB threads": 1}
    assert restored.journal.taken == ""
    assert free(uvb_thread(rig))
    assert all(is_free(worker) for worker in workers)


def test_what_a_restore_could_not_give_back_is_left_in_the_journal_for_the_next(tmp_path: Path) -> None:
    rig, workers = busy(tmp_path, "a2")
    rig.node.kernel.irq_errors = dict.fromkeys(rig.node.irqs_of(3), 5)
    restored = restore(rig)
    assert [problem.reason.value for problem in restored.steps.stuck] == ["IrqRefused"]
    assert restored.journal.taken == "17 interrupts"
    assert moved(rig) == {3}
    assert all(is_free(worker) for worker in workers)
    rig.node.kernel.irq_errors = {}
    assert restore(rig).journal == Journal(
        **{field: getattr(restored.journal, field) for field in ("boot_id", "universe", "bases", "settled", "spec")},
        **{field: getattr(restored.journal, field) for field in ("own", "begun_at", "lost", "cut_by")},
    )
    assert moved(rig) == set()


def test_what_is_given_back_before_npu_smi_has_answered_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig, _ = busy(tmp_path, "a2")
    rig.ask(mode="Disabled")
    rig.restart()
    with caplog.at_level(logging.INFO):
        rig.sweep()
        assert moved(rig) == set()
        rig.settle()
    assert "gave 34 interrupts back" in caplog.messages
    assert "gave 1 threads of helpers back" in caplog.messages


def test_what_is_wrong_with_a_step_is_said_once_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path, "ascend950", interrupts=True)
    thread = uvb_thread(rig)
    rig.node.kernel.denied.add(thread.tid)
    with caplog.at_level(logging.WARNING):
        rig.settle()
        for _ in range(3):
            rig.sweep()
    assert [line for line in caplog.messages if "PermissionDenied" in line] == [
        f"PermissionDenied: 1 of 1 threads: Operation not permitted; {REMEDIES[Reason.PERMISSION_DENIED]}"
    ]


def test_repairs_of_a_pass_that_planned_twice_are_all_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt was moved, and a cpuset changes between looking and acting."""
    rig, workers = busy(tmp_path, "a2")
    rig.events()
    rig.node.set_irq(rig.node.irqs_of(0)[1], CpuSet.parse("7"))
    bind, done = Actor.act, []

    def twice(self: Actor, *args: Any, **more: Any) -> Any:
        done.append(1)
        return replace(bind(self, *args, **more), replan=len(done) == 1)

    monkeypatch.setattr(Actor, "act", twice)
    rig.sweep()
    assert len(done) == 2
    assert rig.events() == [("CpuBindingRepaired", "llm-0")]
    assert workers[0].alive
