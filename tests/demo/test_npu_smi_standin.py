"""The stand-in prints what npu-smi prints: the parsers take it, and its columns are where the recorded ones are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.demo import npu_smi_tables
from agent.demo.profiles import PROFILES
from agent.demo.virtual import VirtualNode
from agent.model.node import ProcessRow
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.command import NpuSmiCommand
from agent.node.npu_smi.info import parse_info
from agent.node.npu_smi.mapping import parse_mapping
from agent.node.npu_smi.topo import parse_topo

FIXTURES = Path(__file__).parents[1] / "fixtures"
A2, A3, A950, A300I = (PROFILES[name] for name in ("a2", "a3", "ascend950", "atlas300i"))

# As a 310P host with npu-smi 24.1.0.1 prints it (vllm-ascend issue reports), two of its cards.
INFO_300I = """\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0.1                                 Version: 24.1.0.1                                     |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 0       310P3                 | OK              | NA           56                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1844 / 21527                            |
+===============================+=================+======================================================+
| 32      310P3                 | OK              | NA           58                0     / 0             |
| 0       1                     | 0000:02:00.0    | 0            1846 / 21527                            |
+===============================+=================+======================================================+
"""
PROCESSES_300I = """\
+===============================+=================+======================================================+
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| No running processes found in NPU 0                                                                    |
+===============================+=================+======================================================+
| No running processes found in NPU 32                                                                   |
+===============================+=================+======================================================+
| No running processes found in NPU 32768                                                                |
+===============================+=================+======================================================+
"""


def recorded(name: str) -> str:
    return (FIXTURES / name).read_text()


def columns(line: str) -> tuple[int, list[int], str]:
    """Length, where each value begins, and everything that is frame: the same for two rows of one table."""
    frame = re.sub(r"[^|+=-]", " ", re.sub(r"[^\s|+=-]-|-[^\s|+=-]", "  ", line))
    return len(line), [m.start() for m in re.finditer(r"[^\s|+=/-]\S*|(?<=\s)-(?=\s)", line)], frame.replace("-", " ")


def rows_of(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(start, line)]


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("topo/910b3_a2_adjacent_pairs.txt", npu_smi_tables.topo(A2)),
        ("topo/950_ub_quads_indented.txt", npu_smi_tables.topo(A950)),
        ("topo/err_not_support.txt", npu_smi_tables.topo(A300I)),
    ],
)
def test_topologies_are_the_recorded_ones(name: str, mine: str) -> None:
    assert mine.splitlines() == recorded(name).splitlines()


def test_mappings_begin_as_the_recorded_ones() -> None:
    a2, a3 = recorded("map/910b3_mcu_trailing_ws.txt"), recorded("map/a3_dual_die_with_mcu.txt")
    assert npu_smi_tables.mapping(A2).startswith(a2)
    mine = npu_smi_tables.mapping(A3).splitlines()
    # The publication of this one lost tabs and trailing blanks.
    assert [line.split() for line in mine][:5] == [line.split() for line in a3.splitlines()]
    assert [columns(line.strip())[1] for line in mine[:5]] == [columns(line.strip())[1] for line in a3.splitlines()]
    head = recorded("map/950_doc_single.txt").splitlines()
    found = npu_smi_tables.mapping(A950).splitlines()
    assert found[0] == head[0]
    assert columns(found[1])[1] == columns(head[1])[1]


@pytest.mark.parametrize(
    ("mine", "theirs", "lines"),
    [
        (npu_smi_tables.info(A3, []), "info/a3_24.1.rc3.7_idle16.txt", slice(0, None)),
        (npu_smi_tables.info(A2, []), "info/910b3_24.1.rc1.b030_idle8.txt", slice(0, 30)),
        (npu_smi_tables.info(A950, []), "info/950pr_25.7.rc1_7npu_blank_names.txt", slice(0, 26)),
    ],
)
def test_device_tables_have_the_recorded_columns(mine: str, theirs: str, lines: slice) -> None:
    found, wanted = mine.splitlines()[lines], recorded(theirs).splitlines()[lines]
    assert len(found) == len(wanted)
    for ours, real in zip(found, wanted, strict=True):
        assert columns(ours) == columns(real), f"{ours}\n{real}"
    assert found[:6] == wanted[:6]


def test_device_table_of_a_300i() -> None:
    found = npu_smi_tables.info(A300I, []).splitlines()
    wanted = INFO_300I.splitlines()
    assert found[:6] == wanted[:6]
    assert [columns(line) for line in found[:12]] == [columns(line) for line in wanted[:12]]
    assert PROCESSES_300I in npu_smi_tables.info(A300I, [])


@pytest.mark.parametrize(
    ("profile", "theirs"),
    [
        (A2, "info/910b_tp4_residual_contexts.txt"),
        (A3, "info/a3_worker_table_two_dies.txt"),
        (A950, "info/950pr_25.7.rc1_alarm_two_procs.txt"),
    ],
)
def test_process_rows_have_the_recorded_columns(profile: object, theirs: str) -> None:
    chosen = {id(p): p for p in PROFILES.values()}[id(profile)]
    row = r"\| \d+ .*\| \d{5,}"
    head = r"\| NPU .*Process id"
    mine = npu_smi_tables.info(chosen, [ProcessRow(1, 4100123, 55000, "VLLM::Worker_TP")])
    assert columns(rows_of(mine, row)[0]) == columns(rows_of(recorded(theirs), row)[0])
    assert rows_of(mine, head) == rows_of(recorded(theirs), head)
    idle = rows_of(mine, r"\| No running")[0]
    if nobody := rows_of(recorded(theirs), r"\| No running"):
        assert len(idle) == len(nobody[0])


def test_boards_are_as_recorded() -> None:
    def pairs(text: str) -> dict[str, str]:
        return {k.strip(): v.strip() for k, v in (line.split(":", 1) for line in text.splitlines())}

    old = recorded("board/910a_card0_chip0.txt")
    mine = npu_smi_tables.board(A2, A2.inventory.npus[0])
    assert {columns(line)[1][0] for line in mine.splitlines()} == {1}
    assert [line.index(": ") for line in mine.splitlines()] == [old.splitlines()[0].index(": ")] * 11
    assert pairs(mine).keys() <= pairs(old).keys()
    new = recorded("board/a3_9392_chip_excerpt.txt")
    assert pairs(npu_smi_tables.board(A3, A3.inventory.npus[0])).items() >= pairs(new).items()
    assert (
        pairs(npu_smi_tables.board(A950, A950.inventory.npus[7])).keys() <= pairs(recorded("board/950_doc.txt")).keys()
    )
    assert "0000:9B:00.0" in npu_smi_tables.board(A3, A3.inventory.npus[3])


def test_every_table_is_one_that_the_parsers_take(node: VirtualNode) -> None:
    info = parse_info(node.npu_smi.query("info"))
    assert info.whole
    assert len(parse_mapping(node.npu_smi.query("info", "-m")).rows) == len(node.inventory.npus)
    for npu in node.inventory.npus:
        text = node.npu_smi.query("info", "-t", "board", "-i", str(npu.card), "-c", str(npu.chip))
        assert parse_board(text).bus_id == npu.bus_id
    if node.profile.topo_supported:
        table = parse_topo(node.npu_smi.query("info", "-t", "topo"))
        assert list(table.rows.values()) == [npu.affinity for npu in node.inventory.npus]


def test_at_most_eight_processes_of_a_chip_are_shown(node: VirtualNode) -> None:
    node.npu_smi.set_rows(ProcessRow(0, 4_100_500 + k, 100, "python") for k in range(12))
    assert node.npu_smi.query("info").count("python") == 8


def program(node: VirtualNode) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        # An empty environment: the stand-in must work for an agent that gives it none.
        return subprocess.run([node.npu_smi.path, *args], capture_output=True, text=True, env={}, check=False)

    return run


def test_the_program_answers_as_the_object_does(node: VirtualNode) -> None:
    run = program(node)
    node.npu_smi.set_rows([ProcessRow(1, 4_100_500, 100, "python")])
    for args in npu_smi_tables.queries(node.profile):
        answer = run(*args)
        assert answer.returncode == 0
        assert answer.stdout == npu_smi_tables.query(node.profile, node.npu_smi.rows, args)
    unknown = run("info", "-t", "nonsense")
    assert (unknown.returncode, unknown.stdout) == (1, "Error parameter of -t\n")
    with pytest.raises(Refused) as refused:
        node.npu_smi.query("info", "-t", "nonsense")
    assert refused.value.reason is Reason.NOT_SUPPORTED


def test_it_fails_hangs_and_recovers(tmp_path: Path) -> None:
    node = VirtualNode(tmp_path, "atlas300i")
    command = NpuSmiCommand(str(node.npu_smi.path), timeout=0.3)
    patient = NpuSmiCommand(str(node.npu_smi.path))
    node.npu_smi.fail()
    for npu_smi in (node.npu_smi, patient):
        with pytest.raises(Refused) as refused:
            npu_smi.query("info")
        assert refused.value.reason is Reason.DRIVER_NOT_READY
    node.npu_smi.recover()
    node.npu_smi.hang()
    for npu_smi in (node.npu_smi, command):
        with pytest.raises(Refused) as refused:
            npu_smi.query("info")
        assert refused.value.reason is Reason.NPU_SMI_HUNG
    node.npu_smi.recover()
    assert node.npu_smi.query("info") == patient.query("info")
    assert node.npu_smi.calls == [("info",)] * 3
