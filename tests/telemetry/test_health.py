"""Live and ready, as kubelet's probes see it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agent.model.address import Address
from agent.telemetry.health import FLOOR_SECONDS, Health, HealthServer
from tests.telemetry.listening import LOOPBACK, ask, port_of


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_loop_that_turned_within_three_sweeps_lives() -> None:
    clock = _Clock()
    health = Health(60, clock)
    clock.now += 170
    health.turned()
    clock.now += 180
    assert health.live() == (True, "the loop turned 180.0 s ago")
    clock.now += 1
    assert health.live() == (False, "the loop has not turned for 181 s, of 180 s that it may take")


def test_a_loop_that_turns_again_lives_again() -> None:
    clock = _Clock()
    health = Health(60, clock)
    clock.now += 1000
    assert not health.live()[0]
    health.turned()
    assert health.live() == (True, "the loop turned 0.0 s ago")


def test_the_first_turn_has_as_long_as_any_other() -> None:
    clock = _Clock()
    health = Health(60, clock)
    clock.now += 180
    assert health.live()[0]
    clock.now += 1
    assert not health.live()[0]


def test_short_sweeps_do_not_make_a_slow_pass_deadly() -> None:
    clock = _Clock()
    health = Health(0.05, clock)
    clock.now += FLOOR_SECONDS
    assert health.live()[0]
    clock.now += 1
    assert not health.live()[0]


def test_being_ready_and_living_have_nothing_to_do_with_each_other() -> None:
    clock = _Clock()
    health = Health(5, clock)
    health.not_ready("npu-smi hangs")
    assert health.live()[0]
    health.ready("plan 6f1c09ab12cd")
    clock.now += 1000
    assert not health.live()[0]
    assert health.readiness() == (True, "plan 6f1c09ab12cd")


def test_readiness_begins_with_no_and_is_what_was_said_last_in_one_line() -> None:
    health = Health(5)
    assert health.readiness() == (False, "starting")
    health.ready("no NPUs:\nnot applicable")
    assert health.readiness() == (True, "no NPUs:\\x0anot applicable")
    health.not_ready("waiting for the lock of pid 7")
    assert health.readiness() == (False, "waiting for the lock of pid 7")


class _Served:
    def __init__(self) -> None:
        self.clock = _Clock()
        self.health = Health(5, self.clock)
        self.server = HealthServer(Address(LOOPBACK, 0), self.health)
        self.port = port_of(self.server)

    def get(self, path: str) -> tuple[int, str]:
        return ask(self.port, path)[:2]


@pytest.fixture
def served() -> Iterator[_Served]:
    one = _Served()
    yield one
    one.server.close()


def test_healthz_is_200_while_the_loop_turns_and_503_when_it_does_not(served: _Served) -> None:
    assert served.get("/healthz") == (200, "the loop turned 0.0 s ago\n")
    served.clock.now += 16
    assert served.get("/healthz") == (503, "the loop has not turned for 16 s, of 15 s that it may take\n")


def test_readyz_is_503_with_the_reason_until_it_is_200(served: _Served) -> None:
    assert served.get("/readyz") == (503, "starting\n")
    served.health.ready("plan 6f1c09ab12cd")
    assert served.get("/readyz") == (200, "plan 6f1c09ab12cd\n")


def test_a_probe_by_head_has_the_same_status(served: _Served) -> None:
    assert ask(served.port, "/readyz", "HEAD")[:2] == (503, "")


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz/ping", "/livez"])
def test_nothing_else_is_served(served: _Served, path: str) -> None:
    assert served.get(path) == (404, "not found\n")


def test_many_probes_at_once_are_all_answered(served: _Served) -> None:
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(served.get("/healthz")[0])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 16


def test_there_is_no_problem_while_it_serves(served: _Served) -> None:
    assert served.server.problem() is None
