"""What is special about pods, nodes and events: defaults, what is the server's own, what is refused."""

from __future__ import annotations

import copy
from decimal import Decimal, InvalidOperation
from typing import Any

from tests.cluster.fake.metadata import label_fault
from tests.cluster.fake.status import Fault, invalid_value, required
from tests.cluster.objects import EVENTS, NODES, PODS, Kind

Object = dict[str, Any]

_COMPUTE = ("cpu", "memory")
_SUFFIXES: dict[str, Decimal] = {
    "m": Decimal("0.001"),
    **{unit: Decimal(1000**power) for power, unit in enumerate("kMGT", start=1)},
    **{f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGT", start=1)},
}
_NODE_STATUS: Object = {
    "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
    "nodeInfo": {
        **dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"), ""),
        **dict.fromkeys(("containerRuntimeVersion", "kubeletVersion", "kubeProxyVersion"), ""),
        **dict.fromkeys(("operatingSystem", "architecture"), ""),
    },
}
_FIXED_SPEC = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds` or `spec.tolerations` (only additions to existing "
    "tolerations)"
)


def on_create(kind: Kind, thing: Object) -> Object:
    """With what the server adds and without what it does not take."""
    if kind == PODS:
        spec = _pod_spec(thing.get("spec") or {})
        return {**thing, "spec": spec, "status": {"phase": "Pending", "qosClass": _qos_class(spec)}}
    if kind == NODES:
        spec = dict(thing.get("spec") or {})
        taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        spec["taints"] = [*(one for one in spec.get("taints", ()) if one.get("key") != taint["key"]), taint]
        return {**thing, "spec": spec, "status": {**_NODE_STATUS, **(thing.get("status") or {})}}
    if kind == EVENTS:
        empty: Object = {"involvedObject": {}, "source": {}, "firstTimestamp": None, "lastTimestamp": None}
        return {**empty, "eventTime": None, "reportingComponent": "", "reportingInstance": "", **thing}
    return thing


def on_update(kind: Kind, new: Object, old: Object, subresource: str) -> Object:
    """Only `status` changes status, and it changes nothing else but metadata."""
    if kind == EVENTS:
        return new
    isolated = "spec" if subresource == "status" else "status"
    result = {key: value for key, value in new.items() if key != isolated}
    if isolated in old:
        result[isolated] = old[isolated]
    if kind == PODS and subresource == "status":
        owners = {"ownerReferences": old["metadata"].get("ownerReferences")}
        result["metadata"] = {k: v for k, v in {**result["metadata"], **owners}.items() if v is not None}
    return result


def faults(kind: Kind, thing: Object, old: Object | None = None) -> list[Fault]:
    if kind == PODS:
        found = _pod_faults(thing)
        if old is not None and _fixed(thing) != _fixed(old):
            found.append(Fault("spec", "FieldValueForbidden", _FIXED_SPEC))
        return found
    return _event_faults(thing) if kind == EVENTS else []


def grace_period(kind: Kind, thing: Object, asked: int | None) -> int | None:
    """Seconds until a deleted object goes; None for kinds that go at once."""
    if kind != PODS:
        return None
    over = thing.get("status", {}).get("phase") in ("Failed", "Succeeded")
    if not thing["spec"].get("nodeName") or over:
        return 0
    period: int = thing["spec"]["terminationGracePeriodSeconds"] if asked is None else asked
    return period


def quantity(text: str) -> Decimal:
    """`500m`, `2`, `1Gi`. Raises ValueError for what is none."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if text.endswith(suffix):
            return _decimal(text[: -len(suffix)]) * _SUFFIXES[suffix]
    return _decimal(text)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"not a quantity: {text!r}") from None


def _pod_spec(given: Object) -> Object:
    spec: Object = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        **copy.deepcopy(given),
    }
    if not spec.get("nodeName"):
        spec.pop("nodeName", None)
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(one.get("key", key) == key for one in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [_container(one) for one in spec[field] or ()]
    return spec


def _container(given: Object) -> Object:
    resources = {key: {**values} for key, values in (given.get("resources") or {}).items()}
    limits = resources.get("limits", {})
    if limits:
        resources["requests"] = {**limits, **resources.get("requests", {})}
    for values in resources.values():
        if "cpu" in values:
            values["cpu"] = _whole_or_milli(str(values["cpu"]))
    latest = ":" not in given.get("image", "") or given.get("image", "").endswith(":latest")
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if latest else "IfNotPresent",
        **given,
        "resources": resources,
    }


def _whole_or_milli(text: str) -> str:
    """CPUs as the server writes them: `2000m` is 2, `1.5` is 1500m."""
    amount = quantity(text)
    return str(int(amount)) if amount == int(amount) else f"{int(amount * 1000)}m"


def _qos_class(spec: Object) -> str:
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    requests, limits = (_sums(containers, which) for which in ("requests", "limits"))
    if not requests and not limits:
        return "BestEffort"
    every_limit = all(
        all(quantity(str(one["resources"].get("limits", {}).get(name, 0))) > 0 for name in _COMPUTE)
        for one in containers
    )
    return "Guaranteed" if every_limit and requests == limits else "Burstable"


def _sums(containers: list[Object], which: str) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for container in containers:
        for name, text in container["resources"].get(which, {}).items():
            if name in _COMPUTE and (amount := quantity(str(text))) > 0:
                sums[name] = sums.get(name, Decimal(0)) + amount
    return sums


def _pod_faults(pod: Object) -> list[Fault]:
    spec = pod.get("spec") or {}
    found = [] if spec.get("containers") else [required("spec.containers")]
    names = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            where, name = f"spec.{field}[{index}]", container.get("name", "")
            found += label_fault(f"{where}.name", name) if name else [required(f"{where}.name")]
            if name in names:
                found.append(Fault(f"{where}.name", "FieldValueDuplicate", f'Duplicate value: "{name}"'))
            names.add(name)
            if not container.get("image"):
                found.append(required(f"{where}.image"))
    return found


def _fixed(pod: Object) -> Object:
    """The part of `spec` that is as it was created."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [{**container, "image": ""} for container in spec[field]]
    return spec


def _event_faults(event: Object) -> list[Fault]:
    own, other = event["metadata"].get("namespace", ""), event["involvedObject"].get("namespace", "")
    found = []
    if event.get("eventTime") is None:
        if own != (other or "default"):
            found.append(_elsewhere(other))
        return found
    if not other and own != "kube-system":
        found.append(_elsewhere(other))
    for key, field in (
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
        ("action", "action"),
        ("reason", "reason"),
    ):
        if not event.get(key):
            found.append(required(field))
    return found


def _elsewhere(namespace: str) -> Fault:
    return invalid_value("involvedObject.namespace", namespace, "does not match event.namespace")
