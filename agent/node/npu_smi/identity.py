"""Which NPU is which: npu-smi numbers one chip in up to five ways, and not every table shows the one that counts.

That one is the logical id: ``Chip Logic ID`` of ``info -m``, on Ascend 950 ``NPU ID`` (design section 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.model.node import Npu
from agent.model.reason import Reason, Refused
from agent.node.npu_smi import tables
from agent.node.npu_smi.info import Chip, DeviceRow, InfoTable
from agent.node.npu_smi.mapping import MapRow, MapTable
from agent.node.npu_smi.tables import listed
from agent.node.npu_smi.topo import TopoTable


def mismatch(message: str) -> Refused:
    return Refused(Reason.INVENTORY_MISMATCH, message)


def same_chips(one: str, its: Iterable[Chip], other: str, others: Iterable[Chip]) -> None:
    """Raises InventoryMismatch, naming the differences, unless two tables list the same chips."""
    left, right = set(its), set(others)
    only = {one: sorted(left - right), other: sorted(right - left)}
    if any(only.values()):
        parts = [f"only {table} has {_chips(chips)}" for table, chips in only.items() if chips]
        raise mismatch("; ".join(parts))


def identify(info: InfoTable, mapping: MapTable | None, topo: TopoTable | None) -> tuple[Npu, ...]:
    """The NPUs by logical id, ascending, without affinity. Empty when no table shows one.

    Without ``info -m`` (drivers that don't know it, excerpts) the ids are, in this order: ``NPU ID`` on Ascend 950;
    ``Device``, which is the logic id on the 310 family; ``Phy-ID``, which equals it on an A3 host; else the rank of
    (NPU, Chip), since the driver counts its chips in that order. Where ``info`` has no device rows either, the rows of
    the topology are the NPUs, and where there is none, the cards of the process table: there card ids count, not ranks,
    so that an NPU keeps its id while workers come and go.
    """
    if mapping is not None:
        npus = _from_mapping(info, mapping)
    elif info.devices:
        npus = _from_devices(info)
    elif topo is not None:
        npus = _from_topo(topo)
    else:
        npus = _from_processes(info)
    if (twice := tables.repeated(npu.id for npu in npus)) is not None:
        raise tables.unreadable(f"npu-smi gives two NPUs the logical id {twice}")
    return tuple(sorted(npus, key=lambda npu: npu.id))


def with_affinity(npus: tuple[Npu, ...], topo: TopoTable) -> tuple[Npu, ...]:
    """The NPUs with the affinity of their topology rows; one without a row has none.

    Rows ``Phy-IDn`` go by physical id. For ``NPUn`` drivers differ in what n is: the logical ids when they are the
    same numbers, else the cards' when each has one chip and they are the same, else (other numbers, as many) the order.
    Raises InventoryMismatch when rows can't be matched.
    """
    if not topo.has_affinity:
        return npus
    rows = _rows_of(npus, topo)
    return tuple(replace(npu, affinity=topo.rows.get(row)) for npu, row in zip(npus, rows, strict=True))


def _rows_of(npus: tuple[Npu, ...], topo: TopoTable) -> list[int]:
    """The n of the topology row of each NPU; there need not be such a row."""
    shown = set(topo.rows)
    logical = [npu.id for npu in npus]
    cards = [npu.card for npu in npus]
    if topo.by_phy_id:
        physical = [npu.device_number for npu in npus]
        if strange := shown - set(physical):
            raise _unmatched(strange, "Phy-ID")
        return physical
    if shown == set(logical):
        return logical
    if shown == set(cards) and len(shown) == len(npus):
        return cards
    if len(shown) == len(npus):
        return sorted(shown)
    if shown < set(logical) and logical == cards:  # some NPUs have no row, and the others can be read in one way only
        return logical
    raise _unmatched(shown, "NPU", f"; the logical ids are {listed(logical, 16)}")


def _unmatched(rows: set[int], label: str, more: str = "") -> Refused:
    return mismatch(f"npu-smi info -t topo has rows {label}{listed(sorted(rows), 16)} that fit no NPU{more}")


def _from_mapping(info: InfoTable, mapping: MapTable) -> list[Npu]:
    devices = {row.key: row for row in info.devices}
    phy_ids = _phy_ids(info)
    # Ascend 950 is known by its headers here: a configured device type changes no ids.
    by_card = info.npu_id_header or not mapping.has_logic_id
    npus = []
    for row in mapping.rows:
        shown = phy_ids.get(row.key)
        if None not in {shown, row.phy_id} and shown != row.phy_id:
            raise mismatch(f"Phy-ID of {_chips([row.key])} is {shown} in npu-smi info, {row.phy_id} in info -m")
        phy_id = shown if row.phy_id is None else row.phy_id
        number = row.card if by_card or row.logic_id is None else row.logic_id
        npus.append(_npu(number, row, devices.get(row.key), phy_id))
    return npus


def _npu(number: int, row: MapRow | DeviceRow, device: DeviceRow | None, phy_id: int | None) -> Npu:
    name = (device.name if device is not None else "") or row.name
    return Npu(number, row.card, row.chip, phy_id, name, device.bus_id if device is not None else "")


def _from_devices(info: InfoTable) -> list[Npu]:
    rows = sorted(info.devices, key=lambda row: row.key)
    phy_ids = _phy_ids(info)
    choices: list[list[int | None]] = [
        [row.card if info.npu_id_header else None for row in rows],
        [row.device for row in rows],
        [phy_ids.get(row.key) for row in rows],
    ]
    usable = (ids for ids in choices if None not in ids and tables.repeated(ids) is None)
    numbers = next(usable, range(len(rows)))
    return [
        _npu(number, row, row, phy_ids.get(row.key))
        for number, row in zip(numbers, rows, strict=True)
        if number is not None
    ]


def _phy_ids(info: InfoTable) -> dict[Chip, int]:
    """``Phy-ID`` of each chip; nothing when they can't be right since two chips have the same."""
    ids = {row.key: row.phy_id for row in info.devices if row.phy_id is not None}
    return ids if tables.repeated(ids.values()) is None else {}


def _from_topo(topo: TopoTable) -> list[Npu]:
    if topo.by_phy_id:
        # A3 has two chips a card, and Phy-ID = 2 * card + chip (print_npu_hccs_topo in the public driver).
        return [Npu(n, card=n // 2, chip=n % 2, phy_id=n) for n in topo.rows]
    return [Npu(n, card=n) for n in topo.rows]


def _from_processes(info: InfoTable) -> list[Npu]:
    chips = 1 + max((entry.chip for entry in info.processes), default=0)
    return [Npu(card * chips + chip, card, chip) for card in sorted(info.stated_cards) for chip in range(chips)]


def _chips(chips: list[Chip]) -> str:
    return listed(f"NPU {card} chip {chip}" for card, chip in chips)
