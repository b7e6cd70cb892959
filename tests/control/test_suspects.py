"""When a process that makes threads is worth a look."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.control.suspects import FIRST_SECONDS, LONGEST_SECONDS, MOST_AT_ONCE, MOST_KNOWN, Suspects


def test_the_first_look_is_a_quarter_of_a_second_after_the_first_thread() -> None:
    suspects = Suspects()
    suspects.made_thread(7, 100.0)
    suspects.made_thread(7, 100.2)
    assert suspects.next() == 100.25
    assert suspects.take(100.24) == frozenset()
    assert suspects.take(100.25) == {7}
    assert suspects.take(200.0) == frozenset(), "no thread was made since"


def test_looks_at_one_that_makes_threads_at_all_times_get_rare_and_ask_for_no_pass() -> None:
    suspects = Suspects()
    now, looks, asked = 0.0, [], 0
    while now < 600:
        suspects.made_thread(7, now)
        due = suspects.next()
        asked += due is not None and due <= now
        if suspects.take(now):
            looks.append(now)
        now += 0.05
    between = [later - earlier for earlier, later in pairwise(looks)]
    assert all(later > min(1.5 * earlier, LONGEST_SECONDS - 1) for earlier, later in pairwise(between))
    assert max(between) < LONGEST_SECONDS + 1
    assert len(looks) < 20
    assert asked <= 2


def test_one_that_was_quiet_is_looked_at_soon_again() -> None:
    suspects = Suspects()
    for now in (0.0, 100.0, 200.0):
        suspects.made_thread(7, now)
        assert suspects.next() == now + FIRST_SECONDS
        assert suspects.take(now + FIRST_SECONDS) == {7}


def test_one_that_ended_is_forgotten_with_its_back_off() -> None:
    suspects = Suspects()
    suspects.made_thread(7, 0.0)
    suspects.forget(7)
    assert suspects.next() is None
    assert suspects.take(10.0) == frozenset()
    suspects.made_thread(7, 10.0)
    assert suspects.take(10.25) == {7}


def test_few_are_looked_at_at_once_and_the_others_next_time() -> None:
    suspects = Suspects()
    for pid in range(1, 101):
        suspects.made_thread(pid, 0.0)
    first, second = suspects.take(1.0), suspects.take(1.0)
    assert len(first) == MOST_AT_ONCE
    assert len(first | second) == 100


@given(st.lists(st.tuples(st.integers(1, 20_000), st.sampled_from("tfk")), max_size=300))
def test_memory_has_a_bound(steps: list[tuple[int, str]]) -> None:
    suspects = Suspects()
    for base in range(0, 3 * MOST_KNOWN, 997):
        for pid, step in steps[:40]:
            if step == "t":
                suspects.made_thread(base + pid, base / 1000)
            elif step == "f":
                suspects.forget(base + pid)
            else:
                suspects.take(base / 1000)
    assert len(suspects) <= MOST_KNOWN


def test_many_that_end_before_their_look_leave_nothing_behind() -> None:
    suspects = Suspects()
    for pid in range(5 * MOST_KNOWN):
        suspects.made_thread(pid, 0.0)
        suspects.forget(pid)
    assert len(suspects._due) <= 2 * MOST_KNOWN + 1
    assert len(suspects._prompt) <= 2 * MOST_KNOWN + 1
    for pid in range(2 * MOST_KNOWN):
        suspects.made_thread(pid, 0.0)
    assert len(suspects) == MOST_KNOWN
