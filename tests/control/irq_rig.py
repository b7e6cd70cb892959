"""Interrupts of a virtual node, with a clock that the test moves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from agent.control.interrupts import Interrupts
from agent.control.journal import IrqBans, TakenIrq
from agent.demo.virtual import VirtualNode
from agent.model.cpuset import CpuSet
from agent.model.node import Npu
from agent.model.outcome import IrqOutcome
from agent.model.reason import Reason, Refused
from agent.node.host import Host
from agent.node.irq import read_affinity
from agent.node.irqbalance import Irqbalance

SQ, CQ, MAILBOX = "sq_send_trigger_irq", "cq_update_irq", "trs-mbox-0-0"


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def no_board(npu: Npu) -> str:
    raise Refused(Reason.NOT_SUPPORTED, f"npu-smi does not know the board of NPU {npu.id}")


class IrqRig:
    """A virtual A2 node; NPU n has CPUs 24n and 24n+1 for its interrupts."""

    def __init__(self, root: Path, profile: str = "a2") -> None:
        self.node = VirtualNode(root, profile)
        self.now = 1000.0
        self.journal: tuple[tuple[TakenIrq, ...], IrqBans | None] = ((), None)
        self.saves = 0
        self.boards = 0
        self.board = no_board
        self.interrupts = self.restart()

    def restart(self, host: Host | None = None) -> Interrupts:
        """A new agent, which knows what is in the journal."""
        self.interrupts = Interrupts(
            self.node.root,
            host or self.node.kernel,
            self._board,
            balancer=Irqbalance(self.node.root, stand_in=os.getpid()),
            clock=lambda: self.now,
        )
        self.interrupts.adopt(*self.journal)
        return self.interrupts

    def _board(self, npu: Npu) -> str:
        self.boards += 1
        return self.board(npu)

    def wanted(self, *npus: int) -> dict[Npu, CpuSet]:
        return {self.node.npu(npu): CpuSet([24 * npu, 24 * npu + 1]) for npu in npus}

    def survey(self, wanted: Mapping[Npu, CpuSet]) -> None:
        """Reads, and writes the journal where it changed, as the agent does."""
        self.interrupts.survey(wanted)
        self._save()

    def step(self, *npus: int, seconds: float = 5.0) -> dict[int, IrqOutcome]:
        """One pass."""
        self.now += seconds
        wanted = self.wanted(*npus)
        self.survey(wanted)
        outcomes = self.interrupts.act(wanted)
        self._save()
        return outcomes

    def _save(self) -> None:
        state = (self.interrupts.taken, self.interrupts.bans)
        if state != self.journal:
            self.journal = state
            self.saves += 1

    def mask(self, irq: int) -> str:
        return str(read_affinity(self.node.root, irq))

    def masks(self, npu: int, action: str = "") -> set[str]:
        return {self.mask(irq) for irq in self.node.irqs_of(npu, action)}

    def all_masks(self) -> dict[int, str]:
        return {irq.number: self.mask(irq.number) for irq in self.node.irqs}

    def writes(self) -> int:
        return self.node.kernel.calls["smp_affinity_list"]

    def bans(self) -> int:
        return self.node.kernel.calls["ban irqs"]
