"""Makes every thread of a worker be where the plan says, and undoes it.

Facts of Linux that this relies on:

* sched_setaffinity(2) takes a tid. It intersects silently with the cpuset, so that what was asked for and what came of
  it differ without an error: a target is compared with the cpuset before it is written.
* A new thread or process starts with the mask of the thread that made it. So once every thread that was there is in
  place, those that come are too, but for those whose maker has a role of its own.
* Between the listing of a tid and the write of its mask the thread can end; that is ESRCH. Its number is not given out
  again before all others were. Where a pod has made as many processes meanwhile, the write meets somebody else: so each
  is looked for again after it was written, see `agent.node.strangers`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import Misplaced, Moved, WorkerOutcome
from agent.model.plan import Roles
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import ThreadRule
from agent.model.workload import ProcessId, ThreadId
from agent.node.binding import DENIED, NOTED_SECONDS, Binding, Memory, Noted, gone
from agent.node.comms import CommCache
from agent.node.folders import Folders
from agent.node.host import EVERY_CPU, ThreadHost
from agent.node.liveness import hidden
from agent.node.strangers import make_good
from agent.node.targets import Targets
from agent.node.taskdir import TaskDir

_NOTHING: Mapping[ThreadId, CpuSet] = MappingProxyType({})
WholeOf = Callable[[int], CpuSet | None]  # pid -> what `ThreadBinder.release` calls the whole of it


class ThreadBinder:
    """Binds, checks and releases the threads of processes below `proc_root` (``/proc``) through `host`.

    Every call is one level-triggered look: it takes what is there and writes only what is not in place. Processes and
    threads that end meanwhile are no error. `cpuset` is the effective cpuset of the process's container, `online` the
    online CPUs. An instance serves one Python thread at a time. `comms` has the names of threads that need not be read.
    """

    def __init__(self, proc_root: Path, host: ThreadHost, comms: CommCache | None = None) -> None:
        self._proc = os.fspath(proc_root)
        self._host = host
        self._comms = comms or CommCache()
        self._roles: dict[ProcessId, Roles] = {}
        self._memories: dict[ProcessId, Memory] = {}
        self._cpusets: dict[ProcessId, CpuSet] = {}
        self._targets: dict[ProcessId, Targets] = {}
        self._folders = Folders(self._proc)

    def bind(
        self,
        process: ProcessId,
        roles: Roles,
        *,
        cpuset: CpuSet,
        online: CpuSet,
        rules: Sequence[ThreadRule] = (),
        first: bool,
    ) -> WorkerOutcome:
        """Puts every thread where its name says. Raises nothing: what went wrong is in the outcome.

        A thread is in place when its mask ∩ `online` is target ∩ `cpuset` ∩ `online`. On the `first` binding of a
        process to these roles every other mask is written. Later a main thread whose mask is a part of main is left
        alone, unless all main threads (more than one) have such masks: that was no library pinning a thread of its own,
        but a second binder. Roles whose CPUs are not all in the cpuset are not touched: the outcome is Failed with
        CpusetChanged, for the caller to plan anew. A process that ended is Pending with ProcessGone. Threads that can't
        be moved by anybody are told as a problem, Unmovable, of a worker that is Bound all the same.
        """
        memory = self._memories.setdefault(process, Memory())
        if self._roles.get(process) != roles:
            self._roles[process] = roles
            memory.known.clear()
        targets = self._targets.get(process)
        if targets is None or not targets.fit(roles, cpuset, online, rules):
            targets = self._targets[process] = Targets(roles, cpuset, online, rules)
        targets.clear()
        rewritten = self._cpusets.get(process, cpuset) != cpuset
        self._cpusets[process] = cpuset
        try:
            tasks = self._folders.open(process)
            if tasks is None:
                outcome = gone(process)
            else:
                with self._binding(tasks, targets, online, memory, rewritten=rewritten) as binding:
                    noted = memory.noted if first and memory.noted and _is_fresh(memory.noted) else None
                    outcome = binding.outcome(process, binding.run(keep_narrow=not first, noted=noted))
                memory.noted = None
        except Refused as refused:
            outcome = WorkerOutcome(process, "Failed", refused.problem)
        if outcome.problem is not None and outcome.problem.reason is Reason.PROCESS_GONE:
            self._folders.close(process)  # the next pass opens it anew
            if (problem := self._hidden(process)) is not None:
                return WorkerOutcome(process, "Failed", problem)
            self._forget(process)
        return outcome

    def check(
        self,
        process: ProcessId,
        roles: Roles,
        *,
        cpuset: CpuSet,
        online: CpuSet,
        rules: Sequence[ThreadRule] = (),
    ) -> list[Misplaced]:
        """The threads that are not in place, by the rules of a later `bind`, ascending by tid. Writes nothing.

        Empty when the process ended. Refused(ProcessUnreadable or PermissionDenied) when it can't be looked at.
        """
        tasks = self._folders.open(process)
        if tasks is None:
            return []
        memory = self._memories.get(process, Memory())
        unchanged = Memory(entries=memory.entries)
        with self._binding(tasks, Targets(roles, cpuset, online, rules), online, unchanged) as binding:
            return binding.look()

    def masks(self, process: ProcessId, *, cpuset: CpuSet, online: CpuSet) -> dict[ThreadId, CpuSet]:
        """The threads whose mask ∩ `online` is a part, not all, of `cpuset` ∩ `online`, with that mask: what would be
        lost when they are bound. Empty when the process ended; Refused when its threads can't be read."""
        whole, active = (cpuset & online).bits, online.bits
        found: dict[ThreadId, CpuSet] = {}
        tasks = self._folders.open(process)
        if tasks is None:
            return found
        entries = tasks.entries()
        masks = self._host.get_masks(list(entries))
        self._memories.setdefault(process, Memory()).noted = Noted(time.monotonic(), entries, masks)
        for tid, mask in [(tid, mask) for tid, mask in zip(entries, masks, strict=True) if mask & active != whole]:
            # One that ended has no mask; one whose mask nobody may read can't be moved either.
            narrow = mask & active if mask > 0 else 0
            if not narrow or narrow & ~whole:
                continue
            if (stat := tasks.stat(str(tid))) is not None:
                found[ThreadId(tid, stat.start_time)] = CpuSet.from_bits(narrow)
        return found

    def release(
        self,
        process: ProcessId,
        *,
        pool: CpuSet,
        online: CpuSet,
        masks: Mapping[ThreadId, CpuSet] = _NOTHING,
        whole: CpuSet | None = None,
    ) -> Moved:
        """Gives every thread whose mask ∩ `online` lies within `pool` the mask of all ones; others keep theirs.

        All ones, so that the thread has what its cpuset gives from now on. The cpuset's present value would stick:
        since Linux 6.2 the kernel remembers what a thread was told. Threads in `masks` get the mask that they have
        there, unless nothing of it is in their cpuset any more. Raises nothing; of a process that ended nothing is
        moved.

        Threads that have all of `whole`, their cpuset, get the same and do not count: a cpuset that lost all that they
        had been told made it so, and since Linux 6.2 they would have that again once the cpuset does.
        """
        self._forget(process)
        try:
            tasks = TaskDir.of(self._proc, process)
            if tasks is None:
                return Moved(0, self._hidden(process))
            with tasks:
                return self._move(tasks, pool, EVERY_CPU, online, masks=masks, whole=whole)
        except Refused as refused:
            return Moved(0, refused.problem)

    def release_all(
        self,
        processes: Iterable[ProcessId],
        *,
        pool: CpuSet,
        online: CpuSet,
        unless: Collection[CpuSet] = (),
        masks: Mapping[ThreadId, CpuSet] = _NOTHING,
        whole: WholeOf = lambda _pid: None,
    ) -> Moved:
        """`release` for processes that are not bound. Threads whose mask lies within one of `unless` are left alone."""
        moved, problem = 0, None
        for process in processes:
            try:
                tasks = TaskDir.of(self._proc, process)
                if tasks is None:
                    continue
                with tasks:
                    cpuset = whole(process.pid)
                    result = self._move(tasks, pool, EVERY_CPU, online, masks=masks, unless=unless, whole=cpuset)
            except Refused as refused:
                result = Moved(0, refused.problem)
            moved += result.threads
            problem = problem or result.problem
        return Moved(moved, problem)

    def inhabits(
        self, processes: Iterable[ProcessId], *, pool: CpuSet, online: CpuSet, whole: WholeOf = lambda _pid: None
    ) -> bool:
        """Whether any thread of these has a mask ∩ `online` that is within `pool`, or its `whole`. Of what can't be
        read nothing is known: it counts as one that has."""
        active, within = online.bits, pool.bits
        for process in processes:
            try:
                tasks = TaskDir.of(self._proc, process)
                if tasks is None:
                    continue
                with tasks:
                    unbound = (whole(process.pid) or EMPTY).bits & active
                    for mask in self._host.get_masks(list(tasks.entries())):
                        if mask > 0 and (mask := mask & active) and (not mask & ~within or mask == unbound):
                            return True
            except Refused:
                return True
        return False

    def return_descendants(
        self,
        worker: ProcessId,
        roles: Roles,
        *,
        cpuset: CpuSet,
        online: CpuSet,
        children: Mapping[int, Sequence[int]],
        exclude: Collection[int] = (),
        left: CpuSet = EMPTY,
    ) -> Moved:
        """Puts descendants of a worker on main that inherited CPUs of its acl or release thread or of its interrupts,
        or CPUs that it had before and has `left`.

        A child starts with the mask of the thread that forked it, so that is every thread whose mask ∩ `online` lies
        within ``roles.apart`` and `left`. `children` maps a pid to those of its children, as of a recent look at the
        process table; each is believed only while it still names that parent and did not start before it. Processes in
        `exclude`, and what descends from them, are left alone: workers have roles of their own. Raises nothing.
        """
        targets = Targets(roles, cpuset, online)
        within = roles.apart | left
        if not within:
            return Moved()
        if not targets.main.inside:
            return Moved(0, targets.outside())
        return self._descend(worker, children, exclude, within=within, to=roles.main, online=online)

    def release_descendants(
        self,
        worker: ProcessId,
        *,
        pool: CpuSet,
        online: CpuSet,
        children: Mapping[int, Sequence[int]],
        exclude: Collection[int] = (),
        whole: CpuSet | None = None,
    ) -> Moved:
        """`release` for the descendants of a worker, which began with its masks. `children` and `exclude` are as for
        `return_descendants`, and so is who counts as one. Those that begin before the worker itself is released begin
        with its old masks, so that it is to be released first. Raises nothing."""
        return self._descend(worker, children, exclude, within=pool, to=EVERY_CPU, online=online, whole=whole)

    def _descend(
        self,
        worker: ProcessId,
        children: Mapping[int, Sequence[int]],
        exclude: Collection[int],
        *,
        within: CpuSet,
        to: CpuSet,
        online: CpuSet,
        whole: CpuSet | None = None,
    ) -> Moved:
        try:
            if not self._folders.alive(worker):
                return Moved()
        except Refused as refused:
            return Moved(0, refused.problem)
        moved, problem = 0, None
        seen = {worker.pid, *exclude}
        families = deque([worker])
        while families:
            parent = families.popleft()
            for pid in children.get(parent.pid, ()):
                if pid in seen:
                    continue
                seen.add(pid)
                try:
                    tasks = TaskDir.open(self._proc, pid)
                    if tasks is None:
                        continue
                    with tasks:
                        if tasks.leader.ppid != parent.pid or tasks.leader.start_time < parent.start_time:
                            continue
                        families.append(ProcessId(pid, tasks.leader.start_time))
                        result = self._move(tasks, within, to, online, whole=whole)
                except Refused as refused:
                    result = Moved(0, refused.problem)
                moved += result.threads
                problem = problem or result.problem
        return Moved(moved, problem)

    def lives(self, process: ProcessId) -> bool:
        """Whether the process is still there. One that can't be looked at is."""
        try:
            return self._folders.alive(process) or self._hidden(process) is not None
        except Refused:
            return True

    def retain(self, processes: Collection[ProcessId]) -> None:
        """Drops what is remembered of every other process: which threads were in place, which can't be moved."""
        for process in (self._memories.keys() | self._folders.kept()) - set(processes):
            self._forget(process)

    def _hidden(self, process: ProcessId) -> Problem | None:
        return hidden(self._proc, self._host.get_affinity, process)

    def _forget(self, process: ProcessId) -> None:
        self._memories.pop(process, None)
        self._roles.pop(process, None)
        self._cpusets.pop(process, None)
        self._targets.pop(process, None)
        self._folders.close(process)
        self._comms.forget(process.pid)

    @contextlib.contextmanager
    def _binding(
        self, tasks: TaskDir, targets: Targets, online: CpuSet, memory: Memory, *, rewritten: bool = False
    ) -> Iterator[Binding]:
        """One pass, at whose end the names are kept that it has read."""
        reading = self._comms.begin(tasks.pid)
        binding = Binding(
            self._host,
            tasks,
            targets,
            online,
            memory=memory,
            reading=reading,
            proc_root=self._proc,
            rewritten=rewritten,
        )
        try:
            yield binding
        finally:
            self._comms.end(tasks.pid, reading, binding.read, binding.living)

    def _move(
        self,
        tasks: TaskDir,
        within: CpuSet,
        to: CpuSet,
        online: CpuSet,
        *,
        masks: Mapping[ThreadId, CpuSet] = _NOTHING,
        unless: Collection[CpuSet] = (),
        whole: CpuSet | None = None,
    ) -> Moved:
        """Gives the mask `to` to the threads whose mask ∩ online is a part, or all, of `within`, and of none of
        `unless`, and to those whose mask is the `whole` cpuset; to those in `masks` the one that they have there."""
        moved = 0
        problem: Problem | None = None
        own = {thread.tid for thread in masks}
        unbound = EMPTY if whole is None else whole & online

        def visit(name: str) -> bool:
            nonlocal moved, problem
            tid = int(name)
            try:
                mask = self._host.get_affinity(tid) & online
                inside = mask <= within
                if not mask or not (inside or mask == unbound) or any(mask <= other for other in unless):
                    return False
                before = _mask_of(tasks, name, masks) if tid in own else None
                if before is not None and mask == before & online:
                    return False
                if tasks.stat(name) is None:
                    return False
                given = self._give(tid, before, to)
                if tasks.stat(name) is None:
                    make_good(self._host, self._proc, tid, given, online)
            except OSError as error:
                # Otherwise it ended (ESRCH), or can't be moved or lives in another cpuset (EINVAL): not for us to move.
                if error.errno in DENIED:
                    problem = Problem(Reason.PERMISSION_DENIED, f"process {tasks.pid}: {os.strerror(error.errno)}")
                return False
            moved += inside
            return True

        if tasks.visit(visit, set()) == "changing":
            problem = problem or Problem(Reason.THREADS_CHANGING, f"process {tasks.pid} keeps making threads")
        return Moved(moved, problem)

    def _give(self, tid: int, before: CpuSet | None, otherwise: CpuSet) -> CpuSet:
        """Gives a thread the mask that it had, or the other one where it had none or its cpuset has nothing of it.
        Returns what was written."""
        if before:
            try:
                self._host.set_affinity(tid, before)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return before
        self._host.set_affinity(tid, otherwise)
        return otherwise


def _is_fresh(noted: Noted) -> bool:
    return time.monotonic() - noted.at < NOTED_SECONDS


def _mask_of(tasks: TaskDir, name: str, masks: Mapping[ThreadId, CpuSet]) -> CpuSet | None:
    """What is known of a thread by its number and its start time: the number alone may be another thread's by now."""
    stat = tasks.stat(name)
    return None if stat is None else masks.get(ThreadId(int(name), stat.start_time))
