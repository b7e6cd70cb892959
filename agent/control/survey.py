"""One look at a host, live or recorded, without acting: what `plan`, `explain` and `verify` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.control.journal import Journal
from agent.control.observe import Observation, Observer
from agent.control.plan import Decision, Planner
from agent.control.report import Report, resource
from agent.model.reason import Problem, Refused
from agent.model.spec import Spec
from agent.node.devices import read_davinci
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.inventory import read_inventory
from agent.planning.plan import needs_affinity


@dataclass(frozen=True, slots=True)
class Survey:
    """What one look gave. Without `decision` there is no plan, and `report.faults` says why."""

    report: Report
    decision: Decision | None = None
    seen: Observation | None = None

    def document(self, *, now: str, spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The CpuBindingPlan object."""
        return resource(self.report, spec=spec or {}, previous=None, now=now)


def survey(
    observer: Observer,
    npu_smi: NpuSmi,
    spec: Spec,
    *,
    node: str,
    journal: Journal | None = None,
    problems: Sequence[Problem] = (),
    accepted: Spec | None = None,
) -> Survey:
    """Reads, attributes and plans once. Never raises for what the host or npu-smi does. `problems` are what else could
    not be read before; `accepted` is the spec that holds where this one does not fit the node."""
    planner = Planner(journal or Journal())
    planner.accepted = accepted
    notes = list(problems)
    try:
        # Read first: a node whose CPUs can't be read has no use for an inventory.
        observer.topology(now=0.0)
        reading = read_inventory(
            npu_smi,
            read_davinci(observer.root),
            override=spec.device_type,
            needs_affinity=lambda device: needs_affinity(spec, device),
        )
        seen = observer.look(planner.inventory(reading), reading.processes, now=0.0)
    except Refused as refused:
        return Survey(Report(node=node, spec=spec, faults=(refused.problem,), notes=tuple(notes)))
    decision = planner.plan(planner.inventory(reading), seen, spec, now=0.0)
    notes += [*reading.notes, *seen.notes]
    report = Report(
        node=node,
        spec=decision.inp.spec,
        plan=decision.plan,
        seen=seen,
        faults=decision.faults,
        notes=tuple(dict.fromkeys(notes)),
    )
    return Survey(report, decision, seen)
