"""What a plan looks like: in 80 and 100 columns, with colours and without, and with hostile names in it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from agent.telemetry.picture import numa_map, plan_table
from agent.telemetry.text import make_console
from tests.telemetry.plans import HOSTILE, PLAIN, hostile, large, little, mangled, npu, plan


def text(renderable: RenderableType, width: int = 100, **options: Any) -> str:
    file = io.StringIO()
    Console(file=file, width=width, **options).print(renderable)
    return file.getvalue()


def test_a_large_plan_in_a_hundred_columns() -> None:
    lines = text(plan_table(large())).splitlines()
    assert lines[:5] == [
        "a3-0  A3  GlobalSlice  Enforce  aarch64  plan 6f1c09ab12cd",
        "16 NPUs, 16 workers, 16 bound",
        "",
        "NPU  STATE  POOL     IRQ      MAIN     ACL  REL  NUMA  WORKER",
        "0    Bound  0-39     0-1      2-37     38   39   0     4711 prod/llm-0/vllm",
    ]
    assert lines[-1] == "15   Bound  600-639  600-601  602-637  638  639  7     4726 prod/llm-15/vllm"
    assert len(lines) == 4 + 16


def test_a_small_map() -> None:
    assert text(numa_map(little())).splitlines() == [
        "NUMA node 0  CPUs 0-7",
        "  NPU 0  0-7   ii■■■■ar",
        "NUMA node 1  CPUs 8-15",
        "  NPU 1  8-15  ii■■■■ar  idle",
        "",
        "i interrupts   ■ main   a ACL thread   r release thread",
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_a_large_map(width: int) -> None:
    lines = text(numa_map(large(), drifted=[4]), width).splitlines()
    bar = "ii■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■■■ar"
    assert lines[0] == "NUMA node 0  CPUs 0-79"
    assert lines[1] == f"  NPU 0   0-39     {bar}"
    assert lines[7] == f"  NPU 4   160-199  {bar}  ! drifted"
    assert len(lines) == 8 * 3 + 2
    assert max(map(len, lines)) <= width


def test_a_map_of_ascii_alone() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=file, width=80).print(numa_map(little()), plan_table(little()))
    file.seek(0)
    assert "  NPU 0  0-7   iimmmmar" in file.read().splitlines()


def test_cpus_nobody_has_are_shown_as_what_they_are() -> None:
    doc = plan([npu(0, (2, 9), 0)], 32, 2)
    doc["status"]["topology"] |= {"cpus": "0-27", "reservedCpus": "0-1", "isolatedCpus": "24"}
    doc["status"]["uvb"] = {"cpus": "12-13"}
    lines = text(numa_map(doc)).splitlines()
    assert lines == [
        "NUMA node 0  CPUs 0-15",
        "  NPU 0     2-9          ii■■■■ar",
        "  reserved  0-1          xx",
        "  -         10-11,14-15  ·· ··",
        "  UVB       12-13        uu",
        "NUMA node 1  CPUs 16-31",
        "  -         16-23,25-27  ········ ···",
        "  isolated  24           #",
        "  offline   28-31        ----",
        "",
        "i interrupts   ■ main   a ACL thread   r release thread   u UVB threads   · unassigned   x reserved",
        "# isolated   - offline",
    ]


def test_offline_cpus_are_seen_on_their_node() -> None:
    doc = plan([npu(0, (0, 7), 0)], 16, 2)
    doc["status"]["topology"] = {
        "cpus": "0-11",
        "numaNodes": [{"id": 0, "cpus": "0-7"}, {"id": 1, "cpus": "8-11", "offlineCpus": "12-15"}],
    }
    lines = text(numa_map(doc)).splitlines()
    assert lines[2:5] == ["NUMA node 1  CPUs 8-15", "  -        8-11   ····", "  offline  12-15  ----"]


def test_isolated_cpus_that_an_npu_has_are_said_beside_it() -> None:
    doc = little()
    doc["status"]["topology"]["isolatedCpus"] = "6-9"
    lines = text(numa_map(doc)).splitlines()
    assert lines[1] == "  NPU 0  0-7   ii■■■■ar  isolated 6-7"
    assert lines[3] == "  NPU 1  8-15  ii■■■■ar  idle, isolated 8-9"


def test_an_npu_without_cpus_is_seen_in_the_map_too() -> None:
    doc = plan([npu(0, (0, 7), 0), {"id": 1, "state": "Failed", "reason": "InsufficientCpus"}], 16, 2)
    lines = text(numa_map(doc)).splitlines()
    assert lines[4:6] == ["Without CPUs", "  NPU 1          failed"]


def test_a_worker_that_somebody_else_keeps_moving_is_marked() -> None:
    doc = little()
    doc["status"]["npus"][0]["workers"][0] |= {"state": "Partial", "reason": "CpuBindingConflict"}
    assert text(numa_map(doc)).splitlines()[1] == "  NPU 0  0-7   ii■■■■ar  ! drifted"


def test_many_cells_go_on_below_their_first() -> None:
    doc = plan([npu(0, (0, 99), 0)], 100, 1)
    lines = text(numa_map(doc), 60).splitlines()
    assert lines[1:4] == [
        "  NPU 0  0-99  ii■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■■■■■",
        "               ■■■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■■■■■ ■■■■■■■■",
        "               ■■■■■■■■ ■■■■■■■■ ■■ar",
    ]


def test_siblings_apart_are_one_line_with_all_their_cells() -> None:
    entry = {"id": 0, "pool": "0-7,16-23", "numaNodes": [0], "roles": {"main": "0-7,16-23"}, "state": "Bound"}
    doc = plan([entry], 32, 1)
    assert "  NPU 0  0-7,16-23   ■■■■■■■■ ■■■■■■■■" in text(numa_map(doc)).splitlines()
    lines = text(plan_table(doc)).splitlines()
    assert lines[3] == "NPU  STATE  POOL       MAIN       NUMA", "columns that nothing is in are left out"


def test_workers_go_below_where_they_do_not_fit_beside() -> None:
    doc = little()
    doc["status"]["npus"][0]["workers"][0]["pod"] = "a-deployment-with-quite-a-name-7d9c4b5f6-x2k8p"
    wide, narrow = (text(plan_table(doc), width).splitlines() for width in (120, 80))
    assert wide[4].endswith("4711 prod/a-deployment-with-quite-a-name-7d9c4b5f6-x2k8p/vllm")
    assert narrow[3] == "NPU  STATE  POOL  IRQ  MAIN   ACL  REL  NUMA"
    assert narrow[5] == "      4711 prod/a-deployment-with-quite-a-name-7d9c4b5f6-x2k8p/vllm"


def test_reasons_are_below_their_npu_and_conditions_below_the_table() -> None:
    doc = little()
    status = doc["status"]
    because = {"reason": "InsufficientCpus", "message": "4 CPUs, 5 are needed"}
    status["npus"][0] |= {"state": "Failed", **because, "irq": "Skipped"}
    status["npus"][0]["workers"] = [
        {"pid": 1, "state": "Bound", "memory": "NoMemory"},
        {"pid": 2, "state": "Failed", "reason": "Unmovable", "message": "m"},
    ]
    status["npus"][0]["workersOmitted"] = 3
    status["conditions"] = [
        {"type": "Ready", "status": "False", **because},
        {"type": "Bound", "status": "False", **because},
        {"type": "PlanValid", **PLAIN},
        {"type": "TopologyDiscovered", "status": "False", "reason": "NotEnforced", "message": "the mode says it"},
        {"type": "Degraded", "status": "True", "reason": "NpuSmiHung", "message": "word " * 30},
    ]
    status["summary"] = {"npus": 2, "workers": 5, "bound": 1, "failed": 4}
    lines = text(plan_table(doc), 80).splitlines()
    assert lines == [
        "a3-0  A3  GlobalSlice  Enforce  aarch64  plan 6f1c09ab12cd",
        "2 NPUs, 5 workers, 1 bound, 4 failed",
        "",
        "NPU  STATE   POOL  IRQ  MAIN   ACL  REL  NUMA  WORKER",
        "0    Failed  0-7   0-1  2-5    6    7    0     1 Bound",
        "                                               2",
        "      InsufficientCpus: 4 CPUs, 5 are needed",
        "      interrupts: Skipped",
        "      memory of 1: NoMemory",
        "      2: Unmovable: m",
        "      and 3 workers more",
        "1    Idle    8-15  8-9  10-13  14   15   1",
        "",
        "Ready, Bound: False  InsufficientCpus: 4 CPUs, 5 are needed",
        "Degraded: True  NpuSmiHung",
        *["  word word word word word word word word word word word word word word word"] * 2,
    ]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_is_too_wide(width: int) -> None:
    for doc in (large(), little()):
        for picture in (plan_table(doc), numa_map(doc, drifted={0})):
            assert max(map(len, text(picture, width).splitlines())) <= width


@pytest.mark.parametrize(
    ("terminal", "variables", "escapes"),
    [
        (True, {"TERM": "xterm-256color"}, True),
        (True, {"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"TERM": "xterm-256color"}, False),
        (False, {"TERM": "xterm-256color", "FORCE_COLOR": "1"}, True),
    ],
)
def test_escapes_go_to_terminals_that_want_them(terminal: bool, variables: dict[str, str], escapes: bool) -> None:
    file = io.StringIO()
    file.isatty = lambda: terminal  # type: ignore[method-assign]
    console = make_console(file, environ=variables)
    console.print(plan_table(large()), numa_map(large(), drifted={0}), "[red]no markup[/red]")
    assert ("\x1b" in file.getvalue()) == escapes
    assert "[red]no markup[/red]" in file.getvalue()


@pytest.mark.parametrize("columns", ["0", "000", "", "-5", "wide", "²", "9" * 5000])
def test_a_width_that_is_none_counts_for_nothing(columns: str) -> None:
    printed = []
    for variables in ({"TERM": "xterm", "COLUMNS": columns}, {"TERM": "xterm"}):
        console = make_console(io.StringIO(), environ=variables)
        console.print(plan_table(large()), numa_map(large()))
        printed.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert printed[0] == printed[1] != ""
    narrow = make_console(io.StringIO(), environ={"TERM": "xterm", "COLUMNS": "50"})
    assert narrow.width == 50


def test_with_colours_the_text_is_the_same() -> None:
    doc = large()
    for picture in (plan_table(doc), numa_map(doc)):
        console = Console(
            file=io.StringIO(), width=100, force_terminal=True, color_system="256", record=True, _environ={}
        )
        console.print(picture)
        assert console.export_text() == text(picture)
        assert "\x1b[" in console.file.getvalue()  # type: ignore[attr-defined]


def test_hostile_names_are_text() -> None:
    doc = hostile(HOSTILE)
    for width in (40, 80, 100):
        for picture in (plan_table(doc), numa_map(doc)):
            shown = text(picture, width)
            assert shown.isascii() or "■" in shown or "…" in shown
            assert all(line.isprintable() for line in shown.splitlines())
    assert "[red]pod[/red]\\x202e[/bold" in text(plan_table(doc), 200)


@pytest.mark.parametrize("replacement", [None, 7, "5-3", {}, [None, 3, {}]])
def test_an_object_of_another_form_is_shown_as_far_as_it_goes(replacement: Any) -> None:
    for doc in [{}, {"status": replacement}, *mangled(little(), replacement)]:
        text(plan_table(doc))
        text(numa_map(doc))
