"""Who is not listened to, and for how long."""

from __future__ import annotations

import pytest

from agent.control.storms import A_MOVE, FIRST_SECONDS, LONGEST_SECONDS, MOST, WINDOW_SECONDS, Storms


def rage(storms: Storms, pid: int = 1, count: int = MOST + 1) -> None:
    for _ in range(count):
        storms.heard(pid, 0)


def test_one_of_which_too_much_is_heard_is_left_alone_and_heard_again_later(caplog: pytest.LogCaptureFixture) -> None:
    storms = Storms()
    rage(storms, 1)
    rage(storms, 2, MOST)
    assert storms.look(0.0)
    assert (storms.deaf, storms.next()) == (frozenset({1}), FIRST_SECONDS)
    assert not storms.look(FIRST_SECONDS - 0.1)
    assert storms.look(FIRST_SECONDS)
    assert (storms.deaf, storms.next()) == (frozenset(), None)
    assert len(caplog.messages) == 1


def test_what_is_heard_in_two_windows_is_not_added_up() -> None:
    storms = Storms()
    storms.look(0.0)
    for now in range(1, 10):
        rage(storms, count=MOST)
        assert not storms.look(now * WINDOW_SECONDS)


def test_a_thread_that_is_moved_counts_for_more() -> None:
    storms = Storms()
    for _ in range(MOST // (1 + A_MOVE) + 1):
        storms.heard(1, 1)
    assert storms.look(0.0)


def test_whoever_goes_on_is_left_alone_for_longer_each_time_and_after_a_calm_for_as_long_as_at_first() -> None:
    storms = Storms()
    now, spells = 0.0, []
    for _ in range(8):
        rage(storms)
        storms.look(now)
        until = storms.next()
        assert until is not None
        spells.append(until - now)
        now = until
        storms.look(now)
    assert spells == [10, 20, 40, 80, 160, 320, 320, LONGEST_SECONDS]
    now += LONGEST_SECONDS
    rage(storms)
    storms.look(now)
    assert storms.next() == now + FIRST_SECONDS


def test_another_process_with_the_number_of_one_that_ended_is_listened_to() -> None:
    storms = Storms()
    rage(storms)
    storms.look(0.0)
    storms.forget(1)
    assert (storms.deaf, storms.next()) == (frozenset(), None)
    rage(storms)
    storms.look(1.0)
    assert storms.next() == 1.0 + FIRST_SECONDS
