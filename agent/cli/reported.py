"""What the agent has written of an NPU or a worker into the plan's `status`, in sentences. A look at the host does not
know what came of binding; the agent does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.model.reason import Reason, printable
from agent.telemetry.text import entries, mapping


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


def pids_of(status: Mapping[str, Any], pod: str) -> list[int]:
    """The workers of a pod, by its name or ``namespace/name``, that the agent has written of; each once."""
    found = [
        worker.get("pid")
        for entry in entries(status.get("npus"))
        for worker in entries(entry.get("workers"))
        if worker.get("pod") and pod in (worker.get("pod"), f"{worker.get('namespace')}/{worker.get('pod')}")
    ]
    return [pid for pid in dict.fromkeys(found) if isinstance(pid, int)]


def is_open(status: Mapping[str, Any]) -> bool:
    """Whether the agent wrote that not all is as it should be, or that it was stopped."""
    ready = _ready(status)
    return ready is not None and ready.get("status") != "True"


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((one for one in entries(status.get("conditions")) if one.get("type") == "Ready"), None)


def at_large(status: Mapping[str, Any]) -> str:
    """What the agent wrote of the whole node, in a sentence; empty where it wrote nothing."""
    ready = _ready(status)
    summary = mapping(status.get("summary"))
    if ready is None or not summary:
        return ""
    counts = f"{summary.get('bound')} of {summary.get('workers')} workers bound"
    said_so = f"{ready.get('status')} ({ready.get('reason')}: {ready.get('message')})"
    return printable(f"the agent last reported {counts}, Ready {said_so}", 400)


def irqs_left(status: Mapping[str, Any], npu: int) -> str:
    """What the agent wrote of an NPU's interrupts, where it can't place them; empty where it can, and where it wrote
    nothing. Those that somebody else keeps moving it can place."""
    for entry in entries(status.get("npus")):
        contested = entry.get("irqReason") == Reason.CPU_BINDING_CONFLICT.value
        if entry.get("id") == npu and entry.get("irq") in ("Skipped", "Failed", "Partial") and not contested:
            return printable(said(entry, "irq"), 300)
    return ""


def said(entry: Mapping[str, Any], of: str = "") -> str:
    """The state of an NPU or a worker, or of a step `of` it, with reason and message: ``Skipped (SwitchedOff: …)``."""
    state, reason, message = (of, f"{of}Reason", f"{of}Message") if of else ("state", "reason", "message")
    because = ": ".join(str(entry[name]) for name in (reason, message) if entry.get(name))
    return f"{entry.get(state, 'unknown')}" + (f" ({because})" if because else "")
