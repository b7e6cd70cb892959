"""The NPUs of a node, put together from npu-smi's tables, and who runs on them.

Three tables are read, a fourth where the device type is not clear from them. Each may be cut, each numbers NPUs in its
own way, and each is missing on some driver or device. What is put together here is either the whole inventory or
Refused: a plan that was made for half of the NPUs would move every worker (design section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.model.node import DeviceType, Inventory, Npu, ProcessRow, ProcessTable
from agent.model.reason import Problem, Reason, Refused
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.detect import detect
from agent.node.npu_smi.identity import identify, mismatch, same_chips, with_affinity
from agent.node.npu_smi.info import InfoTable, parse_info
from agent.node.npu_smi.mapping import MapTable, parse_mapping
from agent.node.npu_smi.tables import listed
from agent.node.npu_smi.topo import TopoTable, parse_topo

DeviceNumber = tuple[int, int]
"""(major, minor) of a device node."""


@dataclass(frozen=True, slots=True)
class InventoryReading:
    """What npu-smi said of a node, all of it read at one time."""

    inventory: Inventory
    processes: ProcessTable
    """By logical NPU id."""
    notes: tuple[Problem, ...] = ()
    """What is missing and can be done without: ProcessTableIncomplete, UnknownDevice, or why there is no affinity."""
    driver_version: str = ""
    """``Version:`` of the banner of ``info``; empty where there is none."""


def needs_affinity(device_type: DeviceType) -> bool:
    """Whether the strategy of a device type starts from ``CPU Affinity``: all but A3's does (design 4.2)."""
    return device_type is not DeviceType.A3


def read_inventory(
    npu_smi: NpuSmi,
    davinci: Mapping[int, DeviceNumber],
    *,
    override: DeviceType | None = None,
    needs_affinity: Callable[[DeviceType], bool] = needs_affinity,
) -> InventoryReading:
    """Reads ``info``, ``info -m``, ``info -t topo`` and, if need be, the board of the first NPU.

    `davinci` are the host's own /dev/davinciN, N to device number; empty where they are not known. `override` is the
    device type that somebody configured. `needs_affinity` says whether a device type's NPUs can be placed without
    affinity: where they can't, a topology table that can't be had or read is refused, else it becomes a note.

    Raises Refused: NoNpus, InventoryIncomplete (fewer NPUs than /dev/davinciN), InventoryMismatch (two tables disagree
    on which NPUs there are), and whatever the queries and their tables are refused with.
    """
    info = parse_info(npu_smi.query("info"))
    mapping = _mapping(npu_smi, info)
    topo = _topo(npu_smi)
    npus = identify(info, mapping, topo if isinstance(topo, TopoTable) else None)
    _check_count(npus, davinci)
    device_type, notes = (override, []) if override is not None else detect(npu_smi, info, mapping, npus[0])
    try:
        if isinstance(topo, Refused):
            raise topo
        if topo is not None:
            npus = with_affinity(npus, topo)
    except Refused as refused:
        if needs_affinity(device_type):
            raise
        notes.append(refused.problem)
    inventory = Inventory(npus, device_type)
    processes, more = processes_of(info, inventory)
    return InventoryReading(inventory, processes, (*notes, *more), info.version)


def _mapping(npu_smi: NpuSmi, info: InfoTable) -> MapTable | None:
    """``info -m``, None where this driver does not know it.

    Any other failure is refused: the ids that would stand in could be others than those of the reading before.
    """
    try:
        mapping = parse_mapping(npu_smi.query("info", "-m"))
    except Refused as refused:
        if refused.reason is Reason.NOT_SUPPORTED:
            return None
        if refused.reason is Reason.NO_NPUS and info.devices:
            raise mismatch(f"npu-smi info has {len(info.devices)} NPUs, info -m says that there is none") from None
        raise
    if info.has_devices:
        same_chips("npu-smi info", (row.key for row in info.devices), "info -m", (row.key for row in mapping.rows))
    return mapping


def _topo(npu_smi: NpuSmi) -> TopoTable | Refused | None:
    """``info -t topo``; None where this device does not know it, why not where it can't be had."""
    try:
        return parse_topo(npu_smi.query("info", "-t", "topo"))
    except Refused as refused:
        return None if refused.reason is Reason.NOT_SUPPORTED else refused


def _check_count(npus: tuple[Npu, ...], davinci: Mapping[int, DeviceNumber]) -> None:
    if len(npus) < len(davinci):
        missing = sorted(set(davinci) - {npu.device_number for npu in npus})
        text = f"npu-smi shows {len(npus)} NPUs, the host has {len(davinci)} /dev/davinciN"
        raise Refused(
            Reason.INVENTORY_INCOMPLETE, f"{text}; without an NPU: {listed(missing, 16)}" if missing else text
        )
    if not npus:
        raise Refused(Reason.NO_NPUS, "npu-smi shows no NPU")


def read_processes(npu_smi: NpuSmi, inventory: Inventory) -> tuple[ProcessTable, tuple[Problem, ...]]:
    """Reads ``info`` alone, for an inventory that is known, and returns the processes with notes.

    NPUs of the inventory that are marked missing are taken as such. Raises Refused: InventoryMismatch when the table
    lists other NPUs, and whatever the query and the table are refused with.
    """
    return processes_of(parse_info(npu_smi.query("info")), inventory)


def processes_of(info: InfoTable, inventory: Inventory) -> tuple[ProcessTable, tuple[Problem, ...]]:
    """As `read_processes`, for a table that was read already."""
    npus = {(npu.card, npu.chip): npu for npu in inventory.npus if not npu.missing}
    if info.has_devices:
        same_chips("npu-smi info", (row.key for row in info.devices), "the inventory", npus)
        for row in info.devices:
            if row.bus_id and npus[row.key].bus_id not in {"", row.bus_id}:
                raise mismatch(f"NPU {row.card} chip {row.chip} is at {row.bus_id} and was at {npus[row.key].bus_id}")
    strange = sorted(info.stated_cards - {card for card, _ in npus})
    if strange or any((entry.card, entry.chip) not in npus for entry in info.processes):
        where = f"NPU {strange[0]}" if strange else "a chip"
        raise mismatch(f"the process table of npu-smi info has {where} that the inventory has not")
    rows = tuple(
        ProcessRow(npus[entry.card, entry.chip].id, entry.pid, entry.memory_mib, entry.name) for entry in info.processes
    )
    stated = frozenset(npu.id for (card, chip), npu in npus.items() if info.states(card, chip))
    unstated = sorted(npu.id for npu in npus.values() if npu.id not in stated)
    if not unstated:
        return ProcessTable(rows, stated), ()
    text = f"npu-smi info does not say what runs on NPUs {listed(unstated, 16)}"
    return ProcessTable(rows, stated), (Problem(Reason.PROCESS_TABLE_INCOMPLETE, text),)
