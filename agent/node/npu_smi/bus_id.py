"""Where an NPU is on the PCI bus, by its board, for drivers whose ``npu-smi info`` shows no Bus-Id."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from agent.model.node import Npu
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.board import parse_board
from agent.node.npu_smi.command import NpuSmi

_Key: TypeAlias = tuple[int, int]


class BusIds:
    """Asks boards in a thread, since npu-smi takes its time and whoever calls must not wait for it.

    An answer is given out once; a call after that asks anew. `wake` is called from that thread when there is one.
    """

    def __init__(self, npu_smi: NpuSmi, wake: Callable[[], None] = lambda: None) -> None:
        self._npu_smi, self._wake = npu_smi, wake
        self._answers: dict[_Key, str | Refused] = {}
        self._asking: set[_Key] = set()
        self._lock = threading.Lock()

    def __call__(self, npu: Npu) -> str:
        """``PCIe Bus Info`` of the board of this card and chip as sysfs spells it; empty where it shows none.

        Raises Refused: Pending while it is being asked, else whatever the query or its table is refused with.
        """
        key = (npu.card, npu.chip)
        with self._lock:
            answer = self._answers.pop(key, None)
            if answer is None and key not in self._asking:
                self._asking.add(key)
                threading.Thread(target=self._ask, args=(key,), name="npu-smi-board", daemon=True).start()
        if answer is None:
            raise Refused(Reason.PENDING, f"the board of card {npu.card} chip {npu.chip} is being asked")
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _ask(self, key: _Key) -> None:
        answer: str | Refused = Refused(Reason.NPU_SMI_FAILED, "asking the board ended with an error")
        try:
            # Never the logical id: on A3 and 310P it is another card's.
            answer = parse_board(
                self._npu_smi.query("info", "-t", "board", "-i", str(key[0]), "-c", str(key[1]))
            ).bus_id
        except Refused as refused:
            answer = refused
        finally:
            with self._lock:
                self._asking.discard(key)
                self._answers[key] = answer
            self._wake()
