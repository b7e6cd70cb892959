"""Half a table is never taken for a whole one, wherever it was cut."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.info import parse_info
from agent.node.npu_smi.inventory import read_inventory, read_processes
from agent.node.npu_smi.mapping import parse_mapping
from agent.node.npu_smi.topo import parse_topo
from tests.node.npu_smi.samples import FakeNpuSmi, attempt, fixture, mapping_text, names, topo_text

# One of each form of table at every byte, the others at and around every end of a line and at random.
EVERY_BYTE = {"910b_tp4_residual_contexts", "a3_phyid_container_pid_column_idle", "950_doc_idle", "310p3_22.0.0"}
NO_TABLES = {
    "info": ("ellipsis", "misaligned", "910b2", "blank_process_name_in"),
    "map": ("err",),
    "topo": ("err", "mstt"),
}


CUT = {Reason.TABLE_TRUNCATED, Reason.TABLE_UNREADABLE}


def good(kind: str) -> list[str]:
    return [name for name in names(kind) if not any(part in name for part in NO_TABLES[kind])]


def cuts(text: str, everywhere: bool) -> Iterator[str]:
    places = set(range(len(text)))
    if not everywhere:
        ends = [i for i, c in enumerate(text) if c == "\n"]
        places = {p for end in ends for p in range(end - 2, end + 4)} | set(
            random.Random(1).sample(sorted(places), 100)
        )
    yield from (text[:place] for place in sorted(places) if 0 <= place < len(text))


@pytest.mark.parametrize("name", good("info"))
def test_a_cut_info_is_refused_or_says_that_it_is_not_whole(name: str) -> None:
    text = fixture("info", name)
    whole = parse_info(text)
    read = 0
    for cut in cuts(text, name in EVERY_BYTE):
        table, problem = attempt(parse_info, cut)
        if table is None:
            assert problem is not None
            assert problem.reason in CUT
            continue
        read += 1
        assert not table.whole
        assert cut.endswith("\n")
        assert table.devices == whole.devices[: len(table.devices)]
        # What is stated of a card is all that there is to say.
        for card in table.stated_cards:
            assert table.devices == whole.devices
            of_card = [entry for entry in table.processes if entry.card == card]
            assert of_card == [entry for entry in whole.processes if entry.card == card]
    assert read <= 2 * len(whole.devices) + len(whole.stated_cards) + 1


@pytest.mark.parametrize("name", good("map"))
def test_a_cut_mapping_is_refused_or_lacks_whole_rows(name: str) -> None:
    text = fixture("map", name)
    rows = parse_mapping(text).rows
    for cut in cuts(text, everywhere=True):
        table, problem = attempt(parse_mapping, cut)
        assert problem is None or problem.reason in CUT
        if table is not None:
            assert cut.endswith("\n") or not cut.rsplit("\n", 1)[-1].strip()
            assert table.rows == rows[: len(table.rows)]


@pytest.mark.parametrize("name", good("topo"))
def test_a_cut_topology_is_refused_or_lacks_nothing_but_its_legend(name: str) -> None:
    text = fixture("topo", name)
    table = parse_topo(text)
    read = 0
    for cut in cuts(text, everywhere=True):
        found, problem = attempt(parse_topo, cut)
        assert problem is None or problem.reason in CUT
        assert found in (None, table)
        read += found is not None
    behind = text[text.rindex("NPU" if "NPU0" in text else "Phy-ID") :]
    assert read < len(behind)


@pytest.mark.parametrize("name", names("board"))
def test_a_cut_board_is_refused_or_lacks_whole_lines(name: str) -> None:
    text = fixture("board", name)
    whole, _ = attempt(parse_board, text)
    if whole is None:
        return
    for cut in cuts(text, everywhere=True):
        board, problem = attempt(parse_board, cut)
        assert problem is None or problem.reason in CUT
        if board is not None:
            assert board.others.items() <= whole.others.items()
            assert board.bus_id in {"", whole.bus_id}


# Name of the fixture, its mapping and its topology.
NODES = {
    "910b_tp4_residual_contexts": (
        mapping_text([(n, 0, n, "Ascend 910B3") for n in range(4)]),
        topo_text(dict.fromkeys(range(4), "0-23")),
    ),
    "a3_24.1.rc3.7_idle16": (
        mapping_text(
            [(n // 2, n % 2, n, n, "Ascend910") for n in range(16)],
            "NPU ID",
            "Chip ID",
            "Chip Logic ID",
            "Chip Phy-ID",
            "Chip Name",
        ),
        topo_text(dict.fromkeys(range(16)), "Phy-ID"),
    ),
    "950dt_idle8_container_pid_column": (
        mapping_text(
            [(n, n, 0, n, "Ascend950DT") for n in range(8)], "NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name"
        ),
        topo_text(dict.fromkeys(range(8), "0-23")),
    ),
    "310p3_two_cards_no_proc_table": (
        mapping_text([(n, 0, n, "Ascend 310P3") for n in range(2)]),
        topo_text(dict.fromkeys(range(2), "0-23")),
    ),
}


def line_cuts(text: str) -> Iterator[str]:
    """All cuts behind a line: the ones that a parser can take for whole."""
    yield from (text[: i + 1] for i, c in enumerate(text[:-1]) if c == "\n")


@pytest.mark.parametrize("name", NODES)
def test_an_inventory_is_whole_or_refused_whichever_table_was_cut(name: str) -> None:
    info, (mapping, topo) = fixture("info", name), NODES[name]
    reading = read_inventory(FakeNpuSmi(info=info, info_m=mapping, info_t_topo=topo), {})
    for cut in line_cuts(info):
        _whole_or_refused(FakeNpuSmi(info=cut, info_m=mapping, info_t_topo=topo), {}, len(reading.inventory.npus))
        try:
            processes, notes = read_processes(FakeNpuSmi(info=cut), reading.inventory)
        except Refused:
            continue
        missing = set(reading.inventory.ids) - processes.stated
        assert missing
        assert [note.reason for note in notes] == [Reason.PROCESS_TABLE_INCOMPLETE]
    for cut in line_cuts(mapping):
        _whole_or_refused(FakeNpuSmi(info=info, info_m=cut, info_t_topo=topo), {}, len(reading.inventory.npus))
    for cut in line_cuts(topo):
        _whole_or_refused(FakeNpuSmi(info=info, info_m=mapping, info_t_topo=cut), {}, len(reading.inventory.npus))


@pytest.mark.parametrize("name", NODES)
def test_device_files_tell_a_cut_that_no_table_tells(name: str) -> None:
    info, (mapping, topo) = fixture("info", name), NODES[name]
    count = len(read_inventory(FakeNpuSmi(info=info), {}).inventory.npus)
    davinci = {n: (236, n) for n in range(count)}
    for cut in line_cuts(info):
        _whole_or_refused(FakeNpuSmi(info=cut), davinci, count)
        for other in line_cuts(mapping):
            _whole_or_refused(FakeNpuSmi(info=cut, info_m=other, info_t_topo=topo), davinci, count)


def _whole_or_refused(npu_smi: FakeNpuSmi, davinci: dict[int, tuple[int, int]], count: int) -> None:
    try:
        reading = read_inventory(npu_smi, davinci, needs_affinity=lambda device_type: False)
    except Refused:
        return
    assert len(reading.inventory.npus) == count
