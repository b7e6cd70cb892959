"""The closed list of reasons, used as condition reason, metric label, event reason and exit text.

Spelling is that of a Kubernetes condition reason: CamelCase, at most 64 characters. The text beside each is what it
means to the person who reads it; docs/reasons.md is made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why something is as it is. `meaning` says it in a sentence."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Reason:
        self = str.__new__(cls, value)
        self._value_ = value
        self.meaning = meaning
        return self

    # Plain states
    AS_PLANNED = "AsPlanned", "Everything is as the plan says."
    NO_WORKERS = "NoWorkers", "No process that is to be bound runs on an NPU of this node."
    NOT_ENFORCED = "NotEnforced", "Dry run: the plan is computed and shown, nothing is written to the host."
    DISABLED = "Disabled", "The plan's mode is Disabled: nothing is bound."
    PENDING = "Pending", "Not done yet: the next pass of the agent does it."
    AGENT_STOPPED = "AgentStopped", "The agent was stopped; bindings stay as they are, nobody repairs them."
    NOT_OPTED_IN = "NotOptedIn", "The NPU is used by a process that is not to be bound."

    # Planning
    INSUFFICIENT_CPUS = (
        "InsufficientCpus",
        "Fewer CPUs than an NPU needs: 2 for interrupts, 1 each for main, acl, release.",
    )
    NO_AFFINITY = "NoAffinity", "npu-smi info -t topo shows no CPU affinity for this NPU."
    AFFINITY_OUTSIDE_CPUSET = "AffinityOutsideCpuset", "None of the NPU's affine CPUs is in the container's cpuset."
    AFFINITY_SPANS_NODES = (
        "AffinitySpansNodes",
        "The NPU's affine CPUs lie on several NUMA nodes; Ascend 950 needs one.",
    )
    OFF_AFFINITY = "OffAffinity", "The container's own CPUs are not near its NPUs; they are divided evenly instead."
    UNSUPPORTED_SMT = "UnsupportedSmt", "A core of this NUMA node has neither one nor two threads."
    INSUFFICIENT_CLUSTERS = "InsufficientClusters", "Fewer clusters of eight whole cores than NPUs."
    NO_UVB_CPUS = "NoUvbCpus", "No CPU of NUMA node 0 is left over for the UVB threads."
    MULTIPLE_NPUS = "MultipleNpus", "One process uses several NPUs: it gets the main CPUs of all, no role threads."
    NPU_NOT_IN_DOMAIN = (
        "NpuNotInDomain",
        "The NPU is allocated to a container with CPUs of its own; this process is outside.",
    )
    NPUS_CHANGING = "NpusChanging", "Which NPUs the container uses has changed in the last 10 seconds; waiting."
    NPU_MISSING = "NpuMissing", "The NPU was seen since the driver was loaded and is gone; its CPUs are kept for it."
    NO_CPUS = "NoCpus", "No CPU is left after reserved, isolated and foreign exclusive CPUs are taken off."
    INVALID_SPEC = (
        "InvalidSpec",
        "The plan's spec holds a value that cannot be used; the last valid plan stays in force.",
    )
    INVALID_ANNOTATION = (
        "InvalidAnnotation",
        "An annotation of the pod holds a value that cannot be used; it is left alone.",
    )
    UNSUPPORTED_ARCHITECTURE = "UnsupportedArchitecture", "Binding runs on ARM64 unless any architecture is allowed."
    NO_NPUS = "NoNpus", "The node has no NPU."

    # Reading the host
    NPU_SMI_NOT_FOUND = "NpuSmiNotFound", "npu-smi is not installed or not on the path given."
    NPU_SMI_LIBRARY_MISSING = "NpuSmiLibraryMissing", "npu-smi cannot load a library of the driver."
    NPU_SMI_FAILED = "NpuSmiFailed", "npu-smi ended with an error."
    NPU_SMI_HUNG = "NpuSmiHung", "npu-smi did not answer in time; the last good inventory, if any, stands."
    DRIVER_NOT_READY = (
        "DriverNotReady",
        "The driver is not loaded, or npu-smi has no right to use it (dcmi -8005).",
    )
    DRIVER_BUSY = "DriverBusy", "The driver's management interface is occupied (dcmi -8020)."
    NOT_SUPPORTED = "NotSupported", "This npu-smi or this device does not know the query."
    TABLE_TRUNCATED = "TableTruncated", "An npu-smi table ends early; it is not used."
    TABLE_UNREADABLE = "TableUnreadable", "An npu-smi table is not of a form that is known; it is not used."
    PROCESS_TABLE_INCOMPLETE = (
        "ProcessTableIncomplete",
        "npu-smi says neither that processes run on an NPU nor that none do; open device files decide.",
    )
    INVENTORY_INCOMPLETE = (
        "InventoryIncomplete",
        "npu-smi shows fewer NPUs than /dev/davinciN exist; it is not used.",
    )
    INVENTORY_MISMATCH = "InventoryMismatch", "Two npu-smi tables disagree on which NPUs there are; they are not used."
    UNKNOWN_DEVICE = "UnknownDevice", "The device type is not known; it is treated like an A2."
    TOPOLOGY_UNREADABLE = "TopologyUnreadable", "The node's CPUs or NUMA nodes cannot be read."
    CPUSET_UNREADABLE = "CpusetUnreadable", "The cpuset of a process cannot be read."
    PROCESS_UNREADABLE = "ProcessUnreadable", "A file of a process cannot be read."
    KUBELET_STATE_UNREADABLE = "KubeletStateUnreadable", "kubelet's cpu_manager_state or pod-resources cannot be read."
    SNAPSHOT_UNREADABLE = "SnapshotUnreadable", "The snapshot is damaged or of a version that is not known."
    STATE_UNREADABLE = "StateUnreadable", "The agent's state file or journal cannot be read; it is not used."

    # Acting
    CPUSET_CHANGED = "CpusetChanged", "The container's cpuset no longer holds the planned CPUs; planning again."
    UNMOVABLE = "Unmovable", "The kernel does not let this thread be moved (PF_NO_SETAFFINITY)."
    PERMISSION_DENIED = "PermissionDenied", "The agent lacks a right, usually CAP_SYS_NICE."
    PROCESS_GONE = "ProcessGone", "The process ended."
    THREADS_CHANGING = "ThreadsChanging", "New threads kept appearing while binding; the next pass takes them."
    DRIFT = "Drift", "Threads are not where the plan says."
    SWITCHED_OFF = "SwitchedOff", "The step is turned off by spec, by the agent's settings or by the pod's annotation."
    PCI_ADDRESS_UNKNOWN = (
        "PciAddressUnknown",
        "Neither npu-smi info nor the NPU's board shows its PCI address; its interrupts stay where they are.",
    )
    MSI_IRQS_MISSING = "MsiIrqsMissing", "The NPU's PCI function has no msi_irqs: its driver asked for no interrupts."
    IRQ_NAMES_UNKNOWN = (
        "IrqNamesUnknown",
        "None of the NPU's interrupts is called sq_send_trigger_irq or cq_update_irq; they stay where they are.",
    )
    IRQ_READ_ONLY = "IrqReadOnly", "/proc/irq cannot be written: it is mounted read-only."
    IRQ_REFUSED = "IrqRefused", "The kernel refuses to move an interrupt."
    IRQBALANCE_ACTIVE = (
        "IrqbalanceActive",
        "irqbalance runs and cannot be told to leave the NPUs' interrupts alone; what to configure is in the message.",
    )
    ONE_NUMA_NODE = "OneNumaNode", "The host has memory on one NUMA node alone: there is nowhere to move it."
    TARGET_HAS_NO_MEMORY = "TargetHasNoMemory", "The NUMA node of the worker's main CPUs has no memory."
    OUTSIDE_MEMS_ALLOWED = (
        "OutsideMemsAllowed",
        "The worker's cpuset does not allow memory of the NUMA node of its main CPUs (Mems_allowed_list).",
    )
    TARGET_NODE_FULL = "TargetNodeFull", "The NUMA node of the worker's main CPUs has too little free memory."
    BUDGET_SPENT = "BudgetSpent", "Moving the worker's memory took too long: what was not moved by then stays."
    MIGRATION_INTERRUPTED = (
        "MigrationInterrupted",
        "The agent ended while it moved the worker's memory; it is not redone.",
    )
    BOUND_BEFORE = (
        "BoundBefore",
        "An earlier release of the agent bound the worker and left its memory alone; so does this one.",
    )
    NUMA_BALANCING = (
        "NumaBalancing",
        "Automatic NUMA balancing (kernel.numa_balancing) hides memory from being moved (Linux 6.1 to 6.5).",
    )
    MIGRATION_UNSUPPORTED = "MigrationUnsupported", "This kernel cannot move the pages of another process."
    NOT_CONFINED = (
        "NotConfined",
        "Threads beside a worker may run on CPUs set apart and on no other: they are left alone (helpers: Confine).",
    )
    EVENTS_UNAVAILABLE = (
        "EventsUnavailable",
        "The kernel's events of processes cannot be had: what they would tell at once is found by the next sweep.",
    )
    STATE_NOT_WRITTEN = "StateNotWritten", "The agent's state file or journal could not be written."
    NOT_THIS_KERNEL = (
        "NotThisKernel",
        "The host root's /proc is not that of this kernel and PID namespace (hostPID missing, or a recorded tree).",
    )
    SNAPSHOT_NOT_WRITTEN = "SnapshotNotWritten", "The support bundle could not be written."
    LOCKED = "Locked", "Another cpubind agent acts on this host."

    # Kubernetes
    API_UNREACHABLE = "ApiUnreachable", "The API server does not answer; what is bound stays, and is kept."
    API_REFUSED = "ApiRefused", "The API server refuses a request, usually for want of a right; what is bound stays."
    PODS_UNKNOWN = "PodsUnknown", "The pods of the node could not be listed; nobody new is bound until they are."
    PLAN_RESOURCE_MISSING = "PlanResourceMissing", "The API server has no CpuBindingPlan resource: install the CRD."
    NODE_NOT_FOUND = "NodeNotFound", "The API server has no Node of this name; the plan is made once there is one."
    SCHEMA_OUTDATED = "SchemaOutdated", "The CRD is older than the agent: fields that it does not know are left out."

    # Events
    CPU_BOUND = "CpuBound", "Event: a worker of the pod was bound to its NPU's CPUs."
    CPU_BINDING_FAILED = "CpuBindingFailed", "Event: a worker of the pod is not, or not wholly, bound; why is in it."
    CPU_BINDING_SKIPPED = "CpuBindingSkipped", "Event: a worker of the pod is left alone; why is in it."
    CPU_BINDING_REPAIRED = (
        "CpuBindingRepaired",
        "Event: threads or interrupts of a worker had been moved away and were put back.",
    )
    CPU_BINDING_CONFLICT = (
        "CpuBindingConflict",
        "Somebody else keeps moving threads or interrupts that were put back: tried again after ever longer times.",
    )
    CPU_RELEASED = "CpuReleased", "Event: threads of a worker were given back to their cpuset."
    PORT_IN_USE = (
        "PortInUse",
        "Health or metrics cannot be served: another process has the port, mostly; tried again every few seconds.",
    )
    TLS_UNUSABLE = (
        "TlsUnusable",
        "The certificate for metrics, its key or the CA of clients cannot be used; tried again every few seconds.",
    )


MAX_MESSAGE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason with the particulars, in one line of at most 256 bytes (lists of scattered CPUs can be long)."""

    reason: Reason
    message: str

    def __post_init__(self) -> None:
        encoded = self.message.encode("utf-8", "replace")
        if len(encoded) > MAX_MESSAGE_BYTES:
            cut = encoded[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
            object.__setattr__(self, "message", cut)

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class Refused(Exception):  # noqa: N818 - it says what happened, as ConnectionRefused does
    """Something could not be read or done. Raised at the edges, never past `control` or `cli`."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.problem = Problem(reason, message)

    @property
    def reason(self) -> Reason:
        return self.problem.reason

    @property
    def message(self) -> str:
        return self.problem.message


def printable(text: str, limit: int = 200) -> str:
    """Text of unknown origin as one line without control characters, at most `limit` characters long.

    Process names, command output and file contents may hold anything, terminal escapes included.
    """
    line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"
