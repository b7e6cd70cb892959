"""UVB threads (design 4.5 and 6): put on the CPUs of NUMA node 0 that no NPU has, and given back."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.control.journal import UvbThread
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import Moved, UvbOutcome
from agent.model.plan import Plan
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import Spec
from agent.model.workload import ThreadId
from agent.node.binding import DENIED
from agent.node.cgroups import CgroupTree
from agent.node.host import EVERY_CPU, ThreadHost
from agent.node.strangers import make_good
from agent.node.targets import shown
from agent.node.uvb import SeenThread, UvbThreads

SCAN_SECONDS = 60.0
"""UVB threads are looked for this often, and when a known one is gone. In between only their masks are read. The driver
makes them when it is loaded, and nothing tells of a kernel thread."""


def wanted(plan: Plan, spec: Spec) -> tuple[CpuSet, Problem | None]:
    """The CPUs for the UVB threads of a plan for an Ascend 950; none, and why, where they are to be left alone."""
    if not spec.uvb_binding:
        return EMPTY, Problem(Reason.SWITCHED_OFF, "uvbBinding is false")
    if not plan.uvb:
        return EMPTY, plan.uvb_problem or Problem(Reason.NO_UVB_CPUS, "NUMA node 0 has no CPU left for UVB threads")
    return plan.uvb, None


@dataclass(slots=True)
class _Held:
    """A thread that was moved, or is about to be."""

    before: CpuSet
    given: list[CpuSet]
    """What it has now. Two while a change is under way: an agent that ends in between may have made it or not."""


@dataclass(slots=True)
class _Counts:
    threads: int = 0
    placed: int = 0
    fixed: int = 0
    outside: int = 0
    denied: int = 0
    written: int = 0
    drift: int = 0


@dataclass(slots=True)
class _Survey:
    """What the last survey found, for `act`."""

    cpus: CpuSet = EMPTY
    counts: _Counts = field(default_factory=_Counts)
    todo: list[SeenThread] = field(default_factory=list)
    noted: set[ThreadId] = field(default_factory=set)
    """Those of them of which `taken` says only since this survey that they get these CPUs."""
    strays: list[ThreadId] = field(default_factory=list)
    """Threads that were moved as UVB threads and are none any more."""
    problem: Problem | None = None


class Uvb:
    """Keeps the UVB threads of a host where the plan says.

    In every pass `survey` looks, `taken` is what the journal must hold before anything is written, and `act` writes.
    An instance over a `DryRunHost`, which adopts what the real one has `taken`, rehearses that. Raises nothing.
    """

    def __init__(
        self,
        root: Path,
        host: ThreadHost,
        cgroups: CgroupTree | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads = UvbThreads(root, cgroups)
        self._host = host
        self._clock = clock
        self._held: dict[ThreadId, _Held] = {}
        self._found: dict[ThreadId, SeenThread] = {}
        self._pids: dict[ThreadId, int] = {}
        self._scanned: float | None = None
        self._unseen: Problem | None = None
        self._placed: dict[ThreadId, CpuSet] = {}
        self._survey = _Survey()

    def adopt(self, threads: Sequence[UvbThread]) -> None:
        """Takes up what an earlier run of the agent moved, in place of what is held now."""
        self._held = {}
        for entry in threads:
            held = self._held.setdefault(entry.thread, _Held(entry.before, []))
            if entry.given not in held.given:
                held.given.append(entry.given)

    @property
    def taken(self) -> tuple[UvbThread, ...]:
        """Threads that are to be given back one day. A thread is in here twice while other CPUs are given to it."""
        return tuple(
            UvbThread(thread, held.before, given) for thread, held in sorted(self._held.items()) for given in held.given
        )

    def survey(self, cpus: CpuSet, online: CpuSet) -> None:
        """Looks which threads are not on `cpus`, and notes how they are. Writes nothing.

        A thread is in place when its mask ∩ `online` is `cpus` ∩ its cpuset ∩ `online`.
        """
        self._survey = _Survey(cpus)
        if not cpus & online:
            return
        now = self._clock()
        if self._scanned is None or now - self._scanned >= SCAN_SECONDS:
            self._scan(now)
        if not self._look(cpus, online):  # somebody is gone: whoever took over is not to wait
            self._scan(now)
            self._look(cpus, online)
        if self._unseen is None:
            self._survey.strays = [thread for thread in self._held if thread not in self._found]
        self._placed = {thread: at for thread, at in self._placed.items() if thread in self._found}

    def act(self, cpus: CpuSet, online: CpuSet, problem: Problem | None = None) -> UvbOutcome:
        """Gives `cpus` to the threads that the survey found elsewhere. Without CPUs (`problem` says why) what was given
        earlier is put back, and the outcome is Skipped."""
        if not cpus & online:
            moved = self.restore(online)
            if moved.problem is not None:
                return UvbOutcome("Failed", moved.problem, len(self._held), moved.threads)
            problem = problem or Problem(Reason.NO_UVB_CPUS, f"none of {shown(cpus)} is online")
            return UvbOutcome("Skipped", problem, written=moved.threads)
        survey, self._survey = self._survey, _Survey(cpus)
        if survey.cpus != cpus:
            return UvbOutcome("Partial", Problem(Reason.PENDING, "not looked at yet"))
        counts = survey.counts
        for seen in survey.todo:
            self._give(seen, survey, online)
        moved = self._put_back(survey.strays, online)
        return _outcome(counts, cpus, moved.problem or survey.problem)

    def restore(self, online: CpuSet) -> Moved:
        """Puts every thread back whose mask is still the one given; of the others somebody else disposes. Those that
        could not be put back are still in `taken`."""
        if self._scanned is None and self._held:
            self._scan(self._clock())
        return self._put_back(list(self._held), online)

    def _scan(self, now: float) -> None:
        found, self._unseen = self._threads.scan()
        self._found = {seen.thread: seen for seen in found}
        self._pids = {t: pid for t, pid in self._pids.items() if t in self._held} | {s.thread: s.pid for s in found}
        self._scanned = now

    def _look(self, cpus: CpuSet, online: CpuSet) -> bool:
        """Sorts the known threads by what is to be done; False when one of them is gone."""
        survey = self._survey = _Survey(cpus, noted=self._survey.noted, problem=self._unseen)
        counts = survey.counts
        whole = True
        for known in list(self._found.values()):
            try:
                mask = self._host.get_affinity(known.thread.tid) & online
                seen: SeenThread | None = known
                if mask != _target(known, cpus, online):
                    # A look at the thread itself, which may have ended, and at its cpuset, which may have changed.
                    seen = self._threads.again(known)
            except OSError as error:
                seen = None
                if error.errno != errno.ESRCH:
                    counts.threads += 1
                    counts.denied += 1
                    continue
            except Refused as refused:
                survey.problem = survey.problem or refused.problem
                continue
            if seen is None:
                whole = False
                del self._found[known.thread]
                continue
            self._found[known.thread] = seen
            counts.threads += 1
            target = _target(seen, cpus, online)
            if target and mask == target:
                counts.placed += 1
                self._placed[seen.thread] = cpus
            elif seen.fixed:
                counts.fixed += 1
            elif not target:
                counts.outside += 1
            else:
                self._note(seen, cpus, mask, online)
                survey.todo.append(seen)
        return whole

    def _note(self, seen: SeenThread, cpus: CpuSet, mask: CpuSet, online: CpuSet) -> None:
        held = self._held.get(seen.thread)
        if held is None:
            free = (online if seen.cpuset is None else seen.cpuset & online) <= mask
            held = self._held[seen.thread] = _Held(EMPTY if free else mask, [])
        if cpus not in held.given:
            held.given.append(cpus)
            self._survey.noted.add(seen.thread)

    def _give(self, seen: SeenThread, survey: _Survey, online: CpuSet) -> None:
        thread, cpus, counts = seen.thread, survey.cpus, survey.counts
        drift = self._placed.pop(thread, None) == cpus
        try:
            self._write(seen, cpus, online)
            # The kernel intersects silently: only what it shows afterwards is known to be in place.
            if self._host.get_affinity(thread.tid) & online == _target(seen, cpus, online):
                self._placed[thread] = cpus
        except OSError as error:
            if error.errno == errno.ESRCH:
                counts.threads -= 1
                self._scanned = None
                self._held.pop(thread, None)
                return
            if thread in survey.noted:
                self._forget(thread, cpus)
            if error.errno in DENIED:
                counts.denied += 1
            else:
                counts.outside += 1
            return
        self._held[thread].given = [cpus]
        counts.written += 1
        counts.drift += drift

    def _forget(self, thread: ThreadId, cpus: CpuSet) -> None:
        """It was noted that a thread gets these CPUs, and it did not."""
        held = self._held[thread]
        held.given.remove(cpus)
        if not held.given:
            del self._held[thread]

    def _put_back(self, threads: Iterable[ThreadId], online: CpuSet) -> Moved:
        moved, problem = 0, None
        for thread in threads:
            held = self._held[thread]
            try:
                wrote = self._return(thread, held, online)
            except Refused as refused:
                problem = problem or refused.problem
                continue
            except OSError as error:
                if error.errno != errno.ESRCH:
                    why = os.strerror(error.errno or 0)
                    reason = Reason.PERMISSION_DENIED if error.errno in DENIED else Reason.UNMOVABLE
                    problem = problem or Problem(reason, f"UVB thread {thread.tid} was not put back: {why}")
                    continue
                wrote = False
            del self._held[thread]
            self._placed.pop(thread, None)
            moved += wrote
        return Moved(moved, problem)

    def _return(self, thread: ThreadId, held: _Held, online: CpuSet) -> bool:
        """Whether a thread had to be put back, which it is then; False too where it ended."""
        seen = self._threads.find(thread, self._pids.get(thread))
        if seen is None:
            return False
        mask = self._host.get_affinity(thread.tid) & online
        if all(mask != given & online and mask != _target(seen, given, online) for given in held.given):
            return False
        try:
            self._write(seen, held.before or EVERY_CPU, online)
        except OSError as error:
            # None of the CPUs that it had is online, or in its cpuset, any more.
            if error.errno != errno.EINVAL or not held.before:
                raise
            self._write(seen, EVERY_CPU, online)
        return True

    def _write(self, seen: SeenThread, cpus: CpuSet, online: CpuSet) -> None:
        """OSError: ESRCH too where somebody else has the thread's number, who keeps his mask."""
        gone = OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        if not self._lives(seen):
            raise gone
        self._host.set_affinity(seen.thread.tid, cpus)
        if not self._lives(seen):
            make_good(self._host, self._threads.folder, seen.thread.tid, cpus, online)
            raise gone

    def _lives(self, seen: SeenThread) -> bool:
        try:
            return self._threads.find(seen.thread, seen.pid) is not None
        except Refused:
            return False


def _target(seen: SeenThread, cpus: CpuSet, online: CpuSet) -> CpuSet:
    return cpus & online if seen.cpuset is None else cpus & seen.cpuset & online


def _outcome(counts: _Counts, cpus: CpuSet, unseen: Problem | None) -> UvbOutcome:
    done, total = counts.placed + counts.written, counts.threads
    less, problem = True, None
    if counts.denied:
        problem = Problem(Reason.PERMISSION_DENIED, f"{counts.denied} of {total} threads: {os.strerror(errno.EPERM)}")
    elif counts.outside:
        problem = Problem(
            Reason.NO_UVB_CPUS, f"{counts.outside} of {total} threads: none of {shown(cpus)} is in their cpuset"
        )
    elif unseen is not None:
        problem = unseen
    elif counts.fixed:
        # Nobody can do better.
        less = False
        problem = Problem(Reason.UNMOVABLE, f"{counts.fixed} of {total} threads: the kernel keeps them where they are")
    if problem is None and not total:
        return UvbOutcome("Idle")
    if problem is None or (done and not less):
        return UvbOutcome("Bound", problem, total, counts.written, counts.drift)
    return UvbOutcome("Partial" if done else "Failed", problem, total, counts.written, counts.drift)
