"""From prctl(PR_SET_NAME) of an ACL thread to the mask that it belongs on, seen by the thread itself.

Each thread is born, takes its name at once, as those of the CANN runtime do, and ends; then nothing happens for a
while, so that an idle node is one.
"""

from __future__ import annotations

from agent.demo.standin import StandIn
from benchmarks.clock import progress
from benchmarks.figures import Figure, percentile_figure
from benchmarks.scene import HAS_EVENTS, Agent, Scene

CHURN = 500
"""Threads that another worker makes and ends each second; every tenth takes the name, too."""

GAP = 0.053
"""Seconds from one thread to the next; no multiple of anything."""
AT_ONCE = 250.0
"""Milliseconds. No event takes so long; of three threads one may be found by a sweep that was about to begin."""


def run(*, quick: bool) -> list[Figure]:
    """On a node where nothing else happens, then beside a worker that makes threads all the time."""
    with Scene() as scene:
        worker, other = scene.worker(0), scene.worker(1)
        agent = scene.agent()
        agent.wait_until_bound([worker, other])
        if not HAS_EVENTS or min(_taken(worker, 3)) > AT_ONCE:
            return _by_sweeps(worker, 3 if quick else 5)
        count = 100 if quick else 150
        progress(f"{count} threads on an idle node")
        idle = _taken(worker, count)
        other.churn(CHURN)
        progress(f"{count} threads beside {CHURN} others a second")
        busy = _taken(worker, count)
        other.churn(0)
        _check(agent)
    return [
        percentile_figure("idle: p50", idle, 50, unit="ms", budget=0.5),
        percentile_figure("idle: p99", idle, 99, unit="ms", budget=3.0),
        percentile_figure(f"with {CHURN} threads/s: p50", busy, 50, unit="ms"),
        percentile_figure(f"with {CHURN} threads/s: p99", busy, 99, unit="ms", budget=20.0),
    ]


def _by_sweeps(worker: StandIn, count: int) -> list[Figure]:
    progress("this agent hears of no events here: its sweeps find the threads")
    taken = _taken(worker, count)
    note = "no events (they need root, and the host's namespaces): the sweep, every 5 s"
    return [percentile_figure("by the sweep alone: p50", taken, 50, unit="ms", note=note)]


def _taken(worker: StandIn, count: int) -> list[float]:
    """Milliseconds. A thread that nobody moved is a fault, not a slow one."""
    taken = [1000 * seconds for seconds in worker.placed("acl_thread", count, gap=GAP)]
    if len(taken) < count:
        raise RuntimeError(f"{count - len(taken)} of {count} threads were not moved in 10 s")
    return taken


def _check(agent: Agent) -> None:
    if errors := agent.errors():
        raise RuntimeError(f"the agent logged errors: {errors[:3]}")
