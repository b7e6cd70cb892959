"""``npu-smi info`` is read for what it says, in every form that was published, and refused where it is not whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.info import InfoTable, parse_info
from tests.node.npu_smi.samples import DASHES, RULE, device, fixture, idle, info_text, names, process


@dataclass(frozen=True)
class Expected:
    """What a fixture says."""

    chips: list[tuple[int, int]]
    name: str = ""
    """Of the first device."""
    bus_id: str = ""
    """Of the last device."""
    health: str = "OK"
    """Of the first device."""
    phy_ids: list[int] | None = None
    device_ids: list[int] | None = None
    npu_id: bool = False
    version: str = ""
    processes: tuple[tuple[int, int, int, str, int], ...] = ()
    """(card, chip, pid, name, MiB)."""
    stated: tuple[int, ...] = ()
    """Cards."""
    has_processes: bool = True


CARDS_8 = [(card, 0) for card in range(8)]
HEADLESS = "starts in the middle of the device table, so that a part of it is lost; npu-smi never prints that"
ELLIPSIS = "a document's copy: rows were replaced by dots"

GOOD = {
    "310_mind-cluster_busid_NA": Expected([(0, 0)], "xxx", device_ids=[0], version="xxx", has_processes=False),
    "310p3_22.0.0": Expected([(0, 0)], "310P3", "0000:5e:00.0", device_ids=[0], version="22.0.2", has_processes=False),
    "310p3_22.0.4_npuid2144": Expected(
        [(2144, 0)], "310P3", "0000:86:00.0", device_ids=[0], version="22.0.4", has_processes=False
    ),
    "310p3_two_cards_no_proc_table": Expected(
        [(0, 0), (1, 0)], "310P3", "0000:89:00.0", device_ids=[0, 1], has_processes=False
    ),
    "910a_23.0.rc1_health_warning_bytes_header": Expected(
        [(0, 0), (1, 0), (2, 0), (3, 0)],
        "910A",
        "0000:01:00.0",
        "Warning",
        version="23.0.rc1.b070",
        stated=(0,),  # NPU 2 has its memory full and no row
    ),
    "910a_23.0.rc3_8procs_hugepages": Expected(
        CARDS_8,
        "xxx",
        "0000:02:00.0",
        version="23.0.rc2.3",
        processes=tuple(
            (card, 0, pid, "python", 30782 if card == 1 else 30780)
            for card, pid in enumerate((139667, 139577, 139446, 139372, 139258, 139163, 139126, 139090))
        ),
        stated=tuple(range(8)),
    ),
    "910b3_24.1.rc1.b030_idle8": Expected(
        CARDS_8, "910B3", "0000:42:00.0", version="24.1.rc1.b030", has_processes=False
    ),
    # The process table alone: a complete table of its own, with its header, so that it is read.
    "910b3_vllmenginecore_only_npu5": Expected([], processes=((5, 0, 2290156, "VLLMEngineCore", 56630),), stated=(5,)),
    "910b4_24.x_two_procs_mindie": Expected(
        [(0, 0), (1, 0)],
        "910B4",
        "0000:c2:00.0",
        processes=((0, 0, 1406630, "mindie_llm_back", 21835), (0, 0, 60575, "python", 2122)),
        stated=(0, 1),
    ),
    "910b_tp4_residual_contexts": Expected(
        [(card, 0) for card in range(4)],
        "910B3",
        "0000:02:00.0",
        version="25.0.rc1.1",
        processes=(
            (0, 0, 200100, "VLLMWorker_TP", 55124),
            (0, 0, 200107, "VLLMWorker_TP", 107),
            (0, 0, 200114, "VLLMWorker_TP", 107),
            (0, 0, 200121, "VLLMWorker_TP", 107),
            (1, 0, 200107, "VLLMWorker_TP", 54987),
            (2, 0, 200114, "VLLMWorker_TP", 55001),
            (3, 0, 200121, "VLLMWorker_TP", 54993),
        ),
        stated=(0, 1, 2, 3),
    ),
    "950_doc_idle": Expected([(0, 0)], "xxx", "0000:91:00.0", npu_id=True, version="x.x.x", stated=(0,)),
    "950dt_25.6.rc1_busid_NA_nonadjacent": Expected(
        [(0, 0), (1, 0), (6, 0), (7, 0)],
        "Ascend950DT",
        npu_id=True,
        version="25.6.rc1.b169",
        processes=(
            (6, 0, 3621066, "/home/user/sglang/worker.py", 40000),
            (6, 0, 3624823, "/home/user/sglang-k3/worker.py", 61140),
            (6, 0, 3624824, "/home/user/sglang-k3/helper.py", 20000),
        ),
        stated=(6,),
    ),
    "950dt_idle8_container_pid_column": Expected(CARDS_8, "Ascend950DT", npu_id=True, stated=tuple(range(8))),
    "950pr_25.7.rc1_7npu_blank_names": Expected(
        CARDS_8[:7],
        "Ascend950PR",
        "0000:f1:00.0",
        npu_id=True,
        version="25.7.rc1",
        processes=((0, 0, 846718, "", 332), (1, 0, 2430352, "", 544)),
        stated=(0, 1, 2),  # cut behind the border of NPU 2: what is left out is not taken for idle
    ),
    "950pr_25.7.rc1_alarm_two_procs": Expected(
        [(0, 0), (1, 0), (2, 0)],
        "Ascend950PR",
        "0000:81:00.0",
        "Alarm",
        npu_id=True,
        version="25.7.rc1",
        processes=((0, 0, 1530715, "python", 4724), (0, 0, 1655234, "python", 4728)),
        stated=(0,),
    ),
    "a3_24.1.rc3.7_idle16": Expected(
        [(card, chip) for card in range(8) for chip in range(2)],
        "Ascend910",
        "0000:83:00.0",
        phy_ids=list(range(16)),
        version="24.1.rc3.7",
        stated=tuple(range(8)),
    ),
    "a3_phyid_container_pid_column_idle": Expected(
        [(0, 0), (0, 1)], "xxx", "0000:9d:00.0", phy_ids=[0, 0], version="xxx.xxx.xxx", stated=(0,)
    ),
    "a3_worker_table_two_dies": Expected(
        [],
        processes=(
            (0, 0, 1803913, "VLLMWorker_DP", 59887),
            (0, 1, 1803992, "VLLMWorker_DP", 60166),
            (1, 0, 1803933, "VLLMWorker_DP", 59887),
            (1, 1, 1803959, "VLLMWorker_DP", 60166),
        ),
        stated=(0, 1),
    ),
}
REFUSED = {
    "910_23.0.5_health_warning_misaligned": ELLIPSIS,
    "910_23.0.5_idle_ellipsis": ELLIPSIS,
    "910_24.1.rc1_idle_ellipsis": ELLIPSIS,
    "910b1_23.0.rc2_ellipsis": ELLIPSIS,
    "910b2_vllmworker_dp": HEADLESS,
    "910b4_blank_process_name_in_container": HEADLESS,
}


def test_every_fixture_is_in_the_table() -> None:
    assert sorted([*GOOD, *REFUSED]) == names("info")


@pytest.mark.parametrize("name", GOOD)
def test_a_published_table_is_read(name: str) -> None:
    expected = GOOD[name]
    table = parse_info(fixture("info", name))

    assert [row.key for row in table.devices] == expected.chips
    assert table.has_devices == bool(expected.chips)
    assert table.has_processes == expected.has_processes
    if table.devices:
        assert table.devices[0].name == expected.name
        assert table.devices[0].health == expected.health
        assert table.devices[-1].bus_id == expected.bus_id
    nothing: list[int | None] = [None] * len(expected.chips)
    assert [row.phy_id for row in table.devices] == (expected.phy_ids or nothing)
    assert [row.device for row in table.devices] == (expected.device_ids or nothing)
    assert table.npu_id_header == expected.npu_id
    assert table.phy_id_header == (expected.phy_ids is not None)
    assert table.version == expected.version
    found = tuple((row.card, row.chip, row.pid, row.name, row.memory_mib) for row in table.processes)
    assert found == expected.processes
    assert table.stated_cards == frozenset(expected.stated)
    assert not table.unclear
    assert table.whole == (bool(expected.chips) and {card for card, _ in expected.chips} <= set(expected.stated))


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_a_published_part_of_a_table_is_refused(name: str, why: str) -> None:
    assert _refusal(fixture("info", name)) is Reason.TABLE_TRUNCATED, why


def test_a_health_word_that_shifts_its_line_changes_nothing() -> None:
    text = fixture("info", "910_23.0.5_health_warning_misaligned").replace("...\n", "")
    table = parse_info(text)
    assert [(row.card, row.health, row.bus_id) for row in table.devices] == [
        (0, "Warning", "0000:61:00.0"),
        (7, "OK", "0000:3d:00.0"),
    ]
    assert table.whole


def test_indentation_blank_lines_and_carriage_returns_change_nothing() -> None:
    text = fixture("info", "910b_tp4_residual_contexts")
    table = parse_info(text)
    for other in (
        "\n\t" + text.replace("\n", "\n\t"),
        "   " + text.replace("\n", "\n   "),
        text.replace("\n", "\r\n"),
        text.replace("\n", "  \n\n"),
    ):
        assert parse_info(other) == table


def test_lines_around_the_tables_are_passed_over() -> None:
    text = fixture("info", "910b_tp4_residual_contexts")
    warning = "[WARNING]The driver package may not be completely installed, which may cause function abnormal.\n"
    assert parse_info("DrvMngGetConsoleLogLevel failed. (ret=4)\n" + text + warning) == parse_info(text)


@pytest.mark.parametrize(
    ("printed", "read"),
    [
        ("python", "python"),
        ("", ""),
        ("my worker", "my worker"),
        ("a|b", "a|b"),
        ("x | 99999 | 1", "x | 99999 | 1"),
        ("|", "|"),
        ("Process id", "Process id"),
        ("...", "..."),
        ("No running processes found in NPU 0", "No running processes found in NPU 0"),
        (
            "/opt/a/very/long/path/that/overflows/its/column/python3.11",
            "/opt/a/very/long/path/that/overflows/its/column/python3.11",
        ),
        ("工作进程", "工作进程"),
        ("\x1b[31mred", "\\x1b[31mred"),
    ],
)
@pytest.mark.parametrize("in_container", [False, True])
def test_a_process_name_may_be_anything(printed: str, read: str, in_container: bool) -> None:
    row = process(0, 4711, 30112, printed)
    memory = "Process memory(MB)"
    if in_container:
        row, memory = row + " 17                     |", "Process memory(MB) | Process id in container "
    table = parse_info(info_text([device(0, 0)], [row], memory=memory))
    assert [(entry.pid, entry.name, entry.memory_mib) for entry in table.processes] == [(4711, read, 30112)]


def test_the_pid_inside_the_container_is_not_the_pid() -> None:
    text = fixture("info", "950dt_25.6.rc1_busid_NA_nonadjacent").replace(
        "| NA                      |", "| 42        |"
    )
    assert {entry.pid for entry in parse_info(text).processes} == {3621066, 3624823, 3624824}


def test_memory_is_in_mebibytes_whatever_the_header_counts_in() -> None:
    in_bytes = info_text([device(0, 0)], [process(0, 7, 30112 << 20)], memory="Process memory(B)")
    assert parse_info(in_bytes).processes[0].memory_mib == 30112
    unknown = info_text([device(0, 0)], [process(0, 7, "NA")])
    assert parse_info(unknown).processes[0].memory_mib is None


def test_a_row_of_one_chip_states_the_others_of_its_card_as_idle() -> None:
    devices = [device(0, "0     0"), device(0, "1     1"), device(1, "0     2"), device(1, "1     3")]
    table = parse_info(info_text(devices, [process(0, 7, chip=1)], extra="Phy-ID"))
    assert [table.states(card, chip) for card, chip in ((0, 0), (0, 1), (1, 0), (1, 1))] == [True, True, False, False]


def test_a_row_of_na_states_an_idle_chip() -> None:
    table = parse_info(info_text([device(0, 0), device(1, 0)], [process(0, "NA", "NA", "NA"), RULE, idle(1)]))
    assert table.processes == ()
    assert table.whole


@pytest.mark.parametrize("pid", ["NA", "0"])
def test_memory_without_a_pid_is_no_idle_chip(pid: str) -> None:
    table = parse_info(info_text([device(0, 0)], [process(0, pid, 30112, "NA")]))
    assert table.processes == ()
    assert not table.states(0, 0)
    assert not table.whole


def test_a_bus_id_that_is_no_pci_address_is_none() -> None:
    text = info_text([device(0, 0, "0000:C1:00.A0"), device(1, 0, "ub0"), device(2, 0, "10000:0C:1F.7")], [])
    assert [row.bus_id for row in parse_info(text).devices] == ["", "", "10000:0c:1f.7"]


def test_a_node_without_cards_prints_two_empty_tables() -> None:
    table = parse_info(info_text([], []))
    assert table.has_devices
    assert table.devices == ()
    assert not table.whole


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.TABLE_TRUNCATED),
        ("\n\n", Reason.TABLE_TRUNCATED),
        ("dcmi module initialize failed. ret is -8005\n", Reason.DRIVER_NOT_READY),
        ("There is no NPU card on this server.\n", Reason.NO_NPUS),
        ("\x7fELF\x02\x01\x01\x00\x00", Reason.TABLE_UNREADABLE),
        ("npu-smi\n", Reason.TABLE_UNREADABLE),
        (DASHES + "\n", Reason.TABLE_TRUNCATED),
        (info_text(), Reason.TABLE_TRUNCATED),
        ("x" * 5000 + "\n", Reason.TABLE_UNREADABLE),
        ("\n" * 30_000, Reason.TABLE_UNREADABLE),
    ],
)
def test_what_holds_no_table_is_refused(text: str, reason: Reason) -> None:
    assert _refusal(text) is reason


UPPER, LOWER, _ = device(0, 0)
BROKEN: dict[str, tuple[Callable[[], str], Reason]] = {
    "two devices with the same ids": (
        lambda: info_text([device(0, 0), device(0, 0, "0000:C2:00.0")], []),
        Reason.TABLE_UNREADABLE,
    ),
    "a device without its second line": (
        lambda: info_text([[UPPER, RULE], device(1, 0)], []),
        Reason.TABLE_TRUNCATED,
    ),
    "a device without its first line": (
        lambda: info_text([[LOWER, RULE], device(1, 0)], []),
        Reason.TABLE_TRUNCATED,
    ),
    "the last device without its second line": (
        lambda: info_text([[UPPER]], []).replace(RULE + "\n" + DASHES, DASHES),
        Reason.TABLE_TRUNCATED,
    ),
    "the second line before the process table": (
        lambda: info_text([[UPPER]], []).replace(UPPER + "\n" + DASHES, UPPER),
        Reason.TABLE_TRUNCATED,
    ),
    "a process on a card that is not there": (
        lambda: info_text([device(0, 0)], [process(1, 7)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a process on a chip that is not there": (
        lambda: info_text([device(0, 0)], [process(0, 7, chip=1)]),
        Reason.TABLE_UNREADABLE,
    ),
    "an idle card that is not there": (lambda: info_text([device(0, 0)], [idle(3)]), Reason.TABLE_UNREADABLE),
    "a pid that is a word": (lambda: info_text([device(0, 0)], [process(0, "4711x")]), Reason.TABLE_UNREADABLE),
    "a pid that is negative": (lambda: info_text([device(0, 0)], [process(0, -1)]), Reason.TABLE_UNREADABLE),
    "a pid beyond any kernel's": (lambda: info_text([device(0, 0)], [process(0, 9999999)]), Reason.TABLE_UNREADABLE),
    "memory that is a word": (lambda: info_text([device(0, 0)], [process(0, 7, "much")]), Reason.TABLE_UNREADABLE),
    "a process row of too few cells": (
        lambda: info_text([device(0, 0)], ["| 0       0   | 4711    | python  |"]),
        Reason.TABLE_UNREADABLE,
    ),
    "a process row of one id": (
        lambda: info_text([device(0, 0)], ["| 0       | 4711    | python  | 100 |"]),
        Reason.TABLE_UNREADABLE,
    ),
    "a card both idle and busy": (
        lambda: info_text([device(0, 0)], [idle(0), RULE, process(0, 7)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a card both busy and idle": (
        lambda: info_text([device(0, 0)], [process(0, 7), RULE, idle(0)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a line behind a row that is no rest of its name": (
        lambda: info_text([device(0, 0)], [process(0, 7), "Segmentation fault"]),
        Reason.TABLE_UNREADABLE,
    ),
    "the rest of a name before any row": (
        lambda: info_text([device(0, 0)], ["b   | 100     |", process(0, 7)]),
        Reason.TABLE_UNREADABLE,
    ),
    "the rest of a name behind a border": (
        lambda: info_text([device(0, 0)], [process(0, 7), RULE, "b   | 100     |"]),
        Reason.TABLE_UNREADABLE,
    ),
    "the rest of a name behind an idle card": (
        lambda: info_text([device(0, 0), device(1, 0)], [idle(0), "b   | 100     |", RULE, process(1, 7)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a row out of its columns": (
        lambda: info_text([device(0, 0)], ["| 0   0   | 4711    | python  | 100   |"]),
        Reason.TABLE_UNREADABLE,
    ),
    "a name without its end before another row": (
        lambda: info_text([device(0, 0)], [process(0, 7).rstrip("| 0123456789"), process(0, 8)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a name without its end before a border": (
        lambda: info_text([device(0, 0)], [process(0, 7, 100, "a\nb\nc").rpartition("\n")[0]]),
        Reason.TABLE_UNREADABLE,
    ),
    "a border in the process table that a name could hold": (
        lambda: info_text([device(0, 0)], [process(0, 7, 100, "x|1|\n+==+\n")]).partition("+==+\n")[0] + "+==+\n",
        Reason.TABLE_UNREADABLE,
    ),
    "dots behind a row": (
        lambda: info_text([device(0, 0), device(7, 0)], [process(0, 7), "...", process(7, 8)]),
        Reason.TABLE_TRUNCATED,
    ),
    "an unknown process header": (
        lambda: info_text([device(0, 0)], [], memory="Process memory(MB)| Extra | More"),
        Reason.TABLE_UNREADABLE,
    ),
    "an unknown unit": (
        lambda: info_text([device(0, 0)], [], memory="Process memory(TB)"),
        Reason.TABLE_UNREADABLE,
    ),
    "two process tables": (
        lambda: info_text([device(0, 0)], [idle(0)]) + info_text([], []).split(DASHES)[-1].removeprefix("\n"),
        Reason.TABLE_UNREADABLE,
    ),
    "the output twice": (lambda: 2 * info_text([device(0, 0)], [idle(0)]), Reason.TABLE_UNREADABLE),
    "two device tables": (
        lambda: info_text([device(0, 0)]) + "\n".join(info_text([device(1, 0)]).split("\n")[3:]),
        Reason.TABLE_UNREADABLE,
    ),
    "two outputs without process tables": (lambda: 2 * info_text([device(0, 0)]), Reason.TABLE_TRUNCATED),
    "a header of one line": (
        lambda: info_text([device(0, 0)]).replace("| Chip", RULE + "\n| Chip"),
        Reason.TABLE_UNREADABLE,
    ),
    "an unknown column beside Chip": (
        lambda: info_text([device(0, "0     0")], extra="Die"),
        Reason.TABLE_UNREADABLE,
    ),
    "no id in the column beside Chip": (lambda: info_text([device(0, 0)], extra="Phy-ID"), Reason.TABLE_UNREADABLE),
    "a card that is a word": (lambda: info_text([device("a", 0)]), Reason.TABLE_UNREADABLE),
    "a card that is negative": (lambda: info_text([device(-1, 0)]), Reason.TABLE_UNREADABLE),
    "a chip that is a word": (lambda: info_text([device(0, "a")]), Reason.TABLE_UNREADABLE),
    "a device of too many cells": (
        lambda: info_text([[UPPER + " 1 |", LOWER, RULE]]),
        Reason.TABLE_UNREADABLE,
    ),
    "a text amid the table": (
        lambda: info_text([device(0, 0), ["Segmentation fault"], device(1, 0)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a row without its end": (
        lambda: info_text([[UPPER[:-1], LOWER, RULE], device(1, 0)]),
        Reason.TABLE_UNREADABLE,
    ),
    "a border with something in it": (
        lambda: info_text([device(0, 0), ["+====x====+"], device(1, 0)]),
        Reason.TABLE_UNREADABLE,
    ),
    "dots for devices": (lambda: info_text([device(0, 0), ["..."], device(7, 0)]), Reason.TABLE_TRUNCATED),
    "dots in a row": (lambda: info_text([device(0, 0), ["| ...   | ... |"], device(7, 0)]), Reason.TABLE_TRUNCATED),
    "an ellipsis sign": (lambda: info_text([device(0, 0), ["……"], device(7, 0)]), Reason.TABLE_TRUNCATED),
    "a last row without a border": (
        lambda: info_text([device(0, 0)], [process(0, 7)]).removesuffix(RULE + "\n"),
        Reason.TABLE_TRUNCATED,
    ),
    "an end between the chips of a card": (
        lambda: info_text([[*device(0, 0)[:2], "+" + "-" * 96 + "+"]]),
        Reason.TABLE_TRUNCATED,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_table_is_refused_with(what: str) -> None:
    make, reason = BROKEN[what]
    assert _refusal(make()) is reason


def test_a_950_whose_second_line_has_an_id_is_refused() -> None:
    text = fixture("info", "950_doc_idle").replace(
        "|        |                  | 0000", "| 0      |                  | 0000"
    )
    assert _refusal(text) is Reason.TABLE_UNREADABLE


def test_a_refusal_is_one_short_printable_line() -> None:
    hostile = "\x1b]0;title\x07" + "工" * 300
    for text in (
        info_text([device(0, 0)], [process(0, hostile)]),
        info_text([device(0, 0)], [f"| {hostile} | 1 | 2 | 3 |"]),
        info_text([device(hostile, 0)]),
        info_text([device(0, 0), [hostile], device(1, 0)]),
        f"| {hostile} |\n{RULE}\n",
    ):
        with pytest.raises(Refused) as refused:
            parse_info(text)
        assert refused.value.message.isprintable()
        assert len(refused.value.message.encode()) <= 256


def test_an_empty_table_states_nothing() -> None:
    assert not InfoTable().states(0, 0)
    assert not InfoTable().whole


def _refusal(text: str) -> Reason:
    with pytest.raises(Refused) as refused:
        parse_info(text)
    return refused.value.reason
