"""Binding 16 workers of 300 threads: against bare loops of sched_setaffinity, and against what ps and taskset take.

CPU time of this process throughout, but for the tools, whose time is that of their own processes. `ThreadBinder` alone:
what a pass needs besides is in `steady`.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.workload import ProcessId
from agent.node.host import LinuxHost
from agent.node.taskdir import TaskDir
from agent.node.threads import ThreadBinder
from benchmarks.cases import Skipped
from benchmarks.clock import cpu_ms, progress
from benchmarks.figures import Figure, absent, figure, ratios, single

WORKERS = 16
THREADS = 300
TOOLED = 4
"""Workers that are moved with ps and taskset in each repeat: these take so long that all of them would be too many."""

_C = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* bare FIRST CPUS TID...: every thread on all CPUs, untimed, then on the first; prints the CPU ns of the latter. */
int main(int count, char **words)
{
    cpu_set_t one, all;
    struct timespec before, after;
    CPU_ZERO(&one); CPU_SET(atoi(words[1]), &one);
    CPU_ZERO(&all); for (int cpu = 0; cpu < atoi(words[2]); cpu++) CPU_SET(cpu, &all);
    for (int k = 3; k < count; k++) sched_setaffinity(atoi(words[k]), sizeof all, &all);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    for (int k = 3; k < count; k++) sched_setaffinity(atoi(words[k]), sizeof one, &one);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    printf("%ld\n", (after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec);
    return 0;
}
"""


class CountingHost(LinuxHost):
    """The real host; counts writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        """As in `LinuxHost`."""
        self.writes += 1
        super().set_affinity(tid, cpus)


def run(*, quick: bool) -> list[Figure]:
    """Every repeat takes all of the ways in turn, so that a ratio is one of the same moment."""
    if len(os.sched_getaffinity(0)) < 2:
        raise Skipped("one CPU: a thread can't be moved")
    rounds = 7 if quick else 11
    with ExitStack() as stack:
        progress(f"starting {WORKERS} workers")
        arguments = ("--threads", str(THREADS - 3), "--acl", "--release")
        workers = [stack.enter_context(StandIn(*arguments)) for _ in range(WORKERS)]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpubind-bench-")))
        return _Measurement(workers, _compiled(folder)).figures(rounds)


class _Measurement:
    def __init__(self, workers: Sequence[StandIn], bare_c: Path | None) -> None:
        self.workers, self.bare_c = workers, bare_c
        self.tids = [int(name) for worker in workers for name in os.listdir(f"/proc/{worker.pid}/task")]  # noqa: PTH208
        self.processes = [identity(worker.pid) for worker in workers]
        self.every = CpuSet(os.sched_getaffinity(0))
        self.first, self.last = CpuSet({min(self.every)}), CpuSet({max(self.every)})
        self.roles = Roles(main=self.first, acl=self.last, release=self.last)
        self.host = CountingHost()
        self.comms = _comms()
        self.binder = _binder(LinuxHost(), self.comms)
        self.deaf = _binder(LinuxHost(), None)

    def figures(self, rounds: int) -> list[Figure]:
        """All of it."""
        bare, in_c, cold, warm, deaf, tools = [], [], [], [], [], []
        for number in range(rounds):
            self.reset()
            bare.append(cpu_ms(self.bare))
            if self.bare_c is not None:
                in_c.append(self.bare_in_c(self.bare_c))
            self.reset()
            cold.append(cpu_ms(self.cold))
            # The first may have something to keep for those that come: it is the second that is like all others.
            self.warm(self.binder)
            warm.append(cpu_ms(lambda: self.warm(self.binder)))
            if self.comms is not None:
                self.warm(self.deaf)
                deaf.append(cpu_ms(lambda: self.warm(self.deaf)))
            if number < 5 and shutil.which("taskset") and shutil.which("ps"):
                self.reset()
                progress(f"ps and taskset, {number + 1} of 5")
                tools.append(self.tools())
        count = f"{len(self.tids)} threads"
        found = [
            figure("cold bind", cold, unit="ms", note=f"{count}; note their masks, bind, look again; CPU time"),
            figure("cold bind / bare loop of sched_setaffinity", ratios(cold, bare), budget=5.0, compared=True),
        ]
        name = "cold bind / the same loop in C"
        found.append(figure(name, ratios(cold, in_c), compared=True) if in_c else absent(name, "no C compiler"))
        name = "ps -Te and taskset for each worker / cold bind"
        if tools:
            tooled = ratios(tools, cold[: len(tools)])
            note = f"as a binder in each worker does it ({TOOLED} of {WORKERS}); ps lists all threads of this machine"
            found.append(figure(name, tooled, budget=50.0, at_least=True, note=note))
        else:
            found.append(absent(name, "no ps, no taskset"))
        heard = "" if self.comms is None else ", every rename is heard of"
        found.append(figure("warm sweep", warm, unit="ms", budget=15.0, note=f"nothing to do{heard}; CPU time"))
        found.append(figure("warm sweep / bare loop of sched_setaffinity", ratios(warm, bare), compared=True))
        if deaf:
            name = "warm sweep without events / bare loop"
            found.append(figure(name, ratios(deaf, bare), compared=True, note="every name is read"))
        found.append(single("writes in a warm sweep", self.writes_when_warm(), unit="", budget=0.0))
        return found

    def reset(self) -> None:
        """Every thread may run everywhere, and the binder knows nobody."""
        for tid in self.tids:
            os.sched_setaffinity(tid, tuple(self.every))
        self.binder.retain(())
        self.deaf.retain(())
        if self.comms is not None:
            self.comms.lost()
            self.comms.live = True

    def bare(self) -> None:
        """The least that Python can do."""
        cpus = tuple(self.first)
        for tid in self.tids:
            os.sched_setaffinity(tid, cpus)

    def bare_in_c(self, program: Path) -> float:
        """The least that can be done; CPU milliseconds."""
        words = [str(min(self.every)), str(max(self.every) + 1), *map(str, self.tids)]
        return int(subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout) / 1e6

    def cold(self) -> None:
        """A first binding as a pass does it: masks are noted before they are changed."""
        for process in self.processes:
            self.binder.masks(process, cpuset=self.every, online=self.every)
        written = self.bind(self.binder, first=True)
        assert written == len(self.tids), f"{written} of {len(self.tids)} threads were written"

    def warm(self, binder: ThreadBinder) -> None:
        """The next sweep."""
        assert self.bind(binder, first=False) == 0

    def writes_when_warm(self) -> int:
        """Asked of the host: the calls themselves."""
        binder = _binder(self.host, self.comms)
        self.reset()
        self.bind(binder, first=True)
        assert self.host.writes == len(self.tids), "writes pass the host by"
        self.host.writes = 0
        self.bind(binder, first=False)
        return self.host.writes

    def bind(self, binder: ThreadBinder, *, first: bool) -> int:
        """How many threads were written."""
        every = self.every
        return sum(
            binder.bind(process, self.roles, cpuset=every, online=every, first=first).written
            for process in self.processes
        )

    def tools(self) -> float:
        """List all threads of the host, then move one's own, as each worker does for itself; CPU milliseconds."""
        before = _of_children()
        for worker in self.workers[:TOOLED]:
            _silently("ps", "-Te")
            _silently("taskset", "-acp", str(self.first), str(worker.pid))
            for name in ("acl_thread", "release_thread"):
                for tid in worker.threads[name]:
                    _silently("taskset", "-cp", str(self.last), str(tid))
        return (_of_children() - before) * WORKERS / TOOLED


def _comms() -> Any:
    """The names of threads as a pass has them while every rename is heard of: nobody renames any thread here. None
    where the agent keeps none."""
    try:
        comms = importlib.import_module("agent.node.comms").CommCache()
    except ImportError:
        return None
    comms.live = True
    return comms


def _binder(host: LinuxHost, comms: Any) -> ThreadBinder:
    extra = {} if comms is None else {"comms": comms}
    return ThreadBinder(Path("/proc"), host, **extra)


def identity(pid: int) -> ProcessId:
    """A process as it is now."""
    tasks = TaskDir.open("/proc", pid)
    assert tasks is not None
    with tasks:
        return ProcessId(pid, tasks.leader.start_time)


def _silently(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _of_children() -> float:
    times = os.times()
    return 1000 * (times.children_user + times.children_system)


def _compiled(folder: Path) -> Path | None:
    """The loop in C; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, program = folder / "bare.c", folder / "bare"
    source.write_text(_C)
    built = subprocess.run([compiler, "-O2", "-o", program, source], capture_output=True, check=False)
    return program if built.returncode == 0 else None
