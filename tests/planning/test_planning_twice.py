"""Planning once more with what the last plan left behind, and what is said of scattered CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.model.plan import PlanInput
from agent.model.spec import Spec
from agent.planning.plan import make_plan
from tests.planning import hosts, reading
from tests.planning.hosts import cpus, host_sized


@host_sized
@given(hosts.busy())
def test_planning_again_with_the_bases_of_the_plan_changes_nothing(inp: PlanInput) -> None:
    plan = make_plan(inp)
    assert make_plan(replace(inp, bases=plan.bases)) == plan


def test_a_domain_with_too_few_cpus_is_not_given_another_domains_at_the_second_look() -> None:
    made = hosts.a3(80, 16)
    wide, narrow = hosts.shared("wide", "0-79"), hosts.shared("narrow", "1-79")  # 79 CPUs are too few for 16
    inp = made.running([wide, narrow], [hosts.worker(1, 14, "wide"), hosts.worker(2, 14, "narrow")])
    first = reading.planned(inp)
    assert reading.planned(replace(inp, bases=first.bases)) == first


@pytest.mark.parametrize("gone", ["150", "0-3", "48,96", "168", "30,180-185"])
def test_cpus_of_a_home_that_go_offline_take_nothing_else_from_its_npu(gone: str) -> None:
    made = hosts.a2_far_pairs()
    serving = reading.planned(made.serving())
    after = reading.planned(replace(hosts.without(made, cpus(gone)).serving(allowed="0-191"), bases=serving.bases))
    assert reading.pools(after) == {npu: str(cpus(pool) - cpus(gone)) for npu, pool in reading.pools(serving).items()}


def test_messages_are_short_however_scattered_the_cpus_are() -> None:
    odd, even = CpuSet(range(1, 640, 2)), CpuSet(range(0, 640, 2))
    for device_type in DeviceType:
        made = hosts.machine({0: odd, 1: even}, [odd, even, odd | even], device_type)
        for allowed in (odd, even, odd.take(4), even.take(60), CpuSet([639])):
            reading.planned(made.serving(allowed=allowed))  # its messages are of 256 bytes at most
            reading.planned(replace(made.serving(), spec=Spec(reserved_cpus=made.topology.online - allowed)))
        reading.planned(replace(made.serving(), spec=Spec(reserved_cpus=odd | even)))
