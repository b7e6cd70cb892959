"""Which containers own their CPUs, and which NPUs are theirs (design 4.1). Only positive evidence counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.model.cpuset import CpuSet
from agent.model.node import Inventory
from agent.model.workload import CgroupIdentity, Container, KubeletState, Pod, PodContainer, PodResources
from agent.planning.attribution import npus_of_device_ids, npus_of_devices

GUARANTEED = "Guaranteed"


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """A container, or a cgroup without one, in which processes were seen."""

    identity: CgroupIdentity
    cpus: CpuSet
    """Its effective cpuset."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A container with everything that the API server and kubelet say of it."""

    pod: Pod | None = None
    container: PodContainer | None = None
    resources: PodResources | None = None
    pod_uid: str = ""
    qos: str = ""

    @property
    def whole_cpus(self) -> int | None:
        """N of an integer CPU limit in a Guaranteed pod, which is what kubelet's static policy asks for."""
        milli = self.container.cpu_limit_milli if self.container else None
        if self.qos != GUARANTEED or not milli or milli % 1000:
            return None
        return milli // 1000


def gather(
    seen: Sequence[SeenContainer],
    pods: Sequence[Pod],
    kubelet: KubeletState,
    inventory: Inventory,
    online: CpuSet,
) -> tuple[Container, ...]:
    """Containers with what they own. Containers that only kubelet knows of come along: their CPUs are taken, too."""
    resources = {(r.namespace, r.pod, r.container): r for r in kubelet.resources}
    containers = []
    accounted = set()
    for one in seen:
        known = _known(one.identity, pods, resources)
        name = known.container.name if known.container else ""
        owned, why = _owned(known, one.cpus, kubelet, len(online))
        if owned is not None:
            accounted.add((known.pod_uid, name))
            name = name or next(
                (g.container for g in kubelet.grants if g.pod_uid in _uids(known) and g.cpus == owned), ""
            )
            accounted.add((known.pod_uid, name))
        containers.append(
            Container(
                key=one.identity.key,
                cpus=one.cpus,
                namespace=known.pod.namespace if known.pod else "",
                pod=known.pod.name if known.pod else "",
                name=name,
                pod_uid=known.pod_uid,
                owned=owned,
                evidence=why,
                npus=_allocated(known, inventory) if owned is not None else None,
            )
        )
    return (*containers, *_unseen(accounted, pods, kubelet, resources, inventory))


def with_devices(container: Container, devices: frozenset[int] | None, inventory: Inventory) -> Container:
    """An owner of CPUs for whose NPUs nothing speaks but the device nodes in its /dev. `devices`: N of the host's
    /dev/davinciN that are there; None, or none of them, says nothing."""
    npus = npus_of_devices(inventory, devices) if devices else None
    return replace(container, npus=npus) if npus else container


def find_pod(identity: CgroupIdentity, pods: Sequence[Pod]) -> tuple[Pod | None, PodContainer | None]:
    """The pod and container of a cgroup: by container id, then by pod uid or a static pod's config hash.

    The id alone counts only below a pod, or where another cgroup namespace hides what is above: elsewhere a user with a
    cgroup of his own could name it after somebody's container.
    """
    if identity.container_id and (identity.pod_uid or identity.path.startswith("/..")):
        for pod in pods:
            for container in pod.containers:
                if container.id == identity.container_id:
                    return pod, container
    if not identity.pod_uid:
        return None, None
    for pod in pods:
        if identity.pod_uid in (pod.uid, pod.config_hash):
            # conmon lies in the pod's cgroup, and in no container.
            only = len(pod.containers) == 1 and identity.container_id and not pod.containers[0].id
            return pod, pod.containers[0] if only else None
    return None, None


def _known(
    identity: CgroupIdentity, pods: Sequence[Pod], resources: Mapping[tuple[str, str, str], PodResources]
) -> _Known:
    pod, container = find_pod(identity, pods)
    if pod is None:
        return _Known(pod_uid=identity.pod_uid, qos=identity.qos)
    found = resources.get((pod.namespace, pod.name, container.name)) if container else None
    return _Known(pod, container, found, pod.uid or identity.pod_uid, pod.qos or identity.qos)


def _uids(known: _Known) -> set[str]:
    """What cpu_manager_state may call the pod: its uid, for a static pod its config hash."""
    return {known.pod_uid, known.pod.config_hash if known.pod else ""} - {""}


def _owned(known: _Known, cpus: CpuSet, kubelet: KubeletState, node_size: int) -> tuple[CpuSet | None, str]:
    if kubelet.policy == "static":
        for grant in kubelet.grants:
            if grant.pod_uid not in _uids(known) or not grant.cpus:
                continue
            # Without a container name the entry has to be told by its CPUs, which the cgroup then has already.
            if grant.container == known.container.name if known.container else grant.cpus == cpus:
                return grant.cpus, "cpu_manager_state"
    whole = known.whole_cpus
    if whole is None:
        return None, ""
    if known.resources and _reported_alone(known.resources, kubelet) and len(known.resources.cpus) == whole:
        return known.resources.cpus, "pod-resources"
    if len(cpus) == whole < node_size:
        return cpus, f"Guaranteed with a limit of {whole} CPUs and a cpuset of as many"
    return None, ""


def _reported_alone(resources: PodResources, kubelet: KubeletState) -> bool:
    """Kubelets before 1.21 report the shared pool as `cpu_ids` of shared containers: then several have the same."""
    others = (other for other in kubelet.resources if other is not resources)
    return bool(resources.cpus) and all(resources.cpus.isdisjoint(other.cpus) for other in others)


def _allocated(known: _Known, inventory: Inventory) -> frozenset[int] | None:
    if known.resources and known.resources.devices:
        return npus_of_device_ids(inventory, known.resources.devices)
    return None


def _unseen(
    accounted: set[tuple[str, str]],
    pods: Sequence[Pod],
    kubelet: KubeletState,
    resources: Mapping[tuple[str, str, str], PodResources],
    inventory: Inventory,
) -> list[Container]:
    """Owners of CPUs in which no process was looked at: pods without NPUs, or not started yet."""
    owners: dict[tuple[str, str], Container] = {}
    if kubelet.policy == "static":
        for grant in kubelet.grants:
            pod = next((p for p in pods if grant.pod_uid in (p.uid, p.config_hash)), None)
            uid = pod.uid if pod else grant.pod_uid
            if (uid, grant.container) in accounted or not grant.cpus:
                continue
            found = resources.get((pod.namespace, pod.name, grant.container)) if pod else None
            owners[uid, grant.container] = Container(
                key=f"{uid}/{grant.container}",
                cpus=grant.cpus,
                namespace=pod.namespace if pod else "",
                pod=pod.name if pod else "",
                name=grant.container,
                pod_uid=uid,
                owned=grant.cpus,
                evidence="cpu_manager_state",
                npus=_allocated(_Known(resources=found), inventory) or frozenset(),
            )
    for pod in pods:
        for container in pod.containers:
            found = resources.get((pod.namespace, pod.name, container.name))
            slot = (pod.uid, container.name)
            if found is None or slot in accounted or slot in owners:
                continue
            known = _Known(pod, container, found, pod.uid, pod.qos)
            if known.whole_cpus == len(found.cpus) and _reported_alone(found, kubelet):
                owners[slot] = Container(
                    key=f"{pod.uid}/{container.name}",
                    cpus=found.cpus,
                    namespace=pod.namespace,
                    pod=pod.name,
                    name=container.name,
                    pod_uid=pod.uid,
                    owned=found.cpus,
                    evidence="pod-resources",
                    npus=_allocated(known, inventory) or frozenset(),
                )
    return [owners[slot] for slot in sorted(owners)]
