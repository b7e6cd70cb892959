"""kill -9 of the agent at twenty random moments, from the very first start on."""

from __future__ import annotations

from tests.vm.conftest import Told
from tests.vm.masks import astray, by_tid, worker
from tests.vm.test_vm_nodes import A2

KILLS = 20


def test_the_last_start_comes_to_the_planned_state(told: Told) -> None:
    facts = told("n4c32")["crash.twenty_kills"]
    print(f"killed after {facts['moments']} s of {facts['span']} s")
    assert len(facts["moments"]) == KILLS
    bound = facts["bound"]
    assert bound["settled"], bound["log"]
    for number, masks in A2.items():
        assert astray(worker(bound, number), masks) == []
    assert set(facts["late"]) <= by_tid(bound["threads"]).keys()
