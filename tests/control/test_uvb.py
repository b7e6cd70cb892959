"""The UVB threads of an Ascend 950 node: moved, kept, given back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.control.journal import Journal, UvbThread
from agent.control.journal_file import dump, parse
from agent.control.uvb import SCAN_SECONDS, Uvb, wanted
from agent.demo.fake_kernel import PF_KTHREAD, PF_NO_SETAFFINITY, FakeTask
from agent.demo.virtual import UVB_THREAD, VirtualNode
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import DeviceType
from agent.model.outcome import Moved, UvbOutcome
from agent.model.plan import Plan
from agent.model.reason import Problem, Reason
from agent.model.spec import Spec, Strategy
from agent.model.workload import ThreadId
from agent.node.host import EVERY_CPU, DryRunHost
from agent.node.uvb import SeenThread

POOL = CpuSet.parse("40-47")
OTHER = CpuSet.parse("50-53")
NARROW = CpuSet.parse("3,200")


class Bench:
    """A virtual 950 with its UVB kernel thread, a service with another, and what keeps them in place."""

    def __init__(self, folder: Path, *, remembers_masks: bool = True) -> None:
        self.node = VirtualNode(folder, "ascend950", interrupts=False, remembers_masks=remembers_masks)
        self.kernel = self.node.kernel
        self.now = 0.0
        self.driver = next(t for t in self.kernel.tasks.values() if t.comm == UVB_THREAD)
        self.service = self.kernel.start_process("ubse", cgroup="/system.slice")
        self.user = self.kernel.start_thread(self.service.tid, UVB_THREAD)
        self.uvb = self.started()

    def started(self, taken: Sequence[UvbThread] = ()) -> Uvb:
        """An agent starts, with what the journal of an earlier one holds."""
        self.uvb = Uvb(self.node.root, self.kernel, clock=lambda: self.now)
        self.uvb.adopt(parse(dump(Journal(uvb=tuple(taken)))).uvb)
        return self.uvb

    def sweep(self, cpus: CpuSet = POOL, problem: Problem | None = None, seconds: float = 5.0) -> UvbOutcome:
        self.now += seconds
        self.uvb.survey(cpus, self.kernel.online)
        return self.uvb.act(cpus, self.kernel.online, problem)

    def restore(self) -> Moved:
        return self.uvb.restore(self.kernel.online)

    def writes(self) -> int:
        return self.kernel.calls["sched_setaffinity"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def entry(task: FakeTask, before: CpuSet, given: CpuSet) -> UvbThread:
    return UvbThread(ThreadId(task.tid, task.start_time), before, given)


# Moved and kept


def test_uvb_threads_are_put_on_their_pool_once(bench: Bench) -> None:
    assert bench.sweep() == UvbOutcome("Bound", None, threads=2, written=2)
    assert (bench.driver.mask, bench.user.mask) == (POOL, POOL)
    assert bench.service.mask == bench.kernel.online
    for _ in range(20):
        assert bench.sweep() == UvbOutcome("Bound", None, threads=2)
    assert bench.writes() == 2


def test_how_they_were_is_known_before_anything_is_written(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.user.tid, NARROW)
    bench.uvb.survey(POOL, bench.kernel.online)
    assert bench.writes() == 0
    assert bench.uvb.taken == (entry(bench.driver, EMPTY, POOL), entry(bench.user, NARROW, POOL))
    bench.uvb.act(POOL, bench.kernel.online)
    assert bench.uvb.taken == (entry(bench.driver, EMPTY, POOL), entry(bench.user, NARROW, POOL))


def test_nothing_is_written_that_no_survey_has_noted(bench: Bench) -> None:
    outcome = bench.uvb.act(POOL, bench.kernel.online)
    assert (outcome.state, outcome.problem and outcome.problem.reason) == ("Partial", Reason.PENDING)
    bench.uvb.survey(OTHER, bench.kernel.online)
    assert bench.uvb.act(POOL, bench.kernel.online).state == "Partial"
    assert bench.writes() == 0


def test_one_that_is_in_place_already_is_nothing_to_give_back(bench: Bench) -> None:
    for task in (bench.driver, bench.user):
        bench.kernel.set_by_other(task.tid, POOL)
    assert bench.sweep() == UvbOutcome("Bound", None, threads=2)
    assert bench.uvb.taken == ()


def test_a_host_without_any_is_idle(bench: Bench) -> None:
    bench.kernel.end(bench.driver.tid)
    bench.kernel.end(bench.user.tid)
    assert bench.sweep() == UvbOutcome("Idle")


def test_what_moves_away_is_put_back_in_place_and_counted(bench: Bench) -> None:
    bench.sweep()
    bench.kernel.set_by_other(bench.user.tid, NARROW)
    assert bench.sweep() == UvbOutcome("Bound", None, threads=2, written=1, drift=1)
    assert bench.user.mask == POOL
    bench.restore()
    assert bench.user.asked == EVERY_CPU, "not what it had in between"


def test_new_cpus_are_no_drift(bench: Bench) -> None:
    bench.sweep()
    assert bench.sweep(OTHER) == UvbOutcome("Bound", None, threads=2, written=2)
    assert (bench.driver.mask, bench.user.mask) == (OTHER, OTHER)


def test_a_new_thread_is_found_when_it_is_time_to_look_for_any(bench: Bench) -> None:
    bench.sweep()
    late = bench.kernel.start_process(UVB_THREAD, flags=PF_KTHREAD)
    bench.sweep()
    assert late.mask == bench.kernel.online
    bench.sweep(seconds=SCAN_SECONDS)
    assert late.mask == POOL


def test_one_that_took_over_from_one_that_ended_is_found_at_once(bench: Bench) -> None:
    """The driver was loaded anew."""
    bench.sweep()
    bench.kernel.end(bench.driver.tid)
    bench.driver = bench.kernel.start_process(UVB_THREAD, flags=PF_KTHREAD)
    assert bench.sweep() == UvbOutcome("Bound", None, threads=2, written=1)
    assert bench.driver.mask == POOL
    assert bench.uvb.taken == (entry(bench.user, EMPTY, POOL), entry(bench.driver, EMPTY, POOL))


def test_the_processes_of_the_host_are_not_looked_at_in_every_sweep(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sweep()
    scans: list[float] = []
    scan = bench.uvb._threads.scan

    def counted() -> tuple[list[SeenThread], Problem | None]:
        scans.append(bench.now)
        return scan()

    monkeypatch.setattr(bench.uvb._threads, "scan", counted)
    for _ in range(60):
        bench.sweep()
    assert len(scans) == 60 * 5 / SCAN_SECONDS


# What can't be moved


def test_a_thread_that_the_kernel_keeps_is_told_and_never_tried(bench: Bench) -> None:
    fixed = bench.kernel.start_process(UVB_THREAD, flags=PF_KTHREAD | PF_NO_SETAFFINITY)
    bench.sweep()
    outcome = bench.sweep()
    assert outcome == UvbOutcome(
        "Bound", Problem(Reason.UNMOVABLE, "1 of 3 threads: the kernel keeps them where they are"), threads=3
    )
    assert fixed.mask == bench.kernel.online
    assert bench.writes() == 2
    assert ThreadId(fixed.tid, fixed.start_time) not in {taken.thread for taken in bench.uvb.taken}


def test_where_the_kernel_keeps_all_of_them_the_step_failed(bench: Bench) -> None:
    bench.driver.flags |= PF_NO_SETAFFINITY
    bench.user.flags |= PF_NO_SETAFFINITY
    for task in (bench.driver, bench.user):
        bench.kernel.proc.write_names(task)
    outcome = bench.sweep()
    assert (outcome.state, outcome.problem and outcome.problem.reason) == ("Failed", Reason.UNMOVABLE)
    assert bench.writes() == 0


def test_a_thread_that_must_not_be_moved_is_said_and_is_nothing_to_give_back(bench: Bench) -> None:
    bench.kernel.denied = {bench.user.tid}
    outcome = bench.sweep()
    assert (outcome.state, outcome.written) == ("Partial", 1)
    assert outcome.problem is not None
    assert outcome.problem.reason is Reason.PERMISSION_DENIED
    assert bench.uvb.taken == (entry(bench.driver, EMPTY, POOL),)
    bench.kernel.denied = {bench.user.tid, bench.driver.tid}
    bench.sweep(OTHER)
    assert bench.uvb.taken == (entry(bench.driver, EMPTY, POOL),), "what it has is still known"
    bench.kernel.denied = set()
    assert bench.sweep().state == "Bound"


def test_a_thread_that_ends_before_it_is_moved_is_no_error(bench: Bench) -> None:
    bench.uvb.survey(POOL, bench.kernel.online)
    bench.kernel.end(bench.user.tid)
    assert bench.uvb.act(POOL, bench.kernel.online) == UvbOutcome("Bound", None, threads=1, written=1)
    assert bench.uvb.taken == (entry(bench.driver, EMPTY, POOL),)


def test_a_service_whose_cpuset_holds_part_of_the_pool_gets_that_and_is_not_written_again(bench: Bench) -> None:
    bench.kernel.write_cpuset("/system.slice", CpuSet.parse("0-43"))
    assert bench.sweep().state == "Bound"
    assert bench.user.mask == CpuSet.parse("40-43")
    writes = bench.writes()
    assert bench.sweep() == UvbOutcome("Bound", None, threads=2)
    bench.started(bench.uvb.taken)
    bench.sweep()
    assert bench.writes() == writes


def test_a_service_whose_cpuset_holds_none_of_the_pool_stays_where_it_is(bench: Bench) -> None:
    bench.kernel.write_cpuset("/system.slice", CpuSet.parse("0-3"))
    outcome = bench.sweep()
    assert (outcome.state, outcome.written) == ("Partial", 1)
    assert outcome.problem is not None
    assert outcome.problem.reason is Reason.NO_UVB_CPUS
    assert "1 of 2 threads" in outcome.problem.message
    bench.kernel.write_cpuset("/system.slice", CpuSet.parse("0-255"))
    assert bench.sweep().state == "Bound"


# Given back


def test_what_followed_its_cpuset_does_so_again_and_what_was_narrower_is_so_again(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.user.tid, NARROW)
    bench.sweep()
    assert bench.restore() == Moved(2)
    assert bench.driver.asked == EVERY_CPU
    assert bench.user.mask == NARROW
    assert bench.uvb.taken == ()
    writes = bench.writes()
    assert bench.restore() == Moved(0)
    assert bench.writes() == writes


def test_what_somebody_else_moved_since_is_left_to_him(bench: Bench) -> None:
    bench.sweep()
    bench.kernel.set_by_other(bench.user.tid, NARROW)
    assert bench.restore() == Moved(1)
    assert bench.user.mask == NARROW
    assert bench.uvb.taken == ()


@pytest.mark.parametrize("renamed", [False, True])
def test_an_agent_that_starts_anew_moves_nothing_and_gives_back_what_the_earlier_one_took(
    bench: Bench, renamed: bool
) -> None:
    bench.kernel.set_by_other(bench.driver.tid, NARROW)
    bench.sweep()
    writes = bench.writes()
    bench.started(bench.uvb.taken)
    assert bench.sweep() == UvbOutcome("Bound", None, threads=2)
    assert bench.writes() == writes
    bench.started(bench.uvb.taken)
    if renamed:
        bench.kernel.rename(bench.driver.tid, "kworker/0:2")
    assert bench.restore() == Moved(2)
    assert bench.driver.mask == NARROW


@pytest.mark.parametrize("acted", [False, True])
def test_an_agent_that_was_killed_around_a_change_leaves_a_journal_that_knows_both(bench: Bench, acted: bool) -> None:
    bench.sweep()
    bench.uvb.survey(OTHER, bench.kernel.online)
    taken = bench.uvb.taken
    if acted:
        bench.uvb.act(OTHER, bench.kernel.online)
        assert len(bench.uvb.taken) == 2
    bench.started(taken)
    assert bench.restore() == Moved(2)
    assert bench.driver.asked == bench.user.asked == EVERY_CPU


def test_a_number_that_another_thread_has_now_is_not_taken_for_the_one_that_was_moved(bench: Bench) -> None:
    bench.sweep()
    bench.started([UvbThread(ThreadId(t.thread.tid, t.thread.start_time - 1), EMPTY, POOL) for t in bench.uvb.taken])
    writes = bench.writes()
    assert bench.restore() == Moved(0)
    assert (bench.writes(), bench.uvb.taken) == (writes, ())


def test_what_could_not_be_given_back_is_said_and_tried_again(bench: Bench) -> None:
    bench.sweep()
    bench.kernel.denied = {bench.user.tid}
    moved = bench.restore()
    assert moved.threads == 1
    assert moved.problem is not None
    assert moved.problem.reason is Reason.PERMISSION_DENIED
    assert bench.uvb.taken == (entry(bench.user, EMPTY, POOL),)
    bench.kernel.denied = set()
    assert bench.restore() == Moved(1)


def test_a_mask_of_which_no_cpu_is_left_becomes_all_ones(bench: Bench) -> None:
    bench.kernel.set_by_other(bench.user.tid, NARROW)
    bench.sweep()
    bench.node.set_offline(NARROW)
    bench.restore()
    assert bench.user.asked == EVERY_CPU


def test_a_thread_that_is_no_uvb_thread_any_more_is_given_back(bench: Bench) -> None:
    bench.sweep()
    bench.kernel.rename(bench.user.tid, "worker")
    bench.sweep(seconds=SCAN_SECONDS)
    assert bench.user.asked == EVERY_CPU
    assert bench.uvb.taken == (entry(bench.driver, EMPTY, POOL),)


def test_a_host_that_cannot_be_looked_at_gives_nothing_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sweep()
    blind = Problem(Reason.PROCESS_UNREADABLE, "/proc: Input/output error")
    monkeypatch.setattr(bench.uvb._threads, "scan", lambda: ([], blind))
    writes = bench.writes()
    assert bench.sweep(seconds=SCAN_SECONDS) == UvbOutcome("Failed", blind)
    assert (bench.writes(), len(bench.uvb.taken)) == (writes, 2)


# Without a pool


@pytest.mark.parametrize("reason", [Reason.NO_UVB_CPUS, Reason.SWITCHED_OFF])
def test_without_cpus_the_step_is_skipped_with_its_reason_and_what_was_given_is_put_back(
    bench: Bench, reason: Reason
) -> None:
    bench.sweep()
    why = Problem(reason, "why")
    assert bench.sweep(EMPTY, why) == UvbOutcome("Skipped", why, written=2)
    assert bench.driver.asked == EVERY_CPU
    assert bench.sweep(EMPTY, why) == UvbOutcome("Skipped", why)
    assert bench.writes() == 4


def test_a_pool_that_is_offline_is_none(bench: Bench) -> None:
    bench.node.set_offline(POOL)
    outcome = bench.sweep()
    assert (outcome.state, outcome.problem and outcome.problem.reason) == ("Skipped", Reason.NO_UVB_CPUS)
    assert bench.writes() == 0


def test_what_spec_and_plan_say_decides_on_the_pool() -> None:
    plan = Plan(DeviceType.ASCEND_950, Strategy.TOPO_AFFINITY, uvb=POOL)
    assert wanted(plan, Spec()) == (POOL, None)
    cpus, problem = wanted(plan, Spec(uvb_binding=False))
    assert (cpus, problem and problem.reason) == (EMPTY, Reason.SWITCHED_OFF)
    full = Problem(Reason.NO_UVB_CPUS, "full")
    assert wanted(Plan(DeviceType.ASCEND_950, Strategy.TOPO_AFFINITY, uvb_problem=full), Spec()) == (EMPTY, full)


# Dry run


def test_a_dry_run_says_what_would_be_done_and_does_nothing(bench: Bench) -> None:
    host = DryRunHost(bench.kernel)
    dry = Uvb(bench.node.root, host, clock=lambda: bench.now)
    for _ in range(3):
        dry.adopt(bench.uvb.taken)
        dry.survey(POOL, bench.kernel.online)
        assert dry.act(POOL, bench.kernel.online) == UvbOutcome("Bound", None, threads=2, written=2)
        assert [write.tid for write in host.writes] == [bench.driver.tid, bench.user.tid]
        host.writes.clear()
    assert bench.writes() == 0
    bench.sweep()
    dry.adopt(bench.uvb.taken)
    dry.act(EMPTY, bench.kernel.online, Problem(Reason.SWITCHED_OFF, ""))
    assert {write.cpus for write in host.writes} == {EVERY_CPU}
    assert bench.driver.mask == POOL
