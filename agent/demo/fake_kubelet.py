"""A fake kubelet: pods with their cgroups, and the CPU manager that rewrites cpusets when pods come and go."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.demo.fake_files import put
from agent.demo.fake_kernel import FakeKernel
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.workload import Pod, PodContainer

OPT_IN = {"cpubind.dev/enabled": "true"}


@dataclass(frozen=True, slots=True)
class VirtualContainer:
    """A container of a virtual pod."""

    name: str
    id: str
    cgroup: str
    """As in /proc/<pid>/cgroup."""
    own_cpus: CpuSet = EMPTY
    """CPUs that kubelet gave to it alone; empty where it uses the shared pool."""


@dataclass(frozen=True, slots=True)
class VirtualPod:
    """A pod that runs on a virtual node."""

    uid: str
    namespace: str
    name: str
    qos: str
    containers: tuple[VirtualContainer, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    def container(self, name: str = "") -> VirtualContainer:
        """A container by name; the first without one."""
        return next(c for c in self.containers if not name or c.name == name)

    def model(self) -> Pod:
        """As the agent sees it."""
        return Pod(
            uid=self.uid,
            namespace=self.namespace,
            name=self.name,
            qos=self.qos,
            annotations=dict(self.annotations),
            containers=tuple(
                PodContainer(c.name, c.id, 1000 * len(c.own_cpus) if c.own_cpus else None) for c in self.containers
            ),
        )

    def manifest(self, node: str) -> dict[str, Any]:
        """As the API server has it, trimmed."""
        limits = [{"limits": {"cpu": str(len(c.own_cpus))}} if c.own_cpus else {} for c in self.containers]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid,
                "annotations": dict(self.annotations),
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {"name": c.name, "resources": limit} for c, limit in zip(self.containers, limits, strict=True)
                ],
            },
            "status": {
                "phase": "Running",
                "qosClass": self.qos,
                "containerStatuses": [{"name": c.name, "containerID": f"containerd://{c.id}"} for c in self.containers],
            },
        }


def config_hash(namespace: str, name: str) -> str:
    """What kubelet calls a static pod: 32 hex digits, in its cgroup and as an annotation of its mirror."""
    return hashlib.md5(f"{namespace}/{name}".encode(), usedforsecurity=False).hexdigest()


class FakeKubelet:
    """Pods on a virtual node: systemd cgroup driver, containerd, CPU manager policy ``static``."""

    def __init__(self, root: Path, kernel: FakeKernel) -> None:
        self.pods: list[VirtualPod] = []
        self._kernel = kernel
        self._state = root / "var/lib/kubelet/cpu_manager_state"
        self._state.parent.mkdir(parents=True, exist_ok=True)
        for path in ("/kubepods.slice", "/kubepods.slice/kubepods-burstable.slice"):
            kernel.cgroups.create(path)
        kernel.cgroups.create("/kubepods.slice/kubepods-besteffort.slice")
        self._write_state()

    @property
    def shared(self) -> CpuSet:
        """The CPUs that containers without CPUs of their own share."""
        owned = union(c.own_cpus for pod in self.pods for c in pod.containers)
        return self._kernel.online - owned

    def add_pod(
        self,
        name: str,
        *,
        namespace: str = "prod",
        qos: str = "Burstable",
        containers: Sequence[str] = ("vllm",),
        own_cpus: CpuSet = EMPTY,
        annotations: Mapping[str, str] = OPT_IN,
        uid: str = "",
        static: bool = False,
    ) -> VirtualPod:
        """Runs a pod. `uid` is what an API server gave it, where there is one; the cgroup of a `static` one carries the
        hash of its configuration instead.

        With `own_cpus` it is Guaranteed, and its first container gets those CPUs alone. As kubelet does then, every
        other container's cpuset is rewritten without them.
        """
        uid = uid or str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{namespace}/{name}/{len(self.pods)}"))
        in_cgroup = config_hash(namespace, name) if static else uid.replace("-", "_")
        qos = "Guaranteed" if own_cpus else qos
        level = "" if qos == "Guaranteed" else f"-{qos.lower()}"
        parent = "/kubepods.slice" + (f"/kubepods{level}.slice" if level else "")
        slice_ = f"{parent}/kubepods{level}-pod{in_cgroup}.slice"
        made = []
        for k, container in enumerate(containers):
            id_ = hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()
            own = own_cpus if k == 0 else EMPTY
            made.append(VirtualContainer(container, id_, f"{slice_}/cri-containerd-{id_}.scope", own))
        pod = VirtualPod(uid, namespace, name, qos, tuple(made), dict(annotations))
        self.pods.append(pod)
        for item in made:
            self._kernel.cgroups.create(item.cgroup, item.own_cpus or self.shared)
        if own_cpus:
            self.reconcile()
        self._write_state()
        return pod

    def remove_pod(self, pod: VirtualPod) -> None:
        """Removes a pod whose processes have ended; its own CPUs go back to everybody."""
        self.pods.remove(pod)
        for container in pod.containers:
            self._kernel.cgroups.remove(container.cgroup)
        self._kernel.cgroups.remove(pod.containers[0].cgroup.rpartition("/")[0])
        self.reconcile()
        self._write_state()

    def reconcile(self) -> None:
        """Writes the cpuset of every container, as kubelet does on changes and every ten seconds."""
        for pod in self.pods:
            for container in pod.containers:
                self._kernel.write_cpuset(container.cgroup, container.own_cpus or self.shared)

    def _write_state(self) -> None:
        entries = {
            pod.uid: {c.name: str(c.own_cpus) for c in pod.containers if c.own_cpus}
            for pod in self.pods
            if any(c.own_cpus for c in pod.containers)
        }
        state: dict[str, Any] = {"policyName": "static", "defaultCpuSet": str(self.shared)}
        if entries:
            state["entries"] = entries
        put(self._state, json.dumps({**state, "checksum": 1353318690}))
