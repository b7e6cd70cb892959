"""Boards of NPUs, asked for in threads of their own: npu-smi may take ten seconds, and the loop must not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.model.node import Npu
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.command import NpuSmi


class Boards:
    """PCI addresses of NPUs as ``npu-smi info -t board`` shows them. `changed` is called from another thread."""

    def __init__(self, npu_smi: NpuSmi, changed: Callable[[], None] = lambda: None) -> None:
        self._npu_smi = npu_smi
        self.changed = changed
        self._answers: dict[tuple[int, int], str | Refused | None] = {}
        """By card and chip; None while npu-smi is asked."""

    def address(self, npu: Npu) -> str:
        """``PCIe Bus Info`` of an NPU, empty where its board shows none.

        Refused(Pending) until npu-smi has answered; with the reason of its error where that was one, once: after that
        it is asked anew.
        """
        key = (npu.card, npu.chip)
        if key not in self._answers:
            self._answers[key] = None
            threading.Thread(target=self._ask, args=key, name=f"board {key}", daemon=True).start()
        answer = self._answers[key]
        if answer is None:
            raise Refused(Reason.PENDING, "npu-smi is asked for its board")
        if isinstance(answer, Refused):
            del self._answers[key]
            raise answer
        return answer

    def _ask(self, card: int, chip: int) -> None:
        answer: str | Refused
        try:
            answer = parse_board(self._npu_smi.query("info", "-t", "board", "-i", str(card), "-c", str(chip))).bus_id
        except Refused as refused:
            answer = refused
        self._answers[card, chip] = answer
        self.changed()
