"""``helpers: Confine`` (design 7): the processes of a bound worker's container that are no workers themselves are kept
off the CPUs that are set apart for interrupts, ACL and release threads, those of every NPU of the node."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from agent.control.confinement import Confinement, ConfineOutcome, ConfineResult, Given, Held, Verdict, before, judge
from agent.control.journal import ConfinedProcess
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.reason import Problem, Reason, Refused
from agent.model.workload import ProcessId, ThreadId, Worker
from agent.node.binding import DENIED
from agent.node.cgroups import CgroupTree
from agent.node.host import EVERY_CPU, ThreadHost
from agent.node.liveness import hidden
from agent.node.strangers import make_good
from agent.node.taskdir import PF_NO_SETAFFINITY, TaskDir

_T = TypeVar("_T")


@dataclass(slots=True)
class _Count:
    written: int = 0
    drift: int = 0
    left: int = 0
    fixed: int = 0
    problem: Problem | None = None

    def outcome(self) -> ConfineOutcome:
        problem = self.problem
        if problem is None and self.left:
            problem = Problem(Reason.NOT_CONFINED, f"{self.left} threads may run on CPUs set apart and on no other")
        elif problem is None and self.fixed:
            problem = Problem(Reason.UNMOVABLE, f"{self.fixed} threads: the kernel keeps them where they are")
        return ConfineOutcome(self.written, self.drift, self.left + self.fixed, problem)


class Confiner:
    """Confines helpers and takes that back.

    In every pass, after the workers were bound: `survey` looks, `taken` is what the journal must hold before anything
    is written, and `act` writes. A worker that comes into a confined container begins with the mask of a helper:
    `let_go` is for it, before it is bound and before anybody notes how it was. An instance over a `DryRunHost`, which
    adopts what the real one has `taken`, rehearses. Raises nothing.
    """

    def __init__(self, proc_root: Path, host: ThreadHost, cgroups: CgroupTree) -> None:
        self._proc = os.fspath(proc_root)
        self._host = host
        self._cgroups = cgroups
        self._held: dict[str, Held] = {}
        self._todo: dict[str, list[ProcessId]] = {}
        self._counts: dict[str, _Count] = {}

    def adopt(self, processes: Iterable[ConfinedProcess]) -> None:
        """Takes up what an earlier run of the agent did, in place of what is held now."""
        self._held = {}
        for entry in processes:
            held = self._held.setdefault(entry.container, Held())
            held.masks.setdefault(entry.process, {}).update(entry.masks)
            if entry.off not in held.offs:
                held.offs.append(entry.off)
        for held in self._held.values():
            held.done = held.offs[-1] if len(held.offs) == 1 else EMPTY

    @property
    def taken(self) -> tuple[ConfinedProcess, ...]:
        """Processes of which something is to be given back one day, each in here once for all CPUs that it is, or may
        be, kept off. Of a container that is held one stays in here, be it gone: its children have its masks."""
        return tuple(
            ConfinedProcess(process, key, off, dict(masks))
            for key, held in sorted(self._held.items())
            for process, masks in sorted(held.masks.items())
            for off in held.offs
        )

    @property
    def containers(self) -> frozenset[str]:
        """Keys of the containers in which something is to be given back."""
        return frozenset(self._held)

    def survey(self, ask: Confinement) -> None:
        """Looks which threads of helpers may run on CPUs that they are to be kept off, and notes how they are."""
        self._todo, self._counts = {}, {}
        self._prune(ask.members)
        if not ask.off:
            return
        for key in sorted(ask.wanted):
            count = self._counts[key] = _Count()
            helpers = [process for process in ask.members.get(key, ()) if process not in ask.workers]
            held = self._held.get(key)
            astray = [process for process in helpers if self._astray(process, held, ask, count)]
            if held is None and not astray:
                continue
            held = held or Held()
            held.undone = False
            # The first time that CPUs are taken all that chose their own are noted: later nobody could tell.
            fresh = held.done != ask.off
            self._note(key, helpers if fresh else astray, held, ask, fresh=fresh)

    def act(self, ask: Confinement) -> ConfineResult:
        """Writes what the survey found, and gives back what is not to be confined any more."""
        for key, processes in self._todo.items():
            held, count = self._held[key], self._counts[key]
            for process in processes:
                self._confine(process, held, ask, count)
            if count.problem is None:
                held.offs, held.done = [ask.off], ask.off
        outcomes = {key: count.outcome() for key, count in self._counts.items()}
        self._todo, self._counts = {}, {}
        ended = self.containers - (ask.wanted if ask.off else frozenset())
        return replace(self.restore(ask.members, ask.workers, ask.online, ended), outcomes=outcomes)

    def restore(
        self,
        members: Mapping[str, Sequence[ProcessId]],
        workers: Collection[ProcessId],
        online: CpuSet,
        keys: Collection[str] | None = None,
    ) -> ConfineResult:
        """Gives back every thread that has what it was given, and every one that began with that: the mask that it had,
        or all ones. Of all containers, or of those named. What could not be given back, or not be proven so, is still
        in `taken`. It is to be done before workers are released: what a helper had before may have been a worker's."""
        result = ConfineResult()
        again = False
        for key in sorted(self._held if keys is None else self._held.keys() & set(keys)):
            held = self._held[key]
            count = _Count()
            for process in sorted({*members.get(key, ()), *held.masks} - set(workers)):
                self._free(process, held, online, count, settled=held.undone)
            if count.written:
                result.returned[key] = count.written
            if count.problem is not None:
                result.stuck[key] = count.problem
            elif held.undone or not count.written:
                del self._held[key]
            else:
                again = held.undone = True
        return replace(result, again=again)

    def let_go(self, workers: Iterable[Worker], online: CpuSet) -> int:
        """Gives back what helpers had that are workers now, or that these were forked from. For workers that are not
        bound yet: one that is may have the same mask as main. How many threads that moved."""
        count = _Count()
        for worker in workers:
            held = self._held.get(worker.container)
            if held is not None:
                self._free(worker.process, held, online, count, settled=True)
                if worker.process in held.masks:
                    held.masks[worker.process] = {}
                held.still.discard(worker.process)
        return count.written

    def _prune(self, members: Mapping[str, Sequence[ProcessId]]) -> None:
        """Drops what ended: containers without processes, and processes, but for what their children may have."""
        for key, held in list(self._held.items()):
            inside = members.get(key, ())
            gone = [process for process in held.masks if process not in inside and not self._lives(process)]
            if len(gone) == len(held.masks) and not inside:
                del self._held[key]
                continue
            held.still &= set(inside)
            for process in gone:
                held.note(process, {}, living=())
                if not held.masks[process] and len(held.masks) > 1:
                    del held.masks[process]

    def _lives(self, process: ProcessId) -> bool:
        count = _Count()
        if self._look(process, lambda _tasks: True, count) is True or count.problem is not None:
            return True
        return hidden(self._proc, self._host.get_affinity, process) is not None

    def _astray(self, process: ProcessId, held: Held | None, ask: Confinement, count: _Count) -> bool:
        """Whether a process has to be looked at closely: a thread of it may run where it is not to."""

        barred = (ask.off & ask.online).bits

        def look(tasks: TaskDir) -> bool:
            # This is what a sweep costs where all is in place.
            for name in tasks.names():
                try:
                    if self._host.get_affinity(int(name)).bits & barred:
                        return True
                except OSError:
                    continue  # it ended
            return False

        astray = self._look(process, look, count)
        if held is not None and held.done == ask.off and astray is False:
            held.still.add(process)
        return astray is True

    def _note(self, key: str, processes: Sequence[ProcessId], held: Held, ask: Confinement, *, fresh: bool) -> None:
        """Adds how the threads are that are to be moved (where `fresh`, all that chose CPUs) to what is held."""
        count, given = self._counts[key], held.given()
        found = {process: self._verdicts(process, key, held, given, ask, count) for process in processes}
        todo = [p for p, verdicts in found.items() if any(v.target is not None for v in verdicts.values())]
        count.left += sum(verdict.left for verdicts in found.values() for verdict in verdicts.values())
        if not todo and key not in self._held:
            return
        for process, verdicts in found.items():
            masks = {
                thread: verdict.before
                for thread, verdict in verdicts.items()
                if verdict.target is not None or (fresh and verdict.before and held.noted(process, thread) is None)
            }
            if masks:
                held.note(process, masks, living=verdicts.keys())
        if ask.off not in held.offs:
            held.offs.append(ask.off)
        self._held[key] = held
        self._todo[key] = todo

    def _verdicts(  # noqa: PLR0917
        self, process: ProcessId, key: str, held: Held, given: Given, ask: Confinement, count: _Count
    ) -> dict[ThreadId, Verdict]:
        """What is to become of each thread of a process, if that is in the container. Those that the kernel keeps where
        they are not to be are counted."""

        def look(tasks: TaskDir) -> dict[ThreadId, Verdict]:
            identity = self._cgroups.identity(process.pid)
            if identity is None or not identity.runtime or identity.key != key:
                return {}
            allowed = self._allowed(process, ask.online)
            verdicts = {}
            for name in tasks.names():
                thread, mask, fixed = self._thread(tasks, name, ask.online)
                if thread is None:
                    continue
                if fixed:
                    count.fixed += not mask.isdisjoint(ask.off)
                    continue
                noted = held.noted(process, thread)
                verdicts[thread] = judge(mask, ask.off, noted, given, allowed)
            return verdicts

        return self._look(process, look, count) or {}

    def _confine(self, process: ProcessId, held: Held, ask: Confinement, count: _Count) -> None:
        drift = process in held.still
        held.still.discard(process)
        given = held.given()

        def look(tasks: TaskDir) -> None:
            allowed = self._allowed(process, ask.online)

            def visit(name: str) -> bool:
                thread, mask, fixed = self._thread(tasks, name, ask.online)
                if thread is None or fixed:
                    return False
                noted = held.noted(process, thread)
                verdict = judge(mask, ask.off, noted, given, allowed)
                if verdict.target is None:
                    return False
                if verdict.before not in given.inherited if verdict.before else noted is not None:
                    return False  # it is not as it was noted: for the next pass
                if not self._write(tasks, name, verdict.target, ask.online, count):
                    return False
                count.written += 1
                count.drift += drift
                return True

            tasks.visit(visit, set())

        self._look(process, look, count)

    def _free(self, process: ProcessId, held: Held, online: CpuSet, count: _Count, *, settled: bool) -> None:
        """Gives back what a process was given. `settled`: a thread that has all that it should have of its cpuset is
        free; else it may have been told otherwise, where the cpuset had those CPUs once."""
        given = held.given()
        off = union(given.offs)

        def look(tasks: TaskDir) -> None:
            allowed = self._allowed(process, online)

            def visit(name: str) -> bool:
                thread, mask, fixed = self._thread(tasks, name, online)
                if thread is None or fixed or (settled and mask == allowed):
                    return False
                noted = held.noted(process, thread)
                was, ours = before(mask, noted, given, allowed)
                if (
                    noted is not None
                    and mask == allowed
                    and not settled
                    and not all(noted - o & allowed for o in given.offs)
                ):
                    was, ours = noted, True  # its cpuset lost all that it was told, and it remembers that
                if not ours or (mask == was & allowed and (settled or was.isdisjoint(off))):
                    return False
                if not self._write(tasks, name, was if was & allowed else EVERY_CPU, online, count):
                    return False
                count.written += 1
                return True

            tasks.visit(visit, set())

        self._look(process, look, count)

    def _allowed(self, process: ProcessId, online: CpuSet) -> CpuSet:
        """The online CPUs that a process may use: its own cgroup may have fewer than the container's."""
        cpuset = self._cgroups.process_cpus(process.pid)
        return online if cpuset is None else cpuset & online

    def _thread(self, tasks: TaskDir, name: str, online: CpuSet) -> tuple[ThreadId | None, CpuSet, bool]:
        """A thread, None where it ended; its mask ∩ online; whether the kernel keeps it where it is."""
        try:
            mask = self._host.get_affinity(int(name)) & online
        except OSError:
            return None, EMPTY, False
        stat = tasks.stat(name) if mask else None
        if stat is None:
            return None, EMPTY, False
        return ThreadId(int(name), stat.start_time), mask, bool(stat.flags & PF_NO_SETAFFINITY)

    def _write(self, tasks: TaskDir, name: str, cpus: CpuSet, online: CpuSet, count: _Count) -> bool:
        tid = int(name)
        try:
            self._host.set_affinity(tid, cpus)
            if tasks.stat(name) is None:
                make_good(self._host, self._proc, tid, cpus, online)
                return False
        except OSError as error:
            if error.errno in DENIED:
                why = os.strerror(error.errno or 0)
                count.problem = count.problem or Problem(Reason.PERMISSION_DENIED, f"process {tasks.pid}: {why}")
            return False  # otherwise it ended, or its cpuset changed meanwhile: the next pass sees
        return True

    def _look(self, process: ProcessId, look: Callable[[TaskDir], _T], count: _Count) -> _T | None:
        """Shows a process to `look`; None where it ended or can't be read, which is a problem of that container."""
        try:
            tasks = TaskDir.of(self._proc, process)
            if tasks is None:
                return None
            with tasks:
                return look(tasks)
        except Refused as refused:
            count.problem = count.problem or refused.problem
            return None
