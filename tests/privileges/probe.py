"""The agent's own parts, each tried once on a worker: ``python -m tests.privileges.probe PID ADDRESS IRQ``.

Prints a JSON object with what each part was told by the kernel: an empty text where it did what it is there for.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

from agent.model.reason import Refused
from agent.node import prerequisites
from agent.node.capabilities import Feature
from agent.node.host import LinuxHost
from agent.node.irq import read_affinity
from agent.node.memory import read_ranges
from agent.node.proc_events import ProcEvents
from agent.node.procfs import ProcFs

ROOT = Path("/")
INTERRUPTS = "INTERRUPTS"
"""What no capability is needed for, but user 0: the kernel looks at the permissions of the file alone."""


def masks(pid: int) -> str:
    host = LinuxHost()
    host.set_affinity(pid, host.get_affinity(pid))
    return ""


def devices(pid: int) -> str:
    return "" if ProcFs(ROOT).open_devices(pid) else "none is seen"


def memory(pid: int, address: int) -> str:
    if not read_ranges(ROOT, pid):
        return "no memory is seen"
    host = LinuxHost()
    (node,) = host.page_nodes(pid, array("Q", [address]))
    (now,) = host.move_pages(pid, array("Q", [address]), node)
    return "" if now == node else f"status {now}"


def events() -> str:
    ProcEvents.of_host(ROOT).close()
    return ""


def interrupts(irq: int) -> str:
    cpus = read_affinity(ROOT, irq)
    assert cpus is not None
    LinuxHost().set_irq_affinity(irq, cpus)
    return ""


def said(part: Callable[[], str]) -> str:
    try:
        return part()
    except (OSError, Refused) as error:
        return str(error)


def main() -> None:
    pid, address, irq = (int(argument) for argument in sys.argv[1:4])
    parts: dict[str, Callable[[], str]] = {
        Feature.MASKS.name: lambda: masks(pid),
        Feature.DEVICES.name: lambda: devices(pid),
        Feature.MEMORY.name: lambda: memory(pid, address),
        Feature.EVENTS.name: events,
        Feature.NAMES.name: prerequisites.taskstats,
        INTERRUPTS: lambda: interrupts(irq),
    }
    print(json.dumps({name: said(part) for name, part in parts.items()}))


if __name__ == "__main__":
    main()
