"""Which reasons the code can give, and where they come to stand in a plan's conditions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agent.control.conditions import READ_FAULTS, Conditions, stopped
from agent.control.report import Report, worker_state
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.model.outcome import WorkerOutcome
from agent.model.plan import Allotment, NpuPlan, Plan, Roles, WorkerPlan
from agent.model.reason import Problem, Reason
from agent.model.spec import Mode, Spec, Strategy
from agent.model.workload import ProcessId, Worker
from tests.docs.pages import ROOT

NOW = "2026-01-01T00:00:00Z"

Standing = tuple[str, str, str]
"""Type, status and reason of a condition."""


def reasons_in(*modules: str) -> set[Reason]:
    """Every ``Reason.X`` that stands in these modules."""
    found = set()
    for module in modules:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason":
                found.add(Reason[node.attr])
    return found


# What each part of the agent can find wrong. Where a module has reasons that go elsewhere they are taken off by name,
# so that a new one has to have its place.

SPEC = reasons_in("agent/kube/plan.py", "agent/planning/validation.py", "agent/control/statefile.py") - {
    Reason.STATE_NOT_WRITTEN  # logged
}
LOOK = reasons_in("agent/node/sysfs.py", "agent/node/devices.py", "agent/node/procfs.py", "agent/node/cgroups.py") - {
    Reason.PERMISSION_DENIED  # of open devices: a note
}
FAULTS = {*READ_FAULTS, *SPEC, *LOOK}
"""Why there is no plan, or not the one that was asked for."""

WHOLE_PLAN = {Reason.UNSUPPORTED_ARCHITECTURE, Reason.NO_NPUS, Reason.NO_CPUS}
"""Why nothing of a node can be planned."""

REMARKS = {Reason.OFF_AFFINITY, Reason.MULTIPLE_NPUS}
"""On CPUs that an NPU or a worker has all the same."""

PLANNING = reasons_in(
    *(f"agent/planning/{name}.py" for name in ("affinity", "clusters", "plan", "roles", "slices"))
) - {*REMARKS, Reason.NO_UVB_CPUS, Reason.UNSUPPORTED_ARCHITECTURE}
"""Why an NPU or a worker has no CPUs. (On an architecture that is not supported all workers are Skipped.)"""

OF_NPUS = PLANNING - {Reason.NPUS_CHANGING, *WHOLE_PLAN}
OF_WORKERS = PLANNING - {Reason.NPU_MISSING, *WHOLE_PLAN}

BINDING = reasons_in("agent/node/binding.py", "agent/node/threads.py", "agent/node/taskdir.py") | {
    Reason.CPUSET_UNREADABLE,  # agent/control/act.py
    Reason.CPU_BINDING_CONFLICT,  # agent/control/drift.py
}
"""Why a worker is not bound."""

UNDOING = reasons_in("agent/node/threads.py", "agent/node/taskdir.py") - {Reason.PROCESS_GONE}
"""Why a worker that is not to be bound any more still is."""

GIVING_BACK = {
    Reason.IRQ_READ_ONLY,
    Reason.IRQ_REFUSED,
    Reason.MSI_IRQS_MISSING,  # the folder can't be read; one that is gone has nothing to be given back
    Reason.IRQ_NAMES_UNKNOWN,
    Reason.IRQBALANCE_ACTIVE,
    Reason.UNMOVABLE,  # UVB threads
}
"""Why interrupts, what irqbalance was told, and UVB threads are not as they were before."""

STEPS = {
    Reason.PCI_ADDRESS_UNKNOWN,
    Reason.MSI_IRQS_MISSING,
    Reason.IRQ_NAMES_UNKNOWN,
    Reason.IRQ_READ_ONLY,
    Reason.IRQ_REFUSED,
    Reason.IRQBALANCE_ACTIVE,
    Reason.CPU_BINDING_CONFLICT,
    Reason.MIGRATION_UNSUPPORTED,
    Reason.NOT_CONFINED,
    Reason.UNMOVABLE,  # UVB threads
}
"""Why a step beside the placing of threads is not done, where that is so for the node."""

NOTES = (
    reasons_in(
        "agent/node/npu_smi/detect.py",
        "agent/node/npu_smi/inventory.py",
        "agent/control/journal_file.py",
        "agent/kube/pod_resources.py",
        "agent/kube/publisher.py",
        "agent/telemetry/listener.py",
        "agent/node/kubelet.py",
        "agent/node/procfs.py",
        "agent/node/cgroups.py",
        "agent/node/proc_events.py",
        "agent/control/observe.py",
    )
    | UNDOING
    | set(READ_FAULTS) - {Reason.TOPOLOGY_UNREADABLE}
    | {Reason.PODS_UNKNOWN, Reason.API_REFUSED, Reason.API_UNREACHABLE, Reason.NPU_MISSING, Reason.NO_UVB_CPUS}
    | STEPS
) - {
    Reason.INVALID_SPEC,  # the name of a journal's file: agent/control/journal_file.py raises it before the agent runs
    Reason.AGENT_STOPPED,  # agent/kube/pod_resources.py, to itself
}
"""What the agent can do without: all that npu-smi can be lacking is among it, as long as an earlier answer stands."""


def a_plan(problem: Problem | None = None, npu: Problem | None = None, worker: Problem | None = None) -> Plan:
    """Two NPUs, of which one has CPUs unless there is no plan at all; one worker, on the first."""
    cpus = Allotment(CpuSet.parse("0-9"), Roles(main=CpuSet.parse("0-9")))
    none = Allotment(problem=problem) if problem else None
    first = none or (Allotment(problem=npu) if npu else cpus)
    its = worker or (npu if npu and npu.reason in OF_WORKERS else None)
    mine = Allotment(problem=its) if its else cpus
    return Plan(
        DeviceType.A3,
        Strategy.GLOBAL_SLICE,
        npus=(NpuPlan(0, "", first), NpuPlan(1, "", none or cpus)),
        workers=(WorkerPlan(Worker(ProcessId(1, 1), (0,), "c", "python3"), "", none or mine),),
        problem=problem,
    )


def conditions(report: Report) -> Iterator[dict[str, Any]]:
    """What its status has, and what an agent leaves behind that is stopped then."""
    states = [worker_state(report, entry) for entry in report.plan.workers] if report.plan else []
    now = Conditions([], NOW, 1).of(report, states)
    yield from [*now, *stopped(now, NOW)]


def _reports() -> Iterator[Report]:
    """A report for each thing that can be wrong, and those in which nothing is."""
    spec, disabled, plan = Spec(), Spec(mode=Mode.DISABLED), a_plan()
    for mode in Mode:
        yield Report("n", Spec(mode=mode), plan, outcomes={ProcessId(1, 1): WorkerOutcome(ProcessId(1, 1), "Bound")})
        yield Report("n", Spec(mode=mode), plan, taken="1 worker")
        yield Report("n", Spec(mode=mode), Plan(DeviceType.A3, Strategy.GLOBAL_SLICE, npus=plan.npus))
    for problem in _problems(FAULTS):
        yield Report("n", spec, None, faults=(problem,))
        yield Report("n", spec, plan, faults=(problem,))
    for problem in _problems(WHOLE_PLAN):
        yield Report("n", spec, a_plan(problem))
    for problem in _problems(OF_NPUS):
        yield Report("n", spec, a_plan(npu=problem))
        # Where all NPUs lack CPUs there is no plan at all, by the same reason.
        yield Report(
            "n", spec, Plan(DeviceType.A3, Strategy.GLOBAL_SLICE, (NpuPlan(0, "", Allotment(problem=problem)),))
        )
    for problem in _problems(OF_WORKERS):
        yield Report("n", spec, a_plan(worker=problem))
    for problem in _problems(BINDING):
        state = "Pending" if problem.reason is Reason.PROCESS_GONE else "Failed"
        process = ProcessId(1, 1)
        yield Report("n", spec, plan, outcomes={process: WorkerOutcome(process, state, problem)})  # type: ignore[arg-type]
    for problem in _problems(UNDOING | GIVING_BACK):
        yield Report("n", disabled, plan, taken="1 worker", stuck=(problem,), faults=(problem,))
        yield Report("n", disabled, None, taken="1 worker", stuck=(problem,), faults=(problem,))
    for problem in _problems(NOTES):
        yield Report("n", spec, plan, notes=(problem,))


def _problems(reasons: Iterable[Reason]) -> Sequence[Problem]:
    return [Problem(reason, "why") for reason in sorted(reasons)]


def standings() -> set[Standing]:
    """Every condition that the code can make of what can be wrong."""
    return {(entry["type"], entry["status"], entry["reason"]) for entry in every_condition()}


def every_condition() -> Iterator[dict[str, Any]]:
    """The same, with what each says."""
    for report in _reports():
        yield from conditions(report)
