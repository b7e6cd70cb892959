"""The memory of a worker moves once in its life, whatever becomes of the agent (design 6, report row 6)."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.control import journal_file
from agent.control.journal import Journal
from agent.demo.workload import Worker
from agent.model.outcome import MemoryOutcome
from agent.model.reason import Problem, Reason, Refused
from tests.control.pods import IN, OUT, annotate, by_annotation, pods_not_listed
from tests.control.rig import Rig, wait_until
from tests.control.steps import effects, journal

MIB = 1 << 20


def with_worker(folder: Path, profile: str = "a2", **annotations: str) -> tuple[Rig, Worker]:
    """Not settled yet. Its memory is on NUMA node 0, its main CPUs are on node 6 (A2)."""
    rig = Rig(folder, profile, chooses=by_annotation)
    asked = IN | {f"cpubind.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    worker = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-0", annotations=asked), threads=2, heap=8 * MIB)
    return rig, worker


def entry(rig: Rig) -> dict[str, Any]:
    (found,) = rig.npu(1)["workers"]
    assert isinstance(found, dict)
    return found


def test_ten_sweeps_move_memory_once_and_say_how_much(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    rig.settle()
    calls = effects(rig)["move_pages"]
    for _ in range(10):
        rig.sweep()
    assert effects(rig)["move_pages"] == calls
    assert rig.node.kernel.memory.moved[worker.pid] == 8 * MIB >> 16
    node = rig.npu(1)["numaNodes"][0]
    assert (entry(rig)["memory"], entry(rig)["memoryMessage"]) == ("Moved", f"8.0 MiB moved to NUMA node {node}")
    assert rig.condition("Degraded")["status"] == "False"


def test_a_next_agent_moves_nothing_again_and_says_the_same(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.settle()
    calls, said = effects(rig), entry(rig)
    rig.restart()
    rig.settle()
    rig.sweep()
    assert (effects(rig), entry(rig)) == (calls, said)


def test_where_its_turn_had_not_come_when_the_agent_was_stopped_the_next_one_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, worker = with_worker(tmp_path)
    monkeypatch.setattr(rig.agent.parts.steps.memory, "begin", lambda: None)
    monkeypatch.setattr(rig, "_take_in_memory", lambda: None)
    rig.settle()
    assert (entry(rig)["state"], entry(rig)["memory"]) == ("Bound", "Pending")
    rig.agent.stop()
    rig.agent.run()
    monkeypatch.undo()
    rig.restart()
    rig.settle()
    assert rig.node.kernel.memory.moved[worker.pid] == 8 * MIB >> 16
    assert (entry(rig)["state"], entry(rig)["memory"]) == ("Bound", "Moved")


def test_new_cpus_do_not_move_it_again(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.settle()
    pool, calls = rig.npu(1)["pool"], effects(rig)["move_pages"]
    rig.ask(strategy="GlobalSlice")
    rig.sweep(400)
    rig.settle(11)
    assert rig.npu(1)["pool"] != pool
    assert effects(rig)["move_pages"] == calls


def test_neither_does_opting_out_and_in_again_or_disabling_and_enforcing(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    rig.settle()
    calls, said = effects(rig)["move_pages"], entry(rig)
    assert worker.pod is not None
    pod = annotate(rig, worker.pod, OUT)
    rig.sweep()
    annotate(rig, pod, IN)
    rig.settle()
    rig.ask(mode="Disabled")
    rig.sweep()
    rig.ask(mode="Enforce")
    rig.settle()
    assert (effects(rig)["move_pages"], entry(rig)) == (calls, said)


def test_a_process_that_gets_the_pid_of_another_is_another(tmp_path: Path) -> None:
    rig, worker = with_worker(tmp_path)
    rig.settle()
    cgroup = worker.threads[0].cgroup
    worker.end()
    again = rig.node.kernel.start_process("python3", cgroup=cgroup, pid=worker.pid)
    heir = Worker(rig.node, 1, worker.pod, again)
    heir.allocate(2 * MIB, 0, name="[heap]")
    rig.node.hold(heir.pid, [(1, 9000)], "python3")
    rig.settle()
    assert entry(rig)["memoryMessage"].startswith("2.0 MiB moved")


@pytest.mark.parametrize(
    ("asked", "spec"), [({"memory_migration": "false"}, {}), ({}, {"memoryMigration": False})], ids=["pod", "spec"]
)
def test_it_can_be_switched_off(tmp_path: Path, asked: dict[str, str], spec: dict[str, bool]) -> None:
    rig, _ = with_worker(tmp_path, **asked)
    rig.ask(**spec)
    rig.settle()
    assert (entry(rig)["state"], entry(rig)["memory"], entry(rig)["memoryReason"]) == (
        "Bound",
        "Skipped",
        "SwitchedOff",
    )
    assert effects(rig)["move_pages"] == 0
    assert rig.condition("Degraded")["status"] == "False"


def outside(rig: Rig, worker: Worker) -> None:
    rig.node.kernel.set_mems(worker.pid, "0-1")


def full(rig: Rig, _worker: Worker) -> None:
    for node in rig.node.topology.nodes:
        rig.node.set_free_memory(node.id, MIB)


def on_two_npus(rig: Rig, worker: Worker) -> None:
    rig.node.hold(worker.pid, [(1, 9000), (2, 8000)], "python3")


def denied(rig: Rig, worker: Worker) -> None:
    """The right to look into its memory is missing (CAP_SYS_PTRACE), not that to move its threads."""

    def refuse(pid: int, _addresses: object, *_node: int) -> Any:
        assert pid == worker.pid
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    for name in ("page_nodes", "move_pages"):
        setattr(rig.node.kernel, name, refuse)


@pytest.mark.parametrize(
    ("obstacle", "reason", "degraded"),
    [
        (outside, "OutsideMemsAllowed", False),
        (full, "TargetNodeFull", False),
        (on_two_npus, "MultipleNpus", False),
        (denied, "PermissionDenied", True),
    ],
)
def test_what_stands_against_it_is_said_at_the_worker(
    tmp_path: Path, obstacle: Any, reason: str, degraded: bool
) -> None:
    rig, worker = with_worker(tmp_path)
    obstacle(rig, worker)
    rig.settle()
    rig.sweep()
    found = entry(rig)
    assert (found["state"], found["memory"], found["memoryReason"]) == ("Bound", "Skipped", reason)
    assert "8.0 MiB" in found["memoryMessage"] or "4.0 MiB left, 4.0 MiB skipped" in found["memoryMessage"]
    assert rig.condition("Ready")["status"] == "True"
    assert (rig.condition("Degraded")["status"] == "True") is degraded
    calls = effects(rig)["move_pages"]
    rig.sweep()
    assert effects(rig)["move_pages"] == calls


def test_memory_waits_until_the_journal_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash would let it be moved twice; threads, whose placing can be repeated, do not wait."""
    rig, _ = with_worker(tmp_path)

    def full_disk(_path: Path, _journal: Journal) -> None:
        raise Refused(Reason.STATE_NOT_WRITTEN, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journal_file, "save", full_disk)
        rig.settle()
        rig.sweep()
        assert (entry(rig)["state"], entry(rig)["memory"]) == ("Bound", "Pending")
        assert effects(rig)["move_pages"] == 0
        assert rig.condition("Degraded")["reason"] == "StateNotWritten"
    rig.settle()
    assert entry(rig)["memory"] == "Moved"
    assert rig.condition("Degraded")["status"] == "False"


def test_an_agent_that_ends_in_the_midst_leaves_it_and_the_next_one_says_so(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.settle()
    noted = journal(rig)
    assert [w.memory.state for w in noted.workers if w.memory] == ["Moved"]
    pending = MemoryOutcome("Pending", Problem(Reason.PENDING, "it waits"), 0)
    journal_file.save(rig.journal_file, with_memory(noted, pending))
    calls = effects(rig)["move_pages"]
    rig.restart()
    rig.settle()
    assert (entry(rig)["memory"], entry(rig)["memoryReason"]) == ("Partial", "MigrationInterrupted")
    assert effects(rig)["move_pages"] == calls


def with_memory(noted: Journal, memory: MemoryOutcome | None) -> Journal:
    return replace(noted, workers=tuple(replace(bound, memory=memory) for bound in noted.workers))


def test_a_dry_run_moves_none(tmp_path: Path) -> None:
    rig, _ = with_worker(tmp_path)
    rig.ask(mode="DryRun")
    rig.settle()
    assert "memory" not in entry(rig)
    assert effects(rig)["move_pages"] == 0


def test_what_a_pod_asks_for_is_waited_for(tmp_path: Path) -> None:
    """An agent was killed between binding a worker and noting what is to become of its memory, which is before it notes
    that the binding is complete."""
    rig, worker = with_worker(tmp_path, memory_migration="false")
    rig.settle()
    killed = with_memory(journal(rig), None)
    workers = tuple(replace(worker, complete=False) for worker in killed.workers)
    journal_file.save(rig.journal_file, replace(killed, workers=workers))
    with pods_not_listed(rig):
        rig.restart()
        rig.settle()
        assert "memory" not in entry(rig)
    rig.settle()
    assert entry(rig)["memoryReason"] == "SwitchedOff"
    assert rig.node.kernel.memory.moved[worker.pid] == 0
    wait_until(lambda: rig.agent.parts.steps.memory.idle)
