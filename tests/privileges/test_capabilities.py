"""What goes away without each capability, as this kernel has it, is what the agent's table says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.checks import Check
from agent.node.capabilities import NEEDS, Capability, Feature
from agent.node.prerequisites import release, version
from tests.host import alone
from tests.privileges.interrupt import spare_irq
from tests.privileges.probe import INTERRUPTS
from tests.privileges.rig import AGENT, FIVE, another_users_worker, just, need_root

need_root()

Probe = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """The agent's parts with just some capabilities: what each was told by the kernel, empty where it did its work."""
    with alone.one_at_a_time(alone.INTERRUPTS):
        irq = spare_irq()
    with another_users_worker("--threads", "1") as worker:
        worker.open(Path("/dev/null"))
        address = worker.map("private", 1)

        def tried(held: Collection[Capability], **how: Any) -> dict[str, str]:
            command = [*just(held, **how), sys.executable, "-m", "tests.privileges.probe"]
            arguments = [str(number) for number in (worker.pid, address, irq)]
            with alone.one_at_a_time(alone.INTERRUPTS):
                done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            found: dict[str, str] = json.loads(done.stdout)
            if not irq:
                del found[INTERRUPTS]
            return found

        yield tried


def lost(found: dict[str, str]) -> set[str]:
    return {name for name, why in found.items() if why}


def test_the_five_are_all_that_the_agent_needs(probe: Probe) -> None:
    found = probe(FIVE)
    assert lost(found) == set(), found


@pytest.mark.parametrize("missing", list(Capability), ids=lambda one: one.name)
def test_without_one_just_what_the_table_says_goes_away(probe: Probe, missing: Capability) -> None:
    if missing is Capability.NET_ADMIN and version(release(Path("/"))) < (6, 6):
        pytest.skip("this kernel wants CAP_NET_ADMIN for events of processes")
    found = probe(FIVE - {missing})
    assert lost(found) == {feature.name for feature in NEEDS[missing].features}, found


def test_each_feature_is_lost_without_some_capability(probe: Probe) -> None:
    features = {feature for need in NEEDS.values() for feature in need.features}
    assert features == set(Feature)
    assert NEEDS.keys() == set(Capability)
    found = probe(frozenset())
    assert lost(found) == {feature.name for feature in Feature}, "interrupts are written by user 0 without any"


@pytest.mark.parametrize("feature", list(Feature), ids=lambda one: one.name)
def test_a_feature_is_there_with_just_those_that_it_needs(probe: Probe, feature: Feature) -> None:
    needed = {one for one, need in NEEDS.items() if feature in need.features}
    if feature is Feature.EVENTS and version(release(Path("/"))) < (6, 6):
        needed.add(Capability.NET_ADMIN)
    found = probe(needed)
    assert feature.name not in lost(found), found


def test_in_the_hosts_network_events_need_no_capability(probe: Probe) -> None:
    if version(release(Path("/"))) < (6, 6):
        pytest.skip("this kernel wants CAP_NET_ADMIN for events of processes")
    assert Feature.EVENTS.name not in lost(probe(frozenset(), own_network=False))


def test_another_user_than_root_with_the_five_lacks_interrupts_alone(probe: Probe) -> None:
    found = probe(FIVE, user=AGENT)
    assert lost(found) == ({INTERRUPTS} if INTERRUPTS in found else set()), found


def doctor(held: Collection[Capability], *, own_network: bool = True) -> dict[str, Check]:
    command = [*just(held, own_network=own_network), sys.executable, "-m", "agent", "doctor", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return {entry["name"]: Check(**entry) for entry in json.loads(done.stdout)}


def test_doctor_is_content_with_the_five(probe: Probe) -> None:
    found = doctor(FIVE)
    own = ["events", "taskstats", "memory", "interrupts", "network namespace"]
    for name in [*(f"CAP_{one.name}" for one in Capability), *own]:
        assert found[name].result == "ok", found[name]


@pytest.mark.parametrize("missing", list(Capability), ids=lambda one: one.name)
def test_doctor_names_the_one_that_is_missing_and_what_goes_with_it(missing: Capability) -> None:
    found = doctor(FIVE - {missing})
    line = found[f"CAP_{missing.name}"]
    assert line.result == ("fail" if missing is Capability.SYS_NICE else "warn")
    assert line.without == NEEDS[missing].without
    assert "profile" in line.fix
    others = [found[f"CAP_{one.name}"].result for one in FIVE - {missing}]
    assert others == ["ok"] * len(others)
    features = NEEDS[missing].features
    assert found["taskstats"].result == ("warn" if Feature.NAMES in features else "ok")
    if version(release(Path("/"))) >= (6, 6):
        assert found["events"].result == ("warn" if Feature.EVENTS in features else "ok")


@pytest.mark.parametrize("own_network", [True, False])
@pytest.mark.parametrize("held", [FIVE, FIVE - {Capability.SYS_PTRACE}, FIVE - {Capability.SYS_ADMIN}])
def test_doctor_misses_the_host_s_network_just_where_no_events_come(
    held: frozenset[Capability], own_network: bool
) -> None:
    """Without SYS_PTRACE it can't be seen whether this is the host's; a socket that hears is proof enough."""
    if version(release(Path("/"))) < (6, 6):
        pytest.skip("this kernel wants CAP_NET_ADMIN for events of processes")
    found = doctor(held, own_network=own_network)
    assert found["network namespace"].result == found["events"].result, (found["network namespace"], found["events"])
    assert found["events"].result == ("warn" if own_network and held != FIVE else "ok")
