"""``npu-smi info``: the device table and, below it, the process table.

A device is two lines, the card's and the chip's; on Ascend 950 the second has no ids. Below the device table each card
has either a row per process or the line ``No running processes found in NPU n``, then a border. What the header lines
say decides what the columns are: they differ by device family, driver version and build (npu_info_print.c).

Process names are printed as they are and may look like anything; `rows.fold` tells rows from them.

Half a table is never taken for a whole one. It is refused wherever that can be seen; where the cut falls exactly behind
a border, the rows before it are read and `InfoTable.whole` is false, unless the cut part is the process table of a
device family that may have none: only a comparison with other tables finds that (see inventory.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from agent.model.reason import printable
from agent.node.npu_smi import tables
from agent.node.npu_smi.recognise import refuse_errors
from agent.node.npu_smi.rows import BORDER, MEMORY, PROCESS_ID, Line, fold
from agent.node.npu_smi.tables import shown, truncated, unreadable

_TABLE: Final = "npu-smi info"
_BANNER: Final = re.compile(r"npu-smi\s.*\bVersion:\s*(\S*)")
_IDLE: Final = re.compile(r"No running processes found in NPU\s+(\S+)")
_UNIT: Final = re.compile(r"Process memory\s*\((\w+)\)")
_UNITS: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20}  # 23.0.rc1 has "(B)", later versions "(MB)"
_MIB: Final = 1 << 20
_PID: Final = re.compile(r"[0-9]{1,7}", re.ASCII)
_MAX_PID: Final = 1 << 22  # PID_MAX_LIMIT of 64-bit kernels
_NAME_LENGTH: Final = 64

Chip = tuple[int, int]
"""(card, chip): ``NPU`` or ``NPU ID``, and ``Chip``; the chip is 0 on Ascend 950, which shows none."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A chip of the device table."""

    card: int
    chip: int
    name: str
    """Such as ``910B3``, ``Ascend910``, ``310P3``; masked or empty at times."""
    health: str
    """``OK``, ``Warning``, ``Alarm``, ``Critical``, ``UNKNOWN``."""
    bus_id: str
    """PCI address in lower case; empty where npu-smi prints NA."""
    phy_id: int | None = None
    """``Phy-ID``, which A3 shows."""
    device: int | None = None
    """``Device``, which the 310 family shows: its logic id (dcmi_get_device_logic_id)."""

    @property
    def key(self) -> Chip:
        return self.card, self.chip


@dataclass(frozen=True, slots=True)
class ChipProcess:
    """A row of the process table."""

    card: int
    chip: int
    pid: int
    """``Process id``: in the PID namespace of the host, whatever npu-smi runs in."""
    name: str
    """Printable. Empty where npu-smi could not resolve the pid; cut to 15 characters or a path as long as it likes."""
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class InfoTable:
    """What ``npu-smi info`` said."""

    devices: tuple[DeviceRow, ...] = ()
    """In the order printed."""
    processes: tuple[ChipProcess, ...] = ()
    has_devices: bool = False
    """The header of the device table was there."""
    has_processes: bool = False
    """The header of the process table was there. The 310 family has one on some boards only."""
    stated_cards: frozenset[int] = frozenset()
    """Cards of which the process table says what runs there."""
    unclear: frozenset[Chip] = frozenset()
    """Chips of stated cards of which it is not sure what else runs there: a pid is not shown, or a name broke a row."""
    npu_id_header: bool = False
    """``NPU ID`` in place of ``NPU`` and ``Chip``: Ascend 950."""
    phy_id_header: bool = False
    """``Phy-ID`` beside ``Chip``: A3."""
    version: str = ""
    """``Version:`` of the banner: the driver's. Empty without a banner."""

    def states(self, card: int, chip: int) -> bool:
        """Whether the table says what runs on a chip, be it nothing.

        ``No running processes`` speaks for a whole card, and npu-smi prints the rows of a card's chips in one go
        (print_proc_total_info_with_HBM), so that a card with a row for one chip states its other chips as idle.
        """
        return card in self.stated_cards and (card, chip) not in self.unclear

    @property
    def whole(self) -> bool:
        """Every chip of the device table is there and stated: nothing can have been cut off."""
        return bool(self.devices) and all(self.states(row.card, row.chip) for row in self.devices)


def parse_info(text: str) -> InfoTable:
    """Reads the output of ``npu-smi info``.

    An output with the device table alone or the process table alone is read for what it has. Raises Refused:
    TableTruncated when the output is cut or rows are left out, TableUnreadable when it is of no known form, the reason
    of the error when it is one of npu-smi's error messages.
    """
    reader = _Reader()
    for line in _table_lines(text):
        if line.text[0] == "+":
            reader.border(line.text)
        else:
            reader.row(line)
    return reader.result()


def _table_lines(text: str) -> list[Line]:
    """The lines from the first to the last one that belong to a table, checked for an end that is no cut."""
    lines = fold(tables.lines_of(text, _TABLE))
    if any(tables.elided(line.text) for line in lines):
        raise truncated(f"{_TABLE} leaves rows out")
    places = [i for i, line in enumerate(lines) if line.text.startswith(("|", "+"))]
    if not places:
        refuse_errors(_TABLE, text)
        raise unreadable(f"{_TABLE} holds no table") if text.strip() else truncated(f"{_TABLE} printed nothing")
    first, last = places[0], places[-1]
    if last == len(lines) - 1 or lines[last].text[0] != "+":
        raise truncated(f"{_TABLE} ends in the middle: {shown(lines[last].text)!r}")
    found = [line for line in lines[first : last + 1] if line.text]
    for line in found:
        text = line.text
        if text[0] == "+":
            if BORDER.fullmatch(text) is None or not line.in_columns:
                raise unreadable(f"{shown(text)!r} in {_TABLE} is no border")
        elif text[0] != "|" or (not line.more and (len(text) < 2 or text[-1] != "|")):
            raise unreadable(f"{shown(text)!r} in {_TABLE} is no row")
    return found


class _Reader:
    """Goes through the tables line by line."""

    def __init__(self) -> None:
        self._devices: list[DeviceRow] = []
        self._processes: list[ChipProcess] = []
        self._idle: set[int] = set()
        self._stated: set[int] = set()
        self._unclear: set[Chip] = set()
        self._named: set[Chip] = set()  # by a process row
        self._version = ""
        self._device_columns: _DeviceColumns | None = None
        self._process_columns: _ProcessColumns | None = None
        self._header: list[str] | None = None  # the device table's first header line, until the second came
        self._upper: list[str] | None = None  # a device's first line, until the second came
        self._last_border = ""

    def border(self, line: str) -> None:
        self._last_border = line
        if self._header is not None:
            raise unreadable(f"the header of {_TABLE} has one line")
        if self._upper is not None:
            raise truncated(f"the second line of NPU {shown(self._upper[0])} is missing in {_TABLE}")

    def row(self, line: Line) -> None:
        raw = line.raw
        cells = [cell.strip() for cell in raw]
        if self._header is not None:
            self._device_columns = _DeviceColumns.of(self._header, cells)
            self._header = None
        elif len(cells) > 1 and cells[1] == PROCESS_ID:
            self._open_processes(cells)
        elif self._process_columns is not None:
            self._process(self._process_columns, line, cells, raw)
        elif cells[0].startswith("NPU") and "Health" in cells:
            if self._device_columns is not None:
                raise unreadable(f"{_TABLE} has two device tables")
            self._header = cells
        elif self._device_columns is not None:
            self._device(self._device_columns, cells)
        elif len(cells) == 1 and (banner := _BANNER.match(cells[0])):
            self._version = printable(banner[1], _NAME_LENGTH)
        else:
            raise truncated(f"{_TABLE} begins in the middle: {shown(' | '.join(cells))!r}")

    def _device(self, columns: _DeviceColumns, cells: list[str]) -> None:
        if self._upper is None:
            self._upper = cells
        else:
            self._devices.append(columns.read(self._upper, cells))
            self._upper = None

    def _open_processes(self, cells: list[str]) -> None:
        if self._process_columns is not None:
            raise unreadable(f"{_TABLE} has two process tables")
        if self._upper is not None:
            raise truncated(f"the second line of NPU {shown(self._upper[0])} is missing in {_TABLE}")
        self._process_columns = _ProcessColumns.of(cells)

    def _process(self, columns: _ProcessColumns, line: Line, cells: list[str], raw: list[str]) -> None:
        if len(cells) == 1 and (idle := _IDLE.fullmatch(cells[0])):
            card = tables.number(idle[1], _TABLE, "NPU")
            if card in self._stated:
                raise unreadable(f"{_TABLE} says twice what runs on NPU {card}")
            self._idle.add(card)
            self._stated.add(card)
            return
        if not line.in_columns:
            raise unreadable(f"a process row of {_TABLE} is not in its columns: {shown(' | '.join(cells))!r}")
        (card, chip), entry, hidden = columns.read(cells, raw)
        if card in self._idle:
            raise unreadable(f"{_TABLE} says twice what runs on NPU {card}")
        self._stated.add(card)
        self._named.add((card, chip))
        if entry is not None:
            self._processes.append(entry)
        if hidden or line.more:
            self._unclear.add((card, chip))

    def result(self) -> InfoTable:
        if self._device_columns is None and self._process_columns is None:
            raise truncated(f"{_TABLE} ends before its header does")
        if self._device_columns is not None and self._process_columns is None:
            if not self._devices:
                raise truncated(f"{_TABLE} ends behind its header")
            # Between two chips of a card, and above the process table, borders are of dashes.
            if "=" not in self._last_border:
                raise truncated(f"{_TABLE} ends behind NPU {self._devices[-1].card} chip {self._devices[-1].chip}")
        self._check()
        columns, process_columns = self._device_columns, self._process_columns
        return InfoTable(
            devices=tuple(self._devices),
            processes=tuple(self._processes),
            has_devices=columns is not None,
            has_processes=process_columns is not None,
            stated_cards=frozenset(self._stated),
            unclear=frozenset(self._unclear),
            npu_id_header=any(known.npu_id for known in (columns, process_columns) if known is not None),
            phy_id_header=columns is not None and columns.extra == "Phy-ID",
            version=self._version,
        )

    def _check(self) -> None:
        chips = [row.key for row in self._devices]
        if (twice := tables.repeated(chips)) is not None:
            raise unreadable(f"{_TABLE} lists (NPU, chip) {twice} twice")
        if self._device_columns is None:
            return
        for card in sorted(self._stated - {row.card for row in self._devices}):
            raise unreadable(f"the process table of {_TABLE} has NPU {card}, its device table has not")
        for card, chip in sorted(self._named - set(chips)):
            raise unreadable(f"the process table of {_TABLE} has NPU {card} chip {chip}, its device table has not")


@dataclass(frozen=True, slots=True)
class _DeviceColumns:
    """Where the device table has its values.

    Two forms of header are known::

        | NPU   Name      | Health | ...      | NPU ID | Name | Health | ...
        | Chip  Phy-ID    | Bus-Id | ...      |        |      | Bus-Id | ...

    with ``Phy-ID``, ``Device`` or nothing beside ``Chip``.
    """

    cells: int
    health: int
    bus_id: int
    npu_id: bool
    extra: str

    @classmethod
    def of(cls, upper: list[str], lower: list[str]) -> _DeviceColumns:
        if len(upper) != len(lower) or "Bus-Id" not in lower:
            raise unreadable(f"the header of {_TABLE} is of no known form: {shown(' | '.join(lower))!r}")
        first, second = upper[0].split(), lower[0].split()
        npu_id = first == ["NPU", "ID"] and upper[1] == "Name" and not second
        if not npu_id and (
            first != ["NPU", "Name"] or second not in (["Chip"], ["Chip", "Phy-ID"], ["Chip", "Device"])
        ):
            raise unreadable(f"the header of {_TABLE} is of no known form: {shown(' | '.join(upper))!r}")
        extra = second[1] if len(second) > 1 else ""
        return cls(len(upper), upper.index("Health"), lower.index("Bus-Id"), npu_id, extra)

    def read(self, upper: list[str], lower: list[str]) -> DeviceRow:
        if len(upper) != self.cells or len(lower) != self.cells:
            raise unreadable(f"a row of {_TABLE} has not {self.cells} cells: {shown(' | '.join(upper))!r}")
        if self.npu_id:
            card, name, chip, extra = upper[0], upper[1], "0", ""
            if lower[0]:
                raise unreadable(f"the second line of NPU {shown(card)} in {_TABLE} starts with {shown(lower[0])!r}")
        else:
            card, _, name = upper[0].partition(" ")
            ids = lower[0].split()
            if len(ids) != (2 if self.extra else 1):
                raise unreadable(f"the second line of NPU {shown(card)} in {_TABLE} starts with {shown(lower[0])!r}")
            chip, extra = ids[0], ids[-1]
        return DeviceRow(
            card=tables.number(card, _TABLE, "NPU"),
            chip=tables.number(chip, _TABLE, "Chip"),
            name=printable(name.strip(), _NAME_LENGTH),
            health=printable(upper[self.health], _NAME_LENGTH),
            bus_id=tables.pci_address(lower[self.bus_id]),
            phy_id=tables.optional_number(extra, _TABLE, "Phy-ID") if self.extra == "Phy-ID" else None,
            device=tables.optional_number(extra, _TABLE, "Device") if self.extra == "Device" else None,
        )


@dataclass(frozen=True, slots=True)
class _ProcessColumns:
    """Where the process table has its values. The process name may hold ``|``, so that what stands right of it is
    counted from the right."""

    npu_id: bool
    unit: int
    behind: int
    """Columns right of the name: the memory and, in newer builds, ``Process id in container``."""

    @classmethod
    def of(cls, cells: list[str]) -> _ProcessColumns:
        ids = cells[0].split()
        unit = _UNIT.fullmatch(cells[3]) if len(cells) in {4, 5} else None
        if ids not in (["NPU", "Chip"], ["NPU", "ID"]) or cells[1:3] != [PROCESS_ID, "Process name"] or unit is None:
            raise unreadable(f"the process table of {_TABLE} has an unknown header: {shown(' | '.join(cells))!r}")
        if unit[1] not in _UNITS:
            raise unreadable(f"the process table of {_TABLE} counts memory in {shown(unit[1])!r}")
        return cls(ids[1] == "ID", _UNITS[unit[1]], len(cells) - 3)

    def read(self, cells: list[str], raw: list[str]) -> tuple[Chip, ChipProcess | None, bool]:
        """The chip, the process if its pid is shown, and whether there is one whose pid is not.

        `raw` are the cells with the blanks around them, which belong to a name that holds ``|``.
        """
        if len(cells) < 3 + self.behind:
            raise unreadable(f"a process row of {_TABLE} has too few cells: {shown(' | '.join(cells))!r}")
        ids = cells[0].split()
        if len(ids) != (1 if self.npu_id else 2):
            raise unreadable(f"a process row of {_TABLE} starts with {shown(cells[0])!r}")
        card = tables.number(ids[0], _TABLE, "NPU")
        chip = 0 if self.npu_id else tables.number(ids[1], _TABLE, "Chip")
        memory = self._memory(cells[-self.behind])
        pid = 0 if tables.absent(cells[1]) else _pid(cells[1])
        if not pid:
            return (card, chip), None, bool(memory)
        name = printable("|".join(raw[2 : -self.behind]).strip(), _NAME_LENGTH)
        return (card, chip), ChipProcess(card, chip, pid, name, memory), False

    def _memory(self, text: str) -> int | None:
        if tables.absent(text):
            return None
        if MEMORY.fullmatch(text) is None:
            raise unreadable(f"Process memory in {_TABLE} is {shown(text)!r}, not a number")
        return int(text) * self.unit // _MIB


def _pid(text: str) -> int:
    """0 is what a pid looks like that has no number in the PID namespace of npu-smi."""
    if _PID.fullmatch(text) is None or int(text) > _MAX_PID:
        raise unreadable(f"Process id in {_TABLE} is {shown(text)!r}, neither a pid nor NA")
    return int(text)
