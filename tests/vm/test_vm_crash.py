"""kill -9 of the agent at twenty random moments, from the very first start on; then `cpubind restore`."""

from __future__ import annotations

from tests.vm.conftest import Told
from tests.vm.masks import astray, by_tid, places, worker

KILLS = 20
IRQ_PLACES = {"sq_send_trigger_irq": "0", "cq_update_irq": "1"}
PLACES = {0: places("2-5", acl="6", release="7"), 1: places("10-13", acl="14", release="15")}
"""Two NPUs on four nodes of four CPUs, at home on nodes 0 and 2; each has the next node, too."""


def test_the_last_start_comes_to_the_planned_state(told: Told) -> None:
    facts = told("n4c16")["crash.twenty_kills"]
    print(f"killed after {facts['moments']} s of {facts['span']} s")
    assert len(facts["moments"]) == KILLS
    bound = facts["bound"]
    assert bound["settled"], bound["log"]
    for number, masks in PLACES.items():
        assert astray(worker(bound, number), masks) == []
    assert set(facts["late"]) <= by_tid(bound["threads"]).keys()


def test_the_interrupts_are_where_the_plan_has_them(told: Told) -> None:
    facts = told("n4c16")["crash.twenty_kills"]
    assert facts["bound"]["irqs"] == {irq: IRQ_PLACES[name] for irq, name in facts["irqs"].items()}


def test_restore_returns_every_mask_to_what_it_was_before_the_first_start(told: Told) -> None:
    facts = told("n4c16")["crash.twenty_kills"]
    assert facts["restore"]["exit"] == 0, facts["restore"]
    before, restored = by_tid(facts["before"]), by_tid(facts["restored"])
    assert {tid: restored[tid] for tid in before} == before
    # Two had masks of their own; what came later has its cpuset, as it would have without an agent.
    assert sorted(mask for mask in before.values() if mask != "0-15") == ["10", "9"]
    assert {restored[tid] for tid in restored.keys() - before.keys()} == {"0-15"}
    assert facts["irqs_restored"] == facts["irqs_before"] != facts["bound"]["irqs"]
    assert "3" in facts["irqs_before"].values()
