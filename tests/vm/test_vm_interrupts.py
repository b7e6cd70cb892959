"""Real MSI-X vectors under the names of the NPU driver's interrupts, read back from /proc/irq/N/smp_affinity_list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.vm.conftest import Told
from tests.vm.masks import npu

PLACES = {"sq_send_trigger_irq": "8", "cq_update_irq": "9"}
"""The NPU's pool is 8-15."""


@pytest.fixture
def moved(told: Told) -> dict[str, Any]:
    return told("n4c16")["interrupts.moved"]


@pytest.fixture
def balanced(told: Told) -> dict[str, Any]:
    return told("n4c16")["interrupts.irqbalance"]


def _expected(facts: Mapping[str, Any]) -> dict[str, str]:
    return {irq: PLACES[name] for irq, name in facts["irqs"].items()}


def test_sq_and_every_cq_vector_go_to_the_cpus_of_the_plan(moved: dict[str, Any]) -> None:
    assert sorted(moved["irqs"].values()) == ["cq_update_irq", "cq_update_irq", "sq_send_trigger_irq"]
    assert moved["bound"]["masks"] == _expected(moved)
    assert npu(moved["bound"]["status"], 0)["irq"] == "Bound"


def test_an_interrupt_that_somebody_moves_is_put_back(moved: dict[str, Any]) -> None:
    assert moved["repaired"]["came"]
    assert moved["repaired"]["masks"] == _expected(moved)


def test_they_have_their_masks_again_when_the_npus_last_worker_ends(moved: dict[str, Any]) -> None:
    assert moved["idle"]["masks"] == moved["before"], moved["idle"]["log"]
    assert "3" in moved["before"].values()  # one had a mask of its own


def test_the_next_worker_has_them_moved_again(moved: dict[str, Any]) -> None:
    assert moved["again"]["masks"] == _expected(moved)


def test_kill_9_leaves_them_and_restore_gives_them_back(moved: dict[str, Any]) -> None:
    assert moved["killed"] == _expected(moved)
    assert moved["restore"]["exit"] == 0, moved["restore"]
    assert moved["restored"] == moved["before"]


def test_on_an_old_kernel_proc_interrupts_says_which_they_are(told: Told) -> None:
    facts = told("n4c16")["interrupts.named_by_proc"]
    assert facts["bound"]["masks"] == _expected(facts), facts["bound"]["log"]
    assert facts["restore"]["exit"] == 0, facts["restore"]
    assert facts["restored"] == facts["before"]


def test_irqbalance_leaves_the_npus_interrupts_alone_while_they_are_bound(balanced: dict[str, Any]) -> None:
    assert balanced["before"] == [balanced["other"]]
    assert balanced["bound"]["banned"] == sorted([balanced["other"], *balanced["irqs"]])
    assert balanced["balanced"] == balanced["bound"]["masks"]
    assert set(balanced["balanced"].values()) == set(PLACES.values())


def test_restore_takes_the_bans_back_and_leaves_somebody_elses(balanced: dict[str, Any]) -> None:
    assert balanced["restore"]["exit"] == 0, balanced["restore"]
    assert balanced["restored"] == balanced["before"]
    assert balanced["runs"]
