"""The private memory of a process: which ranges it has, and moving them to another NUMA node.

Ranges come from /proc/<pid>/maps. smaps and numa_maps are never opened: for these the kernel walks all page tables of a
process while it holds its memory lock. Only private anonymous memory that can be written is taken: heap, stacks, and
what malloc, mmap and prctl(PR_SET_VMA_ANON_NAME) leave. A private mapping of a file is a mapping of a file, so that the
pages of it that the process wrote to stay where they are.
"""

from __future__ import annotations

import errno
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.reason import Problem, Reason, Refused, printable
from agent.node.files import DENIED, join, read_bytes, read_text
from agent.node.host import Host
from agent.node.pages import UNTRIED, page_addresses
from agent.node.procfs import parse_status

BATCH_BYTES: Final = 64 << 20
"""What is moved with one call at most, so that there are moments to stop at."""

FIRST_BATCH_BYTES: Final = 4 << 20
LEAST_BATCH_BYTES: Final = 1 << 20
QUICK, SLOW = 0.25, 1.0
"""Seconds. A call that took less is followed by one for twice as much, one that took more by one for half: how long
64 MiB take depends on the machine and on who writes all over them meanwhile; more than ten seconds were seen."""

MAPS_LIMIT: Final = 64 << 20
"""Bytes of /proc/<pid>/maps: a line has about a hundred, and vm.max_map_count is 65,530 unless somebody raised it."""

MAPS_LINES: Final = 1 << 18
"""Ranges that are looked at: a process with more of them is left where it is."""

_LINE: Final = re.compile(
    rb"(?P<start>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16}) (?P<perms>[r-][w-][x-][ps]) [0-9a-f]{1,16} "
    rb"(?P<dev>[0-9a-f]{2,4}:[0-9a-f]{2,5}) (?P<inode>[0-9]{1,20})(?: +(?P<name>[^\n]*))? *"
)
_NAMES: Final = re.compile(rb"|\[heap\]|\[stack(:[0-9]+)?\]|\[anon:.*\]", re.DOTALL)
"""What private anonymous memory is called, mostly nothing. ``[stack:tid]`` is of kernels before 4.5."""

_HIDING: Final = re.compile(r"6\.[1-5][^0-9]", re.ASCII)

_RSS: Final = re.compile(r"^(?:RssAnon|(VmRSS)):\s*([0-9]{1,15}) kB$", re.MULTILINE | re.ASCII)
_FREE: Final = re.compile(r"\bMemFree:\s*([0-9]{1,15}) kB", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses start..end - 1 of a process."""

    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Account:
    """What /proc/<pid>/status says of the memory of a process."""

    resident: int
    """Bytes of anonymous memory that are present: more than what can be moved, as it counts pages of private mappings
    of files, too. Before Linux 4.5 everything that is present."""
    mems_allowed: CpuSet | None
    """The NUMA nodes of its cpuset; None where the kernel doesn't say."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes by where their pages are."""

    there: int = 0
    """On the target already."""
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of one batch."""

    there: int = 0
    """Bytes that were on the target before."""
    moved: int = 0
    left: int = 0
    """Bytes on another node that the kernel did not move."""
    error: OSError | None = None
    """Why nothing more of this process can be moved."""
    halt: Problem | None = None
    """Why the caller had it end early."""


def parse_maps(content: bytes, path: str = "maps") -> list[Range]:
    """The private anonymous writable ranges of a /proc/<pid>/maps, ascending as the kernel lists them.

    Names may hold any bytes; the kernel writes a newline as ``\\012``. Refused(ProcessUnreadable), naming `path`, for a
    line that is damaged, where the last one does not end, and where there are more than `MAPS_LINES`.
    """
    if content.count(b"\n") > MAPS_LINES:
        raise Refused(Reason.PROCESS_UNREADABLE, f"{printable(path, 120)} has more than {MAPS_LINES} lines")
    ranges = []
    lines = content.split(b"\n")
    if lines.pop():
        raise _damaged(path, content[-60:])
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise _damaged(path, line)
        start, end = int(match["start"], 16), int(match["end"], 16)
        if start >= end:
            raise _damaged(path, line)
        # Whatever is shared, a file, a device or of hugetlbfs has an inode, or "s", or a name of its own: taking only
        # what is known to be private leaves the kernel free to invent more of the others.
        private = match["perms"][1:2] == b"w" and match["perms"][3:] == b"p"
        anonymous = not match["dev"].strip(b"0:") and not match["inode"].strip(b"0")
        if private and anonymous and _NAMES.fullmatch((match["name"] or b"").rstrip(b" ")):
            ranges.append(Range(start, end))
    return ranges


def read_ranges(root: Path, pid: int) -> list[Range] | None:
    """The ranges of a process, the small ones first: a range that is huge is often reserved and mostly empty, and must
    not use up the time. None when the process is gone; Refused(PermissionDenied) without the right to look
    (CAP_SYS_PTRACE), Refused(ProcessUnreadable) otherwise.
    """
    path = f"{join(root)}/proc/{pid}/maps"
    try:
        content = read_bytes(path, Reason.PROCESS_UNREADABLE, limit=MAPS_LIMIT)
    except Refused as refused:
        if isinstance(refused.__cause__, OSError) and refused.__cause__.errno in DENIED:
            raise Refused(Reason.PERMISSION_DENIED, refused.message) from refused
        raise
    # A zombie has an empty one: its memory is gone already.
    return sorted(parse_maps(content, path), key=lambda each: (each.bytes, each.start)) if content else None


def read_account(root: Path, pid: int) -> Account | None:
    """None when the process is gone; Refused(ProcessUnreadable) when its status is damaged."""
    path = f"{join(root)}/proc/{pid}/status"
    text = read_text(path, Reason.PROCESS_UNREADABLE)
    if not text:
        return None
    found = {match[1]: int(match[2]) << 10 for match in _RSS.finditer(text)}
    resident = found.get(None, found.get("VmRSS", 0))
    return Account(resident, parse_status(text, path).mems_allowed)


def free_memory(root: Path, node: int) -> int | None:
    """Bytes of a NUMA node that nobody uses (MemFree of its meminfo, page cache not counted); None where it isn't
    said."""
    text = read_text(f"{join(root)}/sys/devices/system/node/node{node}/meminfo", Reason.TOPOLOGY_UNREADABLE)
    match = _FREE.search(text or "")
    return None if match is None else int(match[1]) << 10


def balancing_hides_pages(root: Path) -> bool:
    """Whether pages may be reported absent that are present.

    Automatic NUMA balancing takes the access right off pages now and then, to see who touches them. From Linux 6.1 to
    6.5 move_pages(2) takes such a page for absent, until it is touched (mm/gup.c: 474098edac26 to d74943a2f3cd).
    """
    kernel = f"{join(root)}/proc/sys/kernel"
    on = (read_text(f"{kernel}/numa_balancing", Reason.PROCESS_UNREADABLE) or "0").strip() != "0"
    return on and _HIDING.match(read_text(f"{kernel}/osrelease", Reason.PROCESS_UNREADABLE) or "") is not None


class PageMover:
    """Moves pages of processes below a host's root folder, batch by batch. `page_size` in bytes, a power of two: that
    of the running kernel unless told otherwise. `clock` is a monotonic one, in seconds."""

    def __init__(
        self,
        root: Path,
        host: Host,
        *,
        page_size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._clock = clock
        self._batch = FIRST_BATCH_BYTES
        self.page_size = page_size or os.sysconf("SC_PAGE_SIZE")
        self._block = max(_huge_page(root), self.page_size)
        # Whichever address of a huge page is moved, all of it is. With pages of 64 KiB one has 512 MiB: it is looked
        # at as a whole then, for what moves with one batch would be found in place by the next and count for nothing.
        self._window = max(BATCH_BYTES, self._block)

    def windows(self, ranges: Iterable[Range]) -> Iterator[list[Range]]:
        """The ranges in parts, each of 64 MiB at most, or of a huge page where these are larger. None is cut in the
        middle of a huge page."""
        part: list[Range] = []
        size = 0
        for piece in self._pieces(ranges):
            if part and size + piece.bytes > self._window:
                yield part
                part, size = [], 0
            part.append(piece)
            size += piece.bytes
        if part:
            yield part

    def count(self, pid: int, window: Sequence[Range], node: int) -> Counted:
        """Where the pages of a window are. OSError as of `Host.page_nodes`."""
        statuses = self._host.page_nodes(pid, self._addresses(window))
        there = statuses.count(node)
        present = sum(map((0).__le__, statuses))
        return Counted(there * self.page_size, (present - there) * self.page_size)

    def move(
        self, pid: int, window: Sequence[Range], node: int, *, halt: Callable[[], Problem | None] = lambda: None
    ) -> Batch:
        """Moves what of a window is present on other nodes to `node`; what can't be moved is tried once. `halt` is
        asked just before every call that moves anything, since the number may be another process's by then, and says
        why there is to be no other."""
        addresses = self._addresses(window)
        try:
            before = self._host.page_nodes(pid, addresses)
        except OSError as error:
            return Batch(error=error)
        there = before.count(node) * self.page_size
        away = _elsewhere(addresses, before, node)
        tried, stopped, halted = 0, None, None
        while tried < len(away):
            part = away[tried : tried + max(self._batch // self.page_size, 1)]
            started = self._clock()
            try:
                # The rest of a huge page that went with the batch before needs no call, which costs every CPU an IPI.
                addresses = part if not tried else self._still_away(pid, part, node)
                if (halted := halt()) is not None:
                    break
                self._move(pid, addresses, node, halt)
            except OSError as error:
                stopped = error
            tried += len(part)
            if stopped is not None:
                break
            self._adapt(self._clock() - started)
        if not tried:
            return Batch(there, halt=halted)
        try:
            after = self._host.page_nodes(pid, away)
        except OSError as error:
            return Batch(there, 0, tried * self.page_size, stopped or error, halted)
        tried_nodes = after[:tried]
        left = sum(map((0).__le__, tried_nodes)) - tried_nodes.count(node)
        return Batch(there, after.count(node) * self.page_size, left * self.page_size, stopped, halted)

    def _adapt(self, seconds: float) -> None:
        if seconds > SLOW:
            self._batch = max(self._batch // 2, LEAST_BATCH_BYTES)
        elif seconds < QUICK:
            self._batch = min(self._batch * 2, BATCH_BYTES)

    def _move(self, pid: int, addresses: array[int], node: int, halt: Callable[[], Problem | None]) -> None:
        """One batch, for which `halt` was asked already. The kernel stops at what it can't move; what comes behind that
        is asked for anew."""
        while addresses:
            try:
                statuses = self._host.move_pages(pid, addresses, node)
            except OSError as error:
                if error.errno == errno.ENOENT:  # before Linux 4.17: there was nothing to move
                    return
                raise
            addresses = addresses[_resume(addresses, statuses, self._block) :]
            if addresses and halt() is not None:
                return  # whoever asks next is told the same

    def _still_away(self, pid: int, addresses: array[int], node: int) -> array[int]:
        return _elsewhere(addresses, self._host.page_nodes(pid, addresses), node)

    def _addresses(self, window: Sequence[Range]) -> array[int]:
        addresses = page_addresses(window[0].start, window[0].end, self.page_size)
        for piece in window[1:]:
            addresses.extend(range(piece.start, piece.end, self.page_size))
        return addresses

    def _pieces(self, ranges: Iterable[Range]) -> Iterator[Range]:
        for each in ranges:
            start = each.start
            while start < each.end:
                end = min((start // self._window + 1) * self._window, each.end)
                yield Range(start, end)
                start = end


def refusal(error: OSError, node: int) -> Problem:
    """Why the kernel moves no page of a process to a node."""
    said = error.strerror or errno.errorcode.get(error.errno or 0, "unknown error")
    return Problem(_REASONS.get(error.errno or 0, Reason.MIGRATION_UNSUPPORTED), f"move_pages to node {node}: {said}")


_REASONS: Final = {
    errno.ESRCH: Reason.PROCESS_GONE,
    errno.EINVAL: Reason.PROCESS_GONE,  # it has given its memory back already: it is ending
    errno.EPERM: Reason.PERMISSION_DENIED,
    errno.EACCES: Reason.OUTSIDE_MEMS_ALLOWED,
    errno.ENODEV: Reason.TARGET_HAS_NO_MEMORY,
    errno.ENOMEM: Reason.TARGET_NODE_FULL,
    errno.ENOSYS: Reason.MIGRATION_UNSUPPORTED,
}


def _elsewhere(addresses: array[int], nodes: array[int], node: int) -> array[int]:
    """The addresses of pages that are present, and not on `node`."""
    others = {each for each in set(nodes) if each >= 0 and each != node}
    return array("Q", compress(addresses, map(others.__contains__, nodes))) if others else array("Q")


def _resume(addresses: array[int], statuses: array[int], block: int) -> int:
    """Index of the first page that is worth another call: behind the first list that the kernel could not move whole.

    That list has no statuses, the page behind it has one: EBUSY where it is of the huge page that the list ends with.
    Each further page of that would be tried, and refused, by itself: all of it is passed over.
    """
    try:
        first = statuses.index(UNTRIED)
    except ValueError:
        return len(statuses)
    end = next((k for k in range(first, len(statuses)) if statuses[k] != UNTRIED), len(statuses))
    if end < len(statuses) and statuses[end] == -errno.EBUSY:
        limit = (addresses[end] // block + 1) * block
        return next(
            (k for k in range(end, len(addresses)) if not addresses[end] <= addresses[k] < limit), len(statuses)
        )
    return end


def _huge_page(root: Path) -> int:
    """Bytes of a transparent huge page; 0 where the kernel has none."""
    path = f"{join(root)}/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
    try:
        size = (read_text(path, Reason.TOPOLOGY_UNREADABLE) or "").strip()
    except Refused:
        return 0  # pages of a huge one are moved one by one then, which costs time alone
    return int(size) if re.fullmatch(r"[0-9]{1,12}", size, re.ASCII) else 0


def _damaged(path: str, line: bytes) -> Refused:
    shown = printable(line.decode("utf-8", "replace"), 80)
    return Refused(Reason.PROCESS_UNREADABLE, f"{printable(path, 120)} is damaged: {shown}")
