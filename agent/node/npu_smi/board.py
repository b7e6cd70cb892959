"""``npu-smi info -t board -i <card> [-c <chip>]``: lines ``key : value`` about one card or chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.model.reason import printable
from agent.node.npu_smi import tables
from agent.node.npu_smi.recognise import refuse_errors
from agent.node.npu_smi.tables import shown, truncated, unreadable

_TABLE: Final = "npu-smi info -t board"
_MAX_KEYS: Final = 200


@dataclass(frozen=True, slots=True)
class Board:
    npu_name: str = ""
    """``NPU Name``, such as ``9392`` on A3; A2 has none."""
    chip_name: str = ""
    """``Chip Name``, such as ``910B4``, ``Ascend910``."""
    bus_id: str = ""
    """``PCIe Bus Info`` as sysfs spells it; empty where there is none."""
    others: Mapping[str, str] = field(default_factory=dict)
    """All other keys with their values, printable."""


def parse_board(text: str) -> Board:
    """Reads the output of ``npu-smi info -t board``.

    Raises Refused: TableTruncated when the last line is cut, TableUnreadable when the text is of another form or says
    two different things under one key, the reason of the error when it is one of npu-smi's error messages.
    """
    lines = tables.lines_of(text, _TABLE)
    values: dict[str, str] = {}
    for line in filter(None, lines):
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or not key:
            refuse_errors(_TABLE, text)
            raise unreadable(f"{shown(line)!r} in {_TABLE} is no key with a value")
        key, value = printable(key, 64), printable(value)
        if values.setdefault(key, value) != value:
            raise unreadable(f"{_TABLE} has {shown(key)!r} twice")
        if len(values) > _MAX_KEYS:
            raise unreadable(f"{_TABLE} has more than {_MAX_KEYS} keys")
    if "NPU ID" not in values:
        refuse_errors(_TABLE, text)
        raise unreadable(f"{_TABLE} names no NPU") if values else truncated(f"{_TABLE} printed nothing")
    if lines[-1]:
        raise truncated(f"{_TABLE} ends in the middle: {shown(lines[-1])!r}")
    return Board(
        npu_name=values.pop("NPU Name", ""),
        chip_name=values.pop("Chip Name", ""),
        bus_id=tables.pci_address(values.pop("PCIe Bus Info", "")),
        others=values,
    )
