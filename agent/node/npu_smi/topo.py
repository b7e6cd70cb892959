"""``npu-smi info -t topo``: how NPUs are connected, and which CPUs are near each.

The header names the columns, ``NPUn`` or on A3 ``Phy-IDn``, then ``NICn`` where the board has them, then
``CPU Affinity`` where it exists: A3 and Ascend 950 SuperPoD on ARM have none, their NPUs reach the CPUs through a
switch (print_npu_topo_info_total in the public driver). A legend follows the matrix in most versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.model.cpuset import CpuListError, CpuSet
from agent.node.npu_smi import tables
from agent.node.npu_smi.recognise import refuse_errors
from agent.node.npu_smi.tables import shown, truncated, unreadable

_TABLE: Final = "npu-smi info -t topo"
_AFFINITY: Final = re.compile(r"\s*\bCPU\s+Affinity$")
_LABEL: Final = re.compile(r"[A-Za-z][A-Za-z_-]*[0-9]{1,6}", re.ASCII)
_NPU: Final = re.compile(r"(NPU|Phy-ID)([0-9]{1,6})", re.ASCII)
_LIKE_NPU: Final = re.compile(r"(?:NPU|Phy-ID)", re.ASCII)
_COMMA: Final = re.compile(r"\s*,\s*")


@dataclass(frozen=True, slots=True)
class TopoTable:
    """Rows by their n, in the order printed."""

    rows: Mapping[int, CpuSet | None]
    """The affinity of each NPU, None where none is shown."""
    by_phy_id: bool
    """n is ``Chip Phy-ID`` (rows ``Phy-IDn``), else what the driver calls the device id (rows ``NPUn``)."""

    @property
    def has_affinity(self) -> bool:
        return any(cpus is not None for cpus in self.rows.values())


def parse_topo(text: str) -> TopoTable:
    """Reads the output of ``npu-smi info -t topo``.

    Raises Refused: TableTruncated when rows are missing, TableUnreadable when the text is of no known form (the
    placeholders of documentation included), the reason of the error when it is one of npu-smi's error messages.
    """
    lines = tables.lines_of(text, _TABLE)
    start = next((i for i, line in enumerate(lines) if _LIKE_NPU.match(line)), None)
    if start is None:
        refuse_errors(_TABLE, text)
        raise unreadable(f"{_TABLE} has no header") if text.strip() else truncated(f"{_TABLE} printed nothing")
    header = _Header.of(lines[start])
    rows: dict[int, CpuSet | None] = {}
    for place, line in enumerate(lines[start + 1 :], start + 1):
        label = line.split(None, 1)[0] if line else ""
        if label.startswith("Legend"):
            break
        if not _LIKE_NPU.match(label):
            if line and len(rows) < len(header.npus) and not _LABEL.fullmatch(label):
                raise unreadable(f"{shown(line)!r} in {_TABLE} is no row")
            continue
        if place == len(lines) - 1:
            raise truncated(f"{_TABLE} ends in the middle: {shown(line)!r}")
        npu, cpus = header.read(line)
        if npu in rows:
            raise unreadable(f"{_TABLE} has two rows {shown(label)}")
        rows[npu] = cpus
    if missing := [npu for npu in header.npus if npu not in rows]:
        raise truncated(f"{_TABLE} has columns but no rows for NPUs {tables.listed(missing)}")
    return TopoTable(rows, header.by_phy_id)


@dataclass(frozen=True, slots=True)
class _Header:
    labels: tuple[str, ...]
    npus: tuple[int, ...]
    by_phy_id: bool
    affinity: bool

    @classmethod
    def of(cls, line: str) -> _Header:
        matrix = _AFFINITY.sub("", line)
        labels = tuple(matrix.split())
        strange = next((label for label in labels if not _LABEL.fullmatch(label)), None)
        if strange is not None:
            raise unreadable(f"{shown(strange)!r} in the header of {_TABLE} is no NPU and no NIC")
        found = [match for match in map(_NPU.fullmatch, labels) if match is not None]
        kinds = {match[1] for match in found}
        npus = tuple(int(match[2]) for match in found)
        if len(kinds) != 1 or tables.repeated(npus) is not None:
            raise unreadable(f"the header of {_TABLE} does not name each NPU once: {shown(line)!r}")
        return cls(labels, npus, kinds == {"Phy-ID"}, matrix != line)

    def read(self, line: str) -> tuple[int, CpuSet | None]:
        label, *cells = line.split()
        match = _NPU.fullmatch(label)
        if match is None or label not in self.labels:
            raise unreadable(f"{_TABLE} has a row {shown(label)!r} and no such column")
        npu = int(match[2])
        relations, rest = cells[: len(self.labels)], " ".join(cells[len(self.labels) :])
        if len(relations) < len(self.labels):
            raise unreadable(f"row {label} of {_TABLE} has too few cells")
        if any(map(tables.elided, cells)):
            raise unreadable(f"row {label} of {_TABLE} leaves cells out")
        if not self.affinity and rest:
            raise unreadable(f"row {label} of {_TABLE} has too many cells: {shown(rest)!r}")
        if tables.absent(rest):
            return npu, None
        try:
            return npu, CpuSet.parse(_COMMA.sub(",", rest))
        except CpuListError as error:
            raise unreadable(f"CPU Affinity of {label} in {_TABLE}: {error}") from None
