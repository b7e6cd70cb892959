"""Which NPUs a process works on (design section 5): npu-smi's process table first, open device files for the rest.

Never a rank and never an environment variable: both are the container's own numbering and can be forged or stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.model.node import Inventory, ProcessTable

RESIDUAL_LIMIT_MIB = 1024
"""A context above this is work, however large another one of the process is."""
RESIDUAL_RATIO = 4
"""The NPU that a process works on holds at least this many times its next largest context."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """The NPUs of one process, ascending."""

    npus: tuple[int, ...]
    residual: tuple[int, ...] = ()
    """NPUs that only carry a leftover context: every tensor-parallel rank keeps about 100 MB on NPU 0."""
    by_row: bool = True
    """From the process table; False where open device files had to do, which change while a worker starts."""


def attribute(
    table: ProcessTable, opened: Mapping[int, Iterable[int]], known: Mapping[int, Attribution] | None = None
) -> dict[int, Attribution]:
    """Attribution by pid.

    `opened`: pid -> logical NPUs whose device file it holds open; used where it has no row. `known`: what was found
    before, of processes that still live; it stands where nothing speaks against it, since npu-smi prints eight rows a
    chip and loses others, and absence never acts on the host.
    """
    known = known or {}
    memory: dict[int, dict[int, int]] = {}
    for row in table.rows:
        of_pid = memory.setdefault(row.pid, {})
        of_pid[row.npu] = of_pid.get(row.npu, 0) + (row.memory_mib or 0)
    found = {}
    for pid, of_pid in memory.items():
        before = known.get(pid)
        # The row on its own NPU is the one that was lost when nothing but known leftovers remain.
        only_leftovers = before and of_pid.keys() <= set(before.residual) and max(of_pid.values()) <= RESIDUAL_LIMIT_MIB
        found[pid] = before if before and only_leftovers else _from_rows(of_pid)
    for pid, npus in opened.items():
        before = known.get(pid)
        if pid not in found and not (before and before.by_row) and (ids := tuple(sorted(set(npus)))):
            found[pid] = Attribution(ids, by_row=False)
    return dict(known) | found


def npus_of_devices(inventory: Inventory, numbers: Iterable[int]) -> frozenset[int]:
    """Logical ids of the NPUs whose /dev/davinciN has one of these N."""
    wanted = set(numbers)
    return frozenset(npu.id for npu in inventory.npus if npu.device_number in wanted)


def npus_of_device_ids(inventory: Inventory, device_ids: Iterable[str]) -> frozenset[int] | None:
    """Logical ids for device ids of the Ascend device plugin, which end in the physical id: ``Ascend910-3``.

    None when one of them is of another form (a virtual NPU of another plugin, say): then nothing is known.
    """
    numbers = set()
    for device_id in device_ids:
        _, dash, number = device_id.rpartition("-")
        # int() refuses thousands of digits.
        if not dash or not (number.isascii() and number.isdigit() and len(number) <= 10):
            return None
        numbers.add(int(number))
    return npus_of_devices(inventory, numbers) or None


def _from_rows(memory: Mapping[int, int]) -> Attribution:
    if len(memory) == 1:
        return Attribution(tuple(memory))
    (largest, most), *others = sorted(memory.items(), key=lambda item: (-item[1], item[0]))
    rest = [mib for _, mib in others]
    if most > 0 and most >= RESIDUAL_RATIO * rest[0] and rest[0] <= RESIDUAL_LIMIT_MIB:
        return Attribution((largest,), tuple(sorted(npu for npu, _ in others)))
    return Attribution(tuple(sorted(memory)))
