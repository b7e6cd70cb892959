"""The one interface through which the host is written to."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final, Protocol, TypeVar

from agent.model.cpuset import MAX_CPUS, CpuSet
from agent.model.workload import ProcessId
from agent.node.irq import check_irq_write, write_affinity
from agent.node.irqbalance import Irqbalance
from agent.node.pages import PageCalls, check_pages
from agent.node.taskstats import TaskStats

EVERY_CPU: Final = CpuSet.span(0, MAX_CPUS - 1)
"""All ones. The kernel ignores CPUs that the machine doesn't have, so that this mask means: whatever the cpuset gives,
now and later."""

_K = TypeVar("_K")
_V = TypeVar("_V")

_LONG_BYTES: Final = 8
_REMEMBERED: Final = 1024

_AT_ONCE: Final = 256
"""Masks that are read in one go, in which no other Python thread gets its turn: some 0.1 ms."""


class ThreadHost(Protocol):
    """What the agent does to the threads of a host.

    Every call raises plain OSError with the kernel's errno: ESRCH when the thread is gone; EINVAL when it can't be
    moved (PF_NO_SETAFFINITY) or none of the CPUs is online and in its cpuset; EPERM without the right (CAP_SYS_NICE,
    or the same user). Calls may come from several Python threads.
    """

    def get_affinity(self, tid: int) -> CpuSet:
        """The thread's mask, without CPUs that are not active (sched_getaffinity(2) leaves them out)."""
        ...

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        """`get_affinity` of many: for each the bits of its mask, or -errno. Raises nothing."""
        ...

    def names(self, tids: Sequence[int]) -> list[bytes | None] | None:
        """The name of each thread, where that is to be had for less than reading its file in /proc: None for one whose
        name is not told, so that the file has to be read after all; None for the list where all have to be."""
        ...

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """Gives a thread the mask `cpus` ∩ its cpuset: the kernel intersects silently (sched_setaffinity(2)).

        Since Linux 6.2 the kernel remembers `cpus` as what was asked for and intersects anew whenever the cpuset
        changes; before, a change of the cpuset resets the mask to the whole cpuset.
        ValueError for an empty set, and for a tid below 1: 0 would be the caller itself.
        """
        ...


class Host(ThreadHost, Protocol):
    """All that the agent does to a host. Errors are plain OSError; calls may come from several Python threads."""

    def set_irq_affinity(self, irq: int, cpus: CpuSet) -> None:
        """Says which CPUs an interrupt may go to, as `agent.node.irq.write_affinity`."""
        ...

    def ban_irqs(self, balancer: ProcessId, keep: Collection[int], irqs: Sequence[int]) -> frozenset[int]:
        """Replaces the list of interrupts that irqbalance leaves alone, as `agent.node.irqbalance.Irqbalance.ban`, and
        returns the list that it has then."""
        ...

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        """For each page of a process the NUMA node that it is on, or -errno: ENOENT, also EFAULT, where none is there.

        `addresses` as `agent.node.pages.page_addresses` makes them. move_pages(2) without nodes, which changes nothing.
        EPERM without the right to look into the process (CAP_SYS_PTRACE), EINVAL when it has no memory any more,
        ENOSYS where there is no such call. ValueError for a pid below 1.
        """
        ...

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        """Moves pages that no other process maps to a NUMA node (move_pages(2) with MPOL_MF_MOVE).

        For each page the node that it is on now, -errno, or `agent.node.pages.UNTRIED`: the kernel stops where pages
        could not be moved. Errors as of `page_nodes`, and ENODEV when the node has no memory, EACCES when the cpuset of
        the process does not allow it, ENOMEM when it is full.
        """
        ...


class LinuxHost:
    """The running kernel, in the PID namespace of this process. Interrupts and irqbalance are found below `root`.

    `mask_bytes` is the size of the masks handed to the kernel, a multiple of 8; by default the smallest that the
    kernel accepts. Up to 64 CPUs the functions of `os` are the fastest way. Beyond that they are not: they try a mask
    of 64 CPUs first, then double it until the kernel accepts, and make a Python set with every CPU in it; there the
    calls of libc are used, whose cost does not depend on the number of CPUs. Many masks are read into one buffer, of
    whatever size, and taken out of it as integers: a set for each costs more than the call.
    """

    def __init__(self, mask_bytes: int | None = None, *, root: Path = Path("/")) -> None:
        self._root = root
        # PyDLL keeps the GIL as os.sched_setaffinity does: to give it up would cost more than these calls take.
        libc = ctypes.PyDLL(None, use_errno=True)
        self._get = libc.sched_getaffinity
        self._set = libc.sched_setaffinity
        size = _mask_size(self._get) if mask_bytes is None else mask_bytes
        self._wide = size > _LONG_BYTES
        self._size = ctypes.c_size_t(size)
        self._buffer = ctypes.c_char * size
        self._all = (1 << 8 * size) - 1
        self._by_members: dict[frozenset[int], CpuSet] = {}
        self._by_bits: dict[int, CpuSet] = {}
        self._masks: dict[int, bytes] = {}
        self._lists: dict[int, tuple[int, ...]] = {}
        """Of masks of up to 64 CPUs that were written before, and so are not empty."""
        self._pages = PageCalls()
        self._stats = TaskStats()
        self._batches: list[_Batch] = []

    def get_affinity(self, tid: int) -> CpuSet:
        """As in `Host`."""
        if self._wide:
            # A buffer for each call: a shared one could be overwritten by another Python thread before it is read.
            buffer = self._buffer()
            if self._get(tid, self._size, buffer) < 0:
                raise _error()
            bits = int.from_bytes(buffer, "little")
            return self._by_bits.get(bits) or _remember(self._by_bits, bits, CpuSet.from_bits(bits))
        members = frozenset(os.sched_getaffinity(tid))
        return self._by_members.get(members) or _remember(self._by_members, members, CpuSet(members))

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        """As in `Host`."""
        # Never one that another Python thread is using: it is taken out of the list by one operation.
        batch = self._batches.pop() if self._batches else _Batch(self._get, self._size.value)
        masks: list[int] = []
        for first in range(0, len(tids), _AT_ONCE):
            masks += batch.read(tids[first : first + _AT_ONCE])
        self._batches.append(batch)
        if -1 in masks:
            # The call tells that it failed, and not why: such a thread is asked once more.
            masks = [self._mask(tid) if mask < 0 else mask for tid, mask in zip(tids, masks, strict=True)]
        return masks

    def _mask(self, tid: int) -> int:
        return masks_one_by_one(partial(LinuxHost.get_affinity, self), (tid,))[0]

    def names(self, tids: Sequence[int]) -> list[bytes | None] | None:
        """As in `Host`."""
        return self._stats.names(tids)

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """As in `Host`."""
        cpu_list = self._lists.get(cpus.bits)
        if cpu_list is not None and tid > 0:
            os.sched_setaffinity(tid, cpu_list)
            return
        bits = cpus.bits & self._all
        if not bits or tid < 1:
            check_write(tid, cpus)
            # The kernel's answer to CPUs that the machine doesn't have, given here so that it never sees an empty mask.
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if self._wide:
            mask = self._masks.get(bits) or _remember(self._masks, bits, bits.to_bytes(self._size.value, "little"))
            if self._set(tid, self._size, mask) < 0:
                raise _error()
        else:
            cpu_list = _remember(self._lists, cpus.bits, tuple(CpuSet.from_bits(bits)))
            os.sched_setaffinity(tid, cpu_list)

    def set_irq_affinity(self, irq: int, cpus: CpuSet) -> None:
        """As in `Host`."""
        write_affinity(self._root, irq, cpus)

    def ban_irqs(self, balancer: ProcessId, keep: Collection[int], irqs: Sequence[int]) -> frozenset[int]:
        """As in `Host`."""
        return Irqbalance(self._root).ban(balancer, keep, irqs)

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        """As in `Host`."""
        return self._pages.nodes(pid, addresses)

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        """As in `Host`."""
        return self._pages.move(pid, addresses, node)


@dataclass(frozen=True, slots=True)
class Write:
    """A mask that a dry run would have given to a thread."""

    tid: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class IrqWrite:
    """A mask that a dry run would have given to an interrupt."""

    irq: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class BanWrite:
    """A list that a dry run would have given to irqbalance."""

    balancer: ProcessId
    irqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Pages of a process that a dry run would have moved."""

    pid: int
    pages: int
    node: int


class DryRunHost:
    """Reads through to another host and records every write instead of making it."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner
        self.writes: list[Write] = []
        """Of threads' masks, in the order in which they were asked for. Whoever looks at them empties it."""
        self.others: list[IrqWrite | BanWrite | Move] = []
        """All else, likewise."""

    def get_affinity(self, tid: int) -> CpuSet:
        """As in `Host`."""
        return self._inner.get_affinity(tid)

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        """As in `Host`."""
        return self._inner.get_masks(tids)

    def names(self, tids: Sequence[int]) -> list[bytes | None] | None:
        """As in `Host`."""
        return self._inner.names(tids)

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """Records the write. Whether the kernel would have refused it is not known: only ValueError is raised."""
        check_write(tid, cpus)
        self.writes.append(Write(tid, cpus))

    def set_irq_affinity(self, irq: int, cpus: CpuSet) -> None:
        """Records the write, as `set_affinity` does."""
        check_irq_write(irq, cpus)
        self.others.append(IrqWrite(irq, cpus))

    def ban_irqs(self, balancer: ProcessId, keep: Collection[int], irqs: Sequence[int]) -> frozenset[int]:
        """Records the list, and answers as if irqbalance had room for all of it."""
        listed = tuple(dict.fromkeys((*sorted(keep), *irqs)))
        self.others.append(BanWrite(balancer, listed))
        return frozenset(listed)

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        """As in `Host`."""
        return self._inner.page_nodes(pid, addresses)

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        """Records the move; every page is where it was."""
        check_pages(pid, addresses)
        self.others.append(Move(pid, len(addresses), node))
        return self._inner.page_nodes(pid, addresses)


class _Batch:
    """A buffer for masks, with what the calls that fill it are given. Serves one Python thread at a time."""

    def __init__(self, get: Callable[..., int], size: int) -> None:
        self._get = get
        self._size = size
        self._buffer = ctypes.create_string_buffer(size * _AT_ONCE)
        self._slots = [ctypes.byref(self._buffer, size * n) for n in range(_AT_ONCE)]

    def read(self, tids: Sequence[int]) -> list[int]:
        """Bits of each mask; -1 where the call failed."""
        # `map` and `list` make the calls without the interpreter between them.
        results = list(map(self._get, tids, repeat(ctypes.c_size_t(self._size)), self._slots))
        content = self._buffer.raw[: self._size * len(tids)]
        if self._size == _LONG_BYTES and sys.byteorder == "little":
            masks = array("Q", content).tolist()
        else:
            size = self._size
            masks = [int.from_bytes(content[at : at + size], "little") for at in range(0, len(content), size)]
        if min(results, default=0) < 0:
            masks = [-1 if result < 0 else mask for result, mask in zip(results, masks, strict=True)]
        return masks


def masks_one_by_one(get: Callable[[int], CpuSet], tids: Sequence[int]) -> list[int]:
    """`get_masks` for hosts that have nothing better than their `get_affinity`."""
    masks = []
    for tid in tids:
        try:
            masks.append(get(tid).bits)
        except OSError as error:
            masks.append(-(error.errno or errno.EIO))
    return masks


def check_write(tid: int, cpus: CpuSet) -> None:
    """ValueError for what must never reach the system call, whichever host it is."""
    if not cpus:
        raise ValueError(f"an empty CPU set for thread {tid}")
    if tid < 1:
        raise ValueError(f"{tid} is no thread id")


def _mask_size(get: Callable[..., int]) -> int:
    """Bytes of the smallest mask that the kernel accepts: it must hold all possible CPUs (nr_cpu_ids)."""
    size = _LONG_BYTES
    while get(0, ctypes.c_size_t(size), ctypes.create_string_buffer(size)) < 0:
        if ctypes.get_errno() != errno.EINVAL or size >= MAX_CPUS // 8:
            raise _error()
        size *= 2
    return size


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _remember(memory: dict[_K, _V], key: _K, value: _V) -> _V:
    # Few masks are in use at a time; the bound is for a host where something makes ever new ones.
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = value
    return value
