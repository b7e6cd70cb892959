"""Threads and processes that come, go, change their names and move themselves all the time.

The agent's time is bounded, and other workers are served as ever.
"""

from __future__ import annotations

import statistics
import time

import pytest

from agent.control import storms
from agent.demo.standin import StandIn
from agent.model.node import ProcessRow
from benchmarks.scene import CONTEXT_MIB, Scene, astray
from tests.host.alone import one_at_a_time
from tests.host.hearing import hearing, hears, wait_for
from tests.host.support import APART, A, B, mask, two_cpus
from tests.hostile.storm import NAME, Storm

pytestmark = two_cpus

PER_MINUTE = 10_000 / 60
AS_FAST_AS_IT_GOES = 0.0

SHARE = 0.25
"""Of a core that the agent may take. Nine tenths of it are for the second in which a storm begins."""
SECONDS = 5.0


@hears
@pytest.mark.parametrize(
    ("what", "threads", "rate", "worker"),
    [
        ("names", 2, AS_FAST_AS_IT_GOES, True),
        ("names", 2, AS_FAST_AS_IT_GOES, False),
        ("threads", 1, PER_MINUTE, True),
        ("threads", 2, AS_FAST_AS_IT_GOES, True),
        ("threads", 2, AS_FAST_AS_IT_GOES, False),
        ("processes", 1, PER_MINUTE, True),
        ("processes", 1, AS_FAST_AS_IT_GOES, True),
        ("processes", 1, AS_FAST_AS_IT_GOES, False),
        ("masks", 2, AS_FAST_AS_IT_GOES, True),
    ],
)
def test_a_storm_takes_a_bounded_share_of_a_core_and_keeps_no_other_worker_waiting(
    what: str, threads: int, rate: float, worker: bool
) -> None:
    with one_at_a_time("storm"), Scene() as scene:
        calm = scene.worker(0)
        agent = scene.agent()
        agent.wait_until_bound([calm])
        with Storm(what, threads, rate, scene.host.device(1) if worker else None) as storm:
            if worker:
                rows = [*scene.host.npu_smi.rows, ProcessRow(1, storm.pid, CONTEXT_MIB, NAME)]
                scene.host.npu_smi.set_rows(rows)
                agent.wait(lambda: agent.status()["npus"][1].get("workers") is not None, "listed", every=0.2)
            done, begun, cpu = storm.count(), time.monotonic(), agent.cpu
            time.sleep(SECONDS)
            took = time.monotonic() - begun
            share, raged = (agent.cpu - cpu) / took, (storm.count() - done) / took
            waited = calm.placed("acl_thread", 20)
            print(
                f"{what} {raged:.0f}/s: {100 * share:.1f} % of a core; another's thread waits "
                f"{1000 * statistics.median(waited):.1f} ms, {1000 * max(waited):.0f} at most"
            )
            assert raged > 50, "no storm"
            assert share < SHARE
            assert len(waited) == 20
            assert statistics.median(waited) < 0.1
            assert astray(calm.pid) == []
        assert agent.errors() == []
        assert len(agent.log()) < 100


@hears
def test_a_worker_that_is_not_listened_to_is_served_by_the_sweep_and_at_once_when_it_is_calm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storms, "MOST", 20)
    monkeypatch.setattr(storms, "FIRST_SECONDS", 5.0)
    with hearing(keeps_names=True) as ears, StandIn("--threads", "2") as worker:
        process = ears.bind(worker, APART)
        (one, other) = worker.threads["worker"]
        ears.sweep()  # names are kept from the second pass on
        for _ in range(200):
            worker.rename(one, "x")
        wait_for(lambda: process.pid in ears.events._storms.deaf)
        wait_for(lambda: process.pid not in ears.events._near)
        worker.rename(other, "acl_thread")
        time.sleep(0.2)
        assert mask(other) == {A}, "it was listened to"
        ears.sweep()
        assert mask(other) == {B}
        wait_for(lambda: process.pid in ears.events._near)
        assert ears.woken.wait(10), "nobody looks at what was missed"
        ears.sweep()
        worker.rename(other, "worker")
        wait_for(lambda: mask(other) == {A})
