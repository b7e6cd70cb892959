"""What is said to irqbalance and what it answers, as texts."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.reason import Reason, Refused
from agent.model.workload import ProcessId
from agent.node import irqbalance
from agent.node.irqbalance import LIST_BYTES, fitting, parse_setup

_irqs = st.lists(st.integers(0, 99_999), max_size=300, unique=True)


@given(_irqs, st.integers(-1, 100_000), st.sampled_from(["00000000", "00000000,00000003", ""]))
def test_an_answer_round_trips(irqs: list[int], load: int, banned: str) -> None:
    listed = "".join(f"IRQ {irq} LOAD {abs(load)} DIFF {abs(load)} CLASS {min(load, 8)} " for irq in irqs)
    assert parse_setup(f"SLEEP 10 {listed}BANNED {banned}".encode()) == frozenset(irqs)


@given(_irqs.filter(bool), st.data())
def test_an_answer_that_is_cut_is_refused_and_never_a_shorter_list(irqs: list[int], data: st.DataObject) -> None:
    listed = "".join(f"IRQ {irq} LOAD 0 DIFF 0 CLASS 0 " for irq in irqs)
    answer = f"SLEEP 10 {listed}BANNED 00000000".encode()
    end = answer.index(b"BANNED") + len("BANNED")
    cut = data.draw(st.integers(0, end - 1))
    with pytest.raises(Refused) as refused:
        parse_setup(answer[:cut])
    assert refused.value.reason is Reason.IRQBALANCE_ACTIVE


@given(st.binary(max_size=300))
def test_no_answer_is_an_exception_of_another_kind(answer: bytes) -> None:
    with suppress(Refused):
        assert all(irq < 10**9 for irq in parse_setup(answer))


def test_what_is_no_answer_is_shown_as_one_printable_line() -> None:
    with pytest.raises(Refused) as refused:
        parse_setup(b"\x1b[31m\n" + b"x" * 1000)
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 200


@given(_irqs, _irqs, st.sampled_from(LIST_BYTES))
def test_a_list_holds_whole_numbers_each_once_what_is_to_be_kept_first(
    keep: list[int], more: list[int], limit: int
) -> None:
    listed = fitting(keep, more, limit)
    assert len(" ".join(map(str, listed))) <= limit
    assert len(set(listed)) == len(listed)
    order = list(dict.fromkeys([*sorted(keep), *more]))
    assert listed == order[: len(listed)]
    rest = order[len(listed) :]
    assert not rest or len(" ".join(map(str, [*listed, rest[0]]))) > limit


@pytest.mark.parametrize("answers", [True, False])
def test_who_leaves_before_an_answer_came_waits_for_it_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    here, there = socket.socketpair()
    waiting = {ProcessId(1, 1): here}
    monkeypatch.setattr(irqbalance, "_UNANSWERED", waiting)
    monkeypatch.setattr(irqbalance, "_PARTING_SECONDS", 60.0 if answers else 0.2)

    def answer() -> None:
        there.sendall(b"SLEEP 10 BANNED 0")
        there.close()

    late = threading.Timer(0.2, answer)
    if answers:
        late.start()
    irqbalance._part()
    assert bool(waiting) is not answers
    if answers:
        late.join()
    here.close()
    there.close()
