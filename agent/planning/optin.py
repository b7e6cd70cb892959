"""Which pods asked to be bound: the annotations of design section 7."""

from __future__ import annotations

import re

from agent.model.reason import Problem, Reason, printable
from agent.model.workload import Pod

PREFIX = "cpubind.dev/"
ENABLED = PREFIX + "enabled"
CONTAINERS = PREFIX + "containers"

_BOOLEAN = re.compile("true|false")
_NAMES = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\s*,\s*[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUES = {
    "enabled": _BOOLEAN,
    "memory-migration": _BOOLEAN,
    "irq-binding": _BOOLEAN,
    "helpers": re.compile("Leave|Confine"),
    "containers": _NAMES,
}


def invalid_annotation(pod: Pod) -> Problem | None:
    """The first annotation of ours whose value can't be used. Then the whole pod is left alone: what it asks for is not
    known. A key that is not known is somebody else's or of a later version."""
    for key in sorted(pod.annotations):
        name, _, _container = key.removeprefix(PREFIX).partition(".")
        known = _VALUES.get(name) if key.startswith(PREFIX) else None
        if known is not None and known.fullmatch(pod.annotations[key]) is None:
            value = printable(repr(pod.annotations[key]), 60)
            message = f"pod {pod.namespace}/{pod.name}: {printable(key, 80)}: {value} cannot be used; it is left alone"
            return Problem(Reason.INVALID_ANNOTATION, message)
    return None


def opted_in(pod: Pod, container: str) -> bool:
    """Whether a container of a pod is to be bound.

    ``cpubind.dev/enabled: "true"`` for the pod, narrowed by ``cpubind.dev/containers`` (names, separated by commas) and
    by ``cpubind.dev/enabled.<container>: "false"``; or ``cpubind.dev/enabled.<container>: "true"`` for one container of
    a pod that says nothing of itself.
    """
    if invalid_annotation(pod) is not None:
        return False
    names = pod.annotations.get(CONTAINERS)
    if names is not None and container not in [name.strip() for name in names.split(",")]:
        return False
    whole = pod.annotations.get(ENABLED)
    own = pod.annotations.get(f"{ENABLED}.{container}") if container else None
    return "false" not in (whole, own) and "true" in (whole, own)
