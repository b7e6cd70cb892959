"""Interrupts: MSI-X vectors of the guest's network card that bear the names of the NPU driver's.

Names are laid over /sys/kernel/irq/N/actions and /proc/interrupts by bind mounts; the interrupts are real, and so are
their masks. The card's PCI address is what npu-smi gives as the Bus-Id of NPU 0.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.vm.inside.agent_run import PATIENCE, SWEEP
from tests.vm.inside.scene import Facts, Scene

NAMES = ("cq_update_irq", "sq_send_trigger_irq", "cq_update_irq")
"""Of the card's three vectors, ascending by number."""
FOREIGN = "5"
ELSEWHERE = "3"


def moved() -> Facts:
    """Bound, moved away by somebody, put back; given back when the worker ends, and by `restore` after kill -9."""
    with scene_with_card("irqs") as (scene, irqs):
        # One had a mask of its own before the agent came.
        write(irqs[1], ELSEWHERE)
        facts: Facts = {"irqs": dict(zip(irqs, NAMES, strict=True)), "before": masks(irqs)}
        worker = scene.worker(0, "0-15")
        scene.agent.fork()
        facts["bound"] = scene.settle(_bound) | {"masks": masks(irqs)}
        bound = masks(irqs)

        write(irqs[0], FOREIGN)
        facts["repaired"] = until(lambda: masks(irqs) == bound) | {"masks": masks(irqs)}

        worker.kill()
        facts["idle"] = until(lambda: masks(irqs) == facts["before"]) | scene.look() | {"masks": masks(irqs)}

        scene.agent.stop()
        scene.worker(0, "0-15")
        scene.agent.fork()
        facts["again"] = scene.settle(_bound) | {"masks": masks(irqs)}
        scene.agent.kill()
        facts["killed"] = masks(irqs)
        facts["restore"] = scene.agent.command("restore")
        facts["restored"] = masks(irqs)
        return facts


def named_by_proc() -> Facts:
    """On a kernel that has no /sys/kernel/irq (before Linux 4.9) /proc/interrupts alone says the names."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with scene_with_card("old-kernel", root=root) as (scene, irqs):
            _lay_out(stack, root)
            facts: Facts = {"irqs": dict(zip(irqs, NAMES, strict=True)), "before": masks(irqs)}
            scene.worker(0, "0-15")
            scene.agent.fork()
            facts["bound"] = scene.settle(_bound) | {"masks": masks(irqs)}
            scene.agent.stop()
            facts["restore"] = scene.agent.command("restore")
            facts["restored"] = masks(irqs)
            return facts


def irqbalance() -> Facts:
    """The real irqbalance runs, and somebody has banned an interrupt already."""
    Path("/run/irqbalance").mkdir(parents=True, exist_ok=True)
    with scene_with_card("irqbalance") as (scene, irqs), ExitStack() as stack:
        daemon = stack.enter_context(
            subprocess.Popen(["irqbalance", "--foreground", "--interval=2"], stdout=subprocess.DEVNULL)
        )
        stack.callback(daemon.kill)
        path = Path(f"/run/irqbalance/irqbalance{daemon.pid}.sock")
        until(path.exists)
        other = min(int(f.name) for f in Path("/sys/kernel/irq").iterdir() if int(f.name) not in irqs)
        tell(path, f"settings ban irqs {other}")
        facts: Facts = {"irqs": irqs, "other": other, "before": banned(path)}
        scene.worker(0, "0-15")
        scene.agent.fork()
        facts["bound"] = scene.settle(_bound) | {"masks": masks(irqs), "banned": banned(path)}
        # Three rounds of it.
        time.sleep(6)
        facts["balanced"] = masks(irqs)
        scene.agent.kill()
        facts["restore"] = scene.agent.command("restore")
        facts["restored"] = banned(path)
        facts["runs"] = daemon.poll() is None
        return facts


@contextmanager
def scene_with_card(
    name: str, homes: Iterable[str] = ("8-11",), *, root: Path = Path("/")
) -> Iterator[tuple[Scene, list[int]]]:
    """NPUs of which the first has the network card's address, and the card's interrupts, with the names laid over; for
    a `root` of the agent's own those of /proc/interrupts alone."""
    card = next(f.parent for f in sorted(Path("/sys/bus/pci/devices").glob("*/msi_irqs")))
    irqs = sorted(int(f.name) for f in (card / "msi_irqs").iterdir())
    with Scene(name, "a2", homes, bus_ids=[card.name], root=root) as scene, ExitStack() as stack:
        table = Path("/proc/interrupts").read_text()
        for irq, action in zip(irqs, NAMES, strict=True):
            actions = Path(f"/sys/kernel/irq/{irq}/actions")
            table = table.replace(actions.read_text().strip(), action, 1)
            if root == Path("/"):
                _lay(stack, scene.folder / f"actions-{irq}", action + "\n", actions)
        _lay(stack, scene.folder / "interrupts", table, Path("/proc/interrupts"))
        was = masks(irqs)
        for irq, mask in was.items():
            stack.callback(write, irq, mask)
        yield scene, irqs


def _lay(stack: ExitStack, file: Path, text: str, over: Path) -> None:
    file.write_text(text)
    subprocess.run(["mount", "--bind", file, over], check=True)
    stack.callback(lambda: subprocess.run(["umount", over], check=True))


def _lay_out(stack: ExitStack, root: Path) -> None:
    """A host root that is this machine but for /sys/kernel."""
    shown = ["proc", "dev", *(f"sys/{folder.name}" for folder in Path("/sys").iterdir() if folder.name != "kernel")]
    for folder in shown:
        (root / folder).mkdir(parents=True)
        subprocess.run(["mount", "--rbind", Path("/") / folder, root / folder], check=True)
        # Lazily: what is mounted below goes with it.
        stack.callback(lambda name: subprocess.run(["umount", "-l", root / name], check=True), folder)


def masks(irqs: list[int]) -> dict[int, str]:
    """Interrupt -> its smp_affinity_list."""
    return {irq: Path(f"/proc/irq/{irq}/smp_affinity_list").read_text().strip() for irq in irqs}


def write(irq: int, cpus: str) -> None:
    """Gives an interrupt a mask, as anybody may."""
    Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(cpus)


def until(done: Callable[[], bool]) -> Facts:
    """Waits, patiently: whether it came to be, and after how many seconds."""
    begun = time.monotonic()
    while not (so := done()) and time.monotonic() - begun < PATIENCE / 2:
        time.sleep(SWEEP / 4)
    return {"came": so, "seconds": round(time.monotonic() - begun, 1)}


def banned(path: Path) -> list[int]:
    """The interrupts that irqbalance leaves alone, as it says itself: ``… IRQ 43 LOAD 0 …`` for each."""
    words = tell(path, "setup").split()
    return sorted(int(words[k + 1]) for k, word in enumerate(words) if word == "IRQ")


def tell(path: Path, command: str) -> str:
    """Says something to irqbalance, as root, which its socket wants to see by SCM_CREDENTIALS."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        who = struct.pack("3i", os.getpid(), 0, 0)
        connection.sendmsg([command.encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
        if command != "setup":
            return ""
        return connection.recv(65536).decode(errors="replace")


def _bound(status: Facts) -> bool:
    """Whether the interrupts of NPU 0 are said to be in place."""
    return any(npu["id"] == 0 and npu.get("irq") == "Bound" for npu in status.get("npus", ()))
