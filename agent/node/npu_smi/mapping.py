"""``npu-smi info -m``: which card and chip has which ids.

Columns by device family (print_mapping_info, _910_93 and _950 in the public driver)::

    NPU ID   Chip ID   Chip Logic ID   Chip Name                 910, 910B, 310P
    NPU ID   Chip ID   Chip Logic ID   Chip Phy-ID   Chip Name   A3
    NPU ID   Slot ID   Chip ID   Chip Phy-ID   Chip Name         Ascend 950

The table has no end mark: one that is cut behind a row cannot be told from a shorter one by itself. The inventory
compares it with ``npu-smi info`` and with /dev/davinciN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.model.reason import printable
from agent.node.npu_smi import tables
from agent.node.npu_smi.recognise import refuse_errors
from agent.node.npu_smi.tables import shown, truncated, unreadable

_TABLE: Final = "npu-smi info -m"
_COLUMNS: Final = re.compile(r"NPU ID|Slot ID|Chip Logic ID|Chip Phy-ID|Chip ID|Chip Name")
_GAP: Final = re.compile(r"\s{2,}|\t")
_NAME: Final = "Chip Name"
_NOT_NPUS: Final = frozenset({"mcu", "3559"})  # the card's controller, and the camera CPU of some boards


@dataclass(frozen=True, slots=True)
class MapRow:
    """A chip. The card's controller (``Mcu``) is none and has no row here."""

    card: int
    chip: int
    logic_id: int | None
    phy_id: int | None
    slot: int | None
    name: str
    """Such as ``Ascend 910B3``; may be masked or empty."""

    @property
    def key(self) -> tuple[int, int]:
        return self.card, self.chip


@dataclass(frozen=True, slots=True)
class MapTable:
    rows: tuple[MapRow, ...]
    """In the order printed; at least one."""
    has_logic_id: bool
    """``Chip Logic ID`` is a column; each row has one then."""
    has_phy_id: bool
    """``Chip Phy-ID`` is a column."""


def parse_mapping(text: str) -> MapTable:
    """Reads the output of ``npu-smi info -m``.

    Raises Refused: TableTruncated, TableUnreadable, or the reason of the error when it is one of npu-smi's error
    messages (NoNpus for "There is no NPU card on this server.").
    """
    lines = tables.lines_of(text, _TABLE)
    start = next((i for i, line in enumerate(lines) if line.startswith("NPU ID")), None)
    if start is None:
        refuse_errors(_TABLE, text)
        raise unreadable(f"{_TABLE} has no header") if text.strip() else truncated(f"{_TABLE} printed nothing")
    if lines[-1]:
        raise truncated(f"{_TABLE} ends in the middle: {shown(lines[-1])!r}")
    columns = _columns(lines[start])
    found = [_row(columns, line) for line in lines[start + 1 :] if line]
    rows = tuple(row for row in found if row is not None)
    if not rows:
        raise truncated(f"{_TABLE} ends behind its header")
    _check_unique(rows)
    return MapTable(rows, "Chip Logic ID" in columns, "Chip Phy-ID" in columns)


def _columns(header: str) -> list[str]:
    """The names of the columns; columns of other names are counted and skipped, as long as gaps tell them apart."""
    known: list[str] = _COLUMNS.findall(header)
    columns = _GAP.split(header) if _COLUMNS.sub("", header).strip() else known
    if tables.repeated(columns) is not None or columns[-1] != _NAME or not {"NPU ID", "Chip ID"} <= set(columns):
        raise unreadable(f"{_TABLE} has an unknown header: {shown(header)!r}")
    return columns


def _row(columns: list[str], line: str) -> MapRow | None:
    """None for a row that is no NPU."""
    if tables.elided(line):
        raise truncated(f"{_TABLE} leaves rows out")
    cells = line.split(None, len(columns) - 1)  # the name comes last and may hold blanks
    if len(cells) < len(columns) - 1:
        raise unreadable(f"a row of {_TABLE} has too few columns: {shown(line)!r}")
    values = dict(zip(columns, cells, strict=False))
    name = printable(values.get(_NAME, ""), 64)
    card, chip = (tables.number(values[column], _TABLE, column) for column in ("NPU ID", "Chip ID"))
    if name.lower() in _NOT_NPUS or values.get("Chip Logic ID") == "-":
        return None
    logic_id = tables.number(values["Chip Logic ID"], _TABLE, "Chip Logic ID") if "Chip Logic ID" in values else None
    phy_id = tables.optional_number(values.get("Chip Phy-ID", ""), _TABLE, "Chip Phy-ID")
    slot = values.get("Slot ID", "")
    # A slot is shown to people only, and -1 where the board has none.
    return MapRow(card, chip, logic_id, phy_id, int(slot) if slot.isascii() and slot.isdigit() else None, name)


def _check_unique(rows: tuple[MapRow, ...]) -> None:
    ids: dict[str, Sequence[object]] = {
        "(NPU ID, Chip ID)": [row.key for row in rows],
        "Chip Logic ID": [row.logic_id for row in rows if row.logic_id is not None],
        "Chip Phy-ID": [row.phy_id for row in rows if row.phy_id is not None],
    }
    for column, values in ids.items():
        if (twice := tables.repeated(values)) is not None:
            raise unreadable(f"{_TABLE} has {column} {twice} twice")
