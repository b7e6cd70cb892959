"""The interrupts of NPUs: put on the CPUs that the plan has for them, kept there, and put back (design section 6)."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from agent.control.backoff import Refusal
from agent.control.balance import BanKeeper
from agent.control.drift import Contests, DriftTotals, Part
from agent.control.journal import IrqBans, TakenIrq
from agent.control.pci_addresses import Board, PciAddresses
from agent.control.vectors import CQ, SQ, Key, Vector, known_vectors, taken_vector, targets, vectors
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node import Npu
from agent.model.outcome import IrqOutcome
from agent.model.reason import Problem, Reason, Refused
from agent.node.files import join
from agent.node.host import Host
from agent.node.irq import ActionNames, driver_module, msi_irqs, read_affinity
from agent.node.irqbalance import Irqbalance

_UNNAMED_SECONDS: Final = 40.0
"""Names that are missing are waited for until they have been read three times."""

_STALE: Final = (-1,)
"""No listing of any device."""


@dataclass(slots=True)
class _Device:
    """A PCI function, as it was when its interrupts were resolved."""

    listing: tuple[int, ...]
    vectors: tuple[Vector, ...]
    module: str
    npu: int | None = None
    """The NPU that it was seen to be, in this run of the agent."""


@dataclass(slots=True)
class _Look:
    """What a survey found of one NPU."""

    npu: Npu
    problem: Problem | None = None
    """Why none of its interrupts is known."""
    readings: list[tuple[Vector, CpuSet, CpuSet]] = field(default_factory=list)
    """The interrupts, each with its mask and its target."""
    lost: int = 0
    """Interrupts that ended while they were looked at."""


class Interrupts:
    """What the agent does to the interrupts of NPUs with a bound worker.

    In each pass `survey`, then the journal is written where `taken` or `bans` changed, then `act`. After a restart what
    the journal has is given to `adopt`. `board` is as in `agent.control.pci_addresses.Board`: it must not block. A
    second object over a `DryRunHost` rehearses; what that one has in `taken` and `bans` is for no journal.

    A pass where all is in place reads each NPU's ``msi_irqs`` and each interrupt's ``smp_affinity_list``, and writes
    nothing. Numbers are resolved once, and again when that listing changes or an interrupt is gone or has another
    handler. Interrupts that the kernel refuses to move are left alone for ten seconds at first, then longer; so are all
    of an NPU that somebody else keeps moving.
    """

    def __init__(
        self,
        root: Path,
        host: Host,
        board: Board,
        *,
        balancer: Irqbalance | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._host, self._clock = root, host, clock
        self._balance = BanKeeper(host, balancer or Irqbalance(root))
        self._addresses = PciAddresses(board)
        self._names = ActionNames(root)
        self._devices: dict[str, _Device] = {}
        self._taken: dict[Key, TakenIrq] = {}
        self._fresh: set[Key] = set()
        """Noted, and not written yet."""
        self._placed: set[Key] = set()
        """Put in place, or seen there."""
        self._adopted: set[Key] = set()
        """Noted by an earlier run, which may have ended before it wrote them."""
        self._refusals: dict[int, Refusal] = {}
        self._unnamed: dict[str, Refusal] = {}
        """Functions some of whose interrupts have no name that can be seen."""
        self._known: dict[str, tuple[Vector, ...]] = {}
        """Functions -> their interrupts as they were resolved last with names: irqbalance is to leave them alone also
        while they can't be looked at."""
        self._contests: Contests[int] = Contests()
        self._read_only: Refusal | None = None
        self._seen_read_only = False
        """Whether the tree could be seen to be so, and therefore the end of that can be seen, too."""
        self._stuck: dict[Key, Problem] = {}
        self._looks: list[_Look] | None = None
        self._leaving: list[Key] = []
        self._wanted: Mapping[Npu, CpuSet] = {}

    def adopt(self, taken: Sequence[TakenIrq], bans: IrqBans | None) -> None:
        """What an earlier run of the agent noted."""
        self._taken = {(entry.pci, entry.action, entry.ordinal): entry for entry in taken}
        self._placed = set(self._taken)
        self._adopted = set(self._taken)
        self._known = known_vectors(taken) | self._known
        self._balance.bans = bans

    @property
    def taken(self) -> tuple[TakenIrq, ...]:
        """For the journal: every interrupt that was moved or is about to be, with its mask before."""
        return tuple(self._taken[key] for key in sorted(self._taken))

    @property
    def bans(self) -> IrqBans | None:
        """For the journal: what was added to irqbalance's list, or is about to be."""
        return self._balance.bans

    @property
    def problems(self) -> list[Problem]:
        """What is wrong with the node as a whole, of the last pass: irqbalance that can't be told, interrupts that
        can't be put back."""
        found = [] if self._balance.problem is None else [self._balance.problem]
        by_reason: dict[Reason, list[Problem]] = {}
        for problem in self._stuck.values():
            by_reason.setdefault(problem.reason, []).append(problem)
        for reason, alike in by_reason.items():
            found.append(Problem(reason, f"{_count(len(alike))} not put back: {alike[0].message}"))
        return found

    @property
    def drift(self) -> DriftTotals:
        """How many were found elsewhere than where they had been put."""
        return self._contests.totals

    def holds(self, npu: Npu) -> bool:
        """Whether any interrupt of an NPU is in `taken`, as far as its address is known."""
        address = self._addresses.of([npu], self._clock())[npu]
        return any(pci == address for pci, _, _ in self._taken)

    def survey(self, wanted: Mapping[Npu, CpuSet], *, whole: bool = True) -> None:
        """Reads how everything is, and notes in `taken` and `bans` what `act` will change. Writes nothing to the host.

        `wanted`: NPUs with a bound worker whose pod lets its interrupts be moved -> the two CPUs for these. Where these
        are not the `whole` of them, only interrupts of NPUs that this run of the agent has seen are put back."""
        now = self._clock()
        self._wanted = dict(wanted)
        self._names = ActionNames(self._root)
        self._check_read_only()
        addresses = self._addresses.of(wanted, now)
        self._looks = [self._look(npu, wanted[npu], address) for npu, address in addresses.items()]
        here = {address for address in addresses.values() if isinstance(address, str)}
        # An NPU whose address is not known could be any that nobody has been seen to be.
        unsure = len(here) < len(addresses) or not whole
        ids = {npu.id for npu in wanted}
        self._leaving = []
        for key in self._taken:
            device = self._devices.get(key[0])
            known = device is not None and device.npu is not None and device.npu not in ids
            if key[0] not in here and (known or not unsure):
                self._leaving.append(key)
        readings = [reading for look in self._looks for reading in look.readings]
        ours = [vector for vector, _, _ in readings]
        for look in self._looks:
            if look.problem is not None or look.lost:
                address = addresses[look.npu]
                ours += self._known.get(address, ()) if isinstance(address, str) else ()
        order = [vector.irq for vector in sorted(ours, key=lambda vector: vector.weight)]
        moved = any(current != target and vector.key in self._placed for vector, current, target in readings)
        modules = {self._devices[vector.pci].module for vector, _, _ in readings}
        self._balance.survey(order, () if "" in modules else modules, now, moved=moved)

    def act(self, wanted: Mapping[Npu, CpuSet]) -> dict[int, IrqOutcome]:
        """Makes it so, as `survey` found it for the same `wanted`: writes every mask that is not in place, once, puts
        back the interrupts of NPUs that are not wanted any more, and tells irqbalance. Outcomes by NPU."""
        if self._looks is None or dict(wanted) != self._wanted:
            self.survey(wanted)
        looks, self._looks = self._looks or [], None
        now = self._clock()
        # Before the masks: when its list changes irqbalance places all other interrupts anew.
        self._balance.act(now)
        outcomes = {look.npu.id: self._place(look, now) for look in looks}
        self._contests.retain(outcomes)
        self._stuck = {key: problem for key, problem in self._stuck.items() if key in self._taken}
        for key in self._leaving:
            self._put_back(key, now)
        return outcomes

    def restore(self) -> int:
        """Undoes everything, and returns how many interrupts were put back.

        Each is resolved again, and put back only where its mask is the one that it was given. One that is gone, or that
        somebody else has moved since, is nothing of the agent's any more. What could not be undone is still in `taken`
        and `bans`, and `problems` says why."""
        now = self._clock()
        self._looks = None
        self._names = ActionNames(self._root)
        self._check_read_only()
        self._contests.retain(())
        count = sum(self._put_back(key, now) for key in list(self._taken))
        self._balance.restore(now)
        return count

    # Reading

    def _look(self, npu: Npu, cpus: CpuSet, address: str | Problem) -> _Look:
        if isinstance(address, Problem):
            return _Look(npu, problem=address)
        look, target = _Look(npu), targets(cpus)
        try:
            device = self._resolve(address)
            device.npu = npu.id
            if not device.listing:
                text = f"NPU {npu.id}: no interrupts in msi_irqs of {address}"
                return _Look(npu, problem=Problem(Reason.MSI_IRQS_MISSING, text))
            if not device.vectors:
                text = f"NPU {npu.id}: none of {_count(len(device.listing))} of {address} is called {SQ} or {CQ}"
                return _Look(npu, problem=Problem(Reason.IRQ_NAMES_UNKNOWN, text))
            for vector in device.vectors:
                current = read_affinity(self._root, vector.irq)
                if not current:
                    look.lost += 1
                    self._forget(address)
                    continue
                self._note(vector, current, target[vector.action])
                look.readings.append((vector, current, target[vector.action]))
        except Refused as refused:
            return _Look(npu, problem=refused.problem)
        return look

    def _resolve(self, address: str) -> _Device:
        """The interrupts of a PCI function. Entries in `taken` follow theirs to a new number."""
        listing = msi_irqs(self._root, address)
        device, unnamed = self._devices.get(address), self._unnamed.get(address)
        due = unnamed is not None and self._clock() >= unnamed.until
        if device is not None and device.listing == listing and not due:
            return device
        names = self._names.of(listing)
        found = vectors(address, names)
        if all(names.values()):
            self._unnamed.pop(address, None)
        else:
            # One that its driver has not begun with has none, and so has one of which nothing can be seen just now.
            problem = Problem(Reason.IRQ_NAMES_UNKNOWN, address)
            unnamed = self._unnamed[address] = Refusal.after(self._unnamed.get(address), problem, self._clock())
            known = self._known.get(address, ())
            waiting = unnamed.seconds < _UNNAMED_SECONDS
            if (waiting or len(known) >= len(found)) and known and {vector.irq for vector in known} <= set(listing):
                found = known
            elif waiting:
                found = ()  # with some of the names the others would be counted wrongly
        if found:
            self._known[address] = found
        fresh = _Device(listing, found, driver_module(self._root, address), device.npu if device else None)
        for vector in found:
            self._refusals.pop(vector.irq, None)
            entry = self._taken.get(vector.key)
            if entry is not None and entry.irq != vector.irq:
                self._taken[vector.key] = replace(entry, irq=vector.irq)
                self._placed.discard(vector.key)
        self._devices[address] = fresh
        return fresh

    def _forget(self, address: str) -> None:
        """Resolve that function's interrupts anew in the next pass."""
        if (device := self._devices.get(address)) is not None:
            device.listing = _STALE

    def _note(self, vector: Vector, current: CpuSet, target: CpuSet) -> None:
        key = vector.key
        entry = self._taken.get(key)
        if entry is None:
            entry = TakenIrq(vector.pci, vector.action, vector.ordinal, vector.irq, before=current, given=target)
            self._fresh.add(key)
        elif key in self._fresh:
            entry = replace(entry, before=current, given=target)
        elif entry.given != target:
            # Should the agent end before it writes, the mask is still the one that was given last.
            earlier = current if current in (entry.given, entry.earlier) else entry.given
            entry = replace(entry, given=target, earlier=earlier)
            self._placed.discard(key)
        if key in self._adopted:
            self._adopted.discard(key)
            if current == entry.before:
                self._placed.discard(key)
        if current == target:
            self._placed.add(key)
            if entry.earlier:
                entry = replace(entry, earlier=EMPTY)
        self._taken[key] = entry

    def _check_read_only(self) -> None:
        """A /proc/irq that can be written again is written at once."""
        if self._read_only is not None and self._seen_read_only and self._writable():
            self._read_only = None

    def _writable(self) -> bool:
        return os.access(f"{join(self._root)}/proc/irq", os.W_OK)

    # Writing

    def _place(self, look: _Look, now: float) -> IrqOutcome:
        npu = look.npu.id
        if look.problem is not None:
            return IrqOutcome(npu, "Skipped", look.problem)
        total = len(look.readings) + look.lost
        if self._contests.paused(npu, now):
            astray = [vector.key for vector, current, target in look.readings if current != target]
            if self._placed.issuperset(astray):
                problem = self._contests.left(npu, [(key, "irq") for key in astray])
                return IrqOutcome(npu, "Partial", problem, total, astray=len(astray))
        written = drift = 0
        moved: list[Part] = []
        failed: list[Problem] = [Problem(Reason.PENDING, "interrupts are changing")] * look.lost
        for vector, current, target in look.readings:
            if current == target:
                continue
            problem = self._write(vector, target, now)
            known = vector.key in self._placed
            if problem is not None:
                failed.append(problem)
                if known and problem.reason is not Reason.PENDING:
                    self._placed.discard(vector.key)
                    self._contests.totals.add("irq", "failed")
                continue
            written += 1
            drift += known
            self._fresh.discard(vector.key)
            if _is(self._root, vector.irq, target):  # which it is not where nothing is written, but rehearsed
                self._placed.add(vector.key)
                moved += [(vector.key, "irq")] * known
        contested = self._contests.passed(npu, now, moved, f"NPU {npu}: somebody else keeps moving its interrupts")
        if contested is not None and not failed:
            return IrqOutcome(npu, "Partial", contested, total, written, drift)
        if failed:
            text = f"NPU {npu}: {len(failed)} of {_count(total)} not moved: {failed[0].message}"
            problem = Problem(failed[0].reason, text)
            outcome = IrqOutcome(npu, "Partial", problem, total, written, drift, astray=len(failed))
            return replace(outcome, state="Failed") if len(failed) == total else outcome
        if not any(vector.submission for vector, _, _ in look.readings):
            text = f"NPU {npu}: no interrupt is called {SQ}; its {CQ} are in place"
            return IrqOutcome(npu, "Partial", Problem(Reason.IRQ_NAMES_UNKNOWN, text), total, written, drift)
        return IrqOutcome(npu, "Bound", None, total, written, drift)

    def _write(self, vector: Vector, cpus: CpuSet, now: float) -> Problem | None:
        """One mask; why it could not be written."""
        for refusal in (self._read_only, self._refusals.get(vector.irq)):
            if refusal is not None and now < refusal.until:
                return refusal.problem
        try:
            if vector.action not in (handlers := self._names.of((vector.irq,))[vector.irq]):
                self._forget(vector.pci)
                what = "is another's now" if handlers else "has no handler just now"
                return Problem(Reason.PENDING, f"interrupt {vector.irq} {what}")
            self._host.set_irq_affinity(vector.irq, cpus)
        except Refused as refused:
            return refused.problem
        except OSError as error:
            return self._refused(vector, error, now)
        self._refusals.pop(vector.irq, None)
        self._read_only = None
        return None

    def _refused(self, vector: Vector, error: OSError, now: float) -> Problem:
        said = error.strerror or str(error)
        if error.errno == errno.ENOENT:
            self._forget(vector.pci)
            return Problem(Reason.PENDING, f"interrupt {vector.irq} is gone")
        if error.errno == errno.EROFS:
            # The whole tree is: no use to try the others.
            problem = Problem(Reason.IRQ_READ_ONLY, f"/proc/irq: {said}")
            self._seen_read_only = not self._writable()
            self._read_only = Refusal.after(self._read_only, problem, now)
            return problem
        problem = Problem(Reason.IRQ_REFUSED, f"interrupt {vector.irq} ({vector.action}): {said}")
        self._refusals[vector.irq] = Refusal.after(self._refusals.get(vector.irq), problem, now)
        return problem

    def _put_back(self, key: Key, now: float) -> bool:
        """Gives an interrupt the mask that it had before; whether that took a write. Its entry goes, unless that has to
        be tried again."""
        entry = self._taken[key]
        try:
            device, unnamed = self._resolve(entry.pci), self._unnamed.get(entry.pci)
            handlers = self._names.of((entry.irq,))[entry.irq] if entry.irq in device.listing else None
            waiting = unnamed is not None and unnamed.seconds < _UNNAMED_SECONDS
            vector = taken_vector(entry, device.vectors, handlers, waiting=waiting)
            current = None if vector is None else read_affinity(self._root, vector.irq)
        except Refused as refused:
            self._stuck[key] = refused.problem
            return False
        ours = current is not None and current in (entry.given, entry.earlier) and current != entry.before
        problem = self._write(vector, entry.before, now) if vector is not None and ours else None
        if problem is not None:
            self._stuck[key] = problem
            return False
        del self._taken[key]
        self._stuck.pop(key, None)
        self._fresh.discard(key)
        self._placed.discard(key)
        return ours


def _is(root: Path, irq: int, cpus: CpuSet) -> bool:
    try:
        return read_affinity(root, irq) == cpus
    except Refused:
        return False


def _count(number: int) -> str:
    return f"{number} interrupt{'' if number == 1 else 's'}"
