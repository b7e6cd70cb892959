"""What one call costs, in a process of its own: CPU seconds and memory, whatever else this machine is doing."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import warnings
from dataclasses import dataclass

from tests.fuzz.targets import Target

LIMIT = 30
"""CPU seconds after which a call is ended."""


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    """Of CPU time."""
    bytes: int
    """Of memory at the worst moment, beyond the input itself."""
    raised: str
    """The exception, where it is none of the target's; or how the process ended."""


def cost(target: Target, data: bytes) -> Cost:
    """Runs a target once in a fork of this process."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process may have threads; the child uses none
        child = os.fork()
    if not child:
        os.close(reader)
        try:
            os.write(writer, json.dumps(_measured(target, data)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not said:
        return Cost(LIMIT, 0, f"ended by {signal.strsignal(os.WTERMSIG(status)) or status}")
    seconds, size, raised = json.loads(said)
    return Cost(seconds, size, raised)


def _measured(target: Target, data: bytes) -> tuple[float, int, str]:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1))
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # one that takes all memory takes it from nobody else
    gc.freeze()  # what the parent has is not to be looked through again and again
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM begins anew
    before, began, raised = _memory("VmRSS"), _cpu(), ""
    try:
        target.take(data)
    except target.errors:
        pass
    except BaseException as error:
        raised = f"{type(error).__name__}: {str(error)[:200]}"
    spent = _cpu() - began, max(0, _memory("VmHWM") - before), raised
    with contextlib.suppress(Exception):
        target.take(target.seeds[0])  # what was large is a file in memory
    return spent


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory(name: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10
