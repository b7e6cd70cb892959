"""What the agent has written of an NPU or a worker into the plan's `status`, in sentences. A look at the host does not
know what came of binding; the agent does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.model.reason import printable
from agent.telemetry.text import entries


def reported(status: Mapping[str, Any], *, npu: int | None = None, pid: int | None = None) -> list[str]:
    """Of an NPU by its id, or of a worker by its pid; nothing where the agent wrote nothing of it."""
    lines = []
    for entry in entries(status.get("npus")):
        workers = [worker for worker in entries(entry.get("workers")) if pid in (None, worker.get("pid"))]
        if (npu is not None and entry.get("id") != npu) or (pid is not None and not workers):
            continue
        name = f"NPU {entry.get('id')}"
        lines.append(f"The agent last reported {name} as {said(entry)}.")
        if "irq" in entry:
            lines.append(f"The agent last reported the interrupts of {name} as {said(entry, 'irq')}.")
        for worker in workers:
            process = f"process {worker.get('pid')}"
            lines.append(f"The agent last reported {process} as {said(worker)}.")
            if "memory" in worker:
                lines.append(f"The agent last reported the memory of {process} as {said(worker, 'memory')}.")
    return [printable(line, 600) for line in lines]


def irqs_left(status: Mapping[str, Any], npu: int) -> str:
    """What the agent wrote of an NPU's interrupts, where that is not that all are in place; empty where it is, and
    where it wrote nothing."""
    for entry in entries(status.get("npus")):
        if entry.get("id") == npu and entry.get("irq") in ("Skipped", "Failed", "Partial"):
            return printable(said(entry, "irq"), 300)
    return ""


def said(entry: Mapping[str, Any], of: str = "") -> str:
    """The state of an NPU or a worker, or of a step `of` it, with reason and message: ``Skipped (SwitchedOff: …)``."""
    state, reason, message = (of, f"{of}Reason", f"{of}Message") if of else ("state", "reason", "message")
    because = ": ".join(str(entry[name]) for name in (reason, message) if entry.get(name))
    return f"{entry.get(state, 'unknown')}" + (f" ({because})" if because else "")
