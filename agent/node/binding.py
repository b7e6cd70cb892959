"""One pass over the threads of one process: where each belongs, what was done, what came of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from agent.model.cpuset import CpuSet
from agent.model.outcome import BindState, DriftKind, Misplaced, ThreadCounts, WorkerOutcome
from agent.model.plan import Roles
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.spec import THREAD_RULES, Role, ThreadRule
from agent.model.workload import ProcessId
from agent.node.host import ThreadHost
from agent.node.taskdir import PF_NO_SETAFFINITY, TaskDir

COMM_BYTES: Final = 15
"""What the kernel keeps of a thread's name (TASK_COMM_LEN - 1)."""

DENIED: Final = (errno.EPERM, errno.EACCES)


@dataclass(slots=True)
class Target:
    """Where the threads of a role belong, and the count of them."""

    role: Role
    cpus: CpuSet
    wanted: int
    """Bits of mask ∩ online of a thread in place."""
    inside: bool
    """All of `cpus` is in the cpuset, and something of it is online."""
    placed: int = 0
    written: int = 0
    left: int = 0
    unmovable: int = 0
    denied: int = 0
    outside: int = 0

    def counts(self) -> ThreadCounts:
        return ThreadCounts(self.placed, self.written, self.left, self.unmovable, self.denied, self.outside)

    def narrows(self, mask: int) -> bool:
        """Whether mask ∩ online is a part of the target: not empty, not all of it."""
        return bool(mask) and mask != self.wanted and not mask & ~self.wanted


class Targets:
    """The target of every thread of a process by its name.

    The longest prefix that a name begins with decides; names with none belong to main. So does a role without CPUs of
    its own (all but main on Ascend 950). `rules` add prefixes to those of the CANN runtime and can't redefine them.
    """

    def __init__(self, roles: Roles, cpuset: CpuSet, online: CpuSet, rules: Sequence[ThreadRule] = ()) -> None:
        self.main = _target(Role.MAIN, roles.main, cpuset, online)
        self.cpuset = cpuset
        self._by_role: dict[Role, Target] = {Role.MAIN: self.main}
        prefixes: dict[bytes, Target] = {}
        for rule in (*THREAD_RULES, *rules):
            prefix = rule.prefix.encode("utf-8", "surrogateescape")[:COMM_BYTES]
            if prefix:
                prefixes.setdefault(prefix, self._of_role(rule.role, roles, cpuset, online))
        self._prefixes = sorted(prefixes.items(), key=lambda item: -len(item[0]))
        self._by_comm: dict[bytes, Target] = {}

    def of(self, comm: bytes) -> Target:
        """The target of a thread with this name."""
        target = self._by_comm.get(comm)
        if target is None:
            target = next((target for prefix, target in self._prefixes if comm.startswith(prefix)), self.main)
            self._by_comm[comm] = target
        return target

    def all(self) -> Collection[Target]:
        return self._by_role.values()

    def counts(self) -> dict[Role, ThreadCounts]:
        """By role, those without threads left out."""
        return {role: counts for role, target in self._by_role.items() if (counts := target.counts()).total}

    def outside(self) -> Problem | None:
        """The first role whose CPUs are not all in the cpuset, if there is one."""
        for target in self._by_role.values():
            if not target.inside:
                where = f"{target.role} {shown(target.cpus)}"
                return Problem(Reason.CPUSET_CHANGED, f"{where} is not within the online CPUs of {shown(self.cpuset)}")
        return None

    def _of_role(self, role: Role, roles: Roles, cpuset: CpuSet, online: CpuSet) -> Target:
        cpus: CpuSet = getattr(roles, role.value)
        if not cpus:
            return self.main
        target = self._by_role.get(role)
        if target is None:
            target = self._by_role[role] = _target(role, cpus, cpuset, online)
        return target


class Binding:
    """What one call of `ThreadBinder.bind` or `check` finds and does.

    `known` are the threads that were in place after an earlier pass, with their roles, by tid as text; `fixed` maps
    the tids of threads that proved unmovable to their start times. Both are brought up to date. `rewritten`: the cpuset
    is another than in the last pass.
    """

    def __init__(
        self,
        host: ThreadHost,
        tasks: TaskDir,
        targets: Targets,
        online: CpuSet,
        *,
        known: dict[str, Role],
        fixed: dict[int, int],
        rewritten: bool = False,
    ) -> None:
        self._host = host
        self._tasks = tasks
        self._targets = targets
        self._online = online.bits
        self._known = known
        self._fixed = fixed
        self._rewritten = rewritten
        self._writes = True
        self._keep_narrow = False
        self._astray: list[Misplaced] = []
        self._narrowed: list[tuple[str, CpuSet, bytes]] = []
        self._drift: list[Misplaced] = []
        self._unrepaired: list[Misplaced] = []
        self._vanished = 0
        self._emptied = False
        self._refusals: dict[Reason, str] = {}

    def look(self) -> list[Misplaced]:
        """The threads that are not in place by the rules of a later pass, ascending. Refused if they can't be seen."""
        self._writes = False
        self.run(keep_narrow=True)
        if Reason.PERMISSION_DENIED in self._refusals:
            raise Refused(Reason.PERMISSION_DENIED, f"masks: {self._refusals[Reason.PERMISSION_DENIED]}")
        return sorted(self._astray, key=lambda entry: entry.tid)

    def run(self, *, keep_narrow: bool) -> Literal["settled", "changing", "gone"]:
        """Visits every thread. Refused when the process can't be read."""
        self._keep_narrow = keep_narrow
        seen: set[str] = set()
        end = self._tasks.visit(self._visit, seen)
        main = self._targets.main
        if len(self._narrowed) > 1 and not main.placed and not main.written:
            self._keep_narrow = False
            for name, mask, comm in self._narrowed:
                self._write(name, main, mask, comm)
            if end != "gone":
                end = self._tasks.visit(self._visit, seen)
        else:
            main.left += len(self._narrowed)
        for name in self._known.keys() - seen:
            del self._known[name]
        for tid in [tid for tid in self._fixed if str(tid) not in seen]:
            del self._fixed[tid]
        return end

    def outcome(self, process: ProcessId, end: Literal["settled", "changing", "gone"]) -> WorkerOutcome:
        """The result, once `run` is through."""
        threads = self._targets.counts()
        done = sum(counts.placed + counts.written + counts.left for counts in threads.values())
        if end == "gone" or not threads:
            return gone(process, threads, self._vanished)
        state: BindState = "Bound"
        problem = self._targets.outside()
        if problem is None and self._emptied:
            problem = Problem(Reason.CPUSET_CHANGED, "the kernel found none of the planned CPUs in a thread's cpuset")
        if problem is not None:
            state = "Failed"
        elif Reason.PERMISSION_DENIED in self._refusals:
            denied = sum(counts.denied for counts in threads.values())
            state = "Partial" if done else "Failed"
            problem = Problem(Reason.PERMISSION_DENIED, f"{denied} threads: {self._refusals[Reason.PERMISSION_DENIED]}")
        elif end == "changing":
            state = "Partial"
            problem = Problem(Reason.THREADS_CHANGING, f"{sum(counts.total for counts in threads.values())} so far")
        elif Reason.UNMOVABLE in self._refusals:
            # Nobody can do better, so that the worker counts as bound where anything of it is.
            unmovable = sum(counts.unmovable for counts in threads.values())
            state = "Bound" if done else "Failed"
            problem = Problem(Reason.UNMOVABLE, f"{unmovable} threads: {self._refusals[Reason.UNMOVABLE]}")
        drift, unrepaired = tuple(self._drift), tuple(self._unrepaired)
        return WorkerOutcome(process, state, problem, threads, self._vanished, drift, unrepaired)

    def _visit(self, name: str) -> bool:
        comm = self._tasks.comm(name)
        if comm is None:
            self._vanished += 1
            return False
        target = self._targets.of(comm)
        try:
            mask = self._host.get_affinity(int(name))
        except OSError as error:
            self._refused(name, target, error)
            return False
        if not target.inside:
            target.outside += 1
            self._astray.append(_misplaced(name, comm, target, mask))
            return False
        found = mask.bits & self._online
        if found == target.wanted:
            target.placed += 1
            self._known[name] = target.role
            return False
        if self._keep_narrow and target is self._targets.main and target.narrows(found):
            self._narrowed.append((name, mask, comm))
            return False
        return self._write(name, target, mask, comm)

    def _write(self, name: str, target: Target, mask: CpuSet, comm: bytes) -> bool:
        tid = int(name)
        if not self._writes:
            stat = self._tasks.stat(name)
            if stat is None or not stat.flags & PF_NO_SETAFFINITY:
                target.written += 1
                self._astray.append(_misplaced(name, comm, target, mask))
            return False
        if tid in self._fixed and self._still_fixed(name, target):
            return False
        try:
            self._host.set_affinity(tid, target.cpus)
        except OSError as error:
            self._refused(name, target, error)
            if self._known.pop(name, None) is target.role and error.errno != errno.ESRCH:
                self._unrepaired.append(_misplaced(name, comm, target, mask, kind=self._kind(mask)))
            return False
        target.written += 1
        if self._known.get(name) is target.role:
            self._drift.append(_misplaced(name, comm, target, mask, kind=self._kind(mask)))
        self._known[name] = target.role
        return True

    def _kind(self, mask: CpuSet) -> DriftKind:
        """A write to the cpuset gives its threads all of it (before Linux 6.2, and since then to those whose mask does
        not meet it); whoever reads that a moment later can't tell what else it was."""
        whole = mask.bits & self._online == self._targets.cpuset.bits & self._online
        return "cpuset" if whole or self._rewritten else "thread"

    def _still_fixed(self, name: str, target: Target) -> bool:
        """Whether a thread that proved unmovable is that very thread, so that it need not be tried again."""
        stat = self._tasks.stat(name)
        if stat is None:
            self._vanished += 1
            return True
        if stat.start_time != self._fixed[int(name)]:
            del self._fixed[int(name)]
            return False
        target.unmovable += 1
        self._refusals.setdefault(Reason.UNMOVABLE, "the kernel keeps them where they are")
        return True

    def _refused(self, name: str, target: Target, error: OSError) -> None:
        if error.errno == errno.ESRCH:
            self._vanished += 1
        elif error.errno in DENIED:
            target.denied += 1
            self._refusals.setdefault(Reason.PERMISSION_DENIED, os.strerror(error.errno))
        elif error.errno == errno.EINVAL:
            stat = self._tasks.stat(name)
            if stat is None:
                self._vanished += 1
            elif stat.flags & PF_NO_SETAFFINITY:
                self._fixed[int(name)] = stat.start_time
                target.unmovable += 1
                self._refusals.setdefault(Reason.UNMOVABLE, "the kernel keeps them where they are")
            else:
                target.outside += 1
                self._emptied = True
        else:
            # EBUSY: a deadline task whose bandwidth was admitted for more CPUs. Others are not documented.
            target.unmovable += 1
            self._refusals.setdefault(Reason.UNMOVABLE, os.strerror(error.errno or 0))


def gone(process: ProcessId, threads: dict[Role, ThreadCounts] | None = None, vanished: int = 0) -> WorkerOutcome:
    """The outcome for a process that ended."""
    problem = Problem(Reason.PROCESS_GONE, f"process {process.pid} ended")
    return WorkerOutcome(process, "Pending", problem, threads or {}, vanished)


def shown(cpus: CpuSet) -> str:
    """A CPU list short enough for a message."""
    return printable(str(cpus), 80)


def _misplaced(name: str, comm: bytes, target: Target, mask: CpuSet, *, kind: DriftKind = "thread") -> Misplaced:
    return Misplaced(int(name), printable(comm.decode("utf-8", "replace")), target.role, mask, target.cpus, kind)


def _target(role: Role, cpus: CpuSet, cpuset: CpuSet, online: CpuSet) -> Target:
    wanted = (cpus & cpuset & online).bits
    return Target(role, cpus, wanted, inside=bool(wanted) and cpus <= cpuset)
