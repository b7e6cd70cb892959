"""``npu-smi info -t topo``: the affinity of each NPU, or a reason why there is none to be had."""

from __future__ import annotations

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.topo import TopoTable, parse_topo
from tests.node.npu_smi.samples import fixture, names, topo_text

ON_950 = {n: "0-63,128-191" if n < 4 else "64-127,192-255" for n in range(8)}
GOOD: dict[str, tuple[dict[int, str | None], bool]] = {
    "910b1_a2_kunpeng192": (
        dict(enumerate(("144-167", "0-23", "144-167", "0-23", "96-119", "48-71", "96-119", "48-71"))),
        False,
    ),
    "910b3_a2_adjacent_pairs": (
        dict(enumerate(("144-167", "144-167", "96-119", "96-119", "0-23", "0-23", "48-71", "48-71"))),
        False,
    ),
    "950_pcie_single_indented": (dict(ON_950), False),
    "950_ub_pairs_indented": (dict(ON_950), False),
    "950_ub_quads_indented": (dict(ON_950), False),
    "950_sglang_384cpu_smt": ({n: "0-95,192-287" if n < 4 else "96-191,288-383" for n in range(8)}, False),
    "950_superpod_nic_no_affinity": ({0: None, 1: None}, False),
    "a3_container_two_dies_phyid_no_affinity": ({12: None, 13: None}, True),
}
REFUSED = {"err_not_support": Reason.NOT_SUPPORTED, "mstt_doc_placeholder": Reason.TABLE_UNREADABLE}


def test_every_fixture_is_in_the_table() -> None:
    assert sorted([*GOOD, *REFUSED]) == names("topo")


@pytest.mark.parametrize("name", GOOD)
def test_a_published_table_is_read(name: str) -> None:
    rows, by_phy_id = GOOD[name]
    table = parse_topo(fixture("topo", name))
    assert _rows(table) == rows
    assert table.by_phy_id == by_phy_id
    assert table.has_affinity == any(rows.values())


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_a_published_text_without_a_table_has_its_reason(name: str, reason: Reason) -> None:
    assert _refusal(fixture("topo", name)) is reason


def test_an_npu_may_be_without_affinity_while_others_have_one() -> None:
    text = topo_text({0: "0-23", 1: "NA", 2: "", 3: "-"})
    assert _rows(parse_topo(text)) == {0: "0-23", 1: None, 2: None, 3: None}


def test_an_affinity_may_have_blanks_behind_its_commas() -> None:
    assert _rows(parse_topo(topo_text({0: "0-63, 128-191"}))) == {0: "0-63,128-191"}


def test_one_npu_makes_a_table_with_or_without_affinity() -> None:
    assert _rows(parse_topo(topo_text({5: "0-23"}))) == {5: "0-23"}
    assert _rows(parse_topo(topo_text({5: None}))) == {5: None}


def test_nics_have_columns_rows_and_names_and_are_no_npus() -> None:
    text = (
        "\t   NPU0       NPU1       NIC0        NIC1        CPU Affinity\n"
        "NPU0       X          UB         PIX        SYS        0-31\n"
        "NPU1       UB         X          SYS        PIX        32-63\n"
        "NIC0       PIX        SYS        X          NA         \n"
        "NIC1       SYS        PIX        NA         X          \n"
        "\n"
        "NIC0: hrn0_0\n"
        "NIC1: hrn0_1\n"
        "\n"
        "Legend:\n"
    )
    assert _rows(parse_topo(text)) == {0: "0-31", 1: "32-63"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Reason.TABLE_TRUNCATED),
        ("garbage\n", Reason.TABLE_UNREADABLE),
        ("NPU can not query topo\n", Reason.TABLE_UNREADABLE),
        ("Error parameter of -t\n", Reason.NOT_SUPPORTED),
        ("NPU0 NPU1 CPU Affinity\n", Reason.TABLE_TRUNCATED),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\n", Reason.TABLE_TRUNCATED),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\nLegend:\nNPU1 SYS X 4-7\n", Reason.TABLE_TRUNCATED),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\nNPU1 SYS X 4-7", Reason.TABLE_TRUNCATED),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\nNPU1 SYS\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\n...\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X ... 0-3\nNPU1 ... X 4-7\n", Reason.TABLE_UNREADABLE),
        ("NPU0 ... CPU Affinity\nNPU0 X ... 0-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\nNPU0 X SYS 0-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU1 CPU Affinity\nNPU0 X SYS 0-3\nNPU2 X SYS 0-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU-X1 CPU Affinity\nNPU0 X SYS 0-3\nNPU-X1 SYS X 0-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU0 CPU Affinity\nNPU0 X SYS 0-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 Phy-ID1 CPU Affinity\nNPU0 X SYS 0-3\nPhy-ID1 SYS X 0-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 CPU Affinity\nNPU0 X xx-xx\n", Reason.TABLE_UNREADABLE),
        ("NPU0 CPU Affinity\nNPU0 X 7-3\n", Reason.TABLE_UNREADABLE),
        ("NPU0 CPU Affinity\nNPU0 X 0-3 9\n", Reason.TABLE_UNREADABLE),
        ("NPU0 CPU Affinity\nNPU0 X 0-9999\n", Reason.TABLE_UNREADABLE),
        ("NPU0 NPU1\nNPU0 X SYS 0-3\nNPU1 SYS X 0-3\n", Reason.TABLE_UNREADABLE),
    ],
)
def test_what_is_no_whole_table_is_refused(text: str, reason: Reason) -> None:
    assert _refusal(text) is reason


def _rows(table: TopoTable) -> dict[int, str | None]:
    return {n: None if cpus is None else str(cpus) for n, cpus in table.rows.items()}


def _refusal(text: str) -> Reason:
    with pytest.raises(Refused) as refused:
        parse_topo(text)
    return refused.value.reason
