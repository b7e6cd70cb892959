"""Which pods asked to be bound: the annotations of design section 7."""

from __future__ import annotations

from agent.model.workload import Pod

PREFIX = "cpubind.dev/"
ENABLED = PREFIX + "enabled"
CONTAINERS = PREFIX + "containers"


def opted_in(pod: Pod, container: str) -> bool:
    """Whether a container of a pod is to be bound.

    ``cpubind.dev/enabled: "true"`` for the pod, narrowed by ``cpubind.dev/containers`` (names, separated by commas),
    and ``cpubind.dev/enabled.<container>`` for one container. Any other value leaves the pod alone.
    """
    values = [pod.annotations.get(ENABLED), pod.annotations.get(f"{ENABLED}.{container}") if container else None]
    if any(value not in (None, "true", "false") for value in values):
        return False
    names = pod.annotations.get(CONTAINERS)
    if names is not None and container not in [name.strip() for name in names.split(",")]:
        return False
    whole, own = values
    return (own or whole) == "true"
