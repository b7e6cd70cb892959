"""Whose NPU is it, over many looks: what `agent.planning.attribution` tells of one, kept true while processes live."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from agent.model.node import ProcessTable
from agent.model.workload import Pod, ProcessId
from agent.node.procfs import ProcessStat
from agent.planning.attribution import Attribution, attribute
from agent.planning.optin import opted_in

log = logging.getLogger(__name__)

START_SECONDS = 2.0
"""A starting worker opens NPUs some time before npu-smi lists it. One that holds several open waits for a table that
is younger by this: most of these are leftovers, which only the table can tell."""
AWAIT_SECONDS = 120.0
"""For this long a process that holds an NPU open, or one of a container that asked to be bound, is expected in the
table; a monitor that never shows up there is not a reason to ask npu-smi every few seconds for ever."""


class Attributor:
    """Remembers who was a worker, since rows get lost, and when each row's process had started, since pids come again.

    `patient` False takes what one look shows, with nothing to wait for.
    """

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._known: dict[ProcessId, Attribution] = {}
        self._unlisted: dict[ProcessId, float] = {}
        self._table: ProcessTable | None = None
        self._row_starts: dict[int, int] = {}
        self._foreign = 0
        self._borne: set[tuple[ProcessId, int]] = set()
        self._refused: set[tuple[ProcessId, int]] = set()
        self.awaited: frozenset[ProcessId] = frozenset()
        """Processes that hold an NPU open and that the table may list soon."""

    def rows(self, table: ProcessTable, stats: Mapping[int, ProcessStat]) -> ProcessTable:
        """The table without rows of processes that ended since it was read, whoever has their pids now."""
        if table is not self._table:
            self._table = table
            self._row_starts = {row.pid: stats[row.pid].start_time for row in table.rows if row.pid in stats}
            self._foreign = self._foreign + 1 if table.rows and not self._row_starts else 0
        live = tuple(row for row in table.rows if self._still(row.pid, stats))
        return replace(table, rows=live)

    def borne_out(
        self,
        table: ProcessTable,
        stats: Mapping[int, ProcessStat],
        opened: Callable[[int], Collection[int] | None],
        told: Collection[int],
        bound: Collection[ProcessId] = (),
    ) -> ProcessTable:
        """The table, which has been through `rows`, without rows that open files speak against.

        Whoever runs a process chooses its name, and one that is long enough holds a whole row of npu-smi's table, with
        another's pid in it. So a row counts where its process holds that NPU open (`opened`: pid -> NPUs, None where
        that can't be seen), and every row where that is so of none: then it is not to be seen on this node. So does the
        row of an NPU that is not `told` by its device just now. Once borne out, a row is for as long as its process
        lives; and of one that is `bound` and holds no NPU open at all nothing else is known.
        """
        keys = {(row.pid, row.npu): (ProcessId(row.pid, stats[row.pid].start_time), row.npu) for row in table.rows}
        held: dict[int, Collection[int] | None] = {}
        against = set()
        for (pid, npu), key in keys.items():
            if key in self._borne:
                continue
            if pid not in held:
                held[pid] = opened(pid)
            if (found := held[pid]) is not None:
                if npu in found:
                    self._borne.add(key)
                elif npu in told and (found or key[0] not in bound):
                    against.add(key)
        self._borne &= set(keys.values())
        before = {(process, npu) for process, a in self._known.items() if a.by_row for npu in (*a.npus, *a.residual)}
        against -= before
        if not self._borne:
            against.clear()
        for process, npu in sorted(against - self._refused):
            log.warning(
                "npu-smi lists process %d on NPU %d, which it does not hold open: not believed", process.pid, npu
            )
        self._refused = against
        return replace(table, rows=tuple(row for row in table.rows if keys[row.pid, row.npu] not in against))

    @property
    def foreign(self) -> bool:
        """Nobody of the table is in /proc. The last worker may just have ended, so that one table is not enough."""
        return self._foreign >= (2 if self._patient else 1)

    def attribute(
        self,
        table: ProcessTable,
        opened: Mapping[int, Iterable[int]],
        stats: Mapping[int, ProcessStat],
        now: float,
        table_at: float,
    ) -> dict[int, Attribution]:
        """Attribution by pid of living processes, ascending. `table` has been through `rows`; `table_at` is when
        npu-smi printed it, on the clock of `now`."""
        alive = {
            process.pid: attribution
            for process, attribution in self._known.items()
            if (stat := stats.get(process.pid)) and stat.start_time == process.start_time
        }
        found = {pid: a for pid, a in attribute(table, opened, alive).items() if pid in stats}
        self._known = {ProcessId(pid, stats[pid].start_time): a for pid, a in found.items()}
        self._await(found, stats, {row.pid for row in table.rows}, now)
        young = {process.pid for process, since in self._unlisted.items() if table_at < since + START_SECONDS}
        waits = young if self._patient else set()
        return {pid: a for pid, a in sorted(found.items()) if not (pid in waits and len(a.npus) > 1)}

    def _still(self, pid: int, stats: Mapping[int, ProcessStat]) -> bool:
        stat = stats.get(pid)
        return stat is not None and self._row_starts.get(pid) == stat.start_time

    def _await(
        self, found: Mapping[int, Attribution], stats: Mapping[int, ProcessStat], listed: Collection[int], now: float
    ) -> None:
        unlisted = [ProcessId(pid, stats[pid].start_time) for pid, a in found.items() if not a.by_row]
        self._unlisted = {
            process: self._unlisted.get(process, now) for process in unlisted if process.pid not in listed
        }
        self.awaited = frozenset(p for p, since in self._unlisted.items() if now - since < AWAIT_SECONDS)


class Expected:
    """Containers that asked to be bound and have nobody on an NPU, for a while after each appeared or lost the last."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def without_worker(self, pods: Iterable[Pod], served: Collection[str], now: float) -> frozenset[str]:
        """Ids of these containers; `served` are ids of containers with somebody on an NPU."""
        # Where every pod on an NPU is bound, most pods are on none: only those that say it themselves are expected.
        asking = {c.id for pod in pods for c in pod.containers if c.id and opted_in(pod, c.name)}
        self._since = {key: now if key in served else self._since.get(key, now) for key in asking}
        return frozenset(key for key, since in self._since.items() if key not in served and now - since < AWAIT_SECONDS)
