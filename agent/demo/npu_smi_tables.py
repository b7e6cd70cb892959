"""The tables that npu-smi prints, column by column as on the hosts of each device type.

Leading tabs, trailing blanks, the short last column of process rows, the misspelt legend: all of it is there because
npu-smi prints it, and a parser must stand it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from agent.demo.profiles import Profile
from agent.model.node import ROWS_PER_CHIP, DeviceType, Npu, ProcessRow

IDLE_MIB = 3400
"""Device memory that a chip's own system uses."""

NOT_SUPPORTED = "This device does not support querying topo.\n"

_LEGEND = """
Legend:

  X    = Self
  SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
  PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.
  PIX  = Path traversing a single PCIe switch
"""
_LEGEND_A2 = (
    _LEGEND
    + """\
  PXB  = Path traversing multiple PCIe switches
  HCCS = Connection traversing HCCS.
  NA   = Unknown relationship.
"""
)
_LEGEND_A3 = (
    _LEGEND
    + """\
  PXB  = Path traversing multipul PCIe switches
  HCCS = Connection traversing HCCS.
  SIO  = Path traversing the SIO bus
  HCCS_SW = Connection traversing HCCS through a switch
  NA   = Unknown relationship.
"""
)
_LEGEND_950 = """\
    Legend:
      X    = Self
      SYS  = Path traversing PCIe and NUMA nodes. Nodes are connected through SMP, such as QPI, UPI.
      PHB  = Path traversing PCIe and the PCIe host bridge of a CPU.
      PIX  = Path traversing a single PCIe switch.
      PXB  = Path traversing multiple PCIe switches.
      SIO  = Path traversing the SIO bus.
      UB   = Connection traversing UB.
      NA   = Unknown relationship.
    
"""  # noqa: W293 - the last line of it holds four blanks


def info(profile: Profile, rows: Iterable[ProcessRow]) -> str:
    """``npu-smi info``: the NPUs, then the processes on them."""
    held: dict[int, list[ProcessRow]] = {}
    for row in rows:
        held.setdefault(row.npu, []).append(row)
    match profile.device_type:
        case DeviceType.ASCEND_950:
            return _info_950(profile, held)
        case DeviceType.ATLAS_300I:
            return _info_300i(profile, held)
        case _:
            return _info_cards(profile, held)


def _used(npu: Npu, held: dict[int, list[ProcessRow]], idle: int = IDLE_MIB) -> int:
    return idle + npu.id + sum(row.memory_mib or 0 for row in held.get(npu.id, ()))


def _info_cards(profile: Profile, held: dict[int, list[ProcessRow]]) -> str:
    """The form of A2 and A3. Both dies of an A3 card have an entry, the second without a power reading."""
    rule = "+---------------------------+---------------+----------------------------------------------------+"
    plain = "+------------------------------------------------------------------------------------------------+"
    double = rule.replace("-", "=")
    phy = profile.device_type is DeviceType.A3
    second = f"{'Chip  Phy-ID' if phy else 'Chip':<25}"
    lines = [
        plain,
        f"| npu-smi {profile.npu_smi:<25}Version: {profile.npu_smi:<52} |",
        rule,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"| {second} | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        double,
    ]
    npus = profile.inventory.npus
    for npu in npus:
        chip = f"{npu.chip:<5} {npu.device_number if phy else ''}"
        bus = f"{npu.bus_id.upper():<13}"
        power = f"{92 + npu.id * 1.3:.1f}" if npu.chip == 0 else "-"
        heat = f"{power:<11} {36 + npu.id % 3:<17}"
        hbm = f"{_used(npu, held):<5}/ {profile.memory_mib:<13}"
        lines += [
            f"| {npu.card:<5} {npu.name:<19} | OK            | {heat} 0    / 0             |",
            f"| {chip:<25} | {bus} | 0           0    / 0          {hbm} |",
            plain if npu.chip + 1 < profile.chips_per_card else double,
        ]
    lines += [
        rule,
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        double,
    ]
    for card, chips in groupby(npus, key=lambda npu: npu.card):
        found = [
            f"| {card:<7} {npu.chip:<17} | {row.pid:<13} | {row.name:<24} | {_memory(row):<23} |"
            for npu in chips
            for row in held.get(npu.id, ())[:ROWS_PER_CHIP]
        ]
        lines += [*(found or [f"| No running processes found in NPU {card:<60} |"]), double]
    return _text(lines)


def _info_300i(profile: Profile, held: dict[int, list[ProcessRow]]) -> str:
    rule = "+-------------------------------+-----------------+------------------------------------------------------+"
    double = rule.replace("-", "=")
    lines = [
        "+" + "-" * (len(rule) - 2) + "+",
        f"| npu-smi {profile.npu_smi:<41}Version: {profile.npu_smi:<44} |",
        rule,
        "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |",
        "| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |",
        double,
    ]
    for npu in profile.inventory.npus:
        bus = f"{npu.bus_id.upper():<15}"
        memory = f"{_used(npu, held, 1844):<5}/ {profile.memory_mib:<32}"
        name = f"{npu.name:<21}"
        lines += [
            f"| {npu.card:<7} {name} | OK              | NA           {56 + npu.id:<17} 0     / 0             |",
            f"| {npu.chip:<7} {npu.id:<21} | {bus} | 0            {memory} |",
            double,
        ]
    lines += [
        rule,
        "| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |",
        double,
    ]
    for npu in profile.inventory.npus:
        found = [
            f"| {npu.card:<7} {npu.chip:<21} | {row.pid:<15} | {row.name:<24} | {_memory(row):<25} |"
            for row in held.get(npu.id, ())[:ROWS_PER_CHIP]
        ]
        lines += [*(found or [f"| No running processes found in NPU {npu.card:<68} |"]), double]
    return _text(lines)


def _info_950(profile: Profile, held: dict[int, list[ProcessRow]]) -> str:
    top = "+--------+------------------+---------------+-----------------------------------------------------+"
    rule = "+---------------------------+---------------+-----------------------------------------------------+"
    lines = [
        "+" + "-" * (len(rule) - 2) + "+",
        f"| npu-smi {profile.npu_smi:<41}Version: {profile.npu_smi:<37} |",
        top,
        "| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |",
        "|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |",
        top.replace("-", "="),
    ]
    for npu in profile.inventory.npus:
        bus = f"{npu.bus_id.upper():<13}"
        heat = f"{187 + npu.id * 1.1:<11.1f} {46 + npu.id % 4:<17}"
        hbm = f"{_used(npu, held, 5411):<6}/ {profile.memory_mib:<13}"
        lines += [
            f"| {npu.card:<6} | {npu.name:<16} | OK            | {heat} 0     / 0             |",
            f"|        |                  | {bus} | 0           0    / 0          {hbm} |",
            top.replace("-", "="),
        ]
    lines += [
        rule,
        "| NPU ID                    | Process id    | Process name             | Process memory(MB)       |",
        rule.replace("-", "="),
    ]
    for npu in profile.inventory.npus:
        # The rows end one column before their header does.
        found = [
            f"| {npu.card:<25} | {row.pid:<13} | {row.name:<24} | {_memory(row):<23} |"
            for row in held.get(npu.id, ())[:ROWS_PER_CHIP]
        ]
        lines += [
            *(found or [f"| No running processes found in NPU {npu.card:<61} |"]),
            rule.replace("-", "="),
        ]
    return _text(lines)


def _memory(row: ProcessRow) -> str:
    return "NA" if row.memory_mib is None else str(row.memory_mib)


def mapping(profile: Profile) -> str:
    """``npu-smi info -m``: card, chip and logical id of each NPU. The card's controller (Mcu) counts as a chip."""
    npus = profile.inventory.npus
    if profile.device_type is DeviceType.ASCEND_950:
        lines = [f"{'NPU ID':<16}{'Slot ID':<17}{'Chip ID':<17}{'Chip Phy-ID':<21}{'Chip Name':<29}"]
        lines += [f"{n.card:<16}{n.card:<17}{n.chip:<17}{n.device_number:<21}{n.name}" for n in npus]
        return _text(lines)
    phy = profile.device_type is DeviceType.A3
    indent, columns = "\t", ["NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if phy else []), "Chip Name"]
    lines = [indent + "".join(f"{column:<31}" for column in columns[:-1]) + f"{columns[-1]:<30}"]
    for card, chips in groupby(npus, key=lambda npu: npu.card):
        for npu in chips:
            cells = [card, npu.chip, npu.id, *([npu.device_number] if phy else [])]
            name = npu.name if npu.name.startswith("Ascend") else f"Ascend {npu.name}"
            lines.append(indent + "".join(f"{cell:<31}" for cell in cells) + name)
        mcu = [card, profile.chips_per_card, "-", *(["-"] if phy else [])]
        lines.append(indent + "".join(f"{cell:<31}" for cell in mcu) + f"{'Mcu':<30}")
    return _text(lines)


def topo(profile: Profile) -> str:
    """``npu-smi info -t topo``: how NPUs reach each other, and their CPU affinity where the device shows one."""
    if not profile.topo_supported:
        return NOT_SUPPORTED
    npus = profile.inventory.npus
    match profile.device_type:
        case DeviceType.A3:
            names = [f"Phy-ID{npu.device_number}" for npu in npus]
            lines = [(" " * 11 + "".join(f"{name:<11}" for name in names)).rstrip()]
            for name, npu in zip(names, npus, strict=True):
                cells = [_link_a3(npu, other) for other in npus]
                lines.append(f"{name:<11}" + "".join(f"{cell:<11}" for cell in cells).rstrip())
            return _text(lines) + _LEGEND_A3
        case DeviceType.ASCEND_950:
            # From the fifth column on the columns are one narrower.
            widths = [11 if i < 4 else 10 for i in range(len(npus))]
            head = "".join(f"{f'NPU{npu.id}':<{width}}" for npu, width in zip(npus, widths, strict=True))
            lines = [" " * 15 + head + "CPU Affinity"]
            for npu in npus:
                cells = ["X" if npu is other else "UB" if npu.id // 4 == other.id // 4 else "SYS" for other in npus]
                body = "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
                lines.append(f"    {f'NPU{npu.id}':<11}{body}{npu.affinity}")
            return _text(lines) + _LEGEND_950
        case _:
            head = "".join(f"{f'NPU{npu.id}':<11}" for npu in npus)
            lines = [f"\t   {head}CPU Affinity"]
            for npu in npus:
                body = "".join(f"{'X' if npu is other else 'HCCS':<11}" for other in npus)
                lines.append(f"{f'NPU{npu.id}':<11}{body}{'' if npu.affinity is None else npu.affinity}".rstrip())
            return _text(lines) + _LEGEND_A2


def _link_a3(npu: Npu, other: Npu) -> str:
    if npu is other:
        return "X"
    return "SIO" if npu.card == other.card else "HCCS_SW"


def board(profile: Profile, npu: Npu) -> str:
    """``npu-smi info -t board -i CARD -c CHIP``."""
    bus = npu.bus_id.upper()
    match profile.device_type:
        case DeviceType.ASCEND_950:
            indent = " " * 14
            fields = [
                ("NPU ID", npu.card), ("Product Name", "NA"), ("NPU Name", npu.name), ("Chip Name", npu.name),
                ("Chip Version", "V1"), ("Software Version", profile.npu_smi), ("Firmware Version", "9.0.0.1.101"),
                ("Compatibility", "OK"), ("Board ID", "0x1b"), ("PCB ID", "A"), ("BOM ID", "1"),
                ("PCIe Bus Info", bus), ("Slot ID", npu.card), ("Class ID", "NA"), ("PCI Vendor ID", "0x19E5"),
                ("PCI Device ID", "0xD806"), ("Chip Count", 1), ("Chip Position ID", npu.chip),
            ]  # fmt: skip
        case DeviceType.A3:
            indent = "\t"
            fields = [
                ("NPU ID", npu.card), ("NPU Name", "9392"), ("Chip ID", npu.chip), ("Chip Name", npu.name),
                ("Chip Version", "V1"), ("Board ID", "0x1f"), ("PCB ID", "NA"), ("BOM ID", "1"),
                ("Chip Position ID", npu.chip), ("PCIe Bus Info", bus), ("Firmware Version", "7.7.0.6.236"),
            ]  # fmt: skip
        case _:
            indent = "\t"
            fields = [
                ("NPU ID", npu.card), ("Chip ID", npu.chip), ("Chip Type", "Ascend"), ("Chip Name", npu.name),
                ("Chip Version", "V1"), ("Board ID", "0x31"), ("PCB ID", "NA"), ("BOM ID", "1"),
                ("Chip Position ID", npu.chip), ("PCIe Bus Info", bus), ("Firmware Version", "7.5.0.2.220"),
            ]  # fmt: skip
    return _text([f"{indent}{name:<31}: {value}" for name, value in fields])


def query(profile: Profile, rows: Iterable[ProcessRow], args: Sequence[str]) -> str | None:
    """What ``npu-smi`` with these arguments prints, or None where it does not know them."""
    match args:
        case ("info",):
            return info(profile, rows)
        case ("info", "-m"):
            return mapping(profile)
        case ("info", "-t", "topo"):
            return topo(profile)
        case ("info", "-t", "board", "-i", card, "-c", chip):
            found = (n for n in profile.inventory.npus if (str(n.card), str(n.chip)) == (card, chip))
            return next((board(profile, npu) for npu in found), None)
    return None


def queries(profile: Profile) -> list[tuple[str, ...]]:
    """Every query that `query` answers for this profile."""
    boards = [("info", "-t", "board", "-i", str(npu.card), "-c", str(npu.chip)) for npu in profile.inventory.npus]
    return [("info",), ("info", "-m"), ("info", "-t", "topo"), *boards]


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
