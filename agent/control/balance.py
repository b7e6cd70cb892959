"""Keeping irqbalance off the interrupts of NPUs (irqbalance #246, #297): its ban list, never the daemon itself."""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from agent.control.backoff import Refusal
from agent.control.journal import IrqBans
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.workload import ProcessId
from agent.node.files import join
from agent.node.host import Host
from agent.node.irqbalance import LIST_BYTES, Irqbalance, fitting
from agent.node.liveness import hidden

LOOK_SECONDS: Final = 60.0
"""How often the list is read when nothing happens: somebody else may have replaced it."""
SCAN_SECONDS: Final = 30.0
"""How often a process of that name is looked for where there was none."""
_RESTART_SECONDS: Final = 60.0
"""How long after the end of one another is looked for in every pass: a service that is restarted first balances ten
seconds after it began."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A list that is to be sent."""

    keep: frozenset[int]
    """Those of others, which stay."""
    irqs: tuple[int, ...]
    """Ours, the most important ones first."""


class BanKeeper:
    """What irqbalance leaves alone for our sake. `survey` reads and notes, `act` writes what was noted."""

    def __init__(self, host: Host, balancer: Irqbalance) -> None:
        self._host, self._balancer = host, balancer
        self.bans: IrqBans | None = None
        """For the journal: what was added, or is about to be."""
        self._process: ProcessId | None = None
        self._scan_at = self._restart_until = self._look_at = 0.0
        self._asked: tuple[ProcessId, tuple[int, ...]] | None = None
        """For whom and for what the list was last read."""
        self._order: _Order | None = None
        self._limit = LIST_BYTES[0]
        self._refusal: Refusal | None = None
        self._short: Problem | None = None
        self._modules: tuple[str, ...] = ()
        self._configured: tuple[ProcessId, tuple[str, ...]] | None = None

    @property
    def problem(self) -> Problem | None:
        """Why irqbalance may move the interrupts, and what to configure so that it doesn't; None where it won't."""
        return self._refusal.problem if self._refusal is not None else self._short

    def survey(self, wanted: Sequence[int], modules: Collection[str], now: float, *, moved: bool = False) -> None:
        """Looks whether the interrupts in `wanted`, the most important ones first, are left alone.

        `modules`: the kernel modules of their drivers, empty where one is not known. `moved`: somebody has moved one,
        so that a look is due."""
        process = self._find(now) if wanted or self.bans is not None else None
        self._order = None
        if process is None:
            self._refusal = self._short = self._asked = None
            return
        if self._are_configured(process, modules):
            wanted = ()
            if self.bans is None:
                self._refusal = self._short = None
                return
        wanted = tuple(wanted)
        changed = self._asked != (process, wanted)
        if self._refusal is not None and not changed and now < self._refusal.until:
            return
        if changed or moved or now >= self._look_at or self._refusal is not None:
            self._look(process, wanted, modules, now)

    def act(self, now: float) -> None:
        """Sends the list, where it has to change."""
        order, self._order = self._order, None
        if order is None or self._asked is None:
            return
        process, wanted = self._asked
        try:
            held = self._host.ban_irqs(process, order.keep, order.irqs)
        except (OSError, Refused) as error:
            self._refuse(process, error, now)
            return
        self.bans = _bans(process, held - order.keep)
        if not set(order.irqs) <= held:
            self._limit = LIST_BYTES[-1]
        self._short = _short(process, wanted, held, self._modules)

    def restore(self, now: float) -> None:
        """Takes back what was added. Where that can't be done `bans` stays, and `problem` says why."""
        if self.bans is None or not self._lives(self.bans.balancer):
            # Nothing of ours is there any more, whatever was wrong with it.
            self.bans = self._refusal = self._short = self._asked = self._order = None
            return
        process = self.bans.balancer
        if self._refusal is not None and now < self._refusal.until:
            return  # each try may take a second
        try:
            current = self._balancer.bans(process)
            if current & self.bans.irqs:
                self._host.ban_irqs(process, current - self.bans.irqs, ())
        except (OSError, Refused) as error:
            self._refuse(process, error, now)
            return
        self.bans = self._refusal = self._short = self._asked = None

    def _are_configured(self, process: ProcessId, modules: Collection[str]) -> bool:
        """Whether people have told it on its command line: it bans modules whose names contain what they gave."""
        if self._configured is None or self._configured[0] != process:
            self._configured = (process, self._balancer.banned_modules(process))
        values = self._configured[1]
        return bool(modules) and all(any(value in module for value in values) for module in modules)

    def _find(self, now: float) -> ProcessId | None:
        if self._process is None and self.bans is not None:
            self._process = self.bans.balancer
        if self._process is not None:
            if self._lives(self._process):
                return self._process
            self.bans = None  # it has ended, with its list
            self._process, self._restart_until, self._scan_at = None, now + _RESTART_SECONDS, now
            self._limit = LIST_BYTES[0]
        if now >= self._scan_at:
            self._scan_at = now + (0.0 if now < self._restart_until else SCAN_SECONDS)
            try:
                self._process = self._balancer.find()
            except Refused:
                self._process = None
        return self._process

    def _lives(self, process: ProcessId) -> bool:
        proc_root = f"{join(self._balancer.root)}/proc"
        return self._balancer.lives(process) or hidden(proc_root, self._host.get_affinity, process) is not None

    def _look(self, process: ProcessId, wanted: tuple[int, ...], modules: Collection[str], now: float) -> None:
        self._asked, self._look_at, self._modules = (process, wanted), now + LOOK_SECONDS, tuple(sorted(set(modules)))
        try:
            current = self._balancer.bans(process)
        except Refused as refused:
            self._refuse(process, refused, now)
            return
        self._refusal = None
        added = self.bans.irqs if self.bans is not None else frozenset()
        keep = current - added
        listed = keep.union(fitting(keep, wanted, self._limit))
        self._short = _short(process, wanted, listed, self._modules)
        if listed == current:
            self.bans = _bans(process, listed - keep)
            return
        self._order = _Order(keep, tuple(irq for irq in wanted if irq in listed - keep))
        # Until it is sent, the old ones are in force, too.
        self.bans = _bans(process, (listed - keep) | (added & current))

    def _refuse(self, process: ProcessId, error: OSError | Refused, now: float) -> None:
        if isinstance(error, Refused):
            why = error.message
        elif error.errno == errno.EMSGSIZE:
            why = "its own list leaves no room"
        else:
            why = error.strerror or str(error) or "it does not answer"
        why = why.removeprefix(f"irqbalance ({process.pid}): ")
        wanted = self._asked[1] if self._asked else ()
        problem = _advice(process, printable(why, 80), wanted, self._modules)
        self._refusal = Refusal.after(self._refusal, problem, now)


def _bans(process: ProcessId, irqs: frozenset[int]) -> IrqBans | None:
    return IrqBans(process, irqs) if irqs else None


def _short(
    process: ProcessId, wanted: Sequence[int], held: Collection[int], modules: tuple[str, ...]
) -> Problem | None:
    missing = [irq for irq in wanted if irq not in held]
    if not missing:
        return None
    why = f"its socket takes {len(wanted) - len(missing)} of {len(wanted)} NPU interrupts"
    return _advice(process, why, missing, modules)


def _advice(process: ProcessId, why: str, irqs: Sequence[int], modules: tuple[str, ...]) -> Problem:
    """What to configure, the shortest first: the driver's module, which also outlasts a reset that renumbers."""
    options = [f"--banmod={module}" for module in modules] or [f"--banirq={irq}" for irq in sorted(irqs)]
    what = f"; start it with {' '.join(options)}" if options else ""
    return Problem(Reason.IRQBALANCE_ACTIVE, f"irqbalance ({process.pid}): {why}{what}")
