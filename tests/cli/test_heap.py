"""Memory that start-up leaves free."""

from __future__ import annotations

from agent.cli.heap import FIRST_TURNS, TURNS, HeapKeeper


def test_memory_is_given_back_once_after_start_up_and_then_seldom() -> None:
    trims: list[int] = []
    keeper = HeapKeeper(lambda: trims.append(len(turns)))
    turns: list[int] = []
    for turn in range(1, FIRST_TURNS + 2 * TURNS + 1):
        turns.append(turn)
        keeper.turned()
    assert trims == [FIRST_TURNS, FIRST_TURNS + TURNS, FIRST_TURNS + 2 * TURNS]


def test_giving_memory_back_breaks_nothing() -> None:
    kept = [bytes([number % 256]) * 3000 for number in range(2000)]
    del kept[::2]
    keeper = HeapKeeper()
    for _ in range(FIRST_TURNS):
        keeper.turned()
    assert all(text == bytes([number % 256]) * 3000 for number, text in zip(range(1, 2000, 2), kept, strict=True))
