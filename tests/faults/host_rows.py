"""Faults of the host: what /proc, /sys, cgroups, sockets and the agent's own files can answer.

Errors are answered where the kernel would: ENOENT, EACCES when a file is opened, the others when it is read.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agent.model.reason import Reason
from tests.faults.injector import READS, WRITES, Fault
from tests.faults.table import Row, Side

GONE: Final = ("ENOENT", "ESRCH", "ENODEV")
"""What is not there, or no longer."""
BAD: Final = ("EACCES", "EIO", "EINVAL")
COMES_AND_GOES: Final = "comes and goes"
SHORT: Final = "short read"
ERRORS: Final = (*GONE, *BAD)

_DENIED: Final = "EACCES"


@dataclass(frozen=True, slots=True)
class HostRow(Row):
    """A fault of paths, or of a call."""

    path: str = ""
    """A pattern for all of a path, as seen from the root of the host; empty where it is a call that fails."""
    call: str = ""
    """The method of the kernel's that fails."""
    writes: bool = False
    opens: bool = False
    device: str = "a2"
    scenes: tuple[str, ...] = ("bound", "started")
    """``bound``: all are bound when it begins; ``started``: it is there when the agent starts, and nothing is bound;
    ``restarted``: all are bound, and the agent starts anew."""
    also: frozenset[Reason] = frozenset()
    """What follows from it, and is reported of those whom it meets."""
    at_start: Reason | None = None
    """Reported in place of `reason` where it is there from the start."""
    unknowable: bool = False
    """From the start it can't be told from a host that has no such thing: what is done then follows its own rules."""

    def lasting(self, scene: str) -> frozenset[str]:
        """What is still said when it is over: memory is left alone once for want of a right, and a journal that could
        not be read at the start is told of until the next one."""
        if self.fault == _DENIED and self.path.endswith("/maps"):
            return frozenset({Reason.PERMISSION_DENIED.value})
        if self.fault == _DENIED and scene == "started" and self.place == "the journal":
            return frozenset({Reason.STATE_UNREADABLE.value})
        return frozenset()

    def made(self) -> Fault:
        """The fault for one test."""
        path = re.compile(self.path)
        calls = WRITES if self.writes else READS
        if self.fault == SHORT:
            return Fault(path, short=True)
        if self.fault == COMES_AND_GOES:
            return Fault(path, flickers=True)
        return Fault(path, code=getattr(errno, self.fault), opens=self.opens, calls=calls)


@dataclass(frozen=True, slots=True)
class Place:
    """Files of one kind, and what is reported of each kind of fault."""

    name: str
    path: str
    gone: Reason | None = None
    bad: Reason | None = None
    denied: Reason | None = None
    """EACCES, where that is not `bad`."""
    short: Reason | None = None
    flickers: Reason | None = None
    folder: bool = False
    """No short reads: a listing is whole, or fails."""
    opens: bool = False
    """Never read, only opened."""
    once: bool = False
    """Read once in the life of what it tells of: nobody sees it come and go."""
    device: str = "a2"
    scenes: tuple[str, ...] = ("bound", "started")
    also: frozenset[Reason] = frozenset()
    start_gone: Reason | None = None
    start_denied: Reason | None = None
    unknowable: bool = False
    why: str = ""
    quick: str = ""
    """The fault that `make test` tries."""

    def rows(self) -> Iterator[HostRow]:
        faults: dict[str, Reason | None] = {}
        faults.update(dict.fromkeys(GONE, self.gone))
        faults.update(dict.fromkeys(BAD, self.bad))
        faults[_DENIED] = self.denied or self.bad
        if not self.folder:
            faults[SHORT] = self.short
        if not self.once:
            faults[COMES_AND_GOES] = self.flickers
        for fault, reason in faults.items():
            vanishes = fault in GONE or (fault == COMES_AND_GOES and self.flickers is not None)
            yield HostRow(
                Side.HOST,
                self.name,
                fault,
                reason,
                why=self.why,
                quick=fault == self.quick,
                path=self.path,
                opens=self.opens,
                device=self.device,
                scenes=self.scenes,
                also=self.also,
                at_start=self.start_gone if vanishes else self.start_denied if fault == _DENIED else None,
                unknowable=self.unknowable and vanishes,
            )


_T = Reason.TOPOLOGY_UNREADABLE
_P = Reason.PROCESS_UNREADABLE
_C = Reason.CPUSET_UNREADABLE
_START: Final = ("started",)
_OWN: Final = ("bound", "started", "restarted")
_ASIDE: Final = frozenset({Reason.INSUFFICIENT_CPUS, Reason.NOT_OPTED_IN, Reason.NOT_THIS_KERNEL, _C})
"""What is said of NPUs and workers whose process or container can't be looked at."""
_CGROUP: Final = r"/sys/fs/cgroup/(init\.scope|kubepods\.slice(/kubepods[^/]*|/cri-[^/]*)*)"
_POD: Final = r"/sys/fs/cgroup/kubepods\.slice(/kubepods[^/]*|/cri-[^/]*)*"

_SYSTEM: Final = "/sys/devices/system"

PLACES: Final = (
    Place(
        f"{_SYSTEM}/cpu/online", f"{_SYSTEM}/cpu/online", _T, _T, short=_T, flickers=_T, unknowable=True, quick="EIO"
    ),
    Place(f"{_SYSTEM}/cpu/possible", f"{_SYSTEM}/cpu/possible", why="nothing is decided by it"),
    Place(f"{_SYSTEM}/cpu/isolated", f"{_SYSTEM}/cpu/isolated", _T, _T, flickers=_T, unknowable=True),
    Place(
        "…/cpu<N>/topology/core_cpus_list",
        f"{_SYSTEM}/cpu/cpu[0-9]+/topology/(core_cpus|thread_siblings)_list",
        _T, _T, short=_T, flickers=_T, start_gone=_T, device="950",
    ),
    Place(
        f"{_SYSTEM}/node", f"{_SYSTEM}/node", _T, _T, flickers=_T,
        folder=True, unknowable=True, start_gone=Reason.ONE_NUMA_NODE,
    ),
    Place("…/node/has_memory", f"{_SYSTEM}/node/has_memory", _T, _T, short=_T, flickers=_T, unknowable=True),
    Place(
        "…/node<N>/cpulist", f"{_SYSTEM}/node/node[0-9]+/cpulist", _T, _T, short=_T, flickers=_T, start_gone=_T,
        quick="ESRCH",
    ),
    Place("…/node<N>", f"{_SYSTEM}/node/node[0-9]+", _T, _T, flickers=_T, folder=True, unknowable=True),
    Place("…/node<N>/meminfo", f"{_SYSTEM}/node/node[0-9]+/meminfo", _T, _T, short=_T, once=True, start_gone=_T),
    Place(
        "/sys/fs/cgroup", "/sys/fs/cgroup", _C, _C, flickers=_C, folder=True, opens=True, also=_ASIDE, unknowable=True
    ),
    Place(
        "/sys/fs/cgroup/<cgroup>", _CGROUP, None, _C, folder=True, opens=True, also=_ASIDE,
        why="a cgroup that is not there gives what the one above it gives",
    ),
    Place(
        "…/<pod>/cpuset.cpus.effective", _POD + r"/cpuset\.cpus\.effective", None, _C, short=_C, also=_ASIDE,
        why="a cgroup without the file has the CPUs of the one above it",
    ),
    Place(
        "…/init.scope/cpuset.cpus.effective", r"/sys/fs/cgroup/init\.scope/cpuset\.cpus\.effective", None, _C, short=_C
    ),
    Place(
        "/sys/fs/cgroup/cpuset.cpus.effective", r"/sys/fs/cgroup/cpuset\.cpus\.effective", device="950",
        why="of UVB threads in the root cgroup: all online CPUs are theirs",
    ),
    Place("/dev", "/dev", None, Reason.INVENTORY_INCOMPLETE, folder=True),
    Place("/dev/davinci<N>", "/dev/davinci", None, Reason.INVENTORY_INCOMPLETE),
    Place("/proc", "/proc", _P, _P, flickers=_P, folder=True, also=_ASIDE, unknowable=True, quick="ENOENT"),
    Place("/proc/<pid>", "/proc/[0-9]+", _P, _P, folder=True, opens=True, also=_ASIDE, start_gone=_P),
    Place(
        "/proc/<pid>/stat", "/proc/[0-9]+/stat", _P, _P, flickers=_P, also=_ASIDE, unknowable=True,
        why="half of one has all that is needed",
    ),
    Place(
        "/proc/<pid>/status", "/proc/[0-9]+/status", Reason.PROCESS_GONE, _P, flickers=Reason.PROCESS_GONE,
        start_gone=Reason.PROCESS_GONE, why="of the moving of memory alone",
    ),
    Place("/proc/<pid>/cgroup", "/proc/[0-9]+/cgroup", _C, _P, short=_P, flickers=_C, also=_ASIDE, start_gone=_C),
    Place("/proc/<pid>/fd", "/proc/[0-9]+/fd", None, _P, denied=Reason.PERMISSION_DENIED),
    Place("/proc/<pid>/root/dev", "/proc/[0-9]+/root(/dev/davinci)?", denied=_P, once=True, folder=True),
    Place(
        "/proc/<pid>/maps", "/proc/[0-9]+/maps", Reason.PROCESS_GONE, _P, denied=Reason.PERMISSION_DENIED, short=_P,
        once=True, start_gone=Reason.PROCESS_GONE,
    ),
    Place(
        "/proc/<pid>/task", "/proc/[0-9]+/task", _P, _P, flickers=_P, folder=True, start_gone=_P
    ),
    Place(
        "/proc/<pid>/task/<tid>/comm", "/proc/[0-9]+/task/[0-9]+/comm", _P, _P, short=_P, flickers=_P, start_gone=_P,
        quick=SHORT,
    ),
    Place("/proc/<pid>/task/<tid>/stat", "/proc/[0-9]+/task/[0-9]+/stat", also=frozenset({_P})),
    Place(
        "/proc/irq/<N>/smp_affinity_list", "/proc/irq/[0-9]+/smp_affinity_list", None, Reason.IRQ_REFUSED,
        short=Reason.IRQ_REFUSED, why="interrupts that are gone are resolved anew",
    ),
    Place(
        "/sys/kernel/irq/<N>/actions", "/sys/kernel/irq/[0-9]+/actions", Reason.IRQ_NAMES_UNKNOWN,
        Reason.IRQ_NAMES_UNKNOWN, short=Reason.IRQ_NAMES_UNKNOWN, flickers=Reason.IRQ_NAMES_UNKNOWN,
        start_gone=Reason.IRQ_NAMES_UNKNOWN, quick="ENOENT",
    ),
    Place(
        "/sys/bus/pci/devices/<address>/msi_irqs", "/sys/bus/pci/devices/[^/]+/msi_irqs", Reason.MSI_IRQS_MISSING,
        Reason.MSI_IRQS_MISSING, flickers=Reason.MSI_IRQS_MISSING, folder=True, start_gone=Reason.MSI_IRQS_MISSING,
    ),
    Place("…/<address>/driver/module", "/sys/bus/pci/devices/[^/]+/driver/module", folder=True, once=True),
    Place(
        "/run/irqbalance", "/run/irqbalance", Reason.IRQBALANCE_ACTIVE, Reason.IRQBALANCE_ACTIVE,
        flickers=Reason.IRQBALANCE_ACTIVE, folder=True, start_gone=Reason.IRQBALANCE_ACTIVE,
    ),
    Place("/proc/<irqbalance>/cmdline", "/proc/[0-9]+/cmdline", once=True, scenes=_START),
    Place(
        "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/random/boot_id", _P, _P, short=_P, once=True,
        start_gone=_P, scenes=("started", "restarted"), why="the agent does not start",
    ),
    Place(
        "…/transparent_hugepage/hpage_pmd_size", "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
        once=True, folder=True, opens=True, scenes=_START,
    ),
    Place(
        "/var/lib/kubelet/cpu_manager_state", "/var/lib/kubelet/cpu_manager_state", None,
        Reason.KUBELET_STATE_UNREADABLE, short=Reason.KUBELET_STATE_UNREADABLE, quick=SHORT,
        why="a kubelet without the static policy has none; who owns CPUs is also to be seen from the pods",
    ),
    Place(
        "the state file", r"/plan\.yaml", None, Reason.STATE_UNREADABLE, short=Reason.STATE_UNREADABLE, scenes=_OWN,
        quick=SHORT, why="one that is not there is made, and replaces none",
    ),
    Place("the journal", r"/journal\.json", None, Reason.STATE_NOT_WRITTEN, short=Reason.STATE_NOT_WRITTEN,
          also=frozenset({Reason.STATE_UNREADABLE}), start_denied=Reason.STATE_UNREADABLE),
)  # fmt: skip


def _written(name: str, path: str, reason: Reason | None, why: str = "") -> Iterator[HostRow]:
    for fault in (*ERRORS, "ENOSPC", "EROFS"):
        yield HostRow(Side.HOST, name, fault, reason, why, path=path, writes=True)


ROWS: tuple[Row, ...] = (
    *(row for place in PLACES for row in place.rows()),
    *_written("the state file, written", r"/\.plan\.yaml[^/]*|/plan\.yaml", None, why="in the log: StateNotWritten"),
    *_written("the journal, written", r"/\.journal\.json[^/]*|/journal\.json", Reason.STATE_NOT_WRITTEN),
)
