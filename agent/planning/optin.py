"""Which pods asked to be bound: the annotations of design section 7."""

from __future__ import annotations

import re

from agent.model.pods import ANNOTATIONS
from agent.model.reason import Problem, Reason, printable
from agent.model.spec import Helpers, Spec, Steps
from agent.model.workload import Pod

PREFIX = ANNOTATIONS
ENABLED = PREFIX + "enabled"
CONTAINERS = PREFIX + "containers"
MEMORY_MIGRATION = PREFIX + "memory-migration"
IRQ_BINDING = PREFIX + "irq-binding"
HELPERS = PREFIX + "helpers"

LONGEST = 1 << 16
"""Characters of a value: the API server takes 256 KiB of annotations in all, and a name has 63 at most."""

_BOOLEAN = re.compile("true|false")
_NAMES = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\s*,\s*[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUES = {
    "enabled": (_BOOLEAN, "true or false"),
    "memory-migration": (_BOOLEAN, "true or false"),
    "irq-binding": (_BOOLEAN, "true or false"),
    "helpers": (re.compile("Leave|Confine"), "Leave or Confine"),
    "containers": (_NAMES, "names of containers, separated by commas"),
}
"""Name -> what a value has to look like, and how that is told."""


def invalid_annotation(pod: Pod) -> Problem | None:
    """The first annotation of ours whose value can't be used. Then the whole pod is left alone: what it asks for is not
    known. A key that is not known is somebody else's or of a later version."""
    found = _unusable(pod)
    if found is None:
        return None
    key, wanted = found
    shown, where = printable(repr(pod.annotations[key][:60]), 60), f"pod {pod.namespace}/{pod.name}"
    message = f"{where}: {printable(key, 80)}: {shown} is not {wanted}; the pod is left as it is"
    return Problem(Reason.INVALID_ANNOTATION, message)


def _unusable(pod: Pod) -> tuple[str, str] | None:
    """The key of that annotation, and what its value has to look like."""
    for key in sorted(pod.annotations):
        known = _form(key)
        value = pod.annotations[key]
        if known is not None and (len(value) > LONGEST or known[0].fullmatch(value) is None):
            return key, known[1]
    return None


def unknown_annotations(pod: Pod) -> tuple[str, ...]:
    """Keys below our prefix that mean nothing: misspelt, mostly."""
    return tuple(key for key in sorted(pod.annotations) if key.startswith(PREFIX) and _form(key) is None)


def _form(key: str) -> tuple[re.Pattern[str], str] | None:
    """What the value of an annotation has to look like; None for a key that is none of ours. All but `CONTAINERS` can
    be said of one container."""
    name, dot, _container = key.removeprefix(PREFIX).partition(".")
    return _VALUES.get(name) if key.startswith(PREFIX) and not (dot and key.startswith(CONTAINERS)) else None


def left_alone(pod: Pod | None, container: str) -> tuple[str, str]:
    """Why a process on an NPU is not to be bound, by the lines of docs/annotations.md, "Who is bound"; and what would
    have it bound. The first is empty where its pod says nothing."""
    if pod is None:
        return "it is in no pod that is known", "without Kubernetes it is --select that leaves it out"
    said = pod.annotations
    if found := _unusable(pod):
        return f"annotation {printable(found[0], 80)} cannot be used", "correct it"
    if said.get(ENABLED) == "false":
        return f"annotation {ENABLED} is false", "set it to true"
    if opted_in(pod, container) is None:
        return "the name of its container is not known yet", "wait some seconds"
    if not _named(pod, container):
        return f"annotation {CONTAINERS} does not name container {printable(container, 63)}", "add it there"
    if said.get(f"{ENABLED}.{container}") == "false":
        return f"annotation {ENABLED}.{printable(container, 63)} is false", "set it to true"
    if opted_in(pod, container):
        wanted = "look at namespaces and excludeNamespaces of the chart"
        return "it asks for it, and its namespace or --select leaves it out", wanted
    return "", f"annotate its pod with {ENABLED}=true"


def opted_in(pod: Pod, container: str, *, unless_said: bool = False) -> bool | None:
    """Whether a container of a pod is to be bound; None where that can't be told.

    ``cpubind.dev/enabled: "true"`` for the pod, narrowed by ``cpubind.dev/containers`` (names, separated by commas) and
    by ``cpubind.dev/enabled.<container>: "false"``; or ``cpubind.dev/enabled.<container>: "true"`` for one container of
    a pod that says nothing of itself. `unless_said` holds for a pod without any of these.

    It can't be told where an annotation can't be used, and where the annotations tell containers apart and `container`
    is empty: kubelet reports a new container's id after its processes have begun.
    """
    if invalid_annotation(pod) is not None:
        return None
    whole = pod.annotations.get(ENABLED)
    if whole == "false":
        return False
    told_apart = CONTAINERS in pod.annotations or any(key.startswith(f"{ENABLED}.") for key in pod.annotations)
    if not container and told_apart:
        return None
    if not _named(pod, container):
        return False
    own = pod.annotations.get(f"{ENABLED}.{container}")
    return own != "false" and (unless_said or "true" in (whole, own))


def _named(pod: Pod, container: str) -> bool:
    """Whether `CONTAINERS` has this one, or is not there."""
    names = pod.annotations.get(CONTAINERS)
    return names is None or container in [name.strip() for name in names.split(",")]


def steps_of(pod: Pod | None, container: str, spec: Spec) -> Steps:
    """What is done for a worker in a container of a pod besides placing its threads; without a pod what `spec` says.

    An annotation for the container counts in place of the one for the pod, and narrows what `spec` says: ``"false"``
    turns a step off that is on, ``Confine`` keeps the other processes of the container on fewer CPUs. The opposite
    values change nothing. In a container of unknown name what is said of any container counts.
    """

    def said(key: str) -> set[str]:
        if pod is None:
            return set()
        if container:
            return {pod.annotations.get(f"{key}.{container}") or pod.annotations.get(key, "")}
        return {value for name, value in pod.annotations.items() if name == key or name.startswith(f"{key}.")}

    confine = spec.helpers is Helpers.CONFINE or Helpers.CONFINE.value in said(HELPERS)
    return Steps(
        irq_binding=spec.irq_binding and "false" not in said(IRQ_BINDING),
        memory_migration=spec.memory_migration and "false" not in said(MEMORY_MIGRATION),
        helpers=Helpers.CONFINE if confine else Helpers.LEAVE,
    )
