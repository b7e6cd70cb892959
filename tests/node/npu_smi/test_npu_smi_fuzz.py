"""Whatever npu-smi prints, a parser reads it or refuses it, and takes time in proportion to its length."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.reason import Problem, Reason
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.info import parse_info
from agent.node.npu_smi.inventory import read_inventory
from agent.node.npu_smi.mapping import parse_mapping
from agent.node.npu_smi.recognise import recognise
from agent.node.npu_smi.topo import parse_topo
from tests.node.npu_smi.samples import (
    FakeNpuSmi,
    attempt,
    device,
    fixture,
    info_text,
    mapping_text,
    names,
    process,
    topo_text,
)

PARSERS: dict[str, Callable[[str], object]] = {
    "info": parse_info,
    "map": parse_mapping,
    "topo": parse_topo,
    "board": parse_board,
}
KINDS = pytest.mark.parametrize("kind", PARSERS)
SAMPLES = {kind: [fixture(kind, name) for name in names(kind)] for kind in PARSERS}

bytes_as_text = st.binary(max_size=2000).map(lambda data: data.decode(errors="replace"))
WORDS = (
    "|;+;-;=;+===+;\n;| ; |;\t;  ;NPU;NPU0;Phy-ID3;Chip;Health;Bus-Id;Name;NPU ID;Process id;Process name;"
    "Process memory(MB);CPU Affinity;Chip Logic ID;Chip ID;Chip Name;0;1;-1;99999999999;0-3;...;NA;X;:;Legend:;"
    "\x00;\r;\u2028;٣;²;\ud800"
)
words = st.sampled_from(WORDS.split(";"))
jumble = st.lists(words, max_size=120).map("".join)


@KINDS
@given(text=st.one_of(bytes_as_text, jumble, st.text(max_size=500)))
@settings(max_examples=60, deadline=None)
def test_a_parser_raises_nothing_but_a_refusal(kind: str, text: str) -> None:
    _parse(kind, text)
    recognise(text, 0)


@KINDS
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_table_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SAMPLES[kind]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 60)))
        text = text[:start] + data.draw(st.one_of(words, jumble)) + text[end:]
    _parse(kind, text)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_tables_make_an_inventory_or_a_refusal(data: st.DataObject) -> None:
    answers = {
        "info": info_text([device(0, 0), device(1, 0)], [process(0, 7), process(1, 8)]),
        "info_m": mapping_text([(0, 0, 0, "Ascend 910B3"), (1, 0, 1, "Ascend 910B3")]),
        "info_t_topo": topo_text({0: "0-23", 1: "24-47"}),
        "info_t_board_i_0_c_0": "NPU ID : 0\nChip Name : 910B3\n",
    }
    for name in data.draw(st.sets(st.sampled_from(sorted(answers)))):
        lines = answers[name].splitlines(keepends=True)
        answers[name] = "".join(data.draw(st.lists(st.one_of(st.sampled_from(lines), words), max_size=len(lines))))
    reading, problem = attempt(lambda _: read_inventory(FakeNpuSmi(**answers), {}), "")
    if reading is None:
        _check_message(problem)
        return
    ids = reading.inventory.ids
    assert ids
    assert list(ids) == sorted(set(ids))
    assert {row.npu for row in reading.processes.rows} <= reading.processes.stated <= set(ids)


HUGE = 10 << 20
ROW = "| 0       0                 | 123456        | python                   | 30112                   |\n"
# A piece, and what is repeated of it up to 10 MiB.
FLOODS = {
    "one line": "x",
    "separators": "|",
    "dashes": "+-",
    "newlines": "\n",
    "blanks": " ",
    "rows": ROW,
    "short lines": "|\n",
    "long lines": "|" * 4000 + "\n",
    "lines of blanks": " " * 4000 + "\n",
    "columns": "NPU0 " * 800 + "\n",
    "keys": "NPU ID " * 500 + ": 0\n",
}


@KINDS
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_refused_soon(kind: str, flood: str) -> None:
    text = FLOODS[flood] * (HUGE // len(FLOODS[flood])) + "|"
    started = time.monotonic()
    assert _parse(kind, text) is not None
    assert time.monotonic() - started < 10, "10 MiB take well under a second here"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("info", info_text([device(n, 0) for n in range(1500)], [process(n % 1500, n + 1) for n in range(12_000)])),
        ("map", mapping_text([(n, 0, n, "Ascend 910B3") for n in range(15_000)])),
        ("topo", topo_text(dict.fromkeys(range(350), "0-4095"))),
    ],
)
def test_the_largest_tables_are_read_soon(kind: str, text: str) -> None:
    started = time.monotonic()
    assert _parse(kind, text) is None
    assert time.monotonic() - started < 10, "a tenth of a second here"


def _parse(kind: str, text: str) -> Reason | None:
    _, problem = attempt(PARSERS[kind], text)
    if problem is None:
        return None
    _check_message(problem)
    return problem.reason


def _check_message(problem: Problem | None) -> None:
    assert problem is not None
    assert problem.message.isprintable()
    assert len(problem.message.encode()) <= 256
