"""Which family of devices a node has (design section 4.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from agent.model.node import DeviceType, Npu
from agent.model.reason import Problem, Reason, Refused
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.info import InfoTable
from agent.node.npu_smi.mapping import MapTable
from agent.node.npu_smi.tables import listed, shown

# "910B3", "Ascend 910B4", "Ascend910B2C"; "310P3"; "Ascend910_9392", and 9392 alone as ``NPU Name`` of a board.
_NAMES: Final = (
    (re.compile(r"910B(?![A-Za-z])"), DeviceType.A2),
    (re.compile(r"310P(?![A-Za-z])"), DeviceType.ATLAS_300I),
    (re.compile(r"(?:^|910_)93[0-9]{2}$", re.ASCII), DeviceType.A3),
    (re.compile(r"Ascend ?950"), DeviceType.ASCEND_950),
)


def detect(npu_smi: NpuSmi, info: InfoTable, mapping: MapTable | None, npu: Npu) -> tuple[DeviceType, list[Problem]]:
    """The device type, with a note UnknownDevice where nothing tells it.

    Headers decide before names do, since A3 calls its chips ``Ascend910`` as 910A does, and names are masked at times.
    The board of `npu` is asked for only when neither decides.
    """
    if info.phy_id_header or (mapping is not None and mapping.has_logic_id and mapping.has_phy_id):
        return DeviceType.A3, []
    if info.npu_id_header or (mapping is not None and not mapping.has_logic_id):
        return DeviceType.ASCEND_950, []
    names = sorted({row.name for row in info.devices} | {row.name for row in (mapping.rows if mapping else ())} - {""})
    if (by_name := _by_names(names)) is not None:
        return by_name, []
    try:
        board = parse_board(npu_smi.query("info", "-t", "board", "-i", str(npu.card), "-c", str(npu.chip)))
    except Refused as refused:
        why = f"its board: {refused.reason}"
    else:
        by_board = _by_names(name for name in (board.npu_name, board.chip_name) if name)
        if by_board is not None:
            return by_board, []
        why = f"its board says {shown(board.chip_name or board.npu_name, 40)!r}"
    text = f"NPUs named {shown(listed(names, 3), 60)!r}; {why}"
    return DeviceType.UNKNOWN, [Problem(Reason.UNKNOWN_DEVICE, text)]


def _by_names(names: Iterable[str]) -> DeviceType | None:
    """The one type that the names stand for; None when they stand for none or for several."""
    found = {kind for name in names for text, kind in _NAMES if text.search(name)}
    return found.pop() if len(found) == 1 else None
