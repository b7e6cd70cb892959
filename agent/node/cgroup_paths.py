"""What the cgroup path of a process says of it: which container, which pod (design section 5). Pure functions.

How kubelet names pods: pkg/kubelet/cm/cgroup_manager_linux.go (``kubepods``, QoS, ``pod<uid>``; under systemd each
folder is a slice that repeats its parents' names, with the uid's dashes as underscores). How runtimes name containers:
``<runtime>-<id>.scope`` under systemd, ``<id>`` under cgroupfs; and ``<slice>:<runtime>:<id>``, which is what runc
makes of a systemd name when its own driver is cgroupfs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from agent.model.workload import CgroupIdentity

_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""A pod's uid; for a static pod the MD5 of its manifest."""
_POD_SLICE: Final = re.compile(rf"(?:[\w.]+-)*kubepods(?:-(burstable|besteffort))?-pod{_UID}\.slice", re.ASCII)
_POD_FOLDER: Final = re.compile(rf"pod{_UID}", re.ASCII)
_CONTAINER: Final = re.compile(r"(?:([A-Za-z][\w.-]{0,60})-)?([0-9a-f]{64})(?:\.scope)?", re.ASCII)
_COLON: Final = re.compile(r"(.*):([A-Za-z][\w.-]{0,60}):([0-9a-f]{64})", re.ASCII)
_RUNTIME_SERVICE: Final = re.compile(r".*(?:containerd|docker|cri-?o|isulad|k3s|rke2|kubelite).*\.service", re.ASCII)
"""Services below which the colon form turns up: relative names there are relative to the runtime's own cgroup."""
_QOS: Final = {"burstable": "Burstable", "besteffort": "BestEffort"}
_GUARANTEED: Final = "Guaranteed"
LONGEST_PATH: Final = 4096
"""Bytes of a path that the kernel writes (PATH_MAX; cgroup_path_ns answers ENAMETOOLONG beyond). Lines with a longer
one are not the kernel's: looking at each part of a path with all above it takes the square of their number."""
_DELETED: Final = " (deleted)"
"""What the kernel adds to the path of a removed cgroup in which a zombie still is."""


@dataclass(frozen=True, slots=True)
class CgroupLine:
    """The line of /proc/<pid>/cgroup that counts for CPU placement."""

    path: str
    form: str
    """``v1`` or ``v2``: which kind of hierarchy the path belongs to."""


def parse_cgroup(text: str) -> CgroupLine | None:
    """Picks the line that carries the controller ``cpuset``, else the one of cgroup v2 (``0::``); None without a line.

    Lines are ``hierarchy:controllers:path`` (cgroups(7)). Where neither is there (a kernel without cpusets), the first
    line that leads below the root still tells the container.
    """
    v2 = other = None
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/") or "\0" in path or len(path) > LONGEST_PATH + len(_DELETED):
            continue
        path = path.removesuffix(_DELETED)
        if "cpuset" in controllers.split(","):
            return CgroupLine(path, "v1")
        if hierarchy == "0" and not controllers:
            v2 = CgroupLine(path, "v2")
        elif other is None or other.path == "/":
            other = CgroupLine(path, "v1")
    return v2 or other


def components(path: str) -> list[str]:
    """The names on a path; ``..`` stays what it is."""
    return [part for part in path.split("/") if part not in {"", "."}]


def resolve(path: str, own: str = "/") -> tuple[list[str], int]:
    """A path as the agent sees it, made absolute: its components, and how many ``..`` led above the root.

    The kernel writes paths relative to the reader's cgroup namespace (cgroup_namespaces(7)); `own` is where that
    namespace has its root. A ``..`` too many means that `own` is not known: the components are then an end of the path.
    """
    parts, lost = components(own), 0
    for part in components(path):
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            lost += 1
    return parts, lost


def written(parts: list[str], lost: int = 0) -> str:
    """The path again; with its leading ``..`` where they could not be resolved."""
    return "/" + "/".join([".."] * lost + parts)


def identify(path: str, *, own: str = "/", kubepods_root: str | None = None) -> CgroupIdentity:
    """The container and pod that a cgroup path belongs to.

    The first pod or container component decides; whatever a container makes of the cgroups below its own is its own
    doing, look-alikes included. Pods count only where kubelet puts them: not below another container, nor below a
    service, a session or a user's slice, all of which can be delegated to somebody who is not kubelet.

    `own` is explained at `resolve`. `kubepods_root` is set where the node itself sits in a container (kind, k3d): pods
    are then looked for below that cgroup, and nowhere else.
    """
    parts, lost = resolve(path, own)
    start, anywhere, by_colon = 0, True, True
    if kubepods_root is not None:
        root = components(kubepods_root)
        inside = not lost and parts[: len(root)] == root
        start = len(root) if inside else 0
        anywhere = by_colon = inside
    for at in range(start, len(parts)):
        part = parts[at]
        left, container = _split(part)
        pod = _pod(left, parts[:at], bool(lost)) if anywhere or (by_colon and left != part) else None
        if pod is not None:
            end = at + 1
            if not container and end < len(parts):
                container = _split(parts[end])[1]
                end += 1
            kept = parts[:end] if container else parts
            return CgroupIdentity(written(kept, lost), pod[0], container, pod[1], runtime=bool(container))
        if container:
            return CgroupIdentity(written(parts[: at + 1], lost), container_id=container, runtime=True)
        if _is_system_container(part, parts[at - 1] if at else ""):
            return CgroupIdentity(written(parts[: at + 1], lost), runtime=True)
        if part == "user.slice" or part.endswith((".service", ".scope")):
            anywhere = False
            by_colon = by_colon and _RUNTIME_SERVICE.fullmatch(part) is not None
    return CgroupIdentity(written(parts, lost))


def _split(part: str) -> tuple[str, str]:
    """What stands before the container's part of a component, and the container id; the whole and "" without one.

    conmon, the monitor that CRI-O and podman keep beside each container, carries its id and is none.
    """
    if match := _COLON.fullmatch(part):
        return match[1], "" if _is_monitor(match[2]) else match[3]
    match = _CONTAINER.fullmatch(part)
    return part, match[2] if match and not _is_monitor(match[1] or "") else ""


def _is_monitor(prefix: str) -> bool:
    return "conmon" in prefix.split("-")


def _pod(part: str, above: list[str], lost: bool) -> tuple[str, str] | None:
    """(uid, QoS class) of a pod component, given the components above it; None where it is none.

    `lost`: what is above those is not known.
    """
    if match := _POD_SLICE.fullmatch(part):
        return match[2].replace("_", "-"), _QOS.get(match[1] or "", _GUARANTEED)
    match = _POD_FOLDER.fullmatch(part)
    if match is None:
        return None
    uid = match[1].replace("_", "-")
    if not above:
        return (uid, "") if lost else None
    if above[-1] == "kubepods":
        return uid, _GUARANTEED
    if above[-1] in _QOS and (above[-2:-1] == ["kubepods"] or (lost and len(above) == 1)):
        return uid, _QOS[above[-1]]
    return None


def _is_system_container(part: str, parent: str) -> bool:
    """Whether a component is a container of LXC or systemd-nspawn, which carry names and no ids."""
    if part.startswith("lxc.payload") or parent == "lxc":
        return True
    return parent == "machine.slice" and part.startswith(("machine-", "systemd-nspawn@"))
