"""The interrupts of a PCI function: their numbers, the names of their handlers, and the CPUs that they may go to.

See the kernel's Documentation/ABI/testing/sysfs-bus-pci (``msi_irqs``), sysfs-kernel-irq (``actions``) and
Documentation/core-api/irq/irq-affinity.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused, printable
from agent.node.files import ABSENT, INTERRUPTS_LIMIT, join, list_folder, read_bytes, read_text, refusal, whole_line
from agent.node.interrupts_file import parse_interrupts

_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)
_MAX_DIGITS: Final = 9


def sysfs_address(address: str) -> str:
    """A PCI address as sysfs spells it, ``0000:c1:00.0``: lower case, a domain of at least four digits and no more than
    it needs. Empty for anything that is none."""
    match = _ADDRESS.fullmatch(address.strip().lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else ""


def msi_irqs(root: Path, address: str) -> tuple[int, ...]:
    """The MSI and MSI-X interrupts that the driver of a PCI function has asked for, ascending; empty where there are
    none, be it for want of the device. Refused(MsiIrqsMissing) where the folder can't be listed."""
    if not (address := sysfs_address(address)):
        return ()
    names = list_folder(f"{join(root)}/sys/bus/pci/devices/{address}/msi_irqs", Reason.MSI_IRQS_MISSING)
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS))


def driver_module(root: Path, address: str) -> str:
    """The kernel module of the driver of a PCI function; empty where that can't be seen, or it is built in."""
    try:
        target = Path(f"{join(root)}/sys/bus/pci/devices/{sysfs_address(address) or '-'}/driver/module").readlink()
    except OSError:
        return ""
    return printable(target.name, 64)


class ActionNames:
    """The names of handlers, as they are now: an object for one pass, since /proc/interrupts is read at most once."""

    def __init__(self, root: Path) -> None:
        self._root = join(root)
        self._listed: dict[int, str] | None = None

    def of(self, irqs: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Interrupt -> names of its handlers; empty where it has none or is gone.

        ``/sys/kernel/irq/N/actions`` says it (Linux 4.9); where there is none, /proc/interrupts does. Refused with
        IrqNamesUnknown where neither can be read.
        """
        found: dict[int, tuple[str, ...]] = {}
        unsaid = []
        for irq in irqs:
            path = f"{self._root}/sys/kernel/irq/{irq}/actions"
            text = read_text(path, Reason.IRQ_NAMES_UNKNOWN)
            if text is None:
                unsaid.append(irq)
            else:
                whole_line(text, path, Reason.IRQ_NAMES_UNKNOWN)
                found[irq] = _names(text)
        # Where the folder is there, it has all interrupts: one that it lacks is gone.
        if unsaid and not os.path.isdir(f"{self._root}/sys/kernel/irq"):  # noqa: PTH112
            listed = self._interrupts()
            return found | {irq: _names(listed.get(irq, "")) for irq in unsaid}
        return found | dict.fromkeys(unsaid, ())

    def _interrupts(self) -> dict[int, str]:
        if self._listed is None:
            path = f"{self._root}/proc/interrupts"
            content = read_bytes(path, Reason.IRQ_NAMES_UNKNOWN, limit=INTERRUPTS_LIMIT)
            self._listed = parse_interrupts(content or b"")
        return self._listed


def read_affinity(root: Path, irq: int, *, effective: bool = False) -> CpuSet | None:
    """``smp_affinity_list``: the CPUs that an interrupt may go to; with `effective` those that it does go to. None
    where it is gone. Refused(IrqRefused) where the file can't be read or is damaged."""
    path = f"{join(root)}/proc/irq/{irq}/{'effective_affinity_list' if effective else 'smp_affinity_list'}"
    try:
        # One read: the file is one record, of at most 10 KiB (every other one of 4,096 CPUs). A sweep reads hundreds.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            content = os.read(file, 1 << 16)
        finally:
            os.close(file)
        whole_line(content, path, Reason.IRQ_REFUSED)
        return _cpus(content)
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise refusal(Reason.IRQ_REFUSED, path, error) from error
    except ValueError as error:
        raise Refused(Reason.IRQ_REFUSED, f"{printable(path, 120)}: {error}") from None


def write_affinity(root: Path, irq: int, cpus: CpuSet) -> None:
    """Writes ``smp_affinity_list``, whole: the list form has no widths and no short forms to get wrong (cri-o #6145).

    Raises plain OSError with the kernel's errno: EIO for an interrupt that can't be moved (managed by its driver, or
    of one CPU), EINVAL where none of the CPUs is online, EROFS, EPERM, ENOENT where it is gone. ValueError for an
    empty set and for a number below 0.
    """
    check_irq_write(irq, cpus)
    file = os.open(f"{join(root)}/proc/irq/{irq}/smp_affinity_list", os.O_WRONLY | os.O_CLOEXEC)
    try:
        # One write(2): the kernel parses each by itself.
        os.write(file, f"{cpus}\n".encode())
    finally:
        os.close(file)


def check_irq_write(irq: int, cpus: CpuSet) -> None:
    """ValueError for what must never reach the kernel, whichever host it is."""
    if not cpus:
        raise ValueError(f"an empty CPU set for interrupt {irq}")
    if irq < 0:
        raise ValueError(f"{irq} is no interrupt")


@lru_cache(maxsize=1024)
def _cpus(content: bytes) -> CpuSet:
    # UnicodeDecodeError and CpuListError are ValueErrors.
    return CpuSet.parse(content.decode("ascii"))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))
