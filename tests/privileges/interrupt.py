"""An interrupt of this machine whose mask may be written."""

from __future__ import annotations

from pathlib import Path

from agent.node.irq import read_affinity


def spare_irq() -> int:
    """The last of this machine's interrupts that root may move, which is written the mask that it has; 0 where there is
    none."""
    for folder in sorted(Path("/proc/irq").glob("[0-9]*"), key=lambda path: -int(path.name)):
        irq = int(folder.name)
        cpus = read_affinity(Path("/"), irq)
        try:
            (folder / "smp_affinity_list").write_text(f"{cpus}\n")
        except OSError:
            continue
        return irq
    return 0
