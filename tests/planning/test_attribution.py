"""Whose process it is: rows of the process table, leftovers, several NPUs, open device files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.node import DeviceType, Inventory, Npu, ProcessRow, ProcessTable
from agent.planning.attribution import Attribution, attribute, npus_of_device_ids


def table(*rows: tuple[int, int, int | None]) -> ProcessTable:
    return ProcessTable(tuple(ProcessRow(npu, pid, memory) for pid, npu, memory in rows))


def test_ranks_that_keep_a_context_on_npu_0_belong_to_their_own_npu() -> None:
    """vllm-ascend #7107."""
    rows = [(200100, 0, 55124), (200107, 0, 107), (200114, 0, 107), (200121, 0, 107)]
    rows += [(200107, 1, 54987), (200114, 2, 55001), (200121, 3, 54993)]
    found = attribute(table(*rows), {})
    assert {pid: a.npus for pid, a in found.items()} == {200100: (0,), 200107: (1,), 200114: (2,), 200121: (3,)}
    assert found[200107].residual == (0,)


@pytest.mark.parametrize(
    ("memory", "npus", "residual"),
    [
        ((4000, 1000), (0,), (1,)),  # exactly four times, and within 1 GiB
        ((3999, 1000), (0, 1), ()),  # less than four times
        ((40_000, 1024), (0,), (1,)),
        ((40_000, 1025), (0, 1), ()),  # more than 1 GiB is work, however large the other is
        ((40_000, 100, 1025), (0, 1, 2), ()),
        ((None, None), (0, 1), ()),  # nothing is known of either
        ((500, None), (0,), (1,)),
    ],
)
def test_the_largest_context_counts_when_the_others_are_leftovers(
    memory: tuple[int | None, ...], npus: tuple[int, ...], residual: tuple[int, ...]
) -> None:
    found = attribute(table(*((7, npu, mib) for npu, mib in enumerate(memory))), {})
    assert found == {7: Attribution(npus, residual)}


def test_open_devices_count_only_for_processes_without_a_row() -> None:
    found = attribute(table((7, 0, 100)), {7: [3], 8: [2], 9: []})
    assert found == {7: Attribution((0,)), 8: Attribution((2,), by_row=False)}


def test_a_known_worker_whose_own_row_is_lost_stays_where_it_was() -> None:
    known = {7: Attribution((3,), (0,)), 8: Attribution((2,))}
    assert attribute(table((7, 0, 107)), {}, known) == known
    assert attribute(table((7, 0, 50_000)), {}, known)[7] == Attribution((0,))
    assert attribute(table((8, 1, 107)), {}, known)[8] == Attribution((1,))


def test_open_devices_follow_a_worker_that_is_still_starting() -> None:
    known = {7: Attribution((0,), by_row=False)}
    assert attribute(table(), {7: [0, 3]}, known)[7].npus == (0, 3)
    assert attribute(table((7, 3, 50_000)), {7: [0, 3]}, known)[7] == Attribution((3,))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7), st.one_of(st.none(), st.integers(0, 70_000))), max_size=30)
)
def test_every_process_of_the_table_has_npus_of_its_own_rows(rows: list[tuple[int, int, int | None]]) -> None:
    found = attribute(table(*rows), {})
    assert set(found) == {pid for pid, _, _ in rows}
    for pid, attribution in found.items():
        mine = {npu for owner, npu, _ in rows if owner == pid}
        assert set(attribution.npus) | set(attribution.residual) == mine
        assert attribution.npus == tuple(sorted(attribution.npus))
        assert attribution.npus
    assert attribute(table(*reversed(rows)), {}) == found


def test_device_ids_of_the_device_plugin_end_in_the_physical_id() -> None:
    inventory = Inventory((Npu(0, phy_id=4), Npu(1, phy_id=5)), DeviceType.A3)
    assert npus_of_device_ids(inventory, ["Ascend910-5", "Ascend910-4"]) == frozenset({0, 1})
    assert npus_of_device_ids(inventory, ["Ascend910-2c-100-5"]) == frozenset({1})
    for unknown in (["npu0"], ["Ascend910-5", "some-uuid"], ["Ascend910-9"], [f"Ascend910-{'1' * 5000}"], []):
        assert npus_of_device_ids(inventory, unknown) is None
