"""A real agent beside a worker that makes and ends a thousand threads a second, for as long as one can wait."""

from __future__ import annotations

import statistics
import sys
import time

import pytest

from benchmarks.scene import Agent, Scene, astray

pytestmark = pytest.mark.soak

CHURN = 1000
"""Threads a second; every tenth names itself acl_thread."""

GROWTH_MIB = 2.0


def test_it_stays_as_it_is_while_threads_come_and_go(seconds: float) -> None:
    with Scene() as scene:
        workers = [scene.worker(npu, 300) for npu in range(4)]
        agent = scene.agent()
        agent.wait_until_bound(workers)
        before = workers[0].churn(CHURN)
        begun, cpu = time.monotonic(), agent.cpu
        memory = sampled(agent, seconds)
        used, took = agent.cpu - cpu, time.monotonic() - begun
        made = workers[0].churn(0) - before

        span = max(1, min(60, len(memory) // 3))
        first, last = statistics.fmean(memory[:span]), statistics.fmean(memory[-span:])
        print(
            f"{made / took:.0f} threads/s for {took:.0f} s; agent: {100 * used / took:.1f} % of a core, "
            f"RSS {first:.1f} MiB in the first {span} s, {last:.1f} MiB in the last"
        )
        assert made / took > 0.9 * CHURN, "this machine makes no thousand threads a second"
        assert agent.process.poll() is None
        assert agent.errors() == []
        assert not [entry for entry in agent.log() if "Traceback" in str(entry.get("message"))]
        assert last - first <= GROWTH_MIB
        agent.wait(lambda: not any(astray(worker.pid) for worker in workers), "all threads in place")
        states = {npu["id"]: npu["state"] for npu in agent.status()["npus"]}
        assert [states[npu] for npu in range(4)] == ["Bound"] * 4
        agent.close()
        assert agent.process.returncode == 0
        assert agent.errors() == []


def sampled(agent: Agent, seconds: float) -> list[float]:
    """RSS in MiB, once a second; says every minute that it goes on."""
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(agent.rss)
        if len(found) % 60 == 0:
            left = end - time.monotonic()
            print(f"RSS {found[-1]:.1f} MiB, {left:.0f} s left", file=sys.stderr, flush=True)
        time.sleep(1.0)
    return found
