"""How long npu-smi takes to answer, and how often it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from agent.model.figures import QUERIES, QUERY_REASONS, QUERY_SECONDS, Command, Distribution
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.command import NpuSmi

_OF: Final[Mapping[tuple[str, ...], Command]] = {
    ("info",): "info",
    ("info", "-m"): "info -m",
    ("info", "-t", "topo"): "info -t topo",
    ("info", "-t", "board"): "info -t board",
}


class CountedNpuSmi:
    """Asks another `NpuSmi`, and counts. Safe from any thread."""

    def __init__(self, npu_smi: NpuSmi) -> None:
        self._npu_smi = npu_smi
        self._lock = threading.Lock()
        """Boards are asked for in a thread of their own."""
        self.seconds: dict[Command, Distribution] = {command: Distribution(QUERY_SECONDS) for command in QUERIES}
        """From the call to the answer or its refusal, by what was asked."""
        self.errors: dict[tuple[Command, Reason], int] = {(c, r): 0 for c in QUERIES for r in QUERY_REASONS}

    def query(self, *args: str) -> str:
        """As `NpuSmi.query`."""
        command = command_of(args)
        began = time.monotonic()
        try:
            return self._npu_smi.query(*args)
        except Refused as refused:
            with self._lock:
                key = command, refused.reason
                self.errors[key] = self.errors.get(key, 0) + 1
            raise
        finally:
            took = time.monotonic() - began
            with self._lock:
                self.seconds[command].observe(took)


def command_of(args: tuple[str, ...]) -> Command:
    """What these arguments of npu-smi ask for, whichever card and chip."""
    return _OF.get(args[:3] if args[1:2] == ("-t",) else args, "other")
