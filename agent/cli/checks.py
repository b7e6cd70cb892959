"""What `doctor` found: one check, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent.model.reason import Problem, printable

MOST = 300


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and what came of it."""

    name: str
    result: Literal["ok", "warn", "fail"]
    """``fail``: without it the agent binds nobody. ``warn``: it binds, and something else goes away."""
    message: str
    without: str = ""
    """What goes away while it is missing."""
    fix: str = ""

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"{self.result:4}  {self.name}: {self.message}"]
        lines += [f"      without it: {self.without}"] if self.without else []
        lines += [f"      to do: {self.fix}"] if self.fix else []
        return lines


def good(name: str, message: str) -> Check:
    return Check(name, "ok", printable(message, MOST))


def lacking(name: str, message: str, *, without: str, fix: str) -> Check:
    """Bindings are made all the same."""
    return Check(name, "warn", printable(message, MOST), without, fix)


def failed(name: str, problem: Problem | str, *, without: str, fix: str) -> Check:
    """Nobody is bound."""
    return Check(name, "fail", printable(str(problem), MOST), without, fix)
