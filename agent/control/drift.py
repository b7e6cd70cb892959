"""Who undoes what was bound, how often, and when that is not fought any more (design section 6, "Drift"). Pure.

What the kernel does to threads after kubelet wrote their cpuset is repaired and counted, however often it comes. Of
somebody else who undoes the same thing again and again, every repair makes two writers where there was one: after the
third time within a minute it is left as it is, for ten seconds, and twice as long after each further time, up to five
minutes. Once it has held for a minute all that is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeAlias, TypeVar

from agent.control.backoff import Refusal
from agent.model.cpuset import CpuSet
from agent.model.outcome import DRIFT_KINDS, REPAIR_RESULTS, DriftKind, Misplaced, RepairResult, WorkerOutcome
from agent.model.reason import Problem, Reason
from agent.model.spec import Role
from agent.model.workload import ProcessId

TIMES: Final = 3
WITHIN_SECONDS: Final = 60.0
ONCE_SECONDS: Final = 1.0
"""What is found within this time of an earlier find is the same time: one command that goes from thread to thread."""
LAST_SECONDS: Final = 300.0
HELD_SECONDS: Final = 60.0
CPUSET_SECONDS: Final = 2.0
"""What moved so soon after its cpuset changed is the kernel's doing."""

VLLM_ASCEND: Final = (
    """as vLLM-Ascend's own CPU binding does: --additional-config '{"enable_cpu_binding": false}' ends that"""
)
"""On by default since v0.18; it puts all threads of its process on one mask with ``taskset -acp``."""

K = TypeVar("K", bound=Hashable)
Part: TypeAlias = tuple[Hashable, DriftKind]


class DriftTotals:
    """Threads and interrupts since the agent began. Every series is there from the start, so that another thread may
    read them at any time."""

    def __init__(self) -> None:
        self.detected: Counter[DriftKind] = Counter(dict.fromkeys(DRIFT_KINDS, 0))
        """Found elsewhere than where they had been put, each once."""
        self.repaired: Counter[tuple[DriftKind, RepairResult]] = Counter(
            {(kind, result): 0 for kind in DRIFT_KINDS for result in REPAIR_RESULTS}
        )
        """What came of them. One that was left and is put back later counts under both."""

    def add(self, kind: DriftKind, result: RepairResult, *, known: bool = False) -> None:
        """One that ended in `result`; `known` is one that was detected before."""
        self.detected[kind] += not known
        self.repaired[kind, result] += 1

    def plus(self, other: DriftTotals) -> DriftTotals:
        """Both together, as they are now."""
        total = DriftTotals()
        for one in (self, other):
            total.detected.update(one.detected)
            total.repaired.update(one.repaired)
        return total


@dataclass(slots=True)
class _Contest:
    times: list[float] = field(default_factory=list)
    """When it was undone, in the last minute."""
    refusal: Refusal | None = None
    """Since it was undone too often."""
    tried_at: float | None = None
    """When it was put back after the last pause."""
    left: set[Hashable] = field(default_factory=set)
    """What was seen elsewhere during the pause."""


class Contests(Generic[K]):
    """Which of several things, each put back as a whole, somebody else keeps undoing. `now` is monotonic, in seconds.

    In each pass a thing is `paused`, and then `left` as it is; or all of it is put back, and `passed` told. `Part` is
    what a thing consists of, such as a thread by its tid, that was found elsewhere."""

    def __init__(self) -> None:
        self.totals = DriftTotals()
        self._contests: dict[K, _Contest] = {}

    def paused(self, key: K, now: float) -> bool:
        """Whether it is to be left as it is now. Safe from any thread."""
        contest = self._contests.get(key)
        refusal = None if contest is None else contest.refusal  # once: it may be another the next time
        return refusal is not None and now < refusal.until

    def problem(self, key: K) -> Problem | None:
        """CpuBindingConflict from when it is left for the first time until it has held for a while."""
        contest = self._contests.get(key)
        return None if contest is None or contest.refusal is None else contest.refusal.problem

    def passed(self, key: K, now: float, moved: Collection[Part], what: str) -> Problem | None:
        """A pass has put all of it back, where anything had `moved`. Gives its `problem` as it is then; `what` is that
        in words."""
        contest = self._contests.get(key)
        known = contest.left if contest is not None else frozenset()
        for part, kind in moved:
            self.totals.add(kind, "repaired", known=part in known)
        undone = any(kind != "cpuset" for _, kind in moved)
        if contest is None:
            if not undone:
                return None
            contest = self._contests[key] = _Contest()
        contest.left = set()
        if contest.refusal is None:
            self._count(contest, now, undone, what)
        elif now < contest.refusal.until:
            pass  # it was put elsewhere, by a new plan
        elif contest.tried_at is None:
            contest.tried_at = now  # what this pass found was done during the pause
        elif undone:
            self._refuse(contest, now, what)
        elif now - contest.tried_at >= HELD_SECONDS:
            contest.refusal = contest.tried_at = None
            contest.times = []
        if contest.refusal is None and not contest.times:
            del self._contests[key]
        return self.problem(key)

    def left(self, key: K, astray: Collection[Part]) -> Problem | None:
        """A pass has looked at what is `paused`, and left what is elsewhere as it is. Gives its `problem`."""
        if (contest := self._contests.get(key)) is not None:
            for part, kind in astray:
                if part not in contest.left:
                    contest.left.add(part)
                    self.totals.add(kind, "left")
        return self.problem(key)

    def forgive(self, key: K, since: float) -> None:
        """What was found at `since` or later was nobody's doing."""
        if (contest := self._contests.get(key)) is not None:
            contest.times = [time for time in contest.times if time < since]

    def retain(self, keys: Collection[K]) -> None:
        """Forgets all others."""
        for key in self._contests.keys() - set(keys):
            del self._contests[key]

    @staticmethod
    def _count(contest: _Contest, now: float, undone: bool, what: str) -> None:
        contest.times = [time for time in contest.times if now - time < WITHIN_SECONDS]
        if undone and not (contest.times and now - contest.times[-1] < ONCE_SECONDS):
            contest.times.append(now)
        if len(contest.times) >= TIMES:
            Contests._refuse(contest, now, what)

    @staticmethod
    def _refuse(contest: _Contest, now: float, what: str) -> None:
        refusal = Refusal.after(contest.refusal, Problem(Reason.CPU_BINDING_CONFLICT, what), now, last=LAST_SECONDS)
        text = f"{what}; left for {refusal.seconds:g} s, then put back again"
        contest.refusal = replace(refusal, problem=Problem(Reason.CPU_BINDING_CONFLICT, text))
        contest.tried_at = None


@dataclass(frozen=True, slots=True)
class _SeenCpuset:
    cpus: CpuSet
    at: float
    changed_at: float


class DriftTracker:
    """What became of the threads of bound workers between two passes. `now` is monotonic, in seconds.

    In each pass `saw` tells the cpuset of a worker; then it is `paused`, looked at, and what is elsewhere told to
    `left`; or it is bound, and `judged` settles what of the outcome was whose doing."""

    def __init__(self) -> None:
        self._contests: Contests[ProcessId] = Contests()
        self._cpusets: dict[ProcessId, _SeenCpuset] = {}
        self.totals = self._contests.totals

    def paused(self, process: ProcessId, now: float) -> bool:
        """Whether no thread of the worker is to be written now: somebody else keeps moving them. Safe from any
        thread."""
        return self._contests.paused(process, now)

    def saw(self, process: ProcessId, cpuset: CpuSet, now: float) -> None:
        """The effective cpuset of the worker, as it was read for this pass."""
        before = self._cpusets.get(process)
        changed_at = float("-inf") if before is None else before.changed_at
        if before is not None and before.cpus != cpuset:
            changed_at = now
            # Masks are read after the cpuset: the last pass may have met those of this change without knowing of it.
            self._contests.forgive(process, before.at)
        self._cpusets[process] = _SeenCpuset(cpuset, now, changed_at)

    def judged(self, outcome: WorkerOutcome, now: float) -> WorkerOutcome:
        """The outcome of binding a worker that had been bound before, as it is to be reported."""
        process = outcome.process
        cpuset = self._cpusets.get(process)
        if outcome.drift:
            if cpuset is not None and now - cpuset.changed_at <= CPUSET_SECONDS:
                outcome = replace(outcome, drift=tuple(replace(thread, kind="cpuset") for thread in outcome.drift))
            outcome = replace(outcome, at_once=_at_once(outcome))
        for thread in outcome.unrepaired:
            self.totals.add(thread.kind, "failed")
        like = f", {VLLM_ASCEND}" if outcome.at_once else ""
        what = f"process {process.pid}: somebody else keeps moving its threads{like}"
        problem = self._contests.passed(process, now, [(t.tid, t.kind) for t in outcome.drift], what)
        return outcome if problem is None or outcome.state not in _DONE else _contested(outcome, problem)

    def left(self, process: ProcessId, astray: Sequence[Misplaced], whole: CpuSet) -> WorkerOutcome:
        """The outcome of a pass in which a worker was `paused`, and its threads `astray` not written. `whole` is its
        cpuset ∩ online."""
        parts: list[Part] = [(thread.tid, "cpuset" if thread.mask == whole else "thread") for thread in astray]
        return _contested(WorkerOutcome(process, "Partial"), self._contests.left(process, parts))

    def retain(self, processes: Collection[ProcessId]) -> None:
        """Forgets all other workers."""
        self._contests.retain(processes)
        for process in self._cpusets.keys() - set(processes):
            del self._cpusets[process]


_DONE: Final = frozenset({"Bound", "Partial"})


def _contested(outcome: WorkerOutcome, problem: Problem | None) -> WorkerOutcome:
    return replace(outcome, state="Partial", problem=problem)


def _at_once(outcome: WorkerOutcome) -> bool:
    """Whether somebody had put all main threads, of which there are several, on one mask: no library pins a thread of
    its own so, but a second binder does, which starts where the first one had put the process."""
    main = outcome.threads.get(Role.MAIN)
    moved = [t for t in outcome.drift if t.role is Role.MAIN and t.kind == "thread"]
    return (
        main is not None and not main.placed and not main.left and len(moved) > 1 and len({t.mask for t in moved}) == 1
    )
