"""Report: a plan and what came of it as the CpuBindingPlan object of design section 7. Pure: no clock, no I/O."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.control.conditions import Conditions
from agent.control.observe import Candidate, Observation
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.model.outcome import IrqOutcome, MemoryOutcome, UvbOutcome, WorkerOutcome
from agent.model.plan import NpuPlan, Plan, Roles, WorkerPlan
from agent.model.reason import MAX_MESSAGE_BYTES, Problem, Reason, printable
from agent.model.remedies import with_remedy
from agent.model.spec import Mode, Role, Spec
from agent.model.workload import ProcessId
from agent.planning.optin import left_alone

API_VERSION = "cpubind.dev/v1alpha1"
KIND = "CpuBindingPlan"
MAX_WORKERS = 16
"""Workers listed of one NPU; the others are counted in `workersOmitted`."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a status is made from."""

    node: str
    spec: Spec
    plan: Plan | None = None
    seen: Observation | None = None
    outcomes: Mapping[ProcessId, WorkerOutcome] = field(default_factory=dict)
    irqs: Mapping[int, IrqOutcome] = field(default_factory=dict)
    """By NPU, of those with a bound worker."""
    memory: Mapping[ProcessId, MemoryOutcome] = field(default_factory=dict)
    uvb: UvbOutcome | None = None
    taken: str = ""
    """What has not been given back to the host, as `Journal.taken` says it."""
    stuck: tuple[Problem, ...] = ()
    """Why those of them that should have been undone could not be."""
    faults: tuple[Problem, ...] = ()
    """Why there is no plan, or why the one in force is not what spec and host ask for."""
    notes: tuple[Problem, ...] = ()
    """Optional things that are missing."""


def resource(
    report: Report, *, spec: Mapping[str, Any], previous: Mapping[str, Any] | None, now: str, generation: int = 0
) -> Object:
    """The whole object. `previous` is the last one: its conditions keep their transition times where they still hold.

    `now` is RFC 3339 in UTC, for conditions that change. `spec` is passed through as people wrote it.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": report.node},
        "spec": dict(spec),
        "status": status(report, previous=previous, now=now, generation=generation),
    }


def status(report: Report, *, previous: Mapping[str, Any] | None, now: str, generation: int = 0) -> Object:
    """`status` alone."""
    plan, seen = report.plan, report.seen
    npus = npu_entries(report) if plan else []
    result: Object = {"observedGeneration": generation, "mode": report.spec.mode.value}
    if plan:
        result |= {"deviceType": plan.device_type.value, "strategy": plan.strategy.value}
    if seen:
        result["architecture"] = seen.topology.architecture
    if plan:
        result["planHash"] = plan_hash(plan)
    if seen:
        result["topology"] = _filled(
            cpus=str(seen.topology.online),
            reservedCpus=str(report.spec.reserved_cpus),
            isolatedCpus=str(seen.topology.isolated),
            numaNodes=[
                _filled(id=node.id, cpus=str(node.cpus), offlineCpus=str(node.members - node.cpus))
                for node in seen.topology.nodes
            ],
        )
    if plan:
        everywhere = tuple(npu.id for npu in plan.npus)
        result["bases"] = [
            _filled(domain=b.domain, cpus=str(b.cpus), npus="" if b.npus == everywhere else _ids(b.npus))
            for b in plan.bases
        ]
        if plan.device_type is DeviceType.ASCEND_950:
            result["uvb"] = _uvb(report, plan)
    states = [worker_state(report, entry) for entry in plan.workers] if plan else []
    result["summary"] = _summary(len(npus), [state for state, _ in states])
    result["npus"] = npus
    before = (previous or {}).get("status")
    conditions = before.get("conditions") if isinstance(before, Mapping) else None
    result["conditions"] = Conditions(conditions, now, generation).of(report, states)
    return result


def plan_hash(plan: Plan) -> str:
    """Twelve hex digits that change when the pools or roles of NPUs do, and with nothing else."""
    pools = [[npu.id, npu.domain, str(npu.allotment.pool), _roles(npu.allotment.roles)] for npu in plan.npus]
    facts = [plan.device_type, plan.strategy, pools, str(plan.uvb)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def log_lines(plan: Plan) -> list[tuple[int, str]]:
    """Level and text of one line for each NPU, in vLLM-Ascend's words, so that people who know these find them."""
    lines = []
    for npu in plan.npus:
        roles, problem = npu.allotment.roles, npu.allotment.problem
        if roles:
            irq = f" irq=[{roles.irq}]" if roles.irq else ""
            lines.append(
                (logging.INFO, f"NPU{npu.id}: main=[{roles.main}] acl=[{roles.acl}] release=[{roles.release}]{irq}")
            )
        if problem:
            lines.append((logging.WARNING, f"NPU{npu.id}: {problem}"))
    return lines


def npu_entries(report: Report) -> list[Object]:
    """`status.npus`: every NPU of the node, ascending. A message ends with what would change it, as `explain` says."""
    plan = report.plan
    assert plan is not None
    by_npu: dict[int, list[WorkerPlan]] = {}
    for entry in plan.workers:
        for npu in entry.worker.npus:
            by_npu.setdefault(npu, []).append(entry)
    return [_npu(report, npu, by_npu.get(npu.id, [])) for npu in plan.npus]


def _summary(npus: int, states: Sequence[str]) -> dict[str, int]:
    """Counts; a worker on several NPUs counts once."""
    return {
        "npus": npus,
        "workers": len(states),
        "bound": states.count("Bound"),
        "failed": states.count("Failed") + states.count("Partial"),
        "skipped": states.count("Skipped"),
    }


def worker_state(report: Report, entry: WorkerPlan) -> tuple[str, Problem | None]:
    """State of one worker, with the reason where it is not plain."""
    problem = entry.allotment.problem
    if problem is not None:
        return _failure_state(problem), problem
    if report.spec.mode is Mode.DISABLED:
        return "Skipped", Problem(Reason.DISABLED, "")
    if report.spec.mode is Mode.DRY_RUN:
        return "Planned", entry.allotment.note
    outcome = report.outcomes.get(entry.worker.process)
    if outcome is None:
        return "Pending", None
    return outcome.state, outcome.problem or entry.allotment.note


def _failure_state(problem: Problem) -> str:
    if problem.reason is Reason.UNSUPPORTED_ARCHITECTURE:
        return "Skipped"
    return "Pending" if problem.reason in (Reason.NPUS_CHANGING, Reason.PENDING) else "Failed"


def _npu(report: Report, npu: NpuPlan, workers: Sequence[WorkerPlan]) -> Object:
    assert report.seen is not None
    allotment = npu.allotment
    listed = [_worker(report, entry) for entry in workers[:MAX_WORKERS]]
    state, problem = _npu_state(npu, [worker_state(report, entry) for entry in workers])
    if not workers and problem is None and (strangers := report.seen.strangers.get(npu.id)):
        problem = _used_by(strangers)
    return _filled(
        id=npu.id,
        pool=str(allotment.pool),
        numaNodes=report.seen.topology.nodes_of(allotment.pool) if allotment.pool else [],
        roles=_roles(allotment.roles),
        state=state,
        **_because(with_remedy(problem) if problem else None),
        **_irq(report, npu.id),
        workers=listed,
        workersOmitted=len(workers) - MAX_WORKERS if len(workers) > MAX_WORKERS else None,
    )


def _npu_state(npu: NpuPlan, workers: Sequence[tuple[str, Problem | None]]) -> tuple[str, Problem | None]:
    problem, note = npu.allotment.problem, npu.allotment.note
    if problem is not None and problem.reason in (Reason.NPU_MISSING, Reason.UNSUPPORTED_ARCHITECTURE):
        return _failure_state(problem), problem
    if not workers:
        # An idle NPU has no failure: the reason says what a worker on it would meet.
        return "Idle", problem or note
    states = {state for state, _ in workers}
    if problem is not None:
        # A worker may do well all the same, in another domain or on its other NPUs.
        return ("Partial" if states & {"Bound", "Planned", "Partial"} else _failure_state(problem)), problem
    if len(states) == 1:
        return states.pop(), next((p for _, p in workers if p), note)
    worst = "Partial" if "Bound" in states or "Partial" in states else min(states, key=_GRAVITY.index)
    return worst, next((p for s, p in workers if p and s != "Bound"), note)


_GRAVITY = ("Failed", "Partial", "Pending", "Skipped", "Planned", "Bound", "Idle")


def _worker(report: Report, entry: WorkerPlan) -> Object:
    worker = entry.worker
    state, problem = worker_state(report, entry)
    assert report.seen is not None
    namespace, pod, container = report.seen.places.get(worker.process, ("", "", ""))
    own = _filled(pool=str(entry.allotment.pool), roles=_roles(entry.allotment.roles)) if entry.own else {}
    return _filled(
        pid=worker.process.pid,
        namespace=namespace,
        pod=pod,
        container=container,
        state=state,
        **_because(problem),
        **_memory(report, worker.process),
        **own,
    )


def _used_by(strangers: Sequence[Candidate]) -> Problem:
    first = strangers[0]
    owner = f"pod {first.pod.namespace}/{first.pod.name}" if first.pod else f"process {first.process.pid} {first.name}"
    more = f"and {len(strangers) - 1} more " if len(strangers) > 1 else ""
    why, remedy = left_alone(first.pod, first.container_name)
    because = f": {why}" if why else ""
    return Problem(Reason.NOT_OPTED_IN, f"in use by {owner} {more}and not to be bound{because}; {remedy}")


def _irq(report: Report, npu: int) -> dict[str, str]:
    """Threads and interrupts fail apart from each other. In a dry run what is `Bound` is what would be."""
    outcome = report.irqs.get(npu)
    if outcome is None:
        return {}
    planned = report.spec.mode is Mode.DRY_RUN and outcome.state in ("Bound", "Partial")
    return _filled(irq="Planned" if planned else outcome.state, **_because(outcome.problem, "irq"))


def _memory(report: Report, process: ProcessId) -> dict[str, str]:
    outcome = report.memory.get(process)
    if outcome is None:
        return {}
    said = _because(outcome.problem, "memory")
    figures = memory_figures(outcome)
    message = "; ".join(part for part in (said.get("memoryMessage"), figures) if part)
    return _filled(memory=outcome.state, **said | {"memoryMessage": printable(message, MAX_MESSAGE_BYTES)})


def memory_figures(outcome: MemoryOutcome) -> str:
    """How much was moved, left and skipped, for people; empty where nothing was tried."""
    where = "" if outcome.node is None else f" to NUMA node {outcome.node}"
    parts = [f"{_size(outcome.moved)} moved{where}"] if outcome.moved or outcome.state == "Moved" else []
    parts += [f"{_size(outcome.left)} left"] if outcome.left else []
    parts += [f"{_size(outcome.skipped)} skipped"] if outcome.skipped else []
    return ", ".join(parts)


def _size(count: int) -> str:
    """In the largest binary unit of which there is one, with at most one decimal."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007 - the last one stands
        if value < 1024:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def _uvb(report: Report, plan: Plan) -> Object:
    outcome = report.uvb
    if outcome is None:
        problem, threads = plan.uvb_problem, None
        if problem is None and report.spec.mode is Mode.DISABLED:
            problem = Problem(Reason.DISABLED, "")
        state = "Skipped" if problem else "Planned"
    else:
        dry = report.spec.mode is Mode.DRY_RUN and outcome.state in ("Bound", "Partial")
        state, problem, threads = ("Planned" if dry else outcome.state), outcome.problem, outcome.threads
    # No threads is a figure, too, and not an empty field.
    return _filled(cpus=str(plan.uvb), state=state, **_because(problem)) | (
        {} if threads is None else {"threads": threads}
    )


def _roles(roles: Roles | None) -> dict[str, str]:
    if roles is None:
        return {}
    return {role.value: str(cpus) for role in Role if (cpus := _own(roles, role))}


def _own(roles: Roles, role: Role) -> CpuSet:
    cpus: CpuSet = getattr(roles, role.value)
    return cpus


def _because(problem: Problem | None, of: str = "") -> dict[str, str]:
    """`reason` and `message`, or those `of` a step, such as `irqReason`."""
    if problem is None:
        return {}
    reason, message = (f"{of}Reason", f"{of}Message") if of else ("reason", "message")
    return _filled(**{reason: problem.reason.value, message: printable(problem.message, MAX_MESSAGE_BYTES)})


def _ids(ids: Sequence[int]) -> str:
    return str(CpuSet(ids))


def _filled(**fields: Any) -> Object:
    """Without the empty ones: they are left out of a status (design section 7)."""
    return {key: value for key, value in fields.items() if value not in ("", [], {}, None)}
