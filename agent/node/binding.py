"""One pass over the threads of one process: where each belongs, what was done, what came of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final, Literal

from agent.model.cpuset import CpuSet
from agent.model.outcome import BindState, DriftKind, Misplaced, ThreadCounts, WorkerOutcome
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.spec import Role
from agent.model.workload import ProcessId
from agent.node.comms import Reading
from agent.node.host import ThreadHost
from agent.node.strangers import make_good
from agent.node.targets import Target, Targets
from agent.node.taskdir import MAX_PASSES, PF_NO_SETAFFINITY, TaskDir

DENIED: Final = (errno.EPERM, errno.EACCES)


NOTED_SECONDS: Final = 0.1
"""How long a listing is good for. A number is given out again only after all others were, of which there are 32,768 at
least (kernel.pid_max): no host makes as many threads in that time."""


@dataclass(frozen=True, slots=True)
class Noted:
    """The threads as they were a moment ago, before anything was done to them."""

    at: float
    """Seconds of the monotonic clock."""
    entries: dict[int, int]
    """`TaskDir.entries`."""
    masks: list[int]
    """`ThreadHost.get_masks` of these, in their order."""


@dataclass(slots=True)
class Memory:
    """What is remembered of the threads of a process from pass to pass. Each pass brings it up to date, so that it is
    never larger than the process."""

    known: dict[int, Role] = field(default_factory=dict)
    """Threads that were in place after the last pass -> their roles."""
    fixed: dict[int, int] = field(default_factory=dict)
    """Threads that proved unmovable -> their start times."""
    entries: dict[int, int] = field(default_factory=dict)
    """What the last pass listed (`TaskDir.entries`)."""
    noted: Noted | None = None
    """For the first pass, which need not ask again for what was noted just before it."""


class Binding:
    """What one call of `ThreadBinder.bind` or `check` finds and does.

    `reading` is the pass as the cache of names knows it, which `read` is for when it is over. `rewritten`: the cpuset
    is another than in the last pass.
    """

    def __init__(
        self,
        host: ThreadHost,
        tasks: TaskDir,
        targets: Targets,
        online: CpuSet,
        *,
        memory: Memory,
        reading: Reading,
        proc_root: str,
        rewritten: bool = False,
    ) -> None:
        self._host = host
        self._tasks = tasks
        self._targets = targets
        self._online = online.bits
        self._memory = memory
        self._known = memory.known
        self._fixed = memory.fixed
        self._entries = memory.entries
        self._reading = reading
        self._proc = proc_root
        self._rewritten = rewritten
        self._writes = True
        self._keep_narrow = False
        self._astray: list[Misplaced] = []
        self._narrowed: list[tuple[int, int, bytes]] = []
        self._drift: list[Misplaced] = []
        self._unrepaired: list[Misplaced] = []
        self._vanished = 0
        self._emptied = False
        self._refusals: dict[Reason, str] = {}
        self._put_off: set[int] = set()
        self._again: set[int] = set()
        self._given: dict[int, CpuSet] = {}
        self.read: dict[int, bytes] = {}
        """The names that were read, of threads that the last pass had listed too: those that can be kept."""

    @property
    def living(self) -> Collection[int]:
        """The threads that were listed last."""
        return self._entries

    def look(self) -> list[Misplaced]:
        """The threads that are not in place by the rules of a later pass, ascending. Refused if they can't be seen."""
        self._writes = False
        self.run(keep_narrow=True)
        if Reason.PERMISSION_DENIED in self._refusals:
            raise Refused(Reason.PERMISSION_DENIED, f"masks: {self._refusals[Reason.PERMISSION_DENIED]}")
        return sorted(self._astray, key=lambda entry: entry.tid)

    def run(self, *, keep_narrow: bool, noted: Noted | None = None) -> Literal["settled", "changing", "gone"]:
        """Visits every thread. Refused when the process can't be read.

        Those that were `noted` elsewhere than they belong are written without another look.
        """
        self._keep_narrow = keep_narrow
        seen: set[int] = set()
        if noted is not None:
            self._visit_noted(noted, seen)
        end = self._visit_all(seen)
        main = self._targets.main
        if len(self._narrowed) > 1 and not main.placed and not main.written:
            self._keep_narrow = False
            for tid, mask, comm in self._narrowed:
                self._write(tid, main, mask, comm)
            if end != "gone":
                end = self._visit_all(seen)
        else:
            main.left += len(self._narrowed)
        for tid in self._known.keys() - seen:
            del self._known[tid]
        for tid in self._fixed.keys() - seen:
            del self._fixed[tid]
        self._memory.entries = self._entries
        return end

    def _visit_noted(self, noted: Noted, seen: set[int]) -> None:
        self._entries = noted.entries
        tids, masks = list(noted.entries), noted.masks
        names = self._names(tids)
        wanted = {target.wanted for target in self._targets.all()}
        unsure = {mask for mask in set(masks) if mask < 0 or mask & self._online in wanted}
        if unsure:
            sure = [mask not in unsure for mask in masks]
            tids, names, masks = list(compress(tids, sure)), list(compress(names, sure)), list(compress(masks, sure))
        seen.update(tids)
        self._place(tids, names, masks)
        seen -= self._again
        self._again.clear()

    def _visit_all(self, seen: set[int]) -> Literal["settled", "changing", "gone"]:
        """Visits the threads that are not in `seen`, which grows.

        After a pass that wrote, threads made meanwhile may have copied a mask from before, so that another one looks
        for them: ``settled`` after one without a write, ``changing`` when MAX_PASSES were not enough, ``gone`` when the
        process ended.
        """
        for _ in range(MAX_PASSES):
            entries = self._list()
            if not entries:
                return "gone"
            tids = [tid for tid in entries if tid not in seen] if seen else list(entries)
            seen.update(tids)
            if not tids or not self._visit(tids):
                return "settled"
            seen -= self._again
            self._again.clear()
        if self._given:
            self._list()
        return "changing"

    def _list(self) -> dict[int, int]:
        """The threads as they are now. Those that were written since the last time and are not as they were listed then
        may have ended before the write, which met whoever had the number."""
        before, self._entries = self._entries, self._tasks.entries()
        given, self._given = self._given, {}
        if self._entries is not before:
            for tid, cpus in given.items():
                # The kernel may make the folder of a living thread anew.
                if self._entries.get(tid) != before.get(tid) and self._tasks.stat(str(tid)) is None:
                    make_good(self._host, self._proc, tid, cpus, CpuSet.from_bits(self._online))
        return self._entries

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

    def _visit(self, tids: Sequence[int]) -> bool:
        """Puts these in place. Whether another pass has to look."""
        # Masks after names, and names after the listing: each as near as can be to the write that they are for.
        names = self._names(tids)
        return self._place(tids, names, self._host.get_masks(tids))

    def _place(self, tids: Iterable[int], names: Iterable[bytes | None], masks: Iterable[int]) -> bool:
        wrote = False
        online, known, of = self._online, self._known, self._targets.of
        targets = self._targets.by_comm
        for tid, comm, mask in zip(tids, names, masks, strict=True):
            if comm is None:
                self._vanished += 1
                continue
            target = targets.get(comm) or of(comm)
            if mask & online == target.wanted and mask >= 0 and target.inside:
                target.placed += 1
                known[tid] = target.role
            elif mask < 0:
                self._refused(tid, target, -mask)
            elif not target.inside:
                target.outside += 1
                self._astray.append(_misplaced(tid, comm, target, mask))
            elif self._keep_narrow and target is self._targets.main and target.narrows(mask & online):
                self._narrowed.append((tid, mask, comm))
            elif self._write(tid, target, mask, comm):
                wrote = True
        return wrote

    def _names(self, tids: Sequence[int]) -> list[bytes | None]:
        """The name of each, None for one that ended."""
        entries, before = self._entries, self._memory.entries
        kept = self._reading.names
        names: list[bytes | None]
        if not kept:
            names = self._read_names(tids)
            self._keep(tids, names)
            return names
        if entries is before:
            names = list(map(kept.get, tids))
        else:
            # What has another inode may be another thread, whose birth was not heard of yet.
            names = [kept.get(tid) if before.get(tid) == entries[tid] else None for tid in tids]
        if None in names:
            missing = [tid for tid, name in zip(tids, names, strict=True) if name is None]
            read = self._read_names(missing)
            self._keep(missing, read)
            found = dict(zip(missing, read, strict=True))
            names = [found[tid] if name is None else name for tid, name in zip(tids, names, strict=True)]
        return names

    def _keep(self, tids: Sequence[int], names: Sequence[bytes | None]) -> None:
        if self._reading.lost:
            return
        entries, before = self._entries, self._memory.entries
        for tid, name in zip(tids, names, strict=True):
            if name is not None and before.get(tid) == entries[tid]:
                self.read[tid] = name

    def _read_names(self, tids: Sequence[int]) -> list[bytes | None]:
        names = self._host.names(tids)
        if names is None:
            return self._tasks.comms(tids)
        if None in names:
            # It ended; or it is the only one that was not told, and its file has the name.
            rest = [tid for tid, name in zip(tids, names, strict=True) if name is None]
            found = dict(zip(rest, self._tasks.comms(rest), strict=True))
            names = [found[tid] if name is None else name for tid, name in zip(tids, names, strict=True)]
        return names

    def _write(self, tid: int, target: Target, mask: int, comm: bytes) -> bool:
        """Whether another pass has to look: a mask was written, or it is to be decided anew."""
        if not self._writes:
            stat = self._tasks.stat(str(tid))
            if stat is None or not stat.flags & PF_NO_SETAFFINITY:
                target.written += 1
                self._astray.append(_misplaced(tid, comm, target, mask))
            return False
        if tid in self._fixed and self._still_fixed(tid, target):
            return False
        if self._reading.changed and self._renamed(tid):
            return True
        try:
            self._host.set_affinity(tid, target.cpus)
            self._given[tid] = target.cpus
        except OSError as error:
            self._refused(tid, target, error.errno or 0)
            if self._known.pop(tid, None) is target.role and error.errno != errno.ESRCH:
                self._unrepaired.append(_misplaced(tid, comm, target, mask, kind=self._kind(mask)))
            return False
        if self._reading.changed and self._renamed(tid):
            # Whoever heard of it may have put it in place just before this write.
            return True
        target.written += 1
        if self._known.get(tid) is target.role:
            self._drift.append(_misplaced(tid, comm, target, mask, kind=self._kind(mask)))
        self._known[tid] = target.role
        return True

    def _renamed(self, tid: int) -> bool:
        """Whether a thread may have another name by now, so that the next pass has to decide; once for each thread."""
        if tid not in self._reading.changed or tid in self._put_off:
            return False
        self._put_off.add(tid)
        self._again.add(tid)
        return True

    def _kind(self, mask: int) -> DriftKind:
        """A write to the cpuset gives its threads all of it (before Linux 6.2, and since then to those whose mask does
        not meet it); whoever reads that a moment later can't tell what else it was."""
        whole = mask & self._online == self._targets.cpuset.bits & self._online
        return "cpuset" if whole or self._rewritten else "thread"

    def _still_fixed(self, tid: int, target: Target) -> bool:
        """Whether a thread that proved unmovable is that very thread, so that it need not be tried again."""
        stat = self._tasks.stat(str(tid))
        if stat is None:
            self._vanished += 1
            return True
        if stat.start_time != self._fixed[tid]:
            del self._fixed[tid]
            return False
        target.unmovable += 1
        self._refusals.setdefault(Reason.UNMOVABLE, "the kernel keeps them where they are")
        return True

    def _refused(self, tid: int, target: Target, code: int) -> None:
        if code == errno.ESRCH:
            self._vanished += 1
        elif code in DENIED:
            target.denied += 1
            self._refusals.setdefault(Reason.PERMISSION_DENIED, os.strerror(code))
        elif code == errno.EINVAL:
            stat = self._tasks.stat(str(tid))
            if stat is None:
                self._vanished += 1
            elif stat.flags & PF_NO_SETAFFINITY:
                self._fixed[tid] = stat.start_time
                target.unmovable += 1
                self._refusals.setdefault(Reason.UNMOVABLE, "the kernel keeps them where they are")
            else:
                target.outside += 1
                self._emptied = True
        else:
            # EBUSY: a deadline task whose bandwidth was admitted for more CPUs. Others are not documented.
            target.unmovable += 1
            self._refusals.setdefault(Reason.UNMOVABLE, os.strerror(code))


def gone(process: ProcessId, threads: dict[Role, ThreadCounts] | None = None, vanished: int = 0) -> WorkerOutcome:
    """The outcome for a process that ended."""
    problem = Problem(Reason.PROCESS_GONE, f"process {process.pid} ended")
    return WorkerOutcome(process, "Pending", problem, threads or {}, vanished)


def _misplaced(tid: int, comm: bytes, target: Target, mask: int, *, kind: DriftKind = "thread") -> Misplaced:
    name = printable(comm.decode("utf-8", "replace"))
    return Misplaced(tid, name, target.role, CpuSet.from_bits(mask), target.cpus, kind)
