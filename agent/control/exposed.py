"""An agent as it is exported: its figures at the moment that somebody asks for them, in whatever thread.

Nothing here holds a lock that the loop could wait for. What has to be read from the host is read for whoever asks, at
most once in a quarter of a minute, and for a bounded time: however many ask, and however often.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agent.control.tally import ROLE, Placed, Standing, overlap
from agent.model.cpuset import EMPTY
from agent.model.figures import TABLES, Command, EventStream, Figures, Operation, OperationRole
from agent.model.plan import Roles
from agent.model.reason import Reason, Refused
from agent.model.spec import Role, ThreadRule
from agent.node.cgroups import CgroupTree
from agent.node.npu_smi.counted import CountedNpuSmi
from agent.node.numa_stat import anonymous_memory
from agent.node.switches import Counted, SwitchCounter
from agent.node.targets import Targets

if TYPE_CHECKING:
    from agent.control.loop import Agent

READ_SECONDS: Final = 15.0
"""The least time between two reads of the host."""

Key = tuple[int, Role]


class Exposed:
    """The figures of one agent."""

    def __init__(self, agent: Agent, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._clock = clock
        self._reading = threading.Lock()
        """Of those who ask; the loop never takes it."""
        self._read_at = float("-inf")
        self._locality: dict[int, float] = {}
        self._switches: SwitchCounter[Key] = SwitchCounter(agent.parts.observer.root)
        self._form = ""
        self._cgroups: CgroupTree | None = None

    @property
    def failing(self) -> bool:
        """Whether the last pass failed."""
        return self._agent.failing

    def document(self) -> Mapping[str, object]:
        """The CpuBindingPlan object of the last pass."""
        return self._agent.plan_object()

    def figures(self) -> Figures:
        agent, parts = self._agent, self._agent.parts
        tally, timings, pinned = agent.tally, parts.actor.timings, parts.actor.watched.pinned
        standing, drift = tally.standing, agent.drift()
        self._read(standing)
        operations = dict(tally.operations)
        at_once: list[tuple[OperationRole, int]] = [(ROLE[role], count) for role, count in pinned.roles.items()]
        for role, count in (*at_once, ("helper", pinned.children)):
            key: Operation = (role, "bound", Reason.AS_PLANNED)
            operations[key] += count
        npu_smi = agent.npu_smi
        return Figures(
            cgroup=self._form,
            cpu_manager_policy=parts.observer.cpu_manager_policy,
            event_stream=self._event_stream(),
            threads=standing.threads,
            operations=operations,
            bind_seconds=timings.bind_seconds,
            start_to_bound=timings.start_to_bound,
            event_to_pinned=pinned.seconds,
            drift_detected=drift.detected,
            drift_repaired=drift.repaired,
            irqs=standing.irqs,
            memory_bytes=tally.memory_bytes,
            locality=self._locality,
            switches=dict(self._switches.totals),
            plan_changes=tally.plan_changes,
            query_seconds=npu_smi.seconds,
            query_errors=_errors(npu_smi, agent.watch.unusable),
            journal_entries=agent.planner.journal.entries,
            overlap=overlap(standing),
        )

    def _event_stream(self) -> EventStream:
        news = self._agent.parts.news
        return "off" if news is None else "up" if news.up else "down"

    def _read(self, standing: Standing) -> None:
        """Reads the host, unless that was done just now, or somebody else is at it."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            now = self._clock()
            if now - self._read_at < READ_SECONDS:
                return
            self._read_at = now
            self._switches.look([_counted(worker) for worker in standing.placed])
            with contextlib.suppress(Refused):
                cgroups = self._tree()
                self._form = cgroups.form
                self._locality = self._localities(standing, cgroups)
        finally:
            self._reading.release()

    def _tree(self) -> CgroupTree:
        """Of our own, since it remembers paths, as the loop's does: only where the agent is itself is known already."""
        if self._cgroups is None:
            observer = self._agent.parts.observer
            self._cgroups = CgroupTree(observer.root, own=observer.cgroups.own)
        return self._cgroups

    def _localities(self, standing: Standing, cgroups: CgroupTree) -> dict[int, float]:
        """NPU -> which part of the memory of its workers' containers is on NUMA nodes of their main CPUs.

        The kernel tells it of a container, not of a process: one with workers on several NPUs has one ratio, over the
        nodes of all of them."""
        observer = self._agent.parts.observer
        topology = observer.last_topology
        if topology is None:
            return {}
        home: dict[str, set[int]] = {}
        npus: dict[int, set[str]] = {}
        for worker in standing.placed:
            try:
                path = cgroups.path(worker.process.pid)
            except Refused:
                continue
            if path is None:
                continue
            container = cgroups.identity_of(path).path
            home.setdefault(container, set()).update(topology.nodes_of(worker.roles.main))
            for npu in worker.npus:
                npus.setdefault(npu, set()).add(container)
        memory = {container: anonymous_memory(observer.root, container) or {} for container in home}
        found = {}
        for npu, containers in npus.items():
            whole = sum(sum(memory[c].values()) for c in containers)
            near = sum(size for c in containers for node, size in memory[c].items() if node in home[c])
            if whole:
                found[npu] = near / whole
        return found


def _counted(worker: Placed) -> Counted[Key]:
    """Threads of a process on several NPUs count for the first of them."""
    npu, targets = worker.npus[0], _targets(worker.roles, worker.rules)
    return Counted(worker.process, lambda comm: (npu, targets.of(comm).role))


@lru_cache(maxsize=256)
def _targets(roles: Roles, rules: tuple[ThreadRule, ...]) -> Targets:
    return Targets(roles, EMPTY, EMPTY, rules)


def _errors(npu_smi: CountedNpuSmi, unusable: Mapping[Reason, int]) -> dict[tuple[Command, Reason], int]:
    return {**npu_smi.errors, **{(TABLES, reason): count for reason, count in unusable.items()}}
