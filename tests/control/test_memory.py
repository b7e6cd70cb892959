"""Memory of workers on its way to the NUMA node of their CPUs: once each, bounded, and everything else untouched."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.control import journal_file as journals
from agent.control.journal import BoundWorker, Journal
from agent.control.memory import DEADLINE_SECONDS, MemoryMover
from agent.demo.fake_files import put
from agent.demo.fake_memory import ABSENT, PAGE, pages
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Roles
from agent.model.reason import Problem, Reason
from agent.model.workload import ProcessId
from agent.model.workload import Worker as PlannedWorker
from agent.node.memory import BATCH_BYTES

MIB = 1 << 20
ON_1 = CpuSet.parse("100-110")
"""CPUs of NUMA node 1 of the virtual A3."""


class Rig:
    """A virtual A3 node with a mover whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.node = VirtualNode(folder / "root", "a3", interrupts=False)
        self.now = 1000.0
        self.woken = 0
        self.done = threading.Event()
        self.mover = self.restart()

    def restart(self, **options: Any) -> MemoryMover:
        def wake() -> None:
            self.woken += 1
            self.done.set()

        self.mover = MemoryMover(
            self.node.root, self.node.kernel, wake=wake, clock=lambda: self.now, page_size=PAGE, **options
        )
        self.mover._pages._batch = BATCH_BYTES  # as if calls had proved to be quick
        return self.mover

    def worker(self, npu: int = 0) -> Worker:
        return Worker.start(self.node, npu, threads=2, heap=0)

    def submit(self, worker: Worker, main: CpuSet = ON_1, **options: Any) -> None:
        npus = options.pop("npus", (worker.npu,))
        topology = options.pop("topology", self.node.topology)
        planned = PlannedWorker(worker.identity, npus, "container")
        self.mover.submit(planned, Roles(main), main, topology, **options)

    def move(self, *workers: Worker, main: CpuSet = ON_1, **options: Any) -> MemoryOutcome:
        """Everything that is to happen to them, and what came of the last."""
        for worker in workers:
            self.submit(worker, main, **options)
        self.mover.begin()
        self.wait()
        return self.mover.outcomes[workers[-1].identity]

    def wait(self) -> None:
        while not self.mover.idle:
            assert self.done.wait(20), "nothing was finished"
            self.done.clear()

    @property
    def moves(self) -> int:
        """Calls that move pages."""
        return self.node.kernel.calls["move_pages"]

    def before_each_move(self, happens: Callable[[int], None]) -> None:
        """Something happens while pages are being moved; it is told how many moves there were before."""
        inner = self.node.kernel.move_pages
        count = 0

        def move(pid: int, addresses: array[int], node: int) -> array[int]:
            nonlocal count
            happens(count)
            count += 1
            return inner(pid, addresses, node)

        self.node.kernel.move_pages = move  # type: ignore[method-assign]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.mover.close()
    assert not any(thread.name == "memory" for thread in threading.enumerate())


def reason(outcome: MemoryOutcome) -> tuple[str, str]:
    return outcome.state, outcome.problem.reason.value if outcome.problem else ""


# What is moved


def test_the_private_memory_of_a_worker_goes_to_the_node_of_its_main_cpus(rig: Rig) -> None:
    worker = rig.worker()
    mine = [worker.allocate(8 * MIB, 0, name=name) for name in ("", "[heap]", "[stack]", "[anon:glibc: malloc]")]
    there = worker.allocate(2 * MIB, 1)
    assert rig.move(worker) == MemoryOutcome("Moved", None, 1, moved=32 * MIB)
    assert all(set(mapping.region.nodes) == {1} for mapping in (*mine, there))
    assert rig.woken == 1


def test_of_one_large_table_that_two_workers_share_no_byte_moves(rig: Rig) -> None:
    one, other = rig.worker(0), rig.worker(1)
    table = pages(512 * MIB, 0, 2)
    for worker in (one, other):
        rig.node.kernel.map_memory(
            worker.pid, table, perms="rw-s", dev="00:01", inode=77, name="/memfd:table (deleted)"
        )
        worker.allocate(4 * MIB, 0)
    assert rig.move(one, other).moved == 4 * MIB
    assert rig.mover.outcomes[one.identity] == MemoryOutcome("Moved", None, 1, moved=4 * MIB)
    assert table.nodes == pages(512 * MIB, 0, 2).nodes


@pytest.mark.parametrize(
    "mapping",
    [
        {"perms": "rw-s", "dev": "00:1a", "inode": 2, "name": "/dev/shm/psm_2f1c"},
        {"perms": "rw-s", "dev": "00:01", "inode": 9, "name": "/SYSV00000000 (deleted)"},
        {"perms": "rw-s", "dev": "00:05", "inode": 533, "name": "/dev/davinci0"},
        {"perms": "rw-p", "dev": "fe:01", "inode": 1836, "name": "/usr/lib/libc.so.6"},
        {"perms": "rw-p", "dev": "00:0f", "inode": 25609, "name": "/anon_hugepage (deleted)"},
    ],
    ids=lambda mapping: mapping["name"],
)
def test_what_the_kernel_would_move_but_is_not_private_stays(rig: Rig, mapping: dict[str, Any]) -> None:
    """A mapping that one process alone has touched looks private to move_pages(2): it is never named to it."""
    worker = rig.worker()
    foreign = worker.allocate(4 * MIB, 0, **mapping)
    worker.allocate(MIB, 0)
    assert rig.move(worker).moved == MIB
    assert set(foreign.region.nodes) == {0}


def test_private_pages_of_a_mapped_file_are_counted_as_not_tried(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(4 * MIB, 0)
    rig.node.kernel.memory.map(worker.pid, pages(MIB, 0), dev="fe:01", inode=5, name="/usr/lib/libc.so.6")
    rig.node.kernel.tasks[worker.pid].resident = 5 * MIB
    rig.node.kernel.proc.write_status(rig.node.kernel.tasks[worker.pid])
    worker_maps = rig.node.kernel.memory.maps(worker.pid)
    rig.node.kernel.proc.set_maps(worker.pid, worker_maps)
    assert rig.move(worker) == MemoryOutcome("Moved", None, 1, moved=4 * MIB, skipped=MIB)


def test_pinned_pages_are_left_and_said_and_not_tried_again(rig: Rig) -> None:
    worker = rig.worker()
    mapping = worker.allocate(4 * MIB, 0)
    mapping.region.pinned = {3, 4}
    assert rig.move(worker) == MemoryOutcome("Moved", None, 1, moved=4 * MIB - 2 * PAGE, left=2 * PAGE)
    assert rig.moves == 1


# Once


def test_ten_sweeps_are_one_migration(rig: Rig) -> None:
    worker = rig.worker()
    mapping = worker.allocate(4 * MIB, 0)
    rig.move(worker)
    mapping.region.nodes[:] = array("i", [0]) * len(mapping.region.nodes)  # memory that it takes later, say
    for _ in range(10):
        rig.move(worker)
        rig.move(worker, main=CpuSet.parse("0-8"))  # a new base never moves memory
    assert rig.moves == 1
    assert rig.woken == 1


def test_a_pid_that_comes_again_is_another_worker(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(MIB, 0)
    rig.move(worker)
    worker.end()
    leader = rig.node.kernel.start_process("VLLM::Worker_TP", pid=worker.pid, cgroup="/system.slice")
    again = Worker(rig.node, 0, None, leader)
    again.allocate(2 * MIB, 0)
    assert rig.move(again).moved == 2 * MIB
    rig.mover.retain([again.identity])
    assert list(rig.mover.outcomes) == [again.identity]


def test_nothing_moves_between_submit_and_begin_and_the_journal_in_between_says_pending(
    rig: Rig, tmp_path: Path
) -> None:
    worker = rig.worker()
    worker.allocate(MIB, 0)
    rig.submit(worker)
    written = save(tmp_path, rig.mover)
    assert rig.moves == 0
    assert rig.mover.idle
    rig.mover.begin()
    rig.wait()
    assert reason(written[worker.identity]) == ("Pending", "Pending")
    assert reason(rig.mover.outcomes[worker.identity]) == ("Moved", "")


def save(folder: Path, mover: MemoryMover) -> dict[ProcessId, MemoryOutcome]:
    """What the next run of the agent finds in the journal."""
    workers = tuple(BoundWorker(p, ON_1, Roles(ON_1), memory=outcome) for p, outcome in mover.outcomes.items())
    journals.save(folder / "journal.json", Journal(boot_id="b", workers=workers))
    record, problem = journals.load(folder / "journal.json", "b")
    assert problem is None
    return {worker.process: worker.memory for worker in record.workers if worker.memory}


# Reasons not to


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enabled": False}, "SwitchedOff"),
        ({"npus": (0, 1)}, "MultipleNpus"),
    ],
)
def test_what_the_plan_says_against_it_skips_it_at_once(rig: Rig, options: dict[str, Any], said: str) -> None:
    worker = rig.worker()
    worker.allocate(MIB, 0)
    rig.submit(worker, **options)
    outcome = rig.mover.outcomes[worker.identity]
    assert reason(outcome) == ("Skipped", said)
    assert outcome.skipped == MIB
    rig.mover.begin()
    assert rig.mover.idle
    assert dict(rig.node.kernel.calls) == {}


@pytest.mark.parametrize(("memory", "said"), [({0}, "OneNumaNode"), ({0, 2}, "TargetHasNoMemory")])
def test_no_page_goes_to_a_node_without_memory(rig: Rig, memory: set[int], said: str) -> None:
    nodes = tuple(replace(node, has_memory=node.id in memory) for node in rig.node.topology.nodes)
    worker = rig.worker()
    worker.allocate(MIB, 0)
    outcome = rig.move(worker, topology=replace(rig.node.topology, nodes=nodes))
    assert reason(outcome) == ("Skipped", said)
    assert dict(rig.node.kernel.calls) == {}


def test_a_node_outside_the_cpuset_of_the_worker_gets_nothing(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(MIB, 0)
    rig.node.kernel.set_mems(worker.pid, "0,3-7")
    outcome = rig.move(worker)
    assert reason(outcome) == ("Skipped", "OutsideMemsAllowed")
    assert outcome.problem
    assert "0,3-7" in outcome.problem.message
    assert dict(rig.node.kernel.calls) == {}


def test_a_cpuset_that_loses_the_node_in_the_middle_ends_it(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(192 * MIB, 0)
    rig.before_each_move(lambda count: rig.node.kernel.set_mems(worker.pid, "0") if count else None)
    outcome = rig.move(worker)
    assert reason(outcome) == ("Partial", "OutsideMemsAllowed")
    assert (outcome.moved, outcome.left + outcome.skipped) == (64 * MIB, 128 * MIB)


def test_a_node_with_less_room_than_a_tenth_over_what_is_to_come_gets_nothing(rig: Rig) -> None:
    worker, other = rig.worker(), rig.worker(1)
    for each in (worker, other):
        each.allocate(100 * MIB, 0)
    rig.node.set_free_memory(1, 109 * MIB)
    outcome = rig.move(worker)
    assert reason(outcome) == ("Skipped", "TargetNodeFull")
    assert outcome.skipped == 100 * MIB
    assert rig.moves == 0
    rig.node.set_free_memory(1, 110 * MIB)
    assert rig.move(other).moved == 100 * MIB


def test_memory_that_is_there_already_needs_no_room(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(100 * MIB, 1)
    worker.allocate(4 * MIB, 0)
    rig.node.set_free_memory(1, 10 * MIB)
    assert rig.move(worker) == MemoryOutcome("Moved", None, 1, moved=4 * MIB)


def test_a_node_that_fills_up_in_the_middle_keeps_what_came(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(192 * MIB, 0)
    rig.before_each_move(lambda count: rig.node.set_free_memory(1, 16 * MIB) if count == 1 else None)
    outcome = rig.move(worker)
    assert reason(outcome) == ("Partial", "TargetNodeFull")
    assert (outcome.moved, outcome.left, outcome.skipped) == (80 * MIB, 48 * MIB, 64 * MIB)


def test_without_the_right_to_look_nothing_is_moved_and_the_worker_is_unharmed(rig: Rig) -> None:
    worker = rig.worker()
    mapping = worker.allocate(MIB, 0)
    rig.node.kernel.denied = {worker.pid}
    outcome = rig.move(worker)
    assert reason(outcome) == ("Skipped", "PermissionDenied")
    assert (outcome.moved, outcome.skipped) == (0, MIB)
    assert set(mapping.region.nodes) == {0}


def test_a_kernel_without_the_call_is_said_and_the_next_worker_has_its_turn(rig: Rig) -> None:
    def missing(pid: int, addresses: array[int]) -> array[int]:
        raise OSError(38, "Function not implemented")

    rig.node.kernel.page_nodes = missing  # type: ignore[method-assign]
    one, other = rig.worker(0), rig.worker(1)
    for worker in (one, other):
        worker.allocate(MIB, 0)
    rig.move(one, other)
    assert [reason(o) for o in rig.mover.outcomes.values()] == [("Skipped", "MigrationUnsupported")] * 2


def test_a_worker_that_is_gone_before_its_turn_is_said(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(MIB, 0)
    rig.submit(worker)
    worker.end()
    rig.mover.begin()
    rig.wait()
    assert reason(rig.mover.outcomes[worker.identity]) == ("Skipped", "ProcessGone")


def test_a_worker_whose_pid_is_taken_over_in_the_middle_is_left_and_its_successor_untouched(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(192 * MIB, 0)
    successor: list[Worker] = []

    def replaced(count: int) -> None:
        if count == 1:
            rig.node.kernel.calls["move_pages"] = 0

    rig.before_each_move(replaced)
    stat = rig.mover._proc.stat
    seen = 0

    def later(pid: int) -> Any:
        nonlocal seen
        seen += 1
        if seen == 4 and not successor:  # between the first batch and the second
            worker.end()
            leader = rig.node.kernel.start_process("python3", pid=worker.pid, cgroup="/system.slice")
            successor.append(Worker(rig.node, 0, None, leader))
            successor[0].allocate(192 * MIB, 0)
        return stat(pid)

    rig.mover._proc.stat = later  # type: ignore[method-assign, assignment]
    outcome = rig.move(worker)
    assert reason(outcome) == ("Partial", "ProcessGone")
    assert outcome.moved == 64 * MIB
    assert all(set(m.region.nodes) == {0} for m in rig.node.kernel.memory.mappings[worker.pid])


def test_damaged_maps_are_a_reason_and_no_end_of_the_thread(rig: Rig) -> None:
    worker, other = rig.worker(), rig.worker(1)
    other.allocate(MIB, 0)
    worker.allocate(MIB, 0)
    rig.node.kernel.proc.set_maps(worker.pid, "what is this\n")
    assert rig.move(worker, other).moved == MIB
    assert reason(rig.mover.outcomes[worker.identity]) == ("Skipped", "ProcessUnreadable")


def test_what_cannot_be_read_is_looked_at_ever_less_often(rig: Rig) -> None:
    worker = rig.worker()
    rig.node.kernel.proc.set_maps(worker.pid, "what is this\n")
    for _ in range(720):
        rig.move(worker)
        rig.now += 5
    assert 5 < rig.woken < 15, "in an hour"


def test_what_the_plan_says_against_it_is_said_once_however_the_memory_grows(rig: Rig) -> None:
    one = tuple(replace(node, has_memory=node.id == 0) for node in rig.node.topology.nodes)
    worker = rig.worker()
    said = rig.move(worker, topology=replace(rig.node.topology, nodes=one))
    assert reason(said) == ("Skipped", "OneNumaNode")
    for _ in range(100):
        rig.now += 5
        worker.allocate(MIB, 0)
        assert rig.move(worker, topology=replace(rig.node.topology, nodes=one)) is said
    rig.now += 600
    assert rig.move(worker).moved == 100 * MIB, "there is a second one by now"


# Time


def test_after_ten_seconds_what_was_not_moved_stays_and_is_counted(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(320 * MIB, 0)

    def slowly(_count: int) -> None:
        rig.now += 4.0

    rig.before_each_move(slowly)
    outcome = rig.move(worker)
    assert reason(outcome) == ("Partial", "BudgetSpent")
    # Each call is for half as much as the one before, since they are slow.
    assert (outcome.moved, outcome.left, outcome.skipped) == ((64 + 32 + 16) * MIB, 0, (320 - 112) * MIB)
    assert rig.moves == 3


@pytest.mark.parametrize(
    ("release", "said"), [("6.1.0-50-cloud-arm64", "NumaBalancing"), ("6.6.0", ""), ("6.15.2", "")]
)
def test_pages_that_numa_balancing_hides_are_said(rig: Rig, release: str, said: str) -> None:
    """The kernel says that they are absent, and counts them as resident."""
    worker = rig.worker()
    worker.allocate(4 * MIB, 0)
    worker.allocate(32 * MIB, 0).region.nodes[:] = array("i", [ABSENT] * (32 * MIB // PAGE))
    kernel = rig.node.root / "proc/sys/kernel"
    put(kernel / "osrelease", release)
    assert reason(rig.move(worker)) == ("Moved", "")
    put(kernel / "numa_balancing", "1\n")
    other = rig.worker(1)
    other.allocate(4 * MIB, 0)
    other.allocate(32 * MIB, 0).region.nodes[:] = array("i", [ABSENT] * (32 * MIB // PAGE))
    outcome = rig.move(other)
    assert reason(outcome) == (("Partial", said) if said else ("Moved", ""))
    assert (outcome.moved, outcome.skipped) == (4 * MIB, 32 * MIB)


def test_every_worker_has_its_own_ten_seconds(rig: Rig) -> None:
    workers = [rig.worker(npu) for npu in range(3)]
    for worker in workers:
        worker.allocate(MIB, 0)

    def slowly(_count: int) -> None:
        rig.now += 0.9 * DEADLINE_SECONDS

    rig.before_each_move(slowly)
    rig.move(*workers)
    assert [reason(outcome)[0] for outcome in rig.mover.outcomes.values()] == ["Moved"] * 3


# The end of the agent


def test_an_agent_that_was_killed_in_the_middle_leaves_it_at_that(rig: Rig, tmp_path: Path) -> None:
    worker = rig.worker()
    mapping = worker.allocate(MIB, 0)
    rig.submit(worker)
    record = save(tmp_path, rig.mover)
    killed = rig.mover
    rig.restart().adopt(record)
    outcome = rig.mover.outcomes[worker.identity]
    assert reason(outcome) == ("Partial", "MigrationInterrupted")
    assert rig.move(worker) == outcome
    assert (rig.moves, set(mapping.region.nodes)) == (0, {0})
    # And so it stays over the next restart.
    record = save(tmp_path, rig.mover)
    rig.restart().adopt(record)
    assert rig.mover.outcomes[worker.identity] == outcome
    killed.close()


def test_what_was_finished_is_as_it_was_after_a_restart(rig: Rig, tmp_path: Path) -> None:
    worker, off = rig.worker(), rig.worker(1)
    worker.allocate(MIB, 0)
    rig.submit(off, enabled=False)
    rig.move(worker)
    before = rig.mover.outcomes
    record = save(tmp_path, rig.mover)
    rig.mover.close()
    rig.restart().adopt(record)
    rig.move(worker, off)
    assert rig.mover.outcomes == before
    assert rig.moves == 1


def test_an_agent_that_is_stopped_ends_after_the_batch_and_forgets_those_whose_turn_had_not_come(rig: Rig) -> None:
    worker, waits, never = (rig.worker(npu) for npu in range(3))
    for each in (worker, waits, never):
        each.allocate(192 * MIB, 0)
    begun, go_on = threading.Event(), threading.Event()

    def stopped(_count: int) -> None:
        begun.set()
        assert go_on.wait(20)

    rig.before_each_move(stopped)
    rig.submit(worker)
    rig.submit(waits)
    rig.mover.begin()
    rig.submit(never)
    assert begun.wait(20)
    threading.Timer(0.2, go_on.set).start()
    rig.mover.close(timeout=20)
    outcomes = rig.mover.outcomes
    assert list(outcomes) == [worker.identity]
    assert reason(outcomes[worker.identity]) == ("Partial", "MigrationInterrupted")
    assert (outcomes[worker.identity].moved, outcomes[worker.identity].skipped) == (64 * MIB, 128 * MIB)
    assert rig.moves == 1


def test_a_call_that_does_not_come_back_does_not_hold_up_the_end(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(MIB, 0)
    begun, go_on = threading.Event(), threading.Event()

    def hangs(_count: int) -> None:
        begun.set()
        go_on.wait(20)

    rig.before_each_move(hangs)
    rig.submit(worker)
    rig.mover.begin()
    assert begun.wait(20)
    rig.mover.close(timeout=0.05)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "memory"] == [True]
    assert reason(rig.mover.outcomes[worker.identity])[0] == "Pending"
    go_on.set()
    rig.mover.close(timeout=20)


def test_a_worker_that_is_given_back_meanwhile_is_left_after_the_batch(rig: Rig) -> None:
    worker = rig.worker()
    worker.allocate(192 * MIB, 0)

    def given_back(_count: int) -> None:
        rig.mover.retain(())

    rig.before_each_move(given_back)
    rig.submit(worker)
    rig.mover.begin()
    rig.wait()
    assert rig.moves == 1
    assert rig.mover.outcomes == {}


def test_an_outcome_of_the_journal_is_not_asked_for_its_process(rig: Rig) -> None:
    """Those of processes that are gone are for `retain` to drop, which knows who is bound."""
    gone = ProcessId(77, 1)
    kept = MemoryOutcome("Partial", Problem(Reason.BUDGET_SPENT, "not through after 10 s"), 1, 5, 6, 7)
    rig.mover.adopt({gone: kept})
    assert rig.mover.outcomes == {gone: kept}
    rig.mover.retain(())
    assert rig.mover.outcomes == {}
