"""The PCI address by the board, asked without anybody waiting for npu-smi."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from agent.model.node import Npu
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.bus_id import BusIds

BOARD = Path(__file__).parents[2] / "fixtures/board/910a_card0_chip0.txt"
NPU = Npu(5, card=2, chip=1)


class Boards:
    """An npu-smi that answers when it is let."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, ...]] = []
        self.may = threading.Event()

    def query(self, *args: str) -> str:
        self.asked.append(args)
        assert self.may.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def told(boards: Boards) -> BusIds:
    """Asked once, and the answer has arrived."""
    arrived = threading.Event()
    bus_ids = BusIds(boards, arrived.set)
    for _ in range(3):
        with pytest.raises(Refused) as refused:
            bus_ids(NPU)
        assert refused.value.reason is Reason.PENDING
    boards.may.set()
    assert arrived.wait(10)
    return bus_ids


def test_the_board_of_the_npus_own_card_and_chip_is_asked_once_and_nobody_waits() -> None:
    boards = Boards(BOARD.read_text())
    assert told(boards)(NPU) == "0000:61:00.0"
    assert boards.asked == [("info", "-t", "board", "-i", "2", "-c", "1")]


def test_what_it_is_refused_with_is_the_answer_and_it_can_be_asked_again() -> None:
    boards = Boards(Refused(Reason.DRIVER_BUSY, "occupied"))
    bus_ids = told(boards)
    with pytest.raises(Refused) as refused:
        bus_ids(NPU)
    assert refused.value.reason is Reason.DRIVER_BUSY
    with pytest.raises(Refused) as refused:
        bus_ids(NPU)
    assert refused.value.reason is Reason.PENDING
