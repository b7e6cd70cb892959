"""``helpers: Confine``: what else runs in a bound container is kept off the CPUs that roles need for themselves."""

from __future__ import annotations

from tests.vm.conftest import Told
from tests.vm.masks import astray, worker
from tests.vm.test_vm_crash import PLACES

KEPT = "2-5,10-13"
"""0-15 without the acl, release and interrupt CPUs of two NPUs."""


def test_a_process_beside_a_worker_is_kept_off_the_cpus_of_every_npus_roles(told: Told) -> None:
    facts = told("n4c16")["helpers.confined"]["bound"]
    assert facts["settled"], facts["log"]
    assert [thread["mask"] for thread in facts["helper"]] == [KEPT] * 4
    for number, masks in PLACES.items():
        assert astray(worker(facts, number), masks) == []


def test_a_process_in_a_container_without_a_worker_is_left_alone(told: Told) -> None:
    facts = told("n4c16")["helpers.confined"]["bound"]
    assert [thread["mask"] for thread in facts["other"]] == ["0-15"] * 4


def test_helpers_leave_gives_it_its_cpuset_again(told: Told) -> None:
    facts = told("n4c16")["helpers.confined"]["left"]
    assert [thread["mask"] for thread in facts["helper"]] == ["0-15"] * 4, facts["log"]
