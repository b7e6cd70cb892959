"""What the thread that hears events works with: where they come from, and who remembers names of threads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from agent.node.proc_events import Batch


class Stream(Protocol):
    """Where events come from: `agent.node.proc_events.ProcEvents`."""

    def wait(self, seconds: float | None) -> None: ...

    def take(self) -> Batch: ...

    def focus(self, near: Collection[int], family: Collection[int], quiet: Collection[int]) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class Comms(Protocol):
    """Whoever remembers the names of threads. Called from the thread that hears events."""

    live: bool
    """Every rename is heard of."""
    deaf: frozenset[int]
    """But those in these processes."""

    def renamed(self, tgid: int, tid: int, comm: bytes) -> None: ...

    def born(self, tgid: int, tid: int) -> None: ...

    def ended(self, tgid: int, tid: int) -> None:
        """A thread or, where both are one, a process."""

    def lost(self) -> None:
        """Events were lost, or none will come: nothing that was remembered is sure."""


class NoComms:
    """Remembers nothing."""

    live = False
    deaf: frozenset[int] = frozenset()

    def renamed(self, tgid: int, tid: int, comm: bytes) -> None: ...

    def born(self, tgid: int, tid: int) -> None: ...

    def ended(self, tgid: int, tid: int) -> None: ...

    def lost(self) -> None: ...
