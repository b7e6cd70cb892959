"""What this process and its host have, as far as the agent needs it: rights, namespaces, mounts, who holds its lock.

Everything is asked without changing anything: no lock is taken, no file made.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import threading
from array import array
from collections.abc import Collection
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused, printable
from agent.node.capabilities import Capability, capabilities
from agent.node.files import join, list_folder, read_text
from agent.node.pages import PageCalls
from agent.node.storage import MARK
from agent.node.taskstats import TaskStats

_INITIAL: Final = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}
"""Inode numbers of the namespaces that a kernel starts with (linux/proc_ns.h)."""
_RELEASE: Final = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)
_FLOCK: Final = re.compile(
    r"^\d+: FLOCK +\S+ +WRITE +(-?\d{1,10}) +[0-9a-f]+:[0-9a-f]+:(\d{1,20}) ", re.MULTILINE | re.ASCII
)


def release(root: Path) -> str:
    """The kernel's release, ``6.6.0-72.oe2403``; empty where it can't be read."""
    text = read_text(f"{join(root)}/proc/sys/kernel/osrelease", Reason.TOPOLOGY_UNREADABLE) or ""
    return printable(text.strip(), 80)


def version(release: str) -> tuple[int, int]:
    """Its first two numbers; (0, 0) where it has none."""
    match = _RELEASE.match(release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def in_initial(namespace: str) -> bool | None:
    """Whether this process is in the namespace of that kind ("user", "pid") that the kernel started with; None where
    that can't be seen."""
    try:
        return os.stat(f"/proc/self/ns/{namespace}").st_ino == _INITIAL[namespace]  # noqa: PTH116
    except OSError:
        return None


def in_host_network(root: Path) -> bool | None:
    """Whether this process has the network namespace of the host's PID 1; None where that can't be seen (it takes
    CAP_SYS_PTRACE)."""
    try:
        theirs = os.stat(f"{join(root)}/proc/1/ns/net")  # noqa: PTH116
        return os.path.samestat(os.stat("/proc/self/ns/net"), theirs)  # noqa: PTH116
    except OSError:
        return None


def taskstats() -> str:
    """Why the names of threads can't be asked for by taskstats; empty where they can."""
    if TaskStats().names([threading.get_native_id()]) is not None:
        return ""
    # Asking needs the right in the user namespace that the kernel started with (GENL_ADMIN_PERM).
    if Capability.NET_ADMIN not in capabilities():
        return "CAP_NET_ADMIN is missing"
    if in_initial("user") is False:
        return "this is a user namespace of its own"
    return "the kernel does not answer: it needs CONFIG_TASKSTATS"


def unwritable(path: Path) -> str:
    """Why a file or folder can't be written; for one that is not there, why its nearest parent can't. Empty where it
    can, as far as permissions and the mount tell."""
    at = path
    while not os.path.lexists(at) and at != at.parent:
        at = at.parent
    try:
        if os.statvfs(at).f_flag & os.ST_RDONLY:
            return f"{at} is mounted read-only"
    except OSError as error:
        return f"{at}: {error.strerror}"
    if not os.access(at, os.W_OK):
        return f"{at}: {os.strerror(errno.EACCES)}"
    return "" if at == path or at.is_dir() else f"{at} is no folder"


def full(path: Path, needed: int = 1 << 20) -> bool:
    """Whether fewer than so many bytes are free where a path is, or will be."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < needed


def interrupts_unwritable(root: Path) -> str:
    """Why ``/proc/irq/N/smp_affinity_list`` can't be written; empty where it can, or where there is no interrupt."""
    folder = f"{join(root)}/proc/irq"
    try:
        numbers = [name for name in list_folder(folder, Reason.IRQ_READ_ONLY) if name.isascii() and name.isdigit()]
    except Refused as refused:
        return refused.message
    if not numbers:
        return f"{folder} lists no interrupt"
    return unwritable(Path(folder, min(numbers, key=int), "smp_affinity_list"))


def lock_holder(root: Path, path: Path) -> str:
    """Who holds the agent's lock, as its file and /proc/locks say; empty where nobody does."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return ""
    locks = read_text(f"{join(root)}/proc/locks", Reason.PROCESS_UNREADABLE) or ""
    held = [pid for pid, number in _FLOCK.findall(locks) if int(number) == inode]
    if not held:
        return ""
    text = read_text(path, Reason.STATE_UNREADABLE, limit=4096) or ""
    return printable(text.strip(), 150) if text.startswith(MARK.decode()) else f"process {held[0]}"


def unreadable(root: Path, names: Collection[str]) -> list[str]:
    """Those of the folders below a host root that are not there, or can't be listed."""
    missing = []
    for name in names:
        try:
            os.listdir(f"{join(root)}/{name}")  # noqa: PTH208
        except OSError as error:
            missing.append(f"/{name} ({error.strerror})")
    return missing


def numa_balancing(root: Path) -> bool:
    """Whether ``kernel.numa_balancing`` is on."""
    text = read_text(f"{join(root)}/proc/sys/kernel/numa_balancing", Reason.TOPOLOGY_UNREADABLE) or "0"
    return text.strip() not in ("", "0")


def pages_unmovable() -> str:
    """Why memory of processes can't be moved to another NUMA node; empty where the kernel can."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        page[0] = 1  # there is no page before it is touched
        anchor = ctypes.c_char.from_buffer(page)
        try:
            PageCalls().nodes(os.getpid(), array("Q", [ctypes.addressof(anchor)]))
        except OSError as error:
            return f"move_pages: {error.strerror}"
        finally:
            del anchor
    finally:
        page.close()
    return ""
