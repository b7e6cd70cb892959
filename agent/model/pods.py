"""A v1.Pod as JSON, boiled down to a `Pod`, and back.

Manifests come from the API server, from kubelet, from snapshots and from people's editors, whole or trimmed. Nothing in
here raises: a field that is missing or of the wrong type is taken as absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from agent.model.workload import Pod, PodContainer

ANNOTATIONS: Final = "cpubind.dev/"
"""How the keys of our own begin. Of others nothing is kept: a pod may have 256 KiB of them, a node hundreds of pods."""

CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""Annotation of a static pod: 32 hex digits that its cgroup carries in place of the uid."""

_QUANTITY: Final = re.compile(
    r"([0-9]{0,40})(?:\.([0-9]{0,40}))?(?:([eE])([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_SCALE: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_LARGEST: Final = Fraction(2**63 - 1)
"""The API server caps every quantity here."""


def pod_from_manifest(manifest: Mapping[str, Any]) -> Pod:
    """The pod of a v1.Pod. `qos` is ``status.qosClass``, else computed from the resources as kubelet does."""
    metadata, spec, status = (_mapping(_mapping(manifest).get(part)) for part in ("metadata", "spec", "status"))
    texts = {k: v for k, v in _mapping(metadata.get("annotations")).items() if _text(k) and isinstance(v, str)}
    qos = _text(status.get("qosClass"))
    if qos not in {"Guaranteed", "Burstable", "BestEffort"}:
        qos = _qos(spec) if spec else ""
    return Pod(
        uid=_text(metadata.get("uid")),
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")),
        qos=qos,
        annotations={key: value for key, value in texts.items() if key.startswith(ANNOTATIONS)},
        containers=_containers(spec, status),
        config_hash=texts.get(CONFIG_HASH, ""),
    )


def manifest_of(pod: Pod) -> dict[str, Any]:
    """The trimmed v1.Pod that `pod_from_manifest` makes into this pod again; every container as a plain one."""
    annotations = dict(pod.annotations)
    if pod.config_hash:
        annotations[CONFIG_HASH] = pod.config_hash
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "annotations": annotations},
        "status": {
            "containerStatuses": [
                {"name": c.name, "containerID": f"cri://{c.id}" if c.id else ""} for c in pod.containers
            ]
        },
    }
    if pod.qos:
        manifest["status"]["qosClass"] = pod.qos
        manifest["spec"] = {"containers": [_container(c) for c in pod.containers]}
    return manifest  # without a spec where the QoS class is not known: it would be computed from that


def _container(container: PodContainer) -> dict[str, Any]:
    if container.cpu_limit_milli is None:
        return {"name": container.name}
    return {"name": container.name, "resources": {"limits": {"cpu": f"{container.cpu_limit_milli}m"}}}


def milli(quantity: object) -> int | None:
    """A Kubernetes quantity in thousandths, rounded up as `Quantity.MilliValue` does; None where it is none.

    Numbers and their text: ``16``, ``16000m``, ``1.6e1``, ``0.5``, ``1k``, ``1Ki``. Negative ones are None, too.
    """
    exact = _exact(quantity)
    return None if exact is None else math.ceil(exact * 1000)


def _exact(quantity: object) -> Fraction | None:
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        return None
    if isinstance(quantity, int) and not 0 <= quantity <= _LARGEST:
        return _LARGEST if quantity > 0 else None
    match = _QUANTITY.fullmatch(str(quantity).removeprefix("+"))
    if match is None or not (match[1] or match[2]):
        return None
    fraction = match[2] or ""
    value = Fraction(int(f"{match[1]}{fraction}"), 10 ** len(fraction))
    value *= Fraction(10) ** int(match[4]) if match[3] else _SCALE[match[5] or ""]
    return min(value, _LARGEST)


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[PodContainer, ...]:
    ids = {
        _text(one.get("name")): _text(one.get("containerID")).rpartition("://")[2]
        for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        for one in _mappings(status.get(kind))
    }
    limits = {
        _text(one.get("name")): milli(_resources(one, "limits").get("cpu"))
        for kind in ("containers", "initContainers", "ephemeralContainers")
        for one in _mappings(spec.get(kind))
    }
    # A trimmed manifest may have a status and no spec.
    names = dict.fromkeys([*limits, *ids])
    return tuple(PodContainer(name, ids.get(name, ""), limits.get(name)) for name in names if name)


def _qos(spec: Mapping[str, Any]) -> str:
    """ComputePodQOS of Kubernetes (pkg/apis/core/v1/helper/qos), on a manifest that may lack the API server's defaults.

    Guaranteed: every container, init containers included, has limits for CPU and memory, and all requests equal them.
    BestEffort: nothing is requested or limited. Ephemeral containers have no resources. Resources of the pod as a
    whole, where given, count instead of those of its containers.
    """
    whole = _mapping(spec.get("resources"))
    holders = (
        [spec]
        if whole.get("requests") or whole.get("limits")
        else [
            *_mappings(spec.get("containers")),
            *_mappings(spec.get("initContainers")),
        ]
    )
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    guaranteed = True
    for holder in holders:
        limited = _positive(_resources(holder, "limits"))
        stated = _resources(holder, "requests")
        # The API server fills in a request that is missing (not one that is 0) from the limit (SetDefaults_Pod).
        requested = {k: v for k, v in limited.items() if k not in stated} | _positive(stated)
        guaranteed = guaranteed and limited.keys() == {"cpu", "memory"}
        for total, part in ((requests, requested), (limits, limited)):
            for name, value in part.items():
                total[name] = total.get(name, Fraction(0)) + value
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


def _positive(resources: Mapping[str, Any]) -> dict[str, Fraction]:
    found = {name: _exact(resources.get(name)) for name in ("cpu", "memory")}
    return {name: value for name, value in found.items() if value}


def _resources(holder: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return _mapping(_mapping(holder.get("resources")).get(kind))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (one for one in value if isinstance(one, Mapping)) if isinstance(value, list | tuple) else iter(())


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
