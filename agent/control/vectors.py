"""Which of an NPU's interrupts go where (design 4.6), and how each is told from the others when numbers change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from agent.control.journal import TakenIrq
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused

SQ: Final = "sq_send_trigger_irq"
CQ: Final = "cq_update_irq"
"""Names that the driver gives its handlers: one submission interrupt, and 16 completion interrupts (2 or 8 in some
virtual machines), of which upstream moves the first alone. Its mailbox interrupt stays where it is."""

Key: TypeAlias = tuple[str, str, int]
"""PCI address, name, ordinal: a reset of the NPU changes the number of an interrupt, and nothing of this."""


@dataclass(frozen=True, slots=True)
class Vector:
    """An interrupt that has a target."""

    pci: str
    action: str
    """Name of its handler."""
    ordinal: int
    """Which of the interrupts with this name, in ascending order of their numbers, from 0."""
    irq: int

    @property
    def key(self) -> Key:
        return (self.pci, self.action, self.ordinal)

    @property
    def submission(self) -> bool:
        return self.action == SQ

    @property
    def weight(self) -> tuple[int, int, int]:
        """The most important ones first, where there is no room for all: every NPU's submission interrupt, then the
        first completion interrupt of each."""
        return (0 if self.submission else 1, self.ordinal, self.irq)


def targets(cpus: CpuSet) -> dict[str, CpuSet]:
    """Name of a handler -> its CPU of the two that an NPU has for interrupts."""
    first = cpus.take(1)
    return {SQ: first, CQ: (cpus - first).take(1) or first}


def vectors(pci: str, names: Mapping[int, tuple[str, ...]]) -> tuple[Vector, ...]:
    """Those interrupts of a PCI function that have a target, ascending by number. `names`: number -> handlers."""
    found = []
    counts = {SQ: 0, CQ: 0}
    for irq in sorted(names):
        action = next((name for name in names[irq] if name in counts), None)
        if action is not None:
            found.append(Vector(pci, action, counts[action], irq))
            counts[action] += 1
    return tuple(found)


def known_vectors(taken: Iterable[TakenIrq]) -> dict[str, tuple[Vector, ...]]:
    """PCI function -> its interrupts that have a target, as an earlier run of the agent had resolved them."""
    known: dict[str, tuple[Vector, ...]] = {}
    for entry in sorted(taken, key=lambda entry: entry.irq):
        vector = Vector(entry.pci, entry.action, entry.ordinal, entry.irq)
        known[entry.pci] = (*known.get(entry.pci, ()), vector)
    return known


def taken_vector(
    taken: TakenIrq, found: Iterable[Vector], handlers: Sequence[str] | None, *, waiting: bool
) -> Vector | None:
    """The interrupt that was taken, as it is to be put back; None where it is gone.

    `found` are those of its PCI function, `handlers` the names that its own number has there now, None where the
    function has no such number. While others of the function have no name that can be seen (`waiting`) they can't be
    counted, and nothing is found; its number tells it all the same. Refused(IrqNamesUnknown) where it can't be told
    yet: what has no handler just now keeps its mask for the one to come.
    """
    key = (taken.pci, taken.action, taken.ordinal)
    vector = next((vector for vector in found if vector.key == key), None)
    if vector is None and handlers is not None and taken.action in handlers:
        vector = Vector(*key, taken.irq)
    if vector is None and (waiting if handlers is None else not handlers):
        raise Refused(Reason.IRQ_NAMES_UNKNOWN, f"interrupt {taken.irq} of {taken.pci} has no name just now")
    return vector
