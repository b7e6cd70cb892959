"""From the start of the agent to its first plan, with a responsive npu-smi and idle NPUs."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.clock import progress
from benchmarks.figures import Figure, figure, ratios
from benchmarks.scene import Agent, Scene


def run(*, quick: bool) -> list[Figure]:  # noqa: ARG001 - it is short enough
    """Each start is that of a first installation: no state, no journal."""
    took, cost, bare = [], [], []
    with Scene() as scene:
        for number in range(5):
            progress(f"start {number + 1}")
            bare.append(_bare())
            with Agent(scene.host) as agent:
                agent.wait(lambda agent=agent: bool(agent.status().get("npus")), "a plan", every=0.01)  # type: ignore[misc]
                took.append(time.monotonic() - agent.begun)
                cost.append(agent.cpu)
    return [
        figure("start to first plan", took, unit="s"),
        figure("CPU time until then / an empty Python", ratios(cost, bare), compared=True),
    ]


def _bare() -> float:
    """CPU seconds of an interpreter that does nothing."""
    watched = subprocess.run(
        [sys.executable, "-c", "import time; print(time.process_time())"], capture_output=True, text=True, check=True
    )
    return float(watched.stdout)
