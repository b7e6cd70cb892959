"""The cases: a module each, with ``run(quick: bool) -> list[Figure]``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from benchmarks.figures import Figure


class Skipped(Exception):  # noqa: N818 - no error
    """This machine can't show it; the text says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case and what to expect of it."""

    module: str
    title: str
    seconds: int
    quick_seconds: int

    def run(self, *, quick: bool) -> list[Figure]:
        """Measures, in this process. Raises `Skipped`."""
        figures: list[Figure] = importlib.import_module(f"benchmarks.{self.module}").run(quick=quick)
        return figures


CASES = {
    "threads": Case("threads", "bind 16 workers of 300 threads, cold and warm", 13, 10),
    "planning": Case("planning", "a whole plan, and how it grows", 4, 2),
    "startup": Case("startup", "from start to the first plan", 8, 8),
    "naming": Case("naming", "a thread takes its name, and is in place", 13, 7),
    "opening": Case("opening", "a process opens its NPU, and is bound", 15, 8),
    "steady": Case("steady", "a bound node on which nothing happens, then one whose workers fork", 105, 55),
    "pods": Case("pods", "pods come and go, and what stays behind", 18, 6),
}
