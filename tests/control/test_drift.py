"""Who undoes what, how often, and when it is left to him: the rule alone, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.control.drift import VLLM_ASCEND, Contests, DriftTotals, DriftTracker
from agent.model.cpuset import CpuSet
from agent.model.outcome import BindState, DriftKind, Misplaced, ThreadCounts, WorkerOutcome
from agent.model.reason import MAX_MESSAGE_BYTES, Problem, Reason
from agent.model.spec import Role
from agent.model.workload import ProcessId

WORKER, OTHER = ProcessId(7, 100), ProcessId(7, 200)
WIDE, NARROW = CpuSet.parse("0-639"), CpuSet.parse("0-623")
MAIN = CpuSet.parse("2-37")


def moved(tid: int = 7, kind: DriftKind = "thread", mask: str = "300", role: Role = Role.MAIN) -> Misplaced:
    return Misplaced(tid, "python3", role, CpuSet.parse(mask), MAIN, kind)


def outcome(
    *drift: Misplaced, process: ProcessId = WORKER, state: BindState = "Bound", problem: Problem | None = None
) -> WorkerOutcome:
    return WorkerOutcome(process, state, problem, drift=drift)


def counted(totals: DriftTotals) -> dict[str, int]:
    """What is not 0, in one line each."""
    found: dict[str, int] = {f"{kind} detected": count for kind, count in totals.detected.items() if count}
    return found | {f"{kind} {result}": count for (kind, result), count in totals.repaired.items() if count}


class Fight:
    """A worker in passes, whose threads somebody moves at given times."""

    def __init__(self) -> None:
        self.tracker = DriftTracker()

    def bind(self, now: float, *drift: Misplaced, cpuset: CpuSet = WIDE) -> WorkerOutcome:
        self.tracker.saw(WORKER, cpuset, now)
        return self.tracker.judged(outcome(*drift), now)

    def contested(self, times: Sequence[float]) -> bool:
        """Whether it is left to him after he was found at these times."""
        for time in times:
            self.bind(time, moved())
        return self.tracker.paused(WORKER, times[-1])


# Three times within a minute


@pytest.mark.parametrize(
    ("times", "contested"),
    [
        ([0, 5], False),
        ([0, 5, 10], True),
        ([0, 29, 59], True),
        ([0, 30, 60], False),
        ([0, 30, 60, 61], True),  # the last three
        ([0, 300, 600, 900], False),  # a job that comes every five minutes
        ([0, 0.3, 0.6, 0.9], False),  # one command that goes from thread to thread
        ([0, 0.5, 1.0, 1.5, 2.0], True),  # and one that does not end
    ],
)
def test_who_moves_threads_of_a_worker_three_times_within_a_minute_is_another_writer(
    times: list[float], contested: bool
) -> None:
    assert Fight().contested(times) is contested


def test_the_worker_is_partial_from_the_third_time_on_and_the_reason_names_it() -> None:
    fight = Fight()
    assert [fight.bind(now, moved()).state for now in (0, 5)] == ["Bound", "Bound"]
    third = fight.bind(10, moved())
    assert third.state == "Partial"
    assert third.problem == Problem(
        Reason.CPU_BINDING_CONFLICT,
        "process 7: somebody else keeps moving its threads; left for 10 s, then put back again",
    )
    assert third.drift == (moved(),), "it was put back that time, too"


def test_another_worker_of_the_same_pid_is_another() -> None:
    fight = Fight()
    assert fight.contested([0, 5, 10])
    assert not fight.tracker.paused(OTHER, 10)
    assert fight.tracker.judged(outcome(process=OTHER), 10).state == "Bound"


def test_a_graver_failure_is_not_hidden() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    failed = outcome(state="Failed", problem=Problem(Reason.CPUSET_CHANGED, "main is not within it"))
    assert fight.tracker.judged(failed, 30) == failed


# Backing off


def test_it_is_left_for_ten_seconds_and_twice_as_long_each_time_up_to_five_minutes() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    now, lengths = 10.0, []
    for _ in range(8):
        start = now
        while fight.tracker.paused(WORKER, now):
            now += 1
        lengths.append(now - start)
        assert fight.bind(now, moved()).state == "Partial", "what was found had been done while nobody looked"
        assert not fight.tracker.paused(WORKER, now)
        now += 5
        fight.bind(now, moved())
    assert lengths == [10, 20, 40, 80, 160, 300, 300, 300]


@given(st.lists(st.booleans(), min_size=100, max_size=600))
@example([True] * 600)
@example([True, True, False] * 200)
@example(([True] * 3 + [False] * 70) * 8)
def test_however_he_goes_about_it_threads_are_written_in_seven_passes_of_a_minute_at_most(moves: list[bool]) -> None:
    """Three times, and then after 10 and after 20 seconds twice. One pass each second."""
    fight, astray, written = Fight(), False, []
    for now, moves_now in enumerate(moves):
        astray |= moves_now
        if fight.tracker.paused(WORKER, now):
            fight.tracker.left(WORKER, [moved()] if astray else [], WIDE)
            continue
        fight.bind(now, *([moved()] if astray else []))
        written += [now] * astray
        astray = False
    assert max((sum(now - 60 < time <= now for time in written) for now in written), default=0) <= 7
    totals = fight.tracker.totals
    assert totals.repaired["thread", "repaired"] == len(written)
    assert len(written) <= totals.detected["thread"] <= len(written) + 1, "one may be left at the end"


def test_it_is_over_once_it_has_held_for_a_minute() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    states = {now: fight.bind(now).state for now in range(20, 100, 5)}
    assert {now for now, state in states.items() if state == "Bound"} == {80, 85, 90, 95}
    assert not fight.contested([100, 105]), "it takes three times again"
    assert fight.contested([110])
    assert not fight.tracker.paused(WORKER, 120), "and begins with ten seconds"


def test_while_it_is_left_nothing_of_what_it_says_changes() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    reports = [fight.tracker.left(WORKER, [moved(tid) for tid in range(k)], WIDE) for k in range(4)]
    assert len({(report.state, report.problem) for report in reports}) == 1
    assert reports[0].problem is not None
    assert reports[0].problem.reason is Reason.CPU_BINDING_CONFLICT
    assert reports[0].drift == ()


def test_a_new_plan_that_is_carried_out_meanwhile_does_not_end_it() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    assert fight.bind(12).state == "Partial"
    assert fight.tracker.paused(WORKER, 15)
    assert fight.bind(20, moved()).state == "Partial"
    assert not fight.tracker.paused(WORKER, 20), "this is the first try after the pause"


def test_workers_that_ended_are_forgotten() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    fight.tracker.retain([WORKER])
    assert fight.tracker.paused(WORKER, 11)
    fight.tracker.retain([])
    assert not fight.tracker.paused(WORKER, 11)
    assert fight.bind(12).state == "Bound"


# Cpusets


def test_what_the_kernel_does_after_kubelet_wrote_a_cpuset_is_never_a_conflict() -> None:
    fight = Fight()
    for k in range(100):
        assert fight.bind(5.0 * k, moved(kind="cpuset")).state == "Bound"
    assert not fight.tracker.paused(WORKER, 500)


def test_what_moves_within_two_seconds_of_a_change_of_the_cpuset_is_the_kernel_s() -> None:
    fight = Fight()
    fight.bind(0)
    for k in range(10):
        cpuset = (NARROW, WIDE)[k % 2]
        later = [fight.bind(10 + k + after, moved(), cpuset=cpuset) for after in (0, 0.5)]
        assert {thread.kind for report in later for thread in report.drift} == {"cpuset"}
        assert {report.state for report in later} == {"Bound"}
    (thread,) = fight.bind(10 + 9 + 2, moved(), cpuset=WIDE).drift
    assert thread.kind == "cpuset"
    (thread,) = fight.bind(10 + 9 + 2.1, moved(), cpuset=WIDE).drift
    assert thread.kind == "thread"


def test_the_first_cpuset_that_is_seen_of_a_worker_is_no_change() -> None:
    (thread,) = Fight().bind(0, moved()).drift
    assert thread.kind == "thread"


def test_masks_of_a_change_that_came_after_the_cpuset_was_read_are_counted_against_nobody() -> None:
    """A pass reads the cpuset, kubelet writes it, the pass reads the masks: only the next one knows why they moved."""
    fight = Fight()
    for k in range(10):
        fight.bind(20.0 * k, moved(mask="0-623"), cpuset=(WIDE, NARROW)[k % 2])  # not of the cpuset that was read
        assert fight.bind(20.0 * k + 5, cpuset=(NARROW, WIDE)[k % 2]).state == "Bound"
    assert not fight.tracker.paused(WORKER, 200)


def test_who_moves_them_while_cpusets_change_seldom_is_found_all_the_same() -> None:
    fight = Fight()
    cpusets = [WIDE, WIDE, NARROW, NARROW, NARROW]
    states = [fight.bind(5.0 * k, moved(), cpuset=cpuset).state for k, cpuset in enumerate(cpusets)]
    assert states == ["Bound"] * 4 + ["Partial"], "the second and the third may have been the kernel's"


# vLLM-Ascend's own binder


def whole(process: ProcessId = WORKER, count: int = 40, mask: str = "8-30", **counts: int) -> WorkerOutcome:
    """All main threads on one mask, and the others with them."""
    drift = [moved(7 + k, mask=mask) for k in range(count)]
    drift += [moved(100, mask=mask, role=Role.ACL), moved(101, mask="31", role=Role.RELEASE)]
    threads = {Role.MAIN: ThreadCounts(written=count, **counts), Role.ACL: ThreadCounts(written=1)}
    return WorkerOutcome(process, "Bound", threads=threads, drift=tuple(drift))


def test_a_process_that_was_put_on_one_mask_at_once_is_another_binder_s() -> None:
    assert DriftTracker().judged(whole(), 0).at_once
    assert DriftTracker().judged(whole(count=2, mask="300-303"), 0).at_once


@pytest.mark.parametrize(
    "other",
    [
        whole(count=1),
        whole(placed=1),
        whole(left=1),
        outcome(moved()),
        WorkerOutcome(
            WORKER, "Bound", threads={Role.MAIN: ThreadCounts(written=2)}, drift=(moved(1), moved(2, mask="9"))
        ),
        WorkerOutcome(
            WORKER,
            "Bound",
            threads={Role.MAIN: ThreadCounts(written=2)},
            drift=(moved(1, "cpuset", "0-639"), moved(2, "cpuset", "0-639")),
        ),
    ],
)
def test_what_libraries_and_the_kernel_do_is_not_taken_for_that(other: WorkerOutcome) -> None:
    assert not DriftTracker().judged(other, 0).at_once


def test_one_that_does_it_again_and_again_is_named_in_the_conflict() -> None:
    tracker = DriftTracker()
    reports = [tracker.judged(whole(), now) for now in (0, 5, 10)]
    assert [report.state for report in reports] == ["Bound", "Bound", "Partial"]
    problem = reports[2].problem
    assert problem is not None
    assert VLLM_ASCEND in problem.message
    assert problem.message.endswith("left for 10 s, then put back again")
    assert len(problem.message.encode()) < MAX_MESSAGE_BYTES - 20


# Counting


def test_all_is_counted_by_kind_and_by_what_came_of_it() -> None:
    fight = Fight()
    fight.bind(0, moved(1), moved(2), moved(3, "cpuset"))
    fight.tracker.judged(WorkerOutcome(WORKER, "Partial", unrepaired=(moved(9), moved(8, "cpuset"))), 1)
    assert counted(fight.tracker.totals) == {
        "thread detected": 3,
        "cpuset detected": 2,
        "thread repaired": 2,
        "cpuset repaired": 1,
        "thread failed": 1,
        "cpuset failed": 1,
    }


def test_a_thread_that_is_left_and_put_back_later_was_found_once() -> None:
    fight = Fight()
    fight.contested([0, 5, 10])
    before = counted(fight.tracker.totals)
    for _ in range(5):
        fight.tracker.left(WORKER, [moved(1), moved(2), moved(3, mask="0-639")], WIDE)
    fight.bind(20, moved(1), moved(3, "cpuset"), moved(4))
    after = counted(fight.tracker.totals)
    assert {key: after[key] - before.get(key, 0) for key in after} == {
        "thread detected": 3,
        "cpuset detected": 1,
        "thread left": 2,
        "cpuset left": 1,
        "thread repaired": 2,
        "cpuset repaired": 1,
    }


def test_every_series_is_there_from_the_start_and_two_counts_are_one() -> None:
    totals, threads = DriftTotals(), Contests[str]()
    assert (len(totals.detected), len(totals.repaired)) == (3, 9)
    threads.passed("a", 0, [("b", "irq")], "")
    threads.totals.add("irq", "failed")
    both = totals.plus(threads.totals).plus(threads.totals)
    assert counted(both) == {"irq detected": 4, "irq repaired": 2, "irq failed": 2}
    assert counted(totals) == {}
