"""Fake memory: mappings of processes, on which NUMA node each page is, and move_pages(2) over them.

What it imitates was read in the kernel's mm/migrate.c: `agent.node.pages` says how that ends early.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.node.pages import UNTRIED

PAGE = 64 << 10
"""Bytes. Kernels of ARM servers have pages of 64 KiB as often as of 4."""

ABSENT = -errno.ENOENT
FIRST_ADDRESS = 0xFFFF_8000_0000


@dataclass(slots=True)
class FakeRegion:
    """Pages that one process maps, or several."""

    nodes: array[int]
    """Of each page the node that it is on, or ABSENT."""
    pinned: set[int] = field(default_factory=set)
    """Indices of pages that something holds on to, for DMA say."""
    mappers: int = 0


@dataclass(slots=True)
class FakeMapping:
    """A line of /proc/<pid>/maps."""

    start: int
    region: FakeRegion
    perms: str = "rw-p"
    dev: str = "00:00"
    inode: int = 0
    name: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.region.nodes) * PAGE

    @property
    def anonymous(self) -> bool:
        return self.perms.endswith("p") and not self.inode

    def line(self) -> str:
        head = f"{self.start:x}-{self.end:x} {self.perms} 00000000 {self.dev} {self.inode}"
        return f"{head} \n" if not self.name else f"{head:<72} {self.name}\n"


class FakeMemory:
    """The memory of all processes. `free` has bytes by NUMA node, for those that have memory."""

    def __init__(self, free: Mapping[int, int]) -> None:
        self.free = dict(free)
        self.mappings: dict[int, list[FakeMapping]] = {}
        self.moved: Counter[int] = Counter()
        """Pages moved so far, by pid."""

    def map(
        self,
        pid: int,
        region: FakeRegion,
        *,
        perms: str = "rw-p",
        dev: str = "00:00",
        inode: int = 0,
        name: str = "",
        start: int | None = None,
    ) -> FakeMapping:
        """A process maps a region, behind what it has unless told where; one that is mapped already is shared."""
        mappings = self.mappings.setdefault(pid, [])
        if start is None:
            # A hole between any two, as the kernel merges neighbours that are alike.
            start = max((mapping.end for mapping in mappings), default=FIRST_ADDRESS - PAGE) + PAGE
        mapping = FakeMapping(start, region, perms, dev, inode, name)
        region.mappers += 1
        mappings.append(mapping)
        mappings.sort(key=lambda each: each.start)
        return mapping

    def maps(self, pid: int) -> str:
        """Contents of /proc/<pid>/maps."""
        return "".join(mapping.line() for mapping in self.mappings.get(pid, []))

    def resident(self, pid: int) -> int:
        """Bytes of RssAnon in /proc/<pid>/status."""
        return sum(
            PAGE * sum(node >= 0 for node in mapping.region.nodes)
            for mapping in self.mappings.get(pid, [])
            if mapping.anonymous
        )

    def placed(self, pids: Iterable[int]) -> dict[int, int]:
        """NUMA node -> bytes of anonymous memory that these processes have there."""
        regions = {id(m.region): m.region for pid in pids for m in self.mappings.get(pid, []) if m.anonymous}
        pages = Counter(node for region in regions.values() for node in region.nodes if node >= 0)
        return {node: PAGE * pages[node] for node in self.free}

    def end(self, pid: int) -> None:
        for mapping in self.mappings.pop(pid, []):
            mapping.region.mappers -= 1

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        """move_pages(2) without nodes."""
        return array("i", [self._where(pid, address) for address in addresses])

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        """move_pages(2) with MPOL_MF_MOVE."""
        if node not in self.free:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        statuses = array("i", [UNTRIED]) * len(addresses)
        first = 0  # of the list that is moved together
        for k, address in enumerate(addresses):
            region, _ = self._page(pid, address)
            at = self._where(pid, address)
            if region is not None and at >= 0 and at != node and region.mappers < 2:
                continue
            shared = region is not None and at >= 0 and at != node
            statuses[k] = -errno.EACCES if shared else at
            if not self._move_list(pid, addresses[first:k], node):
                return statuses
            statuses[first:k] = array("i", [node]) * (k - first)
            first = k + 1
        if self._move_list(pid, addresses[first:], node):
            statuses[first:] = array("i", [node]) * (len(addresses) - first)
        return statuses

    def _move_list(self, pid: int, addresses: array[int], node: int) -> bool:
        """Moves what can be moved; False when some could not."""
        whole = True
        for address in addresses:
            region, index = self._page(pid, address)
            assert region is not None
            if index in region.pinned:
                whole = False
                continue
            if self.free[node] < PAGE:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            if region.nodes[index] == node:  # its other half, to a caller who takes pages for smaller than they are
                continue
            self.free[region.nodes[index]] += PAGE
            self.free[node] -= PAGE
            region.nodes[index] = node
            self.moved[pid] += 1
        return whole

    def _where(self, pid: int, address: int) -> int:
        region, index = self._page(pid, address)
        return -errno.EFAULT if region is None else region.nodes[index]

    def _page(self, pid: int, address: int) -> tuple[FakeRegion | None, int]:
        for mapping in self.mappings.get(pid, []):
            if mapping.start <= address < mapping.end:
                return mapping.region, (address - mapping.start) // PAGE
        return None, 0


def pages(size: int, *nodes: int) -> FakeRegion:
    """A region of so many bytes whose pages are on these nodes, one after the other in turn."""
    count = size // PAGE
    return FakeRegion(array("i", (list(nodes) * (count // len(nodes) + 1))[:count]))
