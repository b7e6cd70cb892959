"""Where an NPU is on the PCI bus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from agent.control.backoff import Refusal
from agent.model.node import Npu
from agent.model.reason import Problem, Reason, Refused
from agent.node.irq import sysfs_address

Board: TypeAlias = Callable[[Npu], str]
"""``PCIe Bus Info`` of the board of an NPU, asked with its own card and chip; empty where the board shows none.

It is called on the control loop's thread, which must not wait for npu-smi: whoever gives it runs the query elsewhere
and meanwhile raises Refused(Pending), after which it is asked again in the next pass. Any other Refused is an answer,
and asked for again after ten seconds at first, then less and less often.
"""


class PciAddresses:
    """PCI addresses of NPUs: ``Bus-Id`` of ``npu-smi info``, else the board's, asked once."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[tuple[int, int], str] = {}
        self._refused: dict[tuple[int, int], Refusal] = {}

    def of(self, npus: Iterable[Npu], now: float) -> dict[Npu, str | Problem]:
        """NPU -> its address as sysfs spells it, or why there is none. No two NPUs have the same one: where npu-smi
        says so, neither's is known."""
        found = {npu: self._of(npu, now) for npu in sorted(npus, key=lambda npu: npu.id)}
        addresses = list(found.values())
        for npu, address in found.items():
            if isinstance(address, str) and addresses.count(address) > 1:
                text = f"NPU {npu.id}: npu-smi shows {address} for another NPU, too"
                found[npu] = Problem(Reason.PCI_ADDRESS_UNKNOWN, text)
        return found

    def _of(self, npu: Npu, now: float) -> str | Problem:
        if address := sysfs_address(npu.bus_id):
            return address
        key = (npu.card, npu.chip)
        if key in self._known:
            return self._known[key]
        refusal = self._refused.get(key)
        if refusal is not None and now < refusal.until:
            return refusal.problem
        try:
            said = self._board(npu)
        except Refused as refused:
            text = f"NPU {npu.id}: {refused.reason}: {refused.message}"
            if refused.reason is Reason.PENDING:
                return Problem(Reason.PENDING, text)
        else:
            if address := sysfs_address(said):
                self._known[key] = address
                return address
            text = f"NPU {npu.id}: neither npu-smi info nor its board (-i {npu.card} -c {npu.chip}) shows one"
        problem = Problem(Reason.PCI_ADDRESS_UNKNOWN, text)
        self._refused[key] = Refusal.after(refusal, problem, now)
        return problem
