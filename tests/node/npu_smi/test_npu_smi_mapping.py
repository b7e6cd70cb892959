"""``npu-smi info -m`` is read by its header, and refused where a row is no whole row."""

from __future__ import annotations

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.mapping import MapTable, parse_mapping
from tests.node.npu_smi.samples import fixture, mapping_text, names

A2 = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")
A3 = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name")

# (card, chip, logic id, phy id, slot), name of the first, has logic ids, has phy ids
GOOD = {
    "310p_npuid4_logic0": ([(4, 0, 0, None, None)], "<soc_version>", True, False),
    "910a_23.0.5_no_mcu": ([(n, 0, n, None, None) for n in range(8)], "Ascend 910A", True, False),
    "910b3_mcu_trailing_ws": ([(n, 0, n, None, None) for n in range(2)], "Ascend 910B3", True, False),
    "910b4_mcu_4of8": ([(n, 0, n, None, None) for n in range(4)], "Ascend 910B4", True, False),
    "910b3_container_offset_npu3_4": ([(3, 0, 0, None, None), (4, 0, 1, None, None)], "Ascend 910B3", True, False),
    "a3_dual_die_with_mcu": (
        [(0, 0, 0, 0, None), (0, 1, 1, 1, None), (1, 0, 2, 2, None)],
        "Ascend910",
        True,
        True,
    ),
    "950_doc_single": ([(0, 0, None, 0, 0)], "xxx", False, True),
}
REFUSED = {"err_no_card": Reason.NO_NPUS}


def test_every_fixture_is_in_the_table() -> None:
    assert sorted([*GOOD, *REFUSED]) == names("map")


@pytest.mark.parametrize("name", GOOD)
def test_a_published_table_is_read(name: str) -> None:
    rows, first, has_logic_id, has_phy_id = GOOD[name]
    table = parse_mapping(fixture("map", name))
    assert _ids(table) == rows
    assert table.rows[0].name == first
    assert (table.has_logic_id, table.has_phy_id) == (has_logic_id, has_phy_id)


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_a_published_error_has_its_reason(name: str, reason: Reason) -> None:
    assert _refusal(fixture("map", name)) is reason


def test_columns_are_found_by_name_not_by_place() -> None:
    text = mapping_text([(3, 9, 0, "Ascend 910B3")], "NPU ID", "Chip Logic ID", "Chip ID", "Chip Name")
    assert _ids(parse_mapping(text)) == [(3, 0, 9, None, None)]


def test_a_column_that_nobody_knows_is_passed_over() -> None:
    text = mapping_text([(0, 1, 2, 55, "Ascend 910B3")], "NPU ID", "Chip ID", "Chip Logic ID", "Die Color", "Chip Name")
    assert _ids(parse_mapping(text)) == [(0, 1, 2, None, None)]


def test_columns_may_be_one_blank_apart() -> None:
    text = "NPU ID Chip ID Chip Logic ID Chip Phy-ID Chip Name\n3 0 6 6 Ascend910\n3 2 - - Mcu\n"
    assert _ids(parse_mapping(text)) == [(3, 0, 6, 6, None)]


def test_a_slot_of_minus_one_is_no_slot_and_names_may_be_missing() -> None:
    text = mapping_text([(0, -1, 0, 3, "")], "NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name")
    assert _ids(parse_mapping(text)) == [(0, 0, None, 3, None)]
    assert parse_mapping(text).rows[0].name == ""


def test_controllers_and_camera_cpus_are_no_npus() -> None:
    rows = [(0, 0, 0, "Ascend 310"), (0, 1, "-", "Mcu"), (0, 2, "-", "3559"), (0, 3, "-", "something new")]
    assert _ids(parse_mapping(mapping_text(rows))) == [(0, 0, 0, None, None)]
    on_950 = mapping_text(
        [(0, 0, 0, 0, "Ascend950PR"), (0, 0, 1, "-", "Mcu")], "NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name"
    )
    assert _ids(parse_mapping(on_950)) == [(0, 0, None, 0, 0)]


def test_lines_before_the_header_are_passed_over() -> None:
    text = fixture("map", "910b4_mcu_4of8")
    assert parse_mapping("DrvMngGetConsoleLogLevel failed. (ret=4)\n\n" + text) == parse_mapping(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.TABLE_TRUNCATED),
        ("garbage\n", Reason.TABLE_UNREADABLE),
        ("Error parameter of -m\n", Reason.NOT_SUPPORTED),
        (mapping_text([]), Reason.TABLE_TRUNCATED),
        (mapping_text([(0, 1, "-", "Mcu")]), Reason.TABLE_TRUNCATED),
        (mapping_text([(0, 0, 0, "910B3")]).rstrip(), Reason.TABLE_TRUNCATED),
        (mapping_text([(0, 0, 0, "910B3"), ("...",)]), Reason.TABLE_TRUNCATED),
        (mapping_text([(0, 0, 0, "910B3"), (1, 0)]), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, 0, "910B3"), (1, 0, 0, "910B3")]), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, 0, "910B3"), (0, 0, 1, "910B3")]), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, 0, 5, "910"), (0, 1, 1, 5, "910")], *A3), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, -1, "910B3")]), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, "x", "910B3")]), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, 0, "910B3"), ("Segmentation fault (core dumped)",)]), Reason.TABLE_UNREADABLE),
        (2 * mapping_text([(0, 0, 0, "910B3")]), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, "910B3")], "NPU ID", "Chip Logic ID", "Chip Name"), Reason.TABLE_UNREADABLE),
        (mapping_text([(0, 0, 0)], "NPU ID", "Chip ID", "Chip Logic ID"), Reason.TABLE_UNREADABLE),
        ("NPU ID Chip ID Die Chip Name\n0 0 0 910\n", Reason.TABLE_UNREADABLE),
    ],
)
def test_what_is_no_whole_table_is_refused(text: str, reason: Reason) -> None:
    assert _refusal(text) is reason


def _ids(table: MapTable) -> list[tuple[int, int, int | None, int | None, int | None]]:
    return [(row.card, row.chip, row.logic_id, row.phy_id, row.slot) for row in table.rows]


def _refusal(text: str) -> Reason:
    with pytest.raises(Refused) as refused:
        parse_mapping(text)
    return refused.value.reason
