"""kubelet's own records: its CPU manager's state file, and what its pod-resources socket lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from agent.model.cpuset import CpuListError, CpuSet
from agent.model.reason import Reason, Refused, printable
from agent.model.workload import ExclusiveGrant, PodResources
from agent.node.documents import parse_json
from agent.node.files import join, read_text

STATE: Final = "var/lib/kubelet/cpu_manager_state"
"""Where it is unless kubelet runs with another ``--root-dir``."""
RESOURCES: Final = "huawei.com/"
"""Extended resources of the Ascend device plugin: ``huawei.com/Ascend910`` and its kin."""
_LIMIT: Final = 16 << 20


def read_cpu_manager_state(root: Path) -> tuple[str, tuple[ExclusiveGrant, ...]]:
    """(cpuManagerPolicy, exclusive CPUs by pod uid and container), from kubelet's checkpoint.

    JSON with ``policyName``, ``defaultCpuSet`` and ``entries`` {pod uid: {container: CPU list}} (kubelet's
    cm/cpumanager/state/checkpoint.go). Kubelets before 1.16 had {container id: CPU list} there: ids that no longer mean
    anything after an upgrade, and are left out. ("", ()) where there is no file; Refused(KubeletStateUnreadable) when
    it is damaged.
    """
    path = f"{join(root)}/{STATE}"
    text = read_text(path, Reason.KUBELET_STATE_UNREADABLE, limit=_LIMIT, sized=True)
    return ("", ()) if text is None else _parse_state(text, path)


@lru_cache(maxsize=1)
def _parse_state(text: str, path: str) -> tuple[str, tuple[ExclusiveGrant, ...]]:
    """The same text gives the same objects: it is read in every pass, and hardly ever another."""
    state = parse_json(text, path, Reason.KUBELET_STATE_UNREADABLE)
    policy = _field(state, path, "policyName", str, "")
    grants = []
    for pod_uid, containers in _field(state, path, "entries", Mapping, {}).items():
        if isinstance(containers, str):
            continue
        if not isinstance(containers, Mapping):
            raise _damaged(path, f"entry of {pod_uid} is {_shown(containers)}")
        for container, cpus in containers.items():
            try:
                grant = ExclusiveGrant(pod_uid, container, CpuSet.parse(cpus))
            except (CpuListError, AttributeError) as error:
                raise _damaged(path, f"{pod_uid}/{container}: {error}") from None
            if grant.cpus:
                grants.append(grant)
    return policy, tuple(grants)


def parse_pod_resources(document: object) -> tuple[PodResources, ...]:
    """A ListPodResourcesResponse as JSON, field names in snake_case or camelCase, int64 as numbers or text.

    (k8s.io/kubelet/pkg/apis/podresources/v1.) Every container is listed; of its devices only those of Ascend resources.
    Refused(KubeletStateUnreadable) when it is damaged.
    """
    found = []
    for pod in _list(document, "pod_resources", "podResources"):
        for container in _list(pod, "containers"):
            devices = [
                _string(device_id, "device id")
                for device in _list(container, "devices")
                if _string(_get(device, "resource_name", "resourceName") or "", "resource name").startswith(RESOURCES)
                for device_id in _list(device, "device_ids", "deviceIds")
            ]
            found.append(
                PodResources(
                    namespace=_string(_get(pod, "namespace") or "", "namespace"),
                    pod=_string(_get(pod, "name") or "", "pod name"),
                    container=_string(_get(container, "name") or "", "container name"),
                    cpus=_cpus(_list(container, "cpu_ids", "cpuIds")),
                    devices=tuple(devices),
                )
            )
    return tuple(found)


def document_of(resources: Iterable[PodResources]) -> dict[str, Any]:
    """The ListPodResourcesResponse that `parse_pod_resources` reads as these again."""
    pods: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in resources:
        devices = [{"resource_name": f"{RESOURCES}Ascend", "device_ids": list(one.devices)}] if one.devices else []
        entry = {"name": one.container, "devices": devices, "cpu_ids": list(one.cpus)}
        pods.setdefault((one.namespace, one.pod), []).append(entry)
    return {
        "pod_resources": [
            {"name": name, "namespace": namespace, "containers": containers}
            for (namespace, name), containers in pods.items()
        ]
    }


def _field(document: object, source: str, name: str, kind: type, default: Any) -> Any:
    if not isinstance(document, Mapping):
        raise _damaged(source, "not an object")
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _damaged(source, f"{name} is {_shown(value)}")
    return value


def _get(document: object, *names: str) -> object:
    """The field of the first name that there is; None without any."""
    if not isinstance(document, Mapping):
        raise _damaged("pod-resources", f"{_shown(document)} is not an object")
    return next((document[name] for name in names if document.get(name) is not None), None)


def _list(document: object, *names: str) -> list[object]:
    value = _get(document, *names)
    if value is not None and not isinstance(value, list):
        raise _damaged("pod-resources", f"{names[0]} is {_shown(value)}")
    return value or []


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _damaged("pod-resources", f"{what} is {_shown(value)}")
    return value


def _cpus(ids: list[object]) -> CpuSet:
    try:
        return CpuSet(_integer(one) for one in ids)
    except ValueError as error:
        raise _damaged("pod-resources", f"cpu_ids: {error}") from None


def _integer(value: object) -> int:
    """A JSON number, or its digits: protobuf's JSON mapping has int64 as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 8:
        return int(value)
    raise ValueError(f"{_shown(value)} is no CPU")


def _shown(value: object) -> str:
    # Not repr() of a list or an object: what JSON nests deeply enough breaks that.
    return repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _damaged(source: str, what: str) -> Refused:
    return Refused(Reason.KUBELET_STATE_UNREADABLE, f"{printable(source, 100)} is damaged: {printable(what, 120)}")
