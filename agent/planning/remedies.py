"""What would change an outcome of planning, in a few words: for `explain`, and for the messages of `status.npus`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.model.reason import MAX_MESSAGE_BYTES, Problem, Reason

REMEDIES: Final[Mapping[Reason, str]] = {
    Reason.INSUFFICIENT_CPUS: "reserve fewer CPUs, give the pod more, or let fewer pods have CPUs of their own",
    Reason.NO_AFFINITY: "set strategy GlobalSlice or NumaSlice",
    Reason.AFFINITY_OUTSIDE_CPUSET: "align the pod with kubelet's Topology Manager, or set another strategy",
    Reason.AFFINITY_SPANS_NODES: "compare npu-smi info -t topo with lscpu -e, or set another strategy",
    Reason.OFF_AFFINITY: "kubelet's Topology Manager would give the pod CPUs near its NPUs",
    Reason.UNSUPPORTED_SMT: "look at lscpu -e: are threads of some cores offline?",
    Reason.INSUFFICIENT_CLUSTERS: "give it eight whole cores of its NUMA node: reserve fewer CPUs, or widen the cpuset",
    Reason.MULTIPLE_NPUS: "one process for each NPU would get role threads and a NUMA node",
    Reason.NPU_NOT_IN_DOMAIN: "let one of the two pods go, or give each an NPU of its own",
    Reason.NPUS_CHANGING: "wait 10 s",
    Reason.NPU_MISSING: "look at the card: npu-smi info, dmesg; a reload of the driver starts anew",
    Reason.NO_CPUS: "reserve fewer CPUs",
    Reason.UNSUPPORTED_ARCHITECTURE: "set allowAnyArchitecture: true",
    Reason.NO_NPUS: "is the driver loaded? run npu-smi info",
    Reason.CPUSET_UNREADABLE: "run cpubind doctor: is /sys/fs/cgroup mounted?",
    Reason.NOT_OPTED_IN: "annotate its pod with cpubind.dev/enabled=true",
    Reason.NO_UVB_CPUS: "reserve fewer CPUs of NUMA node 0",
}
"""Of reasons that stand at an NPU or at one of its workers before anything was done to it."""


def with_remedy(problem: Problem) -> Problem:
    """The problem with what would change it behind its message, where both fit into one."""
    remedy = REMEDIES.get(problem.reason)
    if remedy is None or not problem.message:
        return problem
    message = f"{problem.message}; {remedy}"
    return Problem(problem.reason, message) if len(message.encode()) <= MAX_MESSAGE_BYTES else problem


def remedy_of(problem: Problem | None) -> str:
    """A sentence on what would change it; empty where nothing of people's would."""
    remedy = REMEDIES.get(problem.reason) if problem is not None else None
    return f"What would change it: {remedy}." if remedy else ""
