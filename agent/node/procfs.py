"""Processes and threads, from /proc. See proc(5) and the kernel's Documentation/filesystems/proc.rst.

A process may end between any two reads. That is never an error here: what is gone reads as None, or as empty.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused, printable
from agent.model.workload import ProcessId
from agent.node.devices import device_number
from agent.node.files import (
    ABSENT,
    DENIED,
    join,
    list_folder,
    numbered_devices,
    read_bytes,
    read_text,
    refusal,
)
from agent.node.statx import character_device

PF_KTHREAD: Final = 0x00200000
"""Flag of a kernel thread in field 9 of /proc/<pid>/stat (include/linux/sched.h; unchanged since 2.6)."""

_BOOT_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

_DIGITS: Final = 20
"""Of a number of 64 bits."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/<pid>/stat says, as far as it is needed."""

    pid: int
    ppid: int
    start_time: int
    """Clock ticks after boot. With the pid it identifies a process within a boot."""
    comm: str
    """Any characters, parentheses and newlines too; bytes that are no UTF-8 are lone surrogates."""
    flags: int
    """PF_* of the kernel."""

    @property
    def kernel_thread(self) -> bool:
        return bool(self.flags & PF_KTHREAD)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What /proc/<pid>/status says, as far as it is needed. None where a line is missing."""

    cpus_allowed: CpuSet | None = None
    """The thread's mask; never a base for planning (design 4.1)."""
    mems_allowed: CpuSet | None = None
    """NUMA node ids, in the form of a CPU list."""
    uid: int | None = None
    """The real user id, in the reader's user namespace."""
    nspid: tuple[int, ...] = ()
    """Its pid in each PID namespace, outermost first."""


class ProcFs:
    """The processes below a host's root folder."""

    def __init__(self, root: Path) -> None:
        self.folder = self._proc = f"{join(root)}/proc"

    def pids(self) -> list[int]:
        """Every process, ascending. Refused(ProcessUnreadable) where /proc is there and cannot be listed."""
        return _numbers(list_folder(self._proc, Reason.PROCESS_UNREADABLE))

    def youngest(self) -> int:
        """Start time of the youngest process, in clock ticks after boot; a time to come where none can be read."""
        times = []
        with contextlib.suppress(Refused):
            for pid in self.pids():
                with contextlib.suppress(Refused):
                    if (stat := self.stat(pid)) is not None:
                        times.append(stat.start_time)
        return max(times, default=sys.maxsize)

    def thread_ids(self, pid: int) -> list[int]:
        """The threads of a process, ascending; empty when it is gone."""
        return _numbers(list_folder(f"{self._proc}/{pid}/task", Reason.PROCESS_UNREADABLE))

    def stat(self, pid: int, tid: int | None = None) -> ProcessStat | None:
        """A process, or one of its threads. None when it is gone; Refused(ProcessUnreadable) when damaged."""
        path = f"{self._task(pid, tid)}/stat"
        content = read_bytes(path, Reason.PROCESS_UNREADABLE)
        return parse_stat_bytes(content, path) if content else None

    def has_thread(self, process: ProcessId, tid: int) -> bool:
        """Whether that very process has this thread now. False too where neither can be looked at."""
        try:
            stat = self.stat(process.pid)
        except Refused:
            return False
        if stat is None or stat.start_time != process.start_time:
            return False
        return tid == process.pid or os.access(f"{self._proc}/{process.pid}/task/{tid}", os.F_OK)

    def comm(self, pid: int, tid: int | None = None) -> bytes | None:
        """The name of a process or thread: any bytes but NUL, without the newline that the kernel adds. None when gone.

        At most 15 bytes; kernel threads have up to 63 since Linux 5.17.
        """
        name = read_bytes(f"{self._task(pid, tid)}/comm", Reason.PROCESS_UNREADABLE)
        return None if name is None else name.removesuffix(b"\n")

    def status(self, pid: int, tid: int | None = None) -> ProcessStatus | None:
        """A process, or one of its threads. None when it is gone; Refused(ProcessUnreadable) when damaged."""
        path = f"{self._task(pid, tid)}/status"
        text = read_text(path, Reason.PROCESS_UNREADABLE)
        return parse_status(text, path) if text else None

    def open_devices(self, pid: int) -> frozenset[tuple[int, int]]:
        """(major, minor) of the character devices that a process holds open; as `device_files`."""
        return frozenset(self.device_files(pid).values())

    def device_files(self, pid: int) -> dict[int, tuple[int, int]]:
        """fd -> (major, minor) of the character devices that a process holds open; empty when it is gone.

        By the device number of what is open, never by the link's text: that is the path its opener used, and a node
        made by mknod under the name of another reads alike. In a recorded tree ``fd`` is one file of lines
        ``fd major:minor``.
        Refused(PermissionDenied) without the right to look (CAP_SYS_PTRACE), Refused(ProcessUnreadable) otherwise.
        """
        folder = f"{self._proc}/{pid}/fd"
        try:
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            text = read_text(folder, Reason.PROCESS_UNREADABLE) or ""
            return dict(numbered_devices(text, folder, Reason.PROCESS_UNREADABLE))
        except OSError as error:
            if error.errno in ABSENT:
                return {}
            denied = error.errno in DENIED
            raise refusal(Reason.PERMISSION_DENIED if denied else Reason.PROCESS_UNREADABLE, folder, error) from error
        try:
            return {fd: device for fd in _numbers(os.listdir(at)) if (device := _open_device(str(fd), at))}  # noqa: PTH208
        except OSError as error:
            if error.errno in ABSENT:
                return {}
            raise refusal(Reason.PERMISSION_DENIED, folder, error) from error
        finally:
            os.close(at)

    def root_devices(self, pid: int, davinci: Mapping[int, tuple[int, int]]) -> frozenset[int] | None:
        """Which of the host's davinci devices exist in the process's own /dev, by device number.

        `davinci` is what `read_davinci` returned. Only entries of /dev itself count, and no link is followed: that
        folder belongs to the container. In a recorded tree ``root/dev/davinci`` is a file of lines ``N major:minor``.
        None where this cannot be seen, which includes a process that is gone.
        """
        folder = f"{self._proc}/{pid}/root"
        try:
            # On a live host `root` is a link made by the kernel. Only elsewhere may a file be taken for a record:
            # a container can put any file into its own /dev.
            numbers = _live_devices(folder) if os.path.islink(folder) else _recorded_devices(f"{folder}/dev/davinci")  # noqa: PTH114
        except OSError:
            return None
        return None if numbers is None else frozenset(n for n, number in davinci.items() if number in numbers)

    def _task(self, pid: int, tid: int | None) -> str:
        return f"{self._proc}/{pid}" if tid is None else f"{self._proc}/{pid}/task/{tid}"


def boot_id(root: Path, *, recorded: bool = False) -> str:
    """The id of this boot (proc/sys/kernel/random/boot_id), a UUID.

    Refused(ProcessUnreadable) where there is none: what is noted under another id is not of this boot, and would never
    be given back. A `recorded` host may lack it; then it is empty.
    """
    path = f"{join(root)}/proc/sys/kernel/random/boot_id"
    text = (read_text(path, Reason.PROCESS_UNREADABLE) or "").strip()
    if recorded or _BOOT_ID.fullmatch(text):
        return text
    raise Refused(Reason.PROCESS_UNREADABLE, f"{printable(path, 150)}: {printable(text, 60)!r} is no id of a boot")


def parse_stat(text: str, path: str = "stat") -> ProcessStat:
    """As `parse_stat_bytes`, of text that was decoded as `read_text` does."""
    return parse_stat_bytes(text.encode("utf-8", "surrogateescape"), path)


def parse_stat_bytes(content: bytes, path: str = "stat") -> ProcessStat:
    """Reads /proc/<pid>/stat. Refused(ProcessUnreadable), naming `path`, when it is damaged."""
    # This is most of what a look at the process table costs: no text but the name, no field that is not needed.
    # comm may hold parentheses and blanks; what follows it is numbers and one letter, so the last ")" ends it.
    end, start = content.rfind(b")"), content.find(b"(")
    # Field n of proc(5) is fields[n - 3]: pid and comm are gone.
    fields = content[end + 1 :].split(None, 22 - 3 + 1)
    try:
        numbers = (content[:start].strip() if 0 < start < end else b"", fields[4 - 3], fields[22 - 3], fields[9 - 3])
        pid, ppid, start_time, flags = map(int, numbers)
    except (ValueError, IndexError):
        raise _damaged_stat(content, path) from None
    # int() takes signs, blanks and underscores as well.
    if not all(map(bytes.isdigit, numbers)) or max(map(len, numbers)) > _DIGITS:
        raise _damaged_stat(content, path)
    comm = content[start + 1 : end]
    return ProcessStat(pid, ppid, start_time, comm.decode("utf-8", "surrogateescape"), flags)


def _damaged_stat(content: bytes, path: str) -> Refused:
    text = content.decode("utf-8", "surrogateescape")
    return Refused(Reason.PROCESS_UNREADABLE, f"{printable(path, 120)} is damaged: {printable(text, 80)}")


def parse_status(text: str, path: str = "status") -> ProcessStatus:
    """Reads /proc/<pid>/status. Refused(ProcessUnreadable), naming `path`, when a line that is needed is damaged."""
    lines = dict(line.partition(":")[::2] for line in text.split("\n"))
    try:
        return ProcessStatus(
            cpus_allowed=_cpu_list(lines.get("Cpus_allowed_list")),
            mems_allowed=_cpu_list(lines.get("Mems_allowed_list")),
            uid=_number(lines["Uid"].split()[0]) if "Uid" in lines else None,
            nspid=tuple(_number(part) for part in lines.get("NSpid", "").split()),
        )
    except (ValueError, IndexError) as error:
        raise Refused(Reason.PROCESS_UNREADABLE, f"{printable(path, 120)} is damaged: {error}") from None


def _cpu_list(text: str | None) -> CpuSet | None:
    return None if text is None else CpuSet.parse(text)


def _number(text: str) -> int:
    """Decimal digits, at most 20 (64 bits); ValueError otherwise, blanks, signs and underscores included."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise ValueError(f"{printable(text, 30)!r} is no number")
    return int(text)


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 10)


def _open_device(name: str, at: int) -> tuple[int, int] | None:
    """The character device behind an entry of /proc/<pid>/fd; PermissionError without the right to look."""
    try:
        return character_device(name, at)
    except PermissionError:
        # FUSE refuses everyone but the user who mounted it, root included. Reading the link asks for the same right to
        # look at the process and nothing of the file: where that works it was only the file.
        with contextlib.suppress(FileNotFoundError):
            os.readlink(name, dir_fd=at)
        return None


def _live_devices(root: str) -> set[tuple[int, int]]:
    """Numbers of the character devices in dev below /proc/<pid>/root; OSError when it can't be seen."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        # A container may have made its /dev a link, which would lead on from *our* root.
        dev = os.open("dev", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=top)
    finally:
        os.close(top)
    try:
        return {number for name in os.listdir(dev) if (number := device_number(name, dev))}  # noqa: PTH208
    finally:
        os.close(dev)


def _recorded_devices(path: str) -> set[tuple[int, int]] | None:
    text = read_text(path, Reason.PROCESS_UNREADABLE)
    return None if text is None else {n for _, n in numbered_devices(text, path, Reason.PROCESS_UNREADABLE)}
