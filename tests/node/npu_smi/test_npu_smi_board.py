"""``npu-smi info -t board``: names and the PCI address of one NPU."""

from __future__ import annotations

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.board import parse_board
from tests.node.npu_smi.samples import fixture, names

# NPU Name, Chip Name, PCI address, another key with its value
GOOD = {
    "910a_card0": ("", "", "0000:61:00.0", ("PCI Device ID", "0xD801")),
    "910a_card0_chip0": ("", "910A", "0000:61:00.0", ("VDie ID", "42C711D4 20B03704 4A10C8D4 14CC040A D2102003")),
    "910b4_chip_no_pci_excerpt": ("", "910B4", "", ("Chip Type", "Ascend")),
    "950_doc": ("xxx", "xxx", "0000:f1:00.0", ("Main Board ID", "0x68(1P)")),
    "a3_9392_chip_excerpt": ("9392", "Ascend910", "", ("Chip ID", "0")),
    # Other queries in the same form: there is nothing in them that a board would be told by.
    "phyid_remap_950": ("", "", "", ("Chip Phy-ID", "0")),
    "proc_mem_950_doc": ("", "", "", ("NPU ID", "0")),
}
REFUSED = {"proc_mem_910b3": "it names no NPU"}


def test_every_fixture_is_in_the_table() -> None:
    assert sorted([*GOOD, *REFUSED]) == names("board")


@pytest.mark.parametrize("name", GOOD)
def test_a_published_board_is_read(name: str) -> None:
    npu_name, chip_name, bus_id, (key, value) = GOOD[name]
    board = parse_board(fixture("board", name))
    assert (board.npu_name, board.chip_name, board.bus_id) == (npu_name, chip_name, bus_id)
    assert board.others[key] == value


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_a_published_text_that_is_no_board_is_refused(name: str, why: str) -> None:
    assert _refusal(fixture("board", name)) is Reason.TABLE_UNREADABLE, why


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.TABLE_TRUNCATED),
        ("NPU ID : 0\nChip Name : 910B", Reason.TABLE_TRUNCATED),
        ("garbage\n", Reason.TABLE_UNREADABLE),
        ("NPU ID : 0\ngarbage\n", Reason.TABLE_UNREADABLE),
        ("NPU ID : 0\nNPU ID : 1\n", Reason.TABLE_UNREADABLE),
        ("NPU ID : 0\n" + "".join(f"Key {n} : {n}\n" for n in range(300)), Reason.TABLE_UNREADABLE),
        ("dcmi module initialize failed. ret is -8005\n", Reason.DRIVER_NOT_READY),
        ("Error parameter of -t\n", Reason.NOT_SUPPORTED),
    ],
)
def test_what_is_no_whole_board_is_refused(text: str, reason: Reason) -> None:
    assert _refusal(text) is reason


def test_a_pci_address_that_is_not_available_is_none() -> None:
    assert parse_board("NPU ID : 0\nPCIe Bus Info : NA\n").bus_id == ""


def _refusal(text: str) -> Reason:
    with pytest.raises(Refused) as refused:
        parse_board(text)
    return refused.value.reason
