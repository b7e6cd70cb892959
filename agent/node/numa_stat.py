"""On which NUMA nodes the memory of a cgroup is: ``memory.numa_stat``.

Kernel documentation: admin-guide/cgroup-v2.rst, and admin-guide/cgroup-v1/memory.rst (5.6, numa_stat). The kernel adds
up counters that it keeps: unlike ``numa_maps`` that takes no lock of any process and costs the same for any size.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from agent.model.reason import Reason, Refused
from agent.node.cgroup_paths import resolve
from agent.node.files import join, read_text

_LINES: Final = {
    "v2": re.compile(r"^anon (.*)$", re.MULTILINE),
    "v1": re.compile(r"^hierarchical_anon=\d+ (.*)$", re.MULTILINE),
}
"""What v2 shows of a cgroup has that of those below in it; v1 has lines of its own for that (since Linux 3.18)."""
_NODE: Final = re.compile(r"N(\d{1,5})=(\d{1,20})", re.ASCII)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def anonymous_memory(root: Path, path: str) -> dict[int, int] | None:
    """NUMA node -> bytes of anonymous memory that the processes of a cgroup, and those below, have there.

    `path` is as `CgroupTree.path` gives it. None where that can't be told: there is no memory controller, or no such
    cgroup, or its path is not known whole.
    """
    parts, lost = resolve(path)
    if lost:
        return None
    for form, mount in _mounts(root):
        try:
            text = read_text(f"{mount}/{'/'.join([*parts, 'memory.numa_stat'])}", Reason.PROCESS_UNREADABLE)
        except Refused:
            return None
        if text is not None:
            return parse_numa_stat(text, form)
    return None


def parse_numa_stat(text: str, form: str) -> dict[int, int] | None:
    """`form` is ``v1``, whose figures are in pages, or ``v2``, whose are in bytes."""
    line = _LINES[form].search(text)
    if line is None:
        return None
    return {int(node): int(figure) * (_PAGE if form == "v1" else 1) for node, figure in _NODE.findall(line[1])}


def _mounts(root: Path) -> list[tuple[str, str]]:
    """Where the memory controller may be: v1 by its name, beside v2 or not, and v2 as the whole tree."""
    top = f"{join(root)}/sys/fs/cgroup"
    return [("v1", f"{top}/memory"), ("v2", top)]
