"""Who is to be kept off which CPUs, where each thread belongs then, and what it would have had without that. Pure.

Since Linux 6.2 a thread keeps what it was told and gets of it what its cpuset has. So one that had its whole cpuset is
told "all CPUs but those", and follows its cpuset on; one that had chosen CPUs of its own keeps these, without those.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from agent.control.observe import Observation
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.plan import Plan
from agent.model.reason import Problem
from agent.model.spec import Helpers, Spec
from agent.model.workload import ProcessId, ThreadId
from agent.node.host import EVERY_CPU
from agent.planning.optin import steps_of


@dataclass(frozen=True, slots=True)
class Given:
    """What threads of a container may have been given."""

    offs: tuple[CpuSet, ...] = ()
    """The CPUs that they were kept off, the newest last."""
    inherited: frozenset[CpuSet] = frozenset()
    """Masks that they may have begun with, but for these CPUs: those that other threads of the container had."""


@dataclass(slots=True)
class Held:
    """A container some of whose threads are kept off CPUs, or are about to be."""

    offs: list[CpuSet] = field(default_factory=list)
    """The CPUs that it is kept off, the newest last. Several while a change is under way: an agent that ends in between
    may have made it for some threads and not for others."""
    masks: dict[ProcessId, dict[ThreadId, CpuSet]] = field(default_factory=dict)
    """Its processes -> their threads that had a mask narrower than their cpuset -> that mask."""
    done: CpuSet = EMPTY
    """The CPUs that every thread was looked at for."""
    still: set[ProcessId] = field(default_factory=set)
    """Processes that were seen with every thread in place."""
    undone: bool = False
    """All of it was given back; another look has to find who was forked meanwhile."""

    def given(self) -> Given:
        """What its threads may have been given by now."""
        return Given(tuple(self.offs), frozenset(mask for masks in self.masks.values() for mask in masks.values()))

    def note(self, process: ProcessId, masks: Mapping[ThreadId, CpuSet], living: Collection[ThreadId]) -> None:
        """Adds how threads of a process were, empty where they had their whole cpuset; drops those that ended, but for
        masks that nobody else had: their children may have begun with these."""
        held = {t: mask for t, mask in (self.masks.pop(process, {}) | dict(masks)).items() if mask}
        known = self.given().inherited
        kept = {thread: mask for thread, mask in held.items() if thread in living}
        for thread, mask in sorted(held.items()):
            if mask not in known and mask not in kept.values():
                kept[thread] = mask
        self.masks[process] = kept

    def noted(self, process: ProcessId, thread: ThreadId) -> CpuSet | None:
        return self.masks.get(process, {}).get(thread)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of one thread."""

    before: CpuSet
    """The mask that it would have had; empty where it would have its whole cpuset."""
    target: CpuSet | None
    """The mask to be written; None where it is in place, or where it is to be left alone."""
    left: bool = False
    """Nothing would be left for it: it stays, or gets again, what it would have had."""


def off_limits(plan: Plan) -> CpuSet:
    """The CPUs that are set apart in a plan: those of the roles but main, of all NPUs and of workers with their own."""
    allotments = [*(npu.allotment for npu in plan.npus), *(worker.allotment for worker in plan.workers)]
    return union(allotment.roles.apart for allotment in allotments if allotment.roles is not None)


def to_confine(
    plan: Plan,
    seen: Observation,
    spec: Spec,
    bound: Collection[ProcessId],
    confined: Mapping[str, Collection[ProcessId]] | None = None,
) -> frozenset[str]:
    """Keys of the containers whose helpers are to be confined: those with a `bound` worker that spec or its pod's
    annotations say so of.

    Those that are `confined` now, given with their processes, stay so while nothing is known of a bound worker in them:
    it is not seen on its NPU, its pod is gone, or what the pod asks for can't be read (design 7, "Absence never acts").
    """
    keys, known = set(), set()
    for entry in plan.workers:
        process = entry.worker.process
        if process not in bound:
            continue
        _, _, container = seen.places.get(process, ("", "", ""))
        if steps_of(seen.pods.get(process), container, spec).helpers is Helpers.CONFINE:
            keys.add(entry.worker.container)
        if not seen.undecided(process):
            known.add(process)
    for key, processes in (confined or {}).items():
        if any(process in bound and process not in known for process in processes):
            keys.add(key)
    return frozenset(keys)


@dataclass(frozen=True, slots=True)
class Confinement:
    """What is asked for in one pass."""

    wanted: frozenset[str]
    """Keys of the containers whose helpers are to be kept off `off`."""
    members: Mapping[str, Sequence[ProcessId]]
    """Key -> the processes that are in the container now; of those `wanted` and of `Confiner.containers`."""
    workers: Collection[ProcessId]
    """Processes with roles of their own, which are never touched: those of the plan, and any that is still bound."""
    off: CpuSet
    online: CpuSet


@dataclass(frozen=True, slots=True)
class ConfineOutcome:
    """One pass over the helpers of one container."""

    written: int = 0
    """Threads."""
    drift: int = 0
    """Of those, the ones of processes that had been seen in place."""
    left: int = 0
    """Threads that may run on CPUs set apart and stay so: they would have no other, or the kernel keeps them."""
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class ConfineResult:
    """What one pass did, by the keys of the containers."""

    outcomes: dict[str, ConfineOutcome] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    """Containers that are not to be confined any more -> threads given back."""
    stuck: dict[str, Problem] = field(default_factory=dict)
    """Containers that are still confined, and should not be."""
    again: bool = False
    """Another pass is wanted at once: something was given back, and who was forked meanwhile has to be found."""


def before(mask: CpuSet, noted: CpuSet | None, given: Given, allowed: CpuSet) -> tuple[CpuSet, bool]:
    """The mask that a thread would have had without us, empty for its whole cpuset; and whether what it has is ours.

    `mask` is what it has now, `allowed` its cpuset, both ∩ online. `noted` is what it had before it was touched, where
    that was narrower.
    """
    if noted is not None:
        if any(mask == (noted - off) & allowed for off in given.offs):
            return noted, True
    elif any(mask == allowed - off for off in given.offs):
        return EMPTY, True
    else:
        # Of several that look alike now the widest, so that nobody stays on fewer CPUs for having been confined.
        for narrow in sorted(given.inherited, key=lambda cpus: (-len(cpus), cpus.bits)):
            if any(mask == (narrow - off) & allowed for off in given.offs):
                return narrow, True
    return (EMPTY if allowed <= mask else mask), False


def judge(mask: CpuSet, off: CpuSet, noted: CpuSet | None, given: Given, allowed: CpuSet) -> Verdict:
    """What is to be done with a thread that is to be kept off `off`; the rest is as for `before`."""
    was, ours = before(mask, noted, given, allowed)
    if not ours and mask.isdisjoint(off):
        return Verdict(was, None)
    target = (was or EVERY_CPU) - off
    if target & allowed:
        return Verdict(was, None if target & allowed == mask else target)
    own = (was or EVERY_CPU) & allowed
    return Verdict(was, (was or EVERY_CPU) if own and own != mask else None, left=True)
