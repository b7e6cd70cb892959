"""What runs on a node: pods, containers, processes and the workers among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """Identity of a process. A pid alone can be reused; with its start time it can't within a boot."""

    pid: int
    start_time: int
    """Field 22 of /proc/<pid>/stat: clock ticks after boot."""


@dataclass(frozen=True, slots=True, order=True)
class ThreadId:
    """Identity of a thread, of which the same is true."""

    tid: int
    start_time: int
    """Field 22 of /proc/<pid>/task/<tid>/stat."""


@dataclass(frozen=True, slots=True)
class CgroupIdentity:
    """What the cgroup path of a process says of it. Empty strings where it says nothing."""

    path: str
    """Below the cgroup mount, cut at the container's own component; the process's whole path where in none."""
    pod_uid: str = ""
    """With dashes as in ``metadata.uid``; 32 hex digits for a static pod (its config hash)."""
    container_id: str = ""
    """64 hex digits, as behind the ``://`` of ``containerID``."""
    qos: str = ""
    """``Guaranteed``, ``Burstable`` or ``BestEffort``, as kubelet places the pod."""
    runtime: bool = False
    """A container of whatever runtime, pod or not."""

    @property
    def key(self) -> str:
        """What tells its `Container` from others: the container id, else the path."""
        return self.container_id or self.path


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod, as far as CPU placement is concerned."""

    name: str
    id: str = ""
    """Without the ``runtime://`` prefix; empty before it was created."""
    cpu_limit_milli: int | None = None
    """``resources.limits.cpu`` in thousandths of a CPU."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node, trimmed."""

    uid: str
    namespace: str
    name: str
    qos: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[PodContainer, ...] = ()
    config_hash: str = ""
    """Annotation ``kubernetes.io/config.hash`` of a static pod; its cgroup carries this in place of the uid."""


@dataclass(frozen=True, slots=True)
class ExclusiveGrant:
    """An entry of kubelet's cpu_manager_state under policy ``static``."""

    pod_uid: str
    container: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class PodResources:
    """What kubelet's pod-resources socket says of one container."""

    namespace: str
    pod: str
    container: str
    cpus: CpuSet
    """``cpu_ids``. Kubelets before 1.21 report the shared pool here for shared containers."""
    devices: tuple[str, ...] = ()
    """Device ids of Ascend resources, such as ``Ascend910-3``."""


@dataclass(frozen=True, slots=True)
class KubeletState:
    """kubelet's own records, each of which may be absent."""

    policy: str = ""
    """cpuManagerPolicy: ``none``, ``static``; empty when there is no cpu_manager_state."""
    grants: tuple[ExclusiveGrant, ...] = ()
    resources: tuple[PodResources, ...] = ()


@dataclass(frozen=True, slots=True)
class Container:
    """Where workers live: a container, or a cgroup for a process that is in none. Input of planning."""

    key: str
    """Container id, else pod uid and name, else the cgroup path."""
    cpus: CpuSet
    """Its effective cpuset, as the cgroup says."""
    namespace: str = ""
    pod: str = ""
    name: str = ""
    pod_uid: str = ""
    owned: CpuSet | None = None
    """The CPUs that belong to it alone, on positive evidence (design 4.1); None in the shared domain."""
    evidence: str = ""
    """Where `owned` comes from, for people."""
    npus: frozenset[int] | None = None
    """The NPUs allocated to it; None where nothing says so and the running ones stand in."""
    settled: bool = True
    """False while `npus` stands for running ones that changed in the last 10 s."""

    @property
    def title(self) -> str:
        """``namespace/pod/container`` as far as known, else the key."""
        return "/".join(part for part in (self.namespace, self.pod, self.name) if part) or self.key


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that holds a context on an NPU and is to be bound."""

    process: ProcessId
    npus: tuple[int, ...]
    """Ascending. More than one only for a process that really works on several."""
    container: str
    """Key of its Container."""
    name: str = ""
    """/proc/<pid>/comm, made printable."""
    residual: tuple[int, ...] = ()
    """NPUs on which it keeps a context that is no work of its own (every TP rank does on NPU 0)."""
