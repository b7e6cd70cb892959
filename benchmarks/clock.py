"""What is measured with: CPU time and memory of a process, and what the machine is."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

_CPUCLOCK_SCHED = 2
"""Kernel's number of the clock that counts what the scheduler gave (include/linux/posix-timers_types.h)."""


def cpu_ms(what: Callable[[], object]) -> float:
    """CPU time of this thread, kernel's part included, that a call takes: other processes disturb it least."""
    start = time.thread_time_ns()
    what()
    return (time.thread_time_ns() - start) / 1e6


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all its threads, those that ended included; OSError once it is gone.

    In nanoseconds, where /proc/<pid>/stat counts hundredths: clock_getcpuclockid(3) of the C library.
    """
    return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED) / 1e9


def rss_mib(pid: int | str = "self") -> float:
    """Resident memory now (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"process {pid} has no memory any more")


def yardstick() -> float:
    """CPU milliseconds of a fixed piece of plain Python: what the speed of planning is put into relation to."""

    def work() -> None:
        found: dict[int, tuple[int, ...]] = {}
        for number in range(20_000):
            found[number % 640] = (number, *found.get(number % 640, ())[:3])
        sorted(found.items())

    return statistics.median(cpu_ms(work) for _ in range(5))


def machine() -> dict[str, str]:
    """What figures that are no ratios are to be read with."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "Processor"):
            model = value.strip()
            break
    memory = next(
        (line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")), "0"
    )
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory) / 1048576:.0f} GiB",
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def progress(text: str) -> None:
    """For whoever waits; the table alone goes to stdout."""
    print(f"    {text}", file=sys.stderr, flush=True)
