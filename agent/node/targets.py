"""Where the threads of a process belong, by their names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from agent.model.cpuset import CpuSet
from agent.model.outcome import ThreadCounts
from agent.model.plan import Roles
from agent.model.reason import Problem, Reason, printable
from agent.model.spec import THREAD_RULES, Role, ThreadRule

COMM_BYTES: Final = 15
"""What the kernel keeps of a thread's name (TASK_COMM_LEN - 1)."""

_NAMES: Final = 1024
"""Names whose targets are remembered: there are some tens of them, unless a process makes ever new ones."""


@dataclass(slots=True)
class Target:
    """Where the threads of a role belong, and the count of them."""

    role: Role
    cpus: CpuSet
    wanted: int
    """Bits of mask ∩ online of a thread in place."""
    inside: bool
    """All of `cpus` is in the cpuset, and something of it is online."""
    placed: int = 0
    written: int = 0
    left: int = 0
    unmovable: int = 0
    denied: int = 0
    outside: int = 0

    def counts(self) -> ThreadCounts:
        return ThreadCounts(self.placed, self.written, self.left, self.unmovable, self.denied, self.outside)

    def narrows(self, mask: int) -> bool:
        """Whether mask ∩ online is a part of the target: not empty, not all of it."""
        return bool(mask) and mask != self.wanted and not mask & ~self.wanted


class Targets:
    """The target of every thread of a process by its name.

    The longest prefix that a name begins with decides; names with none belong to main. So does a role without CPUs of
    its own (all but main on Ascend 950). `rules` add prefixes to those of the CANN runtime and can't redefine them.
    """

    def __init__(self, roles: Roles, cpuset: CpuSet, online: CpuSet, rules: Sequence[ThreadRule] = ()) -> None:
        self._made_of = (roles, cpuset, online, tuple(rules))
        self.main = _target(Role.MAIN, roles.main, cpuset, online)
        self.cpuset = cpuset
        self._by_role: dict[Role, Target] = {Role.MAIN: self.main}
        prefixes: dict[bytes, Target] = {}
        for rule in (*THREAD_RULES, *rules):
            prefix = rule.prefix.encode("utf-8", "surrogateescape")[:COMM_BYTES]
            if prefix:
                prefixes.setdefault(prefix, self._of_role(rule.role, roles, cpuset, online))
        self._prefixes = sorted(prefixes.items(), key=lambda item: -len(item[0]))
        self.by_comm: dict[bytes, Target] = {}

    def of(self, comm: bytes) -> Target:
        """The target of a thread with this name."""
        target = self.by_comm.get(comm)
        if target is None:
            if len(self.by_comm) >= _NAMES:
                self.by_comm.clear()
            target = next((target for prefix, target in self._prefixes if comm.startswith(prefix)), self.main)
            self.by_comm[comm] = target
        return target

    def fit(self, roles: Roles, cpuset: CpuSet, online: CpuSet, rules: Sequence[ThreadRule]) -> bool:
        """Whether these are still the ones. To make them anew costs as much as to look at a dozen threads."""
        return self._made_of == (roles, cpuset, online, tuple(rules))

    def clear(self) -> None:
        """Sets all counts to zero."""
        for target in self._by_role.values():
            target.placed = target.written = target.left = target.unmovable = target.denied = target.outside = 0

    def all(self) -> Collection[Target]:
        return self._by_role.values()

    def counts(self) -> dict[Role, ThreadCounts]:
        """By role, those without threads left out."""
        return {role: counts for role, target in self._by_role.items() if (counts := target.counts()).total}

    def outside(self) -> Problem | None:
        """The first role whose CPUs are not all in the cpuset, if there is one."""
        for target in self._by_role.values():
            if not target.inside:
                where = f"{target.role} {shown(target.cpus)}"
                return Problem(Reason.CPUSET_CHANGED, f"{where} is not within the online CPUs of {shown(self.cpuset)}")
        return None

    def _of_role(self, role: Role, roles: Roles, cpuset: CpuSet, online: CpuSet) -> Target:
        cpus: CpuSet = getattr(roles, role.value)
        if not cpus:
            return self.main
        target = self._by_role.get(role)
        if target is None:
            target = self._by_role[role] = _target(role, cpus, cpuset, online)
        return target


def shown(cpus: CpuSet) -> str:
    """A CPU list short enough for a message."""
    return printable(str(cpus), 80)


def _target(role: Role, cpus: CpuSet, cpuset: CpuSet, online: CpuSet) -> Target:
    wanted = (cpus & cpuset & online).bits
    return Target(role, cpus, wanted, inside=bool(wanted) and cpus <= cpuset)
