"""Binding 16 workers of 300 threads, against a bare loop of sched_setaffinity over the same threads.

Run by hand on an idle machine with two CPUs or more: ``PYTHONPATH=. python benchmarks/bench_threads.py``. Every figure
is the best of several rounds, in milliseconds of CPU time of this process, which another process's load disturbs least;
wall time is beside it. With ``--tools`` the way of ``ps -Te`` and ``taskset`` for each worker is timed, too.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.workload import ProcessId
from agent.node.host import LinuxHost
from agent.node.taskdir import TaskDir
from agent.node.threads import ThreadBinder

WORKERS = 16
THREADS = 300
ROUNDS = 15

ALL = CpuSet(os.sched_getaffinity(0))
FIRST, SECOND = CpuSet({min(ALL)}), CpuSet({max(ALL)})
ROLES = Roles(main=FIRST, acl=SECOND, release=SECOND)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tools", action="store_true", help="time ps and taskset, too")
    parser.add_argument("--profile", action="store_true", help="show where a cold pass spends its time")
    options = parser.parse_args()
    with ExitStack() as stack:
        arguments = ("--threads", str(THREADS - 3), "--acl", "--release")
        workers = [stack.enter_context(StandIn(*arguments)) for _ in range(WORKERS)]
        measure(workers, tools=options.tools, profile=options.profile)


def measure(workers: list[StandIn], *, tools: bool, profile: bool) -> None:
    tids = [int(tid) for worker in workers for tid in os.listdir(f"/proc/{worker.pid}/task")]  # noqa: PTH208
    processes = [identity(worker.pid) for worker in workers]
    binder = ThreadBinder(Path("/proc"), LinuxHost())

    def reset() -> None:
        for tid in tids:
            os.sched_setaffinity(tid, tuple(ALL))

    def bare() -> None:
        cpus = tuple(FIRST)
        for tid in tids:
            os.sched_setaffinity(tid, cpus)

    def bind(*, first: bool) -> int:
        return sum(binder.bind(process, ROLES, cpuset=ALL, online=ALL, first=first).written for process in processes)

    def note() -> None:
        for process in processes:
            binder.masks(process, cpuset=ALL, online=ALL)

    def cold() -> None:
        binder.retain(())
        note()
        assert bind(first=True) == len(tids)

    def warm() -> None:
        assert bind(first=False) == 0

    print(f"{len(workers)} workers, {len(tids)} threads    CPU ms    wall ms")
    loop = best(bare, before=reset)
    show("bare loop of sched_setaffinity", loop)
    noted = best(note, before=reset)
    show("note their masks before", noted, f"{noted[0] / loop[0]:.1f} x the bare loop")
    first = best(cold, before=reset)
    show("cold: note, bind every thread", first, f"{first[0] / loop[0]:.1f} x the bare loop (budget 5)")
    again = best(warm)
    show("warm: nothing to do", again, "budget 15 ms")
    if tools:
        reset()
        start = time.perf_counter()
        for worker in workers:
            with_tools(worker)
        took = (time.perf_counter() - start) * 1000
        print(f"{'ps -Te and taskset per worker':34}          {took:10.0f}  {took / first[1]:.0f} x the cold pass")
    if profile:
        reset()
        with cProfile.Profile() as profiler:
            cold()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


def best(what: Callable[[], None], before: Callable[[], None] = lambda: None) -> tuple[float, float]:
    """(CPU, wall) in milliseconds, each the best of the rounds."""
    times = []
    for _ in range(ROUNDS):
        before()
        wall, cpu = time.perf_counter(), time.process_time()
        what()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(cpu for cpu, _ in times) * 1000, min(wall for _, wall in times) * 1000


def show(title: str, times: tuple[float, float], note: str = "") -> None:
    print(f"{title:34}{times[0]:10.1f}{times[1]:10.1f}  {note}")


def with_tools(worker: StandIn) -> None:
    """What a binder inside each worker does: list all threads of the host, then move its own."""
    subprocess.run(["ps", "-Te"], stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["taskset", "-acp", str(FIRST), str(worker.pid)], stdout=subprocess.DEVNULL, check=True)
    for name in ("acl_thread", "release_thread"):
        for tid in worker.threads[name]:
            subprocess.run(["taskset", "-cp", str(SECOND), str(tid)], stdout=subprocess.DEVNULL, check=True)


def identity(pid: int) -> ProcessId:
    tasks = TaskDir.open("/proc", pid)
    assert tasks is not None
    with tasks:
        return ProcessId(pid, tasks.leader.start_time)


if __name__ == "__main__":
    main()
