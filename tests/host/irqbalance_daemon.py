"""The real irqbalance on this machine, for as long as a test takes; every mask is put back afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.node.irqbalance import Irqbalance
from tests.host.alone import INTERRUPTS, one_at_a_time

PROGRAM = shutil.which("irqbalance", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
MASKS = Path("/proc/irq")


def needs() -> None:
    """Skips where it can't be run: it is not installed, or this is not a machine whose interrupts may be moved."""
    if PROGRAM is None:
        pytest.skip("irqbalance is not installed (Debian: apt-get install irqbalance)")
    if os.geteuid() != 0 or not os.access(MASKS, os.W_OK):
        pytest.skip("irqbalance needs root and a /proc/irq that can be written")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("irqbalance needs two CPUs")


@contextmanager
def alone() -> Iterator[None]:
    """One test at a time, and nobody's own irqbalance."""
    with one_at_a_time(INTERRUPTS):
        if Irqbalance(Path("/")).find() is not None:
            pytest.skip("irqbalance runs on this machine already")
        before = masks()
        try:
            yield
        finally:
            for irq, mask in before.items():
                if masks().get(irq) != mask:
                    with suppress(OSError):
                        (MASKS / str(irq) / "smp_affinity_list").write_text(mask)


def masks() -> dict[int, str]:
    """Every interrupt's mask, read without the agent's own code."""
    found = {}
    for folder in MASKS.iterdir():
        with suppress(OSError):
            if folder.name.isdecimal():
                found[int(folder.name)] = (folder / "smp_affinity_list").read_text().strip()
    return found


@contextmanager
def daemon(*arguments: str, prefix: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """It runs and listens, and balances every second."""
    assert PROGRAM is not None
    process = subprocess.Popen([*prefix, PROGRAM, "--foreground", "--interval=1", *arguments])
    try:
        wait_for(lambda: listens(process.pid) or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip("irqbalance does not stay here: it has found nothing to balance")
        yield process
    finally:
        process.terminate()
        process.wait(10)
        # One that ends before it runs its loop leaves it behind.
        Path(f"/run/irqbalance/irqbalance{process.pid}.sock").unlink(missing_ok=True)


def listens(pid: int) -> bool:
    """Whether it has a socket that it listens on, by the kernel's own table."""
    table = Path(f"/proc/{pid}/net/unix").read_text()
    inodes = set()
    with suppress(OSError):
        inodes = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return any(
        fields[3] == "00010000" and f"socket:[{fields[6]}]" in inodes
        for fields in (line.split() for line in table.splitlines()[1:])
    )


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def place_anew(process: subprocess.Popen[bytes]) -> None:
    """Makes it place all interrupts that it may move anew, and waits until it has: it does so on SIGHUP, on a change of
    its list, and when the load changes."""
    process.send_signal(signal.SIGHUP)
    time.sleep(3.2)


def governed(process: subprocess.Popen[bytes]) -> int | None:
    """An interrupt of a PCI device that irqbalance does not leave where somebody else put it; None without one."""
    listed = sorted(
        int(irq.name) for folder in Path("/sys/bus/pci/devices").glob("*/msi_irqs") for irq in folder.iterdir()
    )
    time.sleep(2.2)  # its first placement
    now = masks()
    first, second = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2]]
    moved = {irq: (first if now[irq] == second else second) for irq in listed if now.get(irq) in (first, second)}
    for irq, mask in moved.items():
        with suppress(OSError):
            (MASKS / str(irq) / "smp_affinity_list").write_text(mask)
    place_anew(process)
    after = masks()
    return next((irq for irq, mask in moved.items() if after[irq] != mask), None)
