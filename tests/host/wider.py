"""This machine's processes on a node that has more CPUs than it: those of a profile, and its NPUs."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.fake_sysfs import write_cpus, write_nodes
from agent.demo.profiles import Profile
from agent.model.cpuset import EMPTY, CpuSet
from agent.node.host import LinuxHost


class WiderHost(LinuxHost):
    """This kernel, with the CPUs of a profile. Masks are remembered, and the kernel is asked for each all the same: it
    is told the mask that the thread has, so that it says whether one may be written."""

    def __init__(self, profile: Profile, *, root: Path = Path("/")) -> None:
        super().__init__(root=root)
        self._online = profile.topology.online
        self._given: dict[int, CpuSet] = {}

    def get_affinity(self, tid: int) -> CpuSet:
        super().get_affinity(tid)
        return self._given.get(tid, self._online)

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        """Those of many threads: bits, or -errno."""
        return [self._bits(tid) for tid in tids]

    def _bits(self, tid: int) -> int:
        try:
            return self.get_affinity(tid).bits
        except OSError as error:
            return -(error.errno or errno.ESRCH)

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        super().set_affinity(tid, super().get_affinity(tid))
        self._given[tid] = cpus & self._online


def make_root(root: Path, profile: Profile) -> NpuSmiStandIn:
    """A root folder with this machine's /proc, and the profile's sysfs, cpuset, NPUs and npu-smi."""
    topology = profile.topology
    for path in ("sys/devices/system/cpu", "sys/devices/system/node", "sys/fs/cgroup/cpuset", "dev"):
        (root / path).mkdir(parents=True)
    (root / "proc").symlink_to("/proc")
    write_cpus(root / "sys/devices/system/cpu", topology.online, topology.possible, EMPTY, topology.cores)
    free = {node.id: 1 << 36 for node in topology.nodes}
    write_nodes(root / "sys/devices/system/node", topology.nodes, topology.online, 1 << 27, free)
    (root / "sys/fs/cgroup/cpuset/cpuset.effective_cpus").write_text(f"{topology.online}\n")
    numbers = [npu.device_number for npu in profile.inventory.npus]
    (root / "dev/davinci").write_text("".join(f"{number} 236:{number}\n" for number in numbers))
    return NpuSmiStandIn(root, profile)
