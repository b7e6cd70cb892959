"""From a process's opening of its NPU to all its threads in place, with an npu-smi that answers at once.

As the CANN runtime does, the process makes its ACL and its release thread once the device is open: of an open(2) alone
the kernel tells nobody.
"""

from __future__ import annotations

import time

from agent.demo.standin import StandIn
from benchmarks.clock import progress
from benchmarks.figures import Figure, percentile_figure
from benchmarks.scene import HAS_EVENTS, Agent, Scene, astray


def run(*, quick: bool) -> list[Figure]:
    """One process after the other, on one NPU; another worker is there all the time, so that the agent is busy."""
    most, seconds = (12, 8.0) if quick else (40, 15.0)
    taken: list[float] = []
    with Scene() as scene:
        first = scene.worker(1)
        agent = scene.agent()
        agent.wait_until_bound([first])
        begun = time.monotonic()
        while len(taken) < 5 or (len(taken) < most and time.monotonic() - begun < seconds):
            taken.append(_one(scene, agent))
            progress(f"{len(taken)}: {taken[-1]:.2f} s")
    note = "" if HAS_EVENTS else "no events in this agent: the sweep, every 5 s"
    return [
        percentile_figure("opened → bound: p50", taken, 50, unit="s"),
        percentile_figure("opened → bound: p99", taken, 99, unit="s", budget=1.5, note=note),
    ]


def _one(scene: Scene, agent: Agent) -> float:
    with StandIn("--threads", "17") as worker:
        opened = time.monotonic()
        scene.host.hold(0, worker)
        for name in ("acl_thread", "release_thread"):
            worker.spawn(name)
        agent.wait(lambda: not astray(worker.pid), "bound", every=0.005)
        taken = time.monotonic() - opened
        scene.host.let_go(worker)
        return taken
