"""Containers as kubelet and containerd make them on cgroup v2 with the systemd driver, without either."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

TOP = Path("/sys/fs/cgroup")


class Container:
    """The cgroup of one container of one BestEffort pod. Its cpuset is written by whoever plays kubelet."""

    def __init__(self, name: str, cpus: str) -> None:
        """`name` is of the pod and of its container: equal names are one cgroup. `cpus`: a kernel list."""
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name)).replace("-", "_")
        scope = f"cri-containerd-{hashlib.sha256(name.encode()).hexdigest()}.scope"
        self.folder = TOP
        for part in ("kubepods.slice", "kubepods-besteffort.slice", f"kubepods-besteffort-pod{uid}.slice", scope):
            (self.folder / "cgroup.subtree_control").write_text("+cpuset")
            self.folder /= part
            self.folder.mkdir(exist_ok=True)
        self.write(cpus)

    def write(self, cpus: str) -> None:
        """Gives it another cpuset."""
        (self.folder / "cpuset.cpus").write_text(cpus)

    @property
    def cpus(self) -> str:
        """What the kernel says that it has."""
        return (self.folder / "cpuset.cpus.effective").read_text().strip()

    def add(self, pid: int) -> None:
        """Moves a process, with all its threads, in here."""
        (self.folder / "cgroup.procs").write_text(str(pid))


def leave(pid: int) -> None:
    """Moves a process to a cgroup of the host's own: a service, as far as its path says."""
    folder = TOP / "system.slice"
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.procs").write_text(str(pid))
