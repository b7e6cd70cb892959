"""Conditions of a CpuBindingPlan (design section 7): what they say, and when they last changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.model.cpuset import CpuSet
from agent.model.figures import QUERY_REASONS
from agent.model.reason import MAX_MESSAGE_BYTES, Problem, Reason, printable
from agent.model.remedies import with_remedy
from agent.model.spec import Mode

if TYPE_CHECKING:
    from agent.control.report import Report

READ_FAULTS = (
    Reason.TOPOLOGY_UNREADABLE,
    *QUERY_REASONS,
    Reason.TABLE_TRUNCATED,
    Reason.TABLE_UNREADABLE,
    Reason.INVENTORY_INCOMPLETE,
    Reason.INVENTORY_MISMATCH,
)
"""Faults of reading the node, gravest first: they make `TopologyDiscovered` False."""

NPU_SMI_FAULTS = frozenset(READ_FAULTS) - {Reason.TOPOLOGY_UNREADABLE}
"""Those of npu-smi: an agent that it never answered lacks it as much as one that it answered before."""

PLAN_FAULTS = (
    Reason.INVALID_SPEC,
    Reason.UNSUPPORTED_ARCHITECTURE,
    Reason.NO_CPUS,
    Reason.INSUFFICIENT_CPUS,
    Reason.INSUFFICIENT_CLUSTERS,
    Reason.UNSUPPORTED_SMT,
    Reason.AFFINITY_SPANS_NODES,
    Reason.AFFINITY_OUTSIDE_CPUSET,
    Reason.NO_AFFINITY,
    Reason.NPU_NOT_IN_DOMAIN,
    Reason.CPUSET_UNREADABLE,
    Reason.NPU_MISSING,
)
"""Faults of planning, gravest first."""

ACT_FAULTS = (
    Reason.PERMISSION_DENIED,
    Reason.UNMOVABLE,
    Reason.CPU_BINDING_CONFLICT,
    Reason.CPUSET_CHANGED,
    Reason.THREADS_CHANGING,
    Reason.PROCESS_GONE,
    Reason.NPUS_CHANGING,
    Reason.PENDING,
)
"""Faults of acting, gravest first."""

GRAVITY = (*READ_FAULTS, *PLAN_FAULTS, *ACT_FAULTS)


def gravest(problems: Sequence[Problem]) -> Problem | None:
    """The one to show first."""
    order = {reason: rank for rank, reason in enumerate(GRAVITY)}
    return min(problems, key=lambda p: order.get(p.reason, len(order)), default=None)


def no_plan_at_all(report: Report) -> Problem | None:
    """Why not a single NPU of the node has CPUs; None where one has."""
    plan = report.plan
    if plan is None:
        return gravest(report.faults) or Problem(Reason.PENDING, "the node has not been read yet")
    if plan.problem is not None:
        return plan.problem
    if any(npu.allotment.roles for npu in plan.npus) or any(w.allotment.roles for w in plan.workers):
        return None
    found = gravest([npu.allotment.problem for npu in plan.npus if npu.allotment.problem is not None])
    return None if found is None else _of(_npus(n.id for n in plan.npus if n.allotment.problem == found), found)


def stopped(conditions: object, now: str) -> list[dict[str, Any]]:
    """The conditions that an agent leaves behind: what `Ready` said is not known any more, everything else stays."""
    listed = [dict(entry) for entry in conditions if isinstance(entry, Mapping)] if isinstance(conditions, list) else []
    for entry in listed:
        if entry.get("type") == "Ready" and entry.get("status") != "Unknown":
            left = with_remedy(Problem(Reason.AGENT_STOPPED, Reason.AGENT_STOPPED.meaning))
            said = {"reason": left.reason.value, "message": left.message}
            entry |= {"status": "Unknown", **said, "lastTransitionTime": now}
    return listed


class Conditions:
    """Makes the list of conditions; one that says the same as before keeps its transition time. The message of one that
    is not as it should be ends with what to do."""

    def __init__(self, before: object, now: str, generation: int) -> None:
        # What was written last may come from a file that people edit.
        listed = before if isinstance(before, list) else []
        self._before = {str(entry.get("type")): entry for entry in listed if isinstance(entry, Mapping)}
        self._now, self._generation = now, generation

    def of(self, report: Report, states: Sequence[tuple[str, Problem | None]]) -> list[dict[str, Any]]:
        """All conditions of a report. `states`: state and problem of each worker."""
        named = [(state, problem, _who(report, at)) for at, (state, problem) in enumerate(states)]
        unbound = [_of(who, problem or _WAITING) for state, problem, who in named if state not in _GOOD]
        open_problems = [*report.faults, *unbound, *_without_cpus(report)]
        nothing = no_plan_at_all(report)
        if nothing is not None and nothing not in open_problems:
            open_problems.append(nothing)
        ready = gravest(open_problems)
        unread = gravest([p for p in open_problems if p.reason in READ_FAULTS])
        invalid = gravest([p for p in [*report.faults, *([nothing] if nothing else [])] if p.reason in PLAN_FAULTS])
        of_npu_smi = (problem for problem in report.faults if problem.reason in NPU_SMI_FAULTS)
        missing = [*report.notes, *_missing(report), *of_npu_smi]
        degraded = _with_others(gravest(missing), missing)
        return [
            self._ready(report, ready, degraded),
            self._condition("TopologyDiscovered", unread is None, unread, "CPUs, NUMA nodes and NPUs were read"),
            self._condition("PlanValid", nothing is None and invalid is None, invalid or nothing, "a plan was made"),
            self._bound(report, named, unbound),
            self._degraded(degraded),
            *self._restored(report),
        ]

    def _ready(self, report: Report, problem: Problem | None, degraded: Problem | None) -> dict[str, Any]:
        # `kubectl get cbp` shows this condition alone.
        less = f"; Degraded: {degraded}" if degraded is not None else ""
        if problem is None and report.spec.mode is Mode.DISABLED:
            return self._entry("Ready", "True", Problem(Reason.DISABLED, f"mode is Disabled: nothing is bound{less}"))
        dry = report.spec.mode is Mode.DRY_RUN
        good = "mode is DryRun: nothing is written to the host" if dry else "the plan is in force"
        return self._condition("Ready", problem is None, problem, f"{good}{less}")

    def _bound(
        self, report: Report, states: Sequence[tuple[str, Problem | None, str]], unbound: Sequence[Problem]
    ) -> dict[str, Any]:
        if report.spec.mode is Mode.DISABLED:
            return self._condition("Bound", False, Problem(Reason.DISABLED, "mode is Disabled"), "")
        if report.spec.mode is Mode.DRY_RUN:
            return self._condition("Bound", False, Problem(Reason.NOT_ENFORCED, "nothing is written in a dry run"), "")
        if not states:
            nobody = Problem(Reason.NO_WORKERS, "no process that is to be bound runs on an NPU")
            return self._entry("Bound", "True", nobody)
        skipped = [_of(who, problem or _WAITING) for state, problem, who in states if state == "Skipped"]
        text = f"all of {len(states)} workers are bound"
        return self._condition("Bound", not (unbound or skipped), gravest([*unbound, *skipped]), text)

    def _restored(self, report: Report) -> list[dict[str, Any]]:
        """There only under Disabled, where people wait for it before they remove the agent."""
        if report.spec.mode is not Mode.DISABLED:
            return []
        text = "nothing of what was bound is left"
        stuck = gravest(report.stuck) or Problem(Reason.PENDING, "they are undone in the next pass")
        left = Problem(stuck.reason, f"not given back: {report.taken}: {stuck.message}")
        return [self._condition("Restored", not report.taken, left, text)]

    def _degraded(self, problem: Problem | None) -> dict[str, Any]:
        if problem is None:
            return self._entry("Degraded", "False", Problem(Reason.AS_PLANNED, "nothing is missing"))
        return self._entry("Degraded", "True", problem)

    def _condition(self, kind: str, good: bool, problem: Problem | None, text: str) -> dict[str, Any]:
        if good:
            return self._entry(kind, "True", Problem(Reason.AS_PLANNED, text))
        return self._entry(kind, "False", with_remedy(problem or Problem(Reason.PENDING, "not known yet")))

    def _entry(self, kind: str, status: str, problem: Problem) -> dict[str, Any]:
        before = self._before.get(kind, {})
        kept = before.get("lastTransitionTime") if before.get("status") == status else None
        kept = kept if isinstance(kept, str) else None
        entry: dict[str, Any] = {
            "type": kind,
            "status": status,
            "reason": problem.reason.value,
            "message": printable(problem.message, MAX_MESSAGE_BYTES),
            "lastTransitionTime": kept or self._now,
        }
        if self._generation:
            entry["observedGeneration"] = self._generation
        return entry


_OF_ALL = frozenset({Reason.UNSUPPORTED_ARCHITECTURE, Reason.NO_CPUS, Reason.NO_NPUS})
_WAITING = Problem(Reason.PENDING, "a worker is not bound yet")
_GOOD = frozenset({"Bound", "Planned", "Skipped"})


def _with_others(first: Problem | None, missing: Sequence[Problem]) -> Problem | None:
    """What is missing with what to do, and the reasons of everything else that is: one condition has to do for all."""
    if first is None:
        return None
    others = sorted({problem.reason for problem in missing} - {first.reason})
    also = f" (also: {', '.join(others)})" if others else ""
    told = f"{with_remedy(first).message}{also}"
    if len(told.encode()) > MAX_MESSAGE_BYTES:
        room = MAX_MESSAGE_BYTES - len(also.encode())
        told = f"{first.message.encode()[: max(room, 0)].decode(errors='ignore')}{also}"
    return Problem(first.reason, told)


def _without_cpus(report: Report) -> list[Problem]:
    """Problems of NPUs that somebody works on: of a process on several it may be one alone that has none."""
    if report.plan is None:
        return []
    used = {npu for entry in report.plan.workers for npu in entry.worker.npus}
    without = [npu for npu in report.plan.npus if npu.id in used and npu.allotment.roles is None]
    return [_of(_npus([npu.id]), npu.allotment.problem) for npu in without if npu.allotment.problem is not None]


def _who(report: Report, at: int) -> str:
    """The worker of this place in the plan, for people: with its pod, where it is in one."""
    assert report.plan is not None
    worker = report.plan.workers[at].worker
    namespace, pod, _ = report.seen.places.get(worker.process, ("", "", "")) if report.seen else ("", "", "")
    owner = f"pod {printable(f'{namespace}/{pod}', 100)}" if pod else f"process {worker.process.pid}"
    return f"{owner} on {_npus(worker.npus)}"


def _npus(ids: Iterable[int]) -> str:
    found = CpuSet(ids)
    return f"NPU {found}" if len(found) == 1 else f"NPUs {found}"


def _of(who: str, problem: Problem) -> Problem:
    """What is wrong with whom: `kubectl get cbp` shows this message alone. One that is said of the whole node stays as
    it is, since it is the same for all."""
    if problem.reason in _OF_ALL or not problem.message or who in problem.message:
        return problem
    return Problem(problem.reason, f"{who}: {problem.message}")


_OF_THE_NODE = frozenset({Reason.MIGRATION_UNSUPPORTED, Reason.PERMISSION_DENIED})
"""Why memory is not moved that is so for every worker. What one worker meets is said at that worker alone."""


_NOT_MISSING = frozenset({Reason.SWITCHED_OFF, Reason.PENDING})


def _missing(report: Report) -> list[Problem]:
    """Cards that fell off, workers that somebody else keeps moving, UVB threads without CPUs, and steps beside the
    placing of threads that can't be done: the plan in force is whole without them. What people turned off is not
    missing, nor what the next pass does."""
    if report.plan is None:
        return []
    of_npus = [npu.allotment.problem for npu in report.plan.npus]
    of_memory = [outcome.problem for outcome in report.memory.values()]
    found = [
        *(problem for problem in of_npus if problem and problem.reason is Reason.NPU_MISSING),
        *(p for o in report.outcomes.values() if (p := o.problem) and p.reason is Reason.CPU_BINDING_CONFLICT),
        *(outcome.problem for outcome in report.irqs.values()),
        *(problem for problem in of_memory if problem and problem.reason in _OF_THE_NODE),
        report.uvb.problem if report.uvb else None,
        report.plan.uvb_problem,
    ]
    return [problem for problem in found if problem and problem.reason not in _NOT_MISSING]
