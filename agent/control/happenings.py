"""What happened between two reports, for events. Pure.

Events are made from what was reported before and what is reported now, so that an agent that starts anew, and finds
what an earlier run reported, tells nothing again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.control.act import ActResult
from agent.control.drift import VLLM_ASCEND
from agent.control.report import Report
from agent.model.outcome import WorkerOutcome
from agent.model.reason import Reason, printable
from agent.model.remedies import REMEDIES, with_remedy
from agent.model.spec import Mode, Role
from agent.model.workload import ProcessId

MAX_MESSAGE = 1000
"""Bytes. The API server takes 1,024."""

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that is worth an event, on a pod or, without one, on the node's plan."""

    reason: Reason
    message: str
    warning: bool = False
    namespace: str = ""
    pod: str = ""
    standing: bool = False
    """A state, of which it is not known whether it has been told before."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A worker in a status."""

    pid: int
    namespace: str
    pod: str
    state: str
    reason: str
    message: str
    where: str
    """For people: on which NPU, and on which CPUs."""


def happenings(
    before: Mapping[str, Any], after: Mapping[str, Any], report: Report, act: ActResult
) -> tuple[Happening, ...]:
    """What happened, pods first. `before` and `after` are CpuBindingPlan objects; `before` may be {} or damaged."""
    return (
        *_of_workers(_status(before), _status(after), report.spec.mode),
        *_of_pass(report, act),
        *_of_conditions(_status(before), _status(after)),
    )


def _of_workers(before: Status, after: Status, mode: Mode) -> Iterator[Happening]:
    if after.get("npus") is before.get("npus"):
        return  # the same object, as in every pass in which nothing happens
    known = {(w.pid, w.namespace, w.pod): w for w in _workers(before)}
    told: dict[tuple[str, str, Reason, bool], list[str]] = {}
    remedies: dict[tuple[str, str, Reason, bool], list[str]] = {}
    for worker in _workers(after):
        was = known.get((worker.pid, worker.namespace, worker.pod))
        if not worker.pod or mode is not Mode.ENFORCE or (was and _same(was, worker)):
            continue
        because = f": {worker.reason}" + (f": {worker.message}" if worker.message else "") if worker.reason else ""
        text = f"process {worker.pid} {worker.where}"
        if worker.state == "Bound":
            told.setdefault((worker.namespace, worker.pod, Reason.CPU_BOUND, False), []).append(text)
            continue
        if worker.state in ("Failed", "Partial"):
            contested = worker.reason == Reason.CPU_BINDING_CONFLICT.value
            key = (
                *(worker.namespace, worker.pod),
                *(Reason.CPU_BINDING_CONFLICT if contested else Reason.CPU_BINDING_FAILED, True),
            )
        elif worker.state == "Skipped":
            key = (worker.namespace, worker.pod, Reason.CPU_BINDING_SKIPPED, False)
        else:
            continue
        told.setdefault(key, []).append(text + because)
        remedies.setdefault(key, []).append(_remedy(worker.reason))
    for key, texts in told.items():
        namespace, pod, reason, warning = key
        yield Happening(reason, _joined(texts, remedies.get(key, ())), warning, namespace, pod)


def _same(was: _Seen, now: _Seen) -> bool:
    return (was.state, was.reason, was.where) == (now.state, now.reason, now.where)


def _of_pass(report: Report, act: ActResult) -> Iterator[Happening]:
    seen = report.seen
    if seen is None:
        return
    for (namespace, pod), problem in seen.misannotated.items():
        yield Happening(problem.reason, with_remedy(problem).message, True, namespace, pod, standing=True)
    if report.spec.mode is Mode.DRY_RUN:
        return
    # Degraded shows the gravest thing that is missing; this one somebody has to configure.
    for missing in report.notes:
        if missing.reason is Reason.IRQBALANCE_ACTIVE:
            yield Happening(missing.reason, missing.message, True, standing=True)
    told: dict[tuple[str, str, Reason], list[str]] = {}

    def note(process: ProcessId, reason: Reason, text: str) -> None:
        namespace, pod, _ = seen.places.get(process, ("", "", ""))
        if pod:
            told.setdefault((namespace, pod, reason), []).append(f"process {process.pid}: {text}")

    repaired = {p: [_threads(outcome)] for p, outcome in act.outcomes.items() if outcome.repaired}
    for worker in report.plan.workers if report.plan else ():
        drift = sum(irqs.drift for npu in worker.worker.npus if (irqs := report.irqs.get(npu)))
        if drift:
            repaired.setdefault(worker.worker.process, []).append(f"{drift} interrupts of its NPU")
    for process, parts in repaired.items():
        note(process, Reason.CPU_BINDING_REPAIRED, f"{' and '.join(parts)} put back")
    for process, count in act.released.items():
        note(process, Reason.CPU_RELEASED, f"{count} threads given back to their cpuset: it has no plan any more")
    for process, count in act.undone.items():
        note(process, Reason.CPU_RELEASED, f"{count} threads given back to their cpuset")
    for (namespace, pod, reason), texts in told.items():
        yield Happening(reason, _joined(texts), False, namespace, pod)


def _threads(outcome: WorkerOutcome) -> str:
    """What was put back, and how much of it the kernel had moved after kubelet wrote a cpuset."""
    text = f"{outcome.repaired} threads" + (f" ({outcome.by_cpuset} by their cpuset)" if outcome.by_cpuset else "")
    return text + (f" (all at once, {VLLM_ASCEND})" if outcome.at_once else "")


_ON_PLAN = {"TopologyDiscovered": "False", "PlanValid": "False", "Degraded": "True"}
"""Conditions that are told on the plan, with the status that is."""


def _of_conditions(before: Status, after: Status) -> Iterator[Happening]:
    """Each reason once, and again when it comes back. One that only moves to another condition is the same news."""
    if after.get("conditions") is before.get("conditions"):
        return
    told = {reason for reason, _ in _open(before)}
    for reason, message in _open(after):
        if reason not in told and reason != Reason.IRQBALANCE_ACTIVE.value:
            told.add(reason)
            yield Happening(_reason(reason), _short(message), True)


def _open(status: Status) -> Iterator[tuple[str, str]]:
    """Reason and message of the conditions that are told on the plan."""
    for condition in _mappings(status.get("conditions")):
        if _ON_PLAN.get(_text(condition.get("type"))) == condition.get("status"):
            yield _text(condition.get("reason")), _text(condition.get("message"))


def _reason(value: str) -> Reason:
    """A condition that the agent just made has one of its own."""
    return next(reason for reason in Reason if reason.value == value)


def _workers(status: Status) -> list[_Seen]:
    """Each worker once; one on several NPUs with all of them."""
    found: dict[tuple[int, str, str], list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for npu in _mappings(status.get("npus")):
        for worker in _mappings(npu.get("workers")):
            key = (_number(worker.get("pid")), _text(worker.get("namespace")), _text(worker.get("pod")))
            found.setdefault(key, []).append((npu, worker))
    return [_seen(*key, entries) for key, entries in found.items()]


def _seen(pid: int, namespace: str, pod: str, entries: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> _Seen:
    npu, worker = entries[0]
    state = _text(worker.get("state"))
    where = "on NPU " + ", ".join(str(_number(npu.get("id"))) for npu, _ in entries)
    roles = worker.get("roles") or npu.get("roles")
    # One that could not be bound may have no CPUs though its NPU has.
    if state in ("Bound", "Partial") and isinstance(roles, Mapping) and roles:
        # An API server gives fields back in another order.
        where += f" ({', '.join(f'{role} {_text(roles[role])}' for role in Role if role in roles)})"
    return _Seen(pid, namespace, pod, state, _text(worker.get("reason")), _text(worker.get("message")), where)


def _remedy(reason: str) -> str:
    """What people can do about the reason of a worker; empty where its message says so."""
    return next((text for known, text in REMEDIES.items() if known.value == reason), "")


def _joined(texts: Sequence[str], remedies: Sequence[str] = ()) -> str:
    """All of them, and behind them once each what to do."""
    count = f"{len(texts)} workers: " if len(texts) > 1 else ""
    return _short(count + "; ".join((*texts, *filter(None, dict.fromkeys(remedies)))))


def _short(text: str) -> str:
    line = printable(text, MAX_MESSAGE).encode()
    return (line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "…".encode()).decode(errors="ignore")


def _text(value: object) -> str:
    """What was reported before may come from a file that people edit."""
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _status(document: Mapping[str, Any]) -> Status:
    status = document.get("status")
    return status if isinstance(status, Mapping) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (entry for entry in value if isinstance(entry, Mapping)) if isinstance(value, list) else iter(())
