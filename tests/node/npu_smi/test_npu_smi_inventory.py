"""The inventory is put together from npu-smi's tables, or refused with the reason why it can't be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.model.node import DeviceType, Inventory, ProcessRow
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.inventory import InventoryReading, read_inventory, read_processes
from tests.node.npu_smi.samples import (
    RULE,
    FakeNpuSmi,
    device,
    fixture,
    idle,
    info_text,
    mapping_text,
    process,
    topo_text,
)

A3_COLUMNS = ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name")
COLUMNS_950 = ("NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name")
HUNG = Refused(Reason.NPU_SMI_HUNG, "no answer")
A3_INFO = fixture("info", "a3_24.1.rc3.7_idle16")
A3_MAP = mapping_text([(n // 2, n % 2, n, n, "Ascend910") for n in range(16)], *A3_COLUMNS)
A2_INFO = fixture("info", "910b3_24.1.rc1.b030_idle8")
A2_MAP = mapping_text([row for n in range(8) for row in ((n, 0, n, "Ascend 910B3"), (n, 1, "-", "Mcu"))])
A2_TOPO = fixture("topo", "910b3_a2_adjacent_pairs")
A2 = {"info": A2_INFO, "info_m": A2_MAP, "info_t_topo": A2_TOPO}


def read(davinci: Mapping[int, tuple[int, int]] | None = None, /, **answers: str | Refused) -> InventoryReading:
    return read_inventory(FakeNpuSmi(**answers), davinci or {})


def refusal(davinci: Mapping[int, tuple[int, int]] | None = None, /, **answers: str | Refused) -> Refused:
    with pytest.raises(Refused) as refused:
        read(davinci, **answers)
    assert len(refused.value.message.encode()) <= 256
    return refused.value


def nodes(count: int) -> dict[int, tuple[int, int]]:
    return {n: (236, n) for n in range(count)}


def affinities(reading: InventoryReading) -> dict[int, str | None]:
    return {npu.id: None if npu.affinity is None else str(npu.affinity) for npu in reading.inventory.npus}


# Whole nodes


def test_an_a2_node() -> None:
    reading = read(nodes(8), **A2)
    assert reading.inventory.device_type is DeviceType.A2
    assert [(npu.id, npu.card, npu.chip, npu.phy_id) for npu in reading.inventory.npus] == [
        (n, n, 0, None) for n in range(8)
    ]
    assert [npu.bus_id for npu in reading.inventory.npus][:2] == ["0000:c1:00.0", "0000:c2:00.0"]
    assert {npu.name for npu in reading.inventory.npus} == {"910B3"}
    assert affinities(reading)[0] == affinities(reading)[1] == "144-167"
    assert affinities(reading)[7] == "48-71"
    assert reading.driver_version == "24.1.rc1.b030"
    assert reading.processes.rows == ()
    assert [note.reason for note in reading.notes] == [Reason.PROCESS_TABLE_INCOMPLETE]


def test_an_a3_node() -> None:
    reading = read(nodes(16), info=A3_INFO, info_m=A3_MAP, info_t_topo=topo_text(dict.fromkeys(range(16)), "Phy-ID"))
    assert reading.inventory.device_type is DeviceType.A3
    assert [(npu.id, npu.card, npu.chip, npu.phy_id) for npu in reading.inventory.npus] == [
        (n, n // 2, n % 2, n) for n in range(16)
    ]
    assert set(affinities(reading).values()) == {None}
    assert reading.processes.stated == frozenset(range(16))
    assert reading.notes == ()


def test_a_950_node_has_npu_ids_for_logical_ids() -> None:
    info = fixture("info", "950dt_25.6.rc1_busid_NA_nonadjacent")
    mapping = mapping_text([(n, n, 0, n, "Ascend950DT") for n in (0, 1, 6, 7)], *COLUMNS_950)
    topo = topo_text({0: "0-63,128-191", 1: "0-63,128-191", 6: "64-127,192-255", 7: "64-127,192-255"})
    reading = read(nodes(4), info=info, info_m=mapping, info_t_topo=topo)
    assert reading.inventory.device_type is DeviceType.ASCEND_950
    assert reading.inventory.ids == (0, 1, 6, 7)
    assert affinities(reading)[7] == "64-127,192-255"
    assert [row.npu for row in reading.processes.rows] == [6, 6, 6]
    assert reading.processes.stated == frozenset({6})
    assert [str(note) for note in reading.notes] == [
        "ProcessTableIncomplete: npu-smi info does not say what runs on NPUs 0, 1, 7"
    ]


def test_a_310p_node_whose_card_ids_are_far_from_its_logical_ids() -> None:
    info = fixture("info", "310p3_22.0.4_npuid2144")
    mapping = mapping_text([(2144, 0, 0, "Ascend 310P3"), (2144, 1, "-", "Mcu")])
    for answers in ({"info": info, "info_m": mapping}, {"info": info}):
        reading = read(nodes(1), **answers)
        assert reading.inventory.device_type is DeviceType.ATLAS_300I
        assert [(npu.id, npu.card, npu.bus_id) for npu in reading.inventory.npus] == [(0, 2144, "0000:86:00.0")]


def test_a_container_whose_card_ids_are_offset() -> None:
    """910B3, NPU ID 3 and 4 with Chip Logic ID 0 and 1: rows and processes go by card, the plan by logical id."""
    reading = read(
        info=info_text([device(3, 0), device(4, 0, "0000:02:00.0")], [process(4, 4711), RULE, idle(3)]),
        info_m=fixture("map", "910b3_container_offset_npu3_4"),
        info_t_topo=topo_text({3: "24-47", 4: "0-23"}),
    )
    assert affinities(reading) == {0: "24-47", 1: "0-23"}
    assert reading.processes.rows == (ProcessRow(1, 4711, 100, "python"),)
    assert reading.processes.stated == frozenset({0, 1})


def test_both_chips_of_a_card_have_their_processes() -> None:
    devices = [device(n // 2, f"{n % 2}     {n}", f"0000:0{n}:00.0", "Ascend910") for n in range(4)]
    rows = [process(0, 1, chip=0), process(0, 2, chip=1), RULE, process(1, 3, chip=0), process(1, 4, chip=1)]
    mapping = mapping_text([(n // 2, n % 2, n, n, "Ascend910") for n in range(4)], *A3_COLUMNS)
    reading = read(info=info_text(devices, rows, extra="Phy-ID"), info_m=mapping)
    assert [(row.npu, row.pid) for row in reading.processes.rows] == [(0, 1), (1, 2), (2, 3), (3, 4)]


# Where npu-smi info -m can't be had


@pytest.mark.parametrize(
    ("info", "ids"),
    [
        (A2_INFO, tuple(range(8))),
        (A3_INFO, tuple(range(16))),
        (fixture("info", "950dt_25.6.rc1_busid_NA_nonadjacent"), (0, 1, 6, 7)),
        (fixture("info", "310p3_two_cards_no_proc_table"), (0, 1)),
        # Both dies claim Phy-ID 0, which can't be: their order counts.
        (fixture("info", "a3_phyid_container_pid_column_idle"), (0, 1)),
        (info_text([device(3, 0), device(4, 0)], []), (0, 1)),
        (info_text([device(6, "0     12"), device(6, "1     13")], [], extra="Phy-ID"), (12, 13)),
        (info_text([device(4, "0     1"), device(2, "0     0")], [], extra="Device"), (0, 1)),
        (info_text([device(4, "0     NA"), device(2, "0     0")], [], extra="Device"), (0, 1)),
    ],
)
def test_without_a_mapping_the_ids_come_from_info(info: str, ids: tuple[int, ...]) -> None:
    assert read(info=info).inventory.ids == ids


def test_the_device_column_is_the_logical_id_whatever_the_order_of_the_cards() -> None:
    reading = read(info=info_text([device(4, "0     0"), device(2, "0     1")], [], extra="Device"))
    assert [(npu.id, npu.card) for npu in reading.inventory.npus] == [(0, 4), (1, 2)]


def test_a_process_table_alone_finds_its_npus_in_the_topology() -> None:
    reading = read(nodes(8), info=fixture("info", "910b3_vllmenginecore_only_npu5"), info_t_topo=A2_TOPO)
    assert reading.inventory.ids == tuple(range(8))
    assert affinities(reading)[5] == "0-23"
    assert [(row.npu, row.pid) for row in reading.processes.rows] == [(5, 2290156)]
    assert reading.processes.stated == frozenset({5})


def test_a_process_table_of_two_dies_a_card_finds_its_npus_in_a_topology_by_physical_ids() -> None:
    topo = topo_text(dict.fromkeys(range(4)), "Phy-ID")
    reading = read(info=fixture("info", "a3_worker_table_two_dies"), info_t_topo=topo)
    assert [(row.npu, row.pid) for row in reading.processes.rows] == [
        (0, 1803913),
        (1, 1803992),
        (2, 1803933),
        (3, 1803959),
    ]


def test_where_nothing_else_was_read_the_running_ones_are_the_npus() -> None:
    assert read(info=fixture("info", "910b3_vllmenginecore_only_npu5")).inventory.ids == (5,)
    assert read(info=fixture("info", "a3_worker_table_two_dies")).inventory.ids == (0, 1, 2, 3)


def test_a_process_table_alone_goes_by_the_mapping() -> None:
    mapping = mapping_text([(5, 0, 2, "Ascend 910B3"), (6, 0, 3, "Ascend 910B3")])
    reading = read(info=fixture("info", "910b3_vllmenginecore_only_npu5"), info_m=mapping)
    assert [(row.npu, row.pid) for row in reading.processes.rows] == [(2, 2290156)]
    assert reading.inventory.device_type is DeviceType.A2


@pytest.mark.parametrize("reason", [Reason.NPU_SMI_HUNG, Reason.NPU_SMI_FAILED, Reason.DRIVER_BUSY])
def test_a_mapping_that_fails_is_not_replaced_by_a_guess(reason: Reason) -> None:
    assert refusal(**A2 | {"info_m": Refused(reason, "it failed")}).reason is reason
    assert refusal(**A2 | {"info_m": "garbage\n"}).reason is Reason.TABLE_UNREADABLE


# Device types


@pytest.mark.parametrize(
    ("name", "board", "device_type", "asked"),
    [
        ("910B3", "", DeviceType.A2, False),
        ("Ascend910B2C", "", DeviceType.A2, False),
        ("910B", "", DeviceType.A2, False),
        ("310P3", "", DeviceType.ATLAS_300I, False),
        ("Ascend910_9392", "", DeviceType.A3, False),
        ("xxx", "910b4_chip_no_pci_excerpt", DeviceType.A2, True),
        ("Ascend910", "a3_9392_chip_excerpt", DeviceType.A3, True),
        ("910A", "910a_card0_chip0", DeviceType.UNKNOWN, True),
        ("xxx", "950_doc", DeviceType.UNKNOWN, True),
        ("", "910a_card0", DeviceType.UNKNOWN, True),
        ("xxx", "", DeviceType.UNKNOWN, True),
        ("910BASE", "", DeviceType.UNKNOWN, True),
    ],
)
def test_names_decide_then_the_board(name: str, board: str, device_type: DeviceType, asked: bool) -> None:
    npu_smi = FakeNpuSmi(info=info_text([device(2, 0, name=name)], [idle(2)]))
    if board:
        npu_smi.answers["info_t_board_i_2_c_0"] = fixture("board", board)
    reading = read_inventory(npu_smi, {})
    assert reading.inventory.device_type is device_type
    assert ("info -t board -i 2 -c 0" in npu_smi.asked) == asked
    unknown = device_type is DeviceType.UNKNOWN
    assert [note.reason for note in reading.notes] == ([Reason.UNKNOWN_DEVICE] if unknown else [])


def test_headers_decide_before_names_do() -> None:
    both = mapping_text([(0, 0, 0, 0, "Ascend 910B3")], *A3_COLUMNS)
    assert read(info=info_text([device(0, 0)], []), info_m=both).inventory.device_type is DeviceType.A3
    no_logic_id = mapping_text([(0, 0, 0, 0, "xxx")], *COLUMNS_950)
    assert read(info=info_text([device(0, 0)], []), info_m=no_logic_id).inventory.device_type is DeviceType.ASCEND_950


def test_names_that_disagree_make_an_unknown_device() -> None:
    reading = read(info=info_text([device(0, 0, name="910B3"), device(1, 0, name="310P3")], [idle(0), RULE, idle(1)]))
    assert reading.inventory.device_type is DeviceType.UNKNOWN
    assert "310P3, 910B3" in reading.notes[0].message


def test_a_configured_type_stands_and_no_board_is_asked() -> None:
    npu_smi = FakeNpuSmi(info=info_text([device(0, 0, name="xxx")], [idle(0)]))
    reading = read_inventory(npu_smi, {}, override=DeviceType.ATLAS_300I)
    assert reading.inventory.device_type is DeviceType.ATLAS_300I
    assert reading.notes == ()
    assert npu_smi.asked == ["info", "info -m", "info -t topo"]


def test_a_configured_type_changes_no_ids() -> None:
    info = fixture("info", "950dt_25.6.rc1_busid_NA_nonadjacent")
    reading = read_inventory(FakeNpuSmi(info=info), {}, override=DeviceType.A2)
    assert reading.inventory.ids == (0, 1, 6, 7)


# Topology


@pytest.mark.parametrize(
    "topo",
    [
        fixture("topo", "err_not_support"),
        Refused(Reason.NOT_SUPPORTED, "absent"),
        topo_text(dict.fromkeys(range(8))),
        topo_text(dict.fromkeys(range(3))),
    ],
    ids=["not supported", "absent", "no column", "no column and other rows"],
)
def test_a_topology_without_affinity_is_no_error(topo: str | Refused) -> None:
    reading = read(**A2 | {"info_t_topo": topo})
    assert set(affinities(reading).values()) == {None}
    assert [note.reason for note in reading.notes] == [Reason.PROCESS_TABLE_INCOMPLETE]


@pytest.mark.parametrize(
    ("topo", "reason"),
    [
        (HUNG, Reason.NPU_SMI_HUNG),
        (Refused(Reason.NPU_SMI_FAILED, "it failed"), Reason.NPU_SMI_FAILED),
        (fixture("topo", "mstt_doc_placeholder"), Reason.TABLE_UNREADABLE),
        (A2_TOPO[:400], Reason.TABLE_TRUNCATED),
        (topo_text(dict.fromkeys(range(20, 23), "0-23")), Reason.INVENTORY_MISMATCH),
    ],
)
def test_a_topology_that_can_t_be_used_matters_where_affinity_does(topo: str | Refused, reason: Reason) -> None:
    assert refusal(**A2 | {"info_t_topo": topo}).reason is reason
    on_a3 = read(info=A3_INFO, info_m=A3_MAP, info_t_topo=topo)
    assert [note.reason for note in on_a3.notes] == [reason]
    with pytest.raises(Refused):
        read_inventory(FakeNpuSmi(info=A3_INFO, info_m=A3_MAP, info_t_topo=topo), {}, needs_affinity=lambda kind: True)
    assert read_inventory(
        FakeNpuSmi(**A2 | {"info_t_topo": topo}), {}, needs_affinity=lambda kind: False
    ).inventory.npus


def test_topology_rows_by_physical_id() -> None:
    devices = [device(6, "0     12"), device(6, "1     13")]
    mapping = mapping_text([(6, 0, 0, 12, "Ascend910"), (6, 1, 1, 13, "Ascend910")], *A3_COLUMNS)
    answers = {"info": info_text(devices, [], extra="Phy-ID"), "info_m": mapping}
    reading = read(**answers, info_t_topo=topo_text({13: "24-47", 12: "0-23"}, "Phy-ID"))
    assert affinities(reading) == {0: "0-23", 1: "24-47"}
    reading = read(**answers, info_t_topo=topo_text({0: "0-23", 1: "24-47"}, "Phy-ID"))
    assert reading.notes[0].reason is Reason.INVENTORY_MISMATCH


@pytest.mark.parametrize(
    ("cards", "logical", "rows", "expected"),
    [
        ((0, 1), (0, 1), {1: "1", 0: "0"}, {0: "0", 1: "1"}),
        ((3, 4), (0, 1), {0: "0", 1: "1"}, {0: "0", 1: "1"}),
        ((3, 4), (0, 1), {4: "4", 3: "3"}, {0: "3", 1: "4"}),
        ((3, 4), (1, 0), {4: "4", 3: "3"}, {1: "3", 0: "4"}),
        ((3, 4), (0, 1), {9: "9", 8: "8"}, {0: "8", 1: "9"}),
        ((0, 1, 2), (0, 1, 2), {0: "0", 2: "2"}, {0: "0", 1: None, 2: "2"}),
        ((3, 4, 5), (0, 1, 2), {3: "3", 5: "5"}, None),
        ((2, 3, 4), (0, 1, 2), {2: "2"}, None),
        ((0, 1), (0, 1), {0: "0", 1: "1", 2: "2"}, None),
    ],
)
def test_topology_rows_by_npu(
    cards: tuple[int, ...],
    logical: tuple[int, ...],
    rows: dict[int, str | None],
    expected: dict[int, str | None] | None,
) -> None:
    answers = {
        "info": info_text([device(card, 0) for card in cards], []),
        "info_m": mapping_text([(card, 0, npu, "Ascend 910B3") for card, npu in zip(cards, logical, strict=True)]),
        "info_t_topo": topo_text(rows),
    }
    if expected is None:
        assert refusal(**answers).reason is Reason.INVENTORY_MISMATCH
    else:
        assert affinities(read(**answers)) == expected


# Cross-checks


def test_tables_that_list_other_chips_are_a_mismatch_that_names_them() -> None:
    refused = refusal(**A2 | {"info_m": mapping_text([(n, 0, n, "Ascend 910B3") for n in range(1, 10)])})
    assert refused.reason is Reason.INVENTORY_MISMATCH
    assert refused.message == "only npu-smi info has NPU 0 chip 0; only info -m has NPU 8 chip 0, NPU 9 chip 0"


def test_tables_that_disagree_on_physical_ids_are_a_mismatch() -> None:
    mapping = mapping_text([(n // 2, n % 2, n, 15 - n, "Ascend910") for n in range(16)], *A3_COLUMNS)
    assert refusal(info=A3_INFO, info_m=mapping).reason is Reason.INVENTORY_MISMATCH


def test_a_mapping_that_sees_no_card_where_info_does_is_a_mismatch() -> None:
    assert refusal(**A2 | {"info_m": fixture("map", "err_no_card")}).reason is Reason.INVENTORY_MISMATCH


def test_fewer_npus_than_device_files_are_an_incomplete_inventory() -> None:
    refused = refusal(nodes(9), **A2)
    assert refused.reason is Reason.INVENTORY_INCOMPLETE
    assert refused.message == "npu-smi shows 8 NPUs, the host has 9 /dev/davinciN; without an NPU: 8"


def test_more_npus_than_device_files_are_no_error() -> None:
    assert len(read(nodes(1), **A2).inventory.npus) == 8


def test_a_node_without_npus_says_so_unless_it_has_device_files() -> None:
    none = info_text([], [])
    assert refusal(info=none).reason is Reason.NO_NPUS
    assert refusal(info=none, info_m=fixture("map", "err_no_card")).reason is Reason.NO_NPUS
    assert refusal(nodes(8), info=none).reason is Reason.INVENTORY_INCOMPLETE


def test_two_chips_with_one_logical_id_are_refused() -> None:
    twice = mapping_text([(0, 0, 0, 0, "xxx"), (0, 0, 1, 1, "xxx")], *COLUMNS_950)
    info = info_text([device(0, 0), device(0, 1)], [])
    assert refusal(info=info, info_m=twice).reason is Reason.TABLE_UNREADABLE


@pytest.mark.parametrize("name", ["dcmi_8005", "command_not_found", "libc_sec_missing"])
def test_a_failing_info_is_refused_with_its_own_reason(name: str) -> None:
    answers = A2 | {"info": fixture("errors", name)}
    assert refusal(**answers).reason in {
        Reason.DRIVER_NOT_READY,
        Reason.NPU_SMI_NOT_FOUND,
        Reason.NPU_SMI_LIBRARY_MISSING,
    }
    assert refusal(**A2 | {"info": HUNG}).reason is Reason.NPU_SMI_HUNG


# Processes alone


def inventory() -> Inventory:
    return read(**A2).inventory


def test_processes_are_read_with_one_query() -> None:
    devices = [device(n, 0, inventory().npus[n].bus_id) for n in range(8)]
    npu_smi = FakeNpuSmi(info=info_text(devices, [process(3, 4711, 30112), RULE, idle(0)]))
    table, notes = read_processes(npu_smi, inventory())
    assert npu_smi.asked == ["info"]
    assert table.rows == (ProcessRow(3, 4711, 30112, "python"),)
    assert table.stated == frozenset({0, 3})
    assert [str(note) for note in notes] == [
        "ProcessTableIncomplete: npu-smi info does not say what runs on NPUs 1, 2, 4, 5, 6, 7"
    ]


def test_processes_of_other_chips_than_the_inventory_s_are_a_mismatch() -> None:
    for info in (
        info_text([device(n, 0) for n in range(7)], []),
        info_text([device(n, 0) for n in range(9)], []),
        info_text([device(n, 0, "0000:ff:00.0") for n in range(8)], []),
        fixture("info", "910b3_vllmenginecore_only_npu5").replace("| 5 ", "| 9 "),
        fixture("info", "a3_worker_table_two_dies"),
    ):
        with pytest.raises(Refused) as refused:
            read_processes(FakeNpuSmi(info=info), inventory())
        assert refused.value.reason is Reason.INVENTORY_MISMATCH


def test_an_npu_that_is_marked_missing_need_not_be_in_the_table() -> None:
    known = inventory()
    without = replace(known, npus=(*known.npus[:7], replace(known.npus[7], missing=True)))
    info = info_text([device(n, 0, known.npus[n].bus_id) for n in range(7)], [])
    table, notes = read_processes(FakeNpuSmi(info=info), without)
    assert table.stated == frozenset()
    assert "7" not in notes[0].message
    with pytest.raises(Refused) as refused:
        read_processes(FakeNpuSmi(info=A2_INFO), without)
    assert refused.value.reason is Reason.INVENTORY_MISMATCH


def test_a_bus_id_that_came_from_elsewhere_is_no_mismatch() -> None:
    known = read(info=fixture("info", "950dt_idle8_container_pid_column")).inventory
    filled = replace(known, npus=tuple(replace(npu, bus_id=f"0000:0{npu.id}:00.0") for npu in known.npus))
    table, _ = read_processes(FakeNpuSmi(info=fixture("info", "950dt_idle8_container_pid_column")), filled)
    assert table.stated == frozenset(range(8))
