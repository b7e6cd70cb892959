"""A node with 16 bound workers, 5,000 threads in them and 400 other processes, on which nothing happens.

Then the same node while one of the workers forks helpers all the time. The interrupts of NPUs, which this machine does
not have, are not in it.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from statistics import median

from agent.demo.standin import StandIn
from benchmarks.clock import cpu_ms, progress
from benchmarks.figures import Figure, absent, quartiles, single
from benchmarks.scene import Agent, Scene, crowd, system_calls

WORKERS = 16
THREADS = 5000
OTHERS = 400
SWEEP_SECONDS = 5.0
FORKS = 100
"""Helpers that a worker forks each second."""

_NETLINK_CONNECTOR, _CN_IDX_PROC, _LISTEN = 11, 1, 1
"""Of include/uapi/linux/{netlink,connector,cn_proc}.h."""
_ROOM = 4 << 20


def run(*, quick: bool) -> list[Figure]:
    """One agent for all of it: what was measured last has what came before behind it, as on a node."""
    window, traced, forking = (15.0, 10.0, 10.0) if quick else (60.0, 10.0, 10.0)
    with Scene() as scene, crowd(OTHERS):
        progress(f"starting {WORKERS} workers with {THREADS} threads, {OTHERS} other processes")
        workers = [scene.worker(npu, _share(npu)) for npu in range(WORKERS)]
        agent = scene.agent()
        agent.wait_until_bound(workers)
        time.sleep(SWEEP_SECONDS)  # what is done once is done
        _between_sweeps(agent)
        tids = [int(tid) for worker in workers for tid in os.listdir(f"/proc/{worker.pid}/task")]  # noqa: PTH208
        progress(f"{window:g} s of nothing")
        slices = _watched(agent, window)
        idle = sum(slices) / window
        low, high = quartiles([100 * part / SWEEP_SECONDS for part in slices])
        figures = [
            Figure(
                "CPU",
                100 * idle,
                low,
                high,
                len(slices),
                unit="% of a core",
                budget=0.5,
                note=f"{len(tids)} threads; mean of {window:g} s, spread over spans of {SWEEP_SECONDS:g} s",
            ),
            single("RSS", agent.rss, unit="MiB", budget=96.0),
            _per_sweep(min(slices), tids),
            *_forking(agent, workers[0], idle, forking),
        ]
        progress(f"{traced:g} s under strace")
        figures += _traced(agent, traced)
        if errors := agent.errors():
            raise RuntimeError(f"the agent logged errors: {errors[:3]}")
        return figures


def _share(npu: int) -> int:
    return THREADS // WORKERS + (npu < THREADS % WORKERS)


def _between_sweeps(agent: Agent) -> None:
    """Returns half-way between a sweep and the next, so that a span of some sweeps' length holds that many."""
    end = time.monotonic() + 2 * SWEEP_SECONDS
    last, busy = agent.cpu, False
    while time.monotonic() < end:
        time.sleep(0.1)
        spent, last = agent.cpu - last, agent.cpu
        if busy and spent < 0.001:
            break
        busy = spent >= 0.001
    time.sleep(SWEEP_SECONDS / 2)


def _watched(agent: Agent, seconds: float) -> list[float]:
    """CPU seconds of the agent in each span as long as a sweep is apart from the next."""
    found = []
    for _ in range(round(seconds / SWEEP_SECONDS)):
        before = agent.cpu
        time.sleep(SWEEP_SECONDS)
        found.append(agent.cpu - before)
    return found


def _per_sweep(spent: float, tids: list[int]) -> Figure:
    """CPU of the whole agent from sweep to sweep, in loops that ask the kernel for each mask once. Of the span in which
    the rest of the machine gave it the least to hear."""

    def ask() -> None:
        for tid in tids:
            os.sched_getaffinity(tid)

    bare = median(cpu_ms(ask) for _ in range(9))
    name = "CPU of a sweep / bare loop of sched_getaffinity"
    return single(name, 1000 * spent / bare, compared=True)


def _traced(agent: Agent, seconds: float) -> list[Figure]:
    """System calls. How many sweeps there were in this time is told by the masks that were asked for: that of every
    thread once in each."""
    calls = system_calls(agent.pid, seconds)
    name = "system calls / threads looked at"
    if not calls:
        return [absent(name, "no strace, or it may not trace")]
    total, masks = sum(calls.values()), calls.get("sched_getaffinity", 0)
    most = sorted(calls.items(), key=lambda item: -item[1])[:4]
    note = ", ".join(f"{name} {count / seconds:.0f}" for name, count in most)
    figures = [single("system calls", total / seconds, unit="/s", note=note)]
    figures.append(single(name, total / masks, compared=True) if masks else absent(name, "no sweep was seen"))
    return [*figures, single("masks written", calls.get("sched_setaffinity", 0), unit="", budget=0.0)]


def _forking(agent: Agent, worker: StandIn, idle: float, seconds: float) -> list[Figure]:
    """What a worker costs that forks helpers constantly, beside one whose threads are idle: the events, at most.

    The measure of an event is a bare loop that receives each and looks at its kind, in Python, at the same time.
    """
    progress(f"{seconds:g} s of {FORKS} forked helpers a second")
    listener = _Listener.start()
    made = worker.forks(FORKS)
    before, begun = agent.cpu, time.monotonic()
    time.sleep(seconds)
    cost, took = agent.cpu - before, time.monotonic() - begun
    made = worker.forks(0) - made
    note = f"{made / took:.0f} helpers/s; idle: {100 * idle:.2f} %"
    figures = [single("CPU while a worker forks helpers", 100 * cost / took, unit="% of a core", note=note)]
    name = "the same / idle threads plus a bare loop over the events"
    if listener is None:
        return [*figures, absent(name, "no process events: needs root in the host's network namespace")]
    events, bare = listener.stop()
    note = f"{events / took:.0f} events/s, {100 * bare / took:.2f} % for the loop that receives each and does nothing"
    return [*figures, single(name, cost / (idle * took + bare), compared=True, note=note)]


class _Listener:
    """Receives process events and does nothing with them: what hearing of them costs at the least."""

    def __init__(self, connector: socket.socket) -> None:
        self._connector = connector
        self._ends = False
        self._events, self._cpu = 0, 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @classmethod
    def start(cls) -> _Listener | None:
        """None where there are none to be had: not as root, or not in the host's network namespace."""
        try:
            connector = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
            connector.settimeout(0.2)
            connector.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
            connector.bind((0, _CN_IDX_PROC))
            connector.send(struct.pack("=IHHIIIIIIHHI", 40, 3, 0, 0, os.getpid(), _CN_IDX_PROC, 1, 0, 0, 4, 0, _LISTEN))
        except OSError:
            return None
        return cls(connector)

    def stop(self) -> tuple[int, float]:
        """How many events there were, and what they cost in CPU seconds."""
        self._ends = True
        self._thread.join()
        self._connector.close()
        return self._events, self._cpu

    def _run(self) -> None:
        begun = time.thread_time()
        while not self._ends:
            with suppress(OSError):  # a timeout; ENOBUFS, where more came than there was room for
                data = self._connector.recv(4096)
                # struct nlmsghdr has 16 bytes and struct cn_msg 20; the event that follows begins with its kind.
                self._events += struct.unpack_from("=I", data, 36)[0] > 0
        self._cpu = time.thread_time() - begun
