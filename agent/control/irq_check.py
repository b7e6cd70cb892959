"""Where the interrupts of NPUs are, compared with the plan: for a look that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.control.observe import Observation
from agent.control.vectors import targets, vectors
from agent.model.cpuset import CpuSet
from agent.model.node import Npu
from agent.model.plan import Plan, PlanInput
from agent.node.irq import ActionNames, msi_irqs, read_affinity, sysfs_address
from agent.planning.optin import steps_of


@dataclass(frozen=True, slots=True)
class MisplacedIrq:
    """An interrupt that is not where the plan says."""

    npu: int
    irq: int
    action: str
    """Name of its handler."""
    mask: CpuSet
    target: CpuSet


def planned_irqs(inp: PlanInput, plan: Plan, seen: Observation) -> dict[Npu, CpuSet]:
    """NPU -> the CPUs for its interrupts, of NPUs with a worker that is planned and whose pod has not said no.

    Of several workers on one NPU the one that began first counts, as it does for the agent.
    """
    wanted: dict[Npu, CpuSet] = {}
    if not plan.device_type.binds_irqs:
        return wanted
    for entry in sorted(plan.workers, key=lambda entry: entry.worker.process.start_time):
        process, roles = entry.worker.process, entry.allotment.roles
        container = seen.places.get(process, ("", "", ""))[2]
        if roles is None or not steps_of(seen.pods.get(process), container, inp.spec).irq_binding:
            continue
        for npu_id in entry.worker.npus:
            npu, listed = inp.inventory.get(npu_id), plan.npu(npu_id)
            own = listed.allotment.roles if listed is not None else None
            cpus = roles.irq or (own.irq if own is not None else roles.irq)
            if npu is not None and cpus:
                wanted.setdefault(npu, cpus)
    return wanted


def misplaced_irqs(root: Path, npu: Npu, cpus: CpuSet, online: CpuSet) -> Iterator[MisplacedIrq]:
    """The interrupts of an NPU that are not on their CPUs; none where its PCI address is not known or it has none.

    `Refused` as the readers of `agent.node.irq` have it.
    """
    address = sysfs_address(npu.bus_id)
    found = vectors(address, ActionNames(root).of(msi_irqs(root, address))) if address else ()
    places = targets(cpus & online)
    for vector in found:
        target = places[vector.action]
        mask = read_affinity(root, vector.irq)
        if mask is not None and target and mask != target:
            yield MisplacedIrq(npu.id, vector.irq, vector.action, mask, target)
