"""What people can do about a reason, in a few words: for the messages of conditions, NPUs and events, for `explain`,
`doctor` and the lines of commands that fail. docs/conditions.md says the same at more length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.model.reason import MAX_MESSAGE_BYTES, Problem, Reason

_AGAIN = "it is asked again; if it stays, send what cpubind capture writes"
_RIGHTS = "run cpubind doctor --cluster in the agent's pod: which right is missing?"
_CRD = "kubectl apply -f crds/cpubindingplans.yaml"

REMEDIES: Final[Mapping[Reason, str]] = {
    # Planning
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
    Reason.UNSUPPORTED_ARCHITECTURE: "nothing, or set allowAnyArchitecture: true",
    Reason.NO_NPUS: "is the driver loaded? run npu-smi info",
    Reason.CPUSET_UNREADABLE: "run cpubind doctor: is /sys/fs/cgroup mounted?",
    Reason.NO_UVB_CPUS: "reserve fewer CPUs of NUMA node 0",
    Reason.INVALID_SPEC: "correct it where it is set: kubectl edit cbp, the state file, chart values or flags",
    Reason.INVALID_ANNOTATION: "correct the annotation",
    # Reading the host
    Reason.TOPOLOGY_UNREADABLE: "run cpubind doctor: is the host's /sys mounted?",
    Reason.NPU_SMI_NOT_FOUND: "set npuSmi.path (--npu-smi) to where it is on the node",
    Reason.NPU_SMI_LIBRARY_MISSING: "set driver.path; after the driver was installed anew restart the agent's pod",
    Reason.NPU_SMI_FAILED: "run npu-smi info on the node: does it fail there, too?",
    Reason.NPU_SMI_HUNG: "does npu-smi info hang on the node, too? then it is the card or the driver",
    Reason.DRIVER_NOT_READY: "is the driver loaded? run npu-smi info on the node; is the agent's pod privileged?",
    Reason.DRIVER_BUSY: "another program holds the driver: it goes by itself, or find that program",
    Reason.NOT_SUPPORTED: "run npu-smi info on the node: does its version go with the driver's?",
    Reason.TABLE_TRUNCATED: _AGAIN,
    Reason.TABLE_UNREADABLE: "is npuSmi.path npu-smi? then send what cpubind capture writes",
    Reason.INVENTORY_INCOMPLETE: "compare npu-smi info with ls /dev/davinci* on the node: did a card fall off?",
    Reason.INVENTORY_MISMATCH: _AGAIN,
    Reason.PROCESS_TABLE_INCOMPLETE: "nothing, if workers are bound: their open devices tell it; else npu-smi info",
    Reason.UNKNOWN_DEVICE: "set deviceType",
    Reason.PROCESS_UNREADABLE: "run cpubind doctor: is the host's /proc mounted?",
    Reason.KUBELET_STATE_UNREADABLE: "run cpubind doctor: is kubelet.rootDir right?",
    Reason.STATE_UNREADABLE: "nothing, if it was set aside; else, as root, correct that file or move it away",
    Reason.SNAPSHOT_UNREADABLE: "copy it again, or take a new one",
    # Acting
    Reason.PERMISSION_DENIED: "run cpubind doctor: is the agent's pod privileged?",
    Reason.UNMOVABLE: "nothing can be done about it from outside",
    Reason.CPU_BINDING_CONFLICT: "find the other writer: vLLM's enable_cpu_binding, taskset, tuned, irqbalance",
    Reason.CPUSET_CHANGED: "it is planned again; if it stays, find who writes the container's cpuset",
    Reason.THREADS_CHANGING: "the next pass takes them",
    Reason.PROCESS_GONE: "nothing is to be done",
    Reason.PENDING: "wait for the next pass, some seconds",
    Reason.NOT_ENFORCED: "mode: Enforce binds",
    Reason.DISABLED: "mode: Enforce binds",
    Reason.PCI_ADDRESS_UNKNOWN: "send what cpubind capture writes, or set irqBinding: false",
    Reason.MSI_IRQS_MISSING: "a virtual machine may have none: set irqBinding: false there",
    Reason.IRQ_NAMES_UNKNOWN: "look at /proc/interrupts; send what cpubind capture writes",
    Reason.IRQ_READ_ONLY: "mount the host's /proc writable, as the chart does",
    Reason.IRQ_REFUSED: "look at dmesg of the node, or set irqBinding: false",
    Reason.NOT_CONFINED: "set helpers: Leave, or give the container more CPUs",
    Reason.MIGRATION_UNSUPPORTED: "set memoryMigration: false",
    Reason.EVENTS_UNAVAILABLE: "run cpubind doctor: what do they lack? Sweeps find the same, later",
    Reason.STATE_NOT_WRITTEN: "is this root? is the disk full, or mounted read-only?",
    Reason.NOT_THIS_KERNEL: "run on the host, or in a pod with hostPID and the host's /proc, as the chart does",
    Reason.SNAPSHOT_NOT_WRITTEN: "write it where you may and there is room: /tmp in the agent's pod",
    Reason.LOCKED: "let one of the two go; a plan with mode: Disabled gives back what its agent took",
    Reason.PORT_IN_USE: "set health.port or metrics.port (--health-address, --metrics-address)",
    Reason.TLS_UNUSABLE: "look at the Secret of metrics.tls.secretName",
    Reason.AGENT_STOPPED: "runs one? cpubind doctor, kubectl get pods -A -o wide -l app.kubernetes.io/name=cpubind",
    # Kubernetes
    Reason.API_UNREACHABLE: "is the API server up, and can it be reached from here?",
    Reason.API_REFUSED: _RIGHTS,
    Reason.PODS_UNKNOWN: _RIGHTS,
    Reason.PLAN_RESOURCE_MISSING: _CRD,
    Reason.NODE_NOT_FOUND: "compare --node-name with kubectl get nodes",
    Reason.SCHEMA_OUTDATED: _CRD,
}

IN_THE_MESSAGE: Final = frozenset(
    {
        Reason.IRQBALANCE_ACTIVE,  # its options depend on the driver's modules
        Reason.NO_WORKERS,
        Reason.NOT_OPTED_IN,  # its pod did not ask, or something else leaves it out
        Reason.DRIFT,
    }
)
"""Of these the message itself says what to do, since that is not the same for all."""


def with_remedy(problem: Problem) -> Problem:
    """The problem with what would change it behind its message, where both fit into one."""
    remedy = REMEDIES.get(problem.reason)
    if remedy is None or not problem.message:
        return problem
    message = f"{problem.message.removesuffix('.')}; {remedy}"
    return Problem(problem.reason, message) if len(message.encode()) <= MAX_MESSAGE_BYTES else problem


def remedy_of(problem: Problem | None) -> str:
    """A sentence on what would change it; empty where nothing of people's would."""
    remedy = REMEDIES.get(problem.reason) if problem is not None else None
    return sentence(f"What would change it: {remedy}") if remedy else ""


def sentence(text: str) -> str:
    """With its full stop, unless it is a question."""
    return text if text.endswith(("?", ".")) else f"{text}."
