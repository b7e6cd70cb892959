"""The agent is killed where it happens to be, twenty times, while the workers it binds go on living."""

from __future__ import annotations

import os
import random
import subprocess
import time

from tests.vm.inside.agent_run import SWEEP, every_worker
from tests.vm.inside.interrupts import ELSEWHERE, NAMES, masks, scene_with_card, write
from tests.vm.inside.scene import Facts, Scene, taskset

KILLS = 20
SEED = 4
HOMES = ("0-3", "8-11")


def twenty_kills() -> Facts:
    """From the first start on, which finds workers that nobody has bound, to a last one that is left in peace."""
    chance = random.Random(SEED)
    with scene_with_card("crash", HOMES) as (scene, irqs):
        for npu in range(2):
            scene.worker(npu, "0-15")
        # Threads that had masks of their own before the agent came: to be put back by `restore`, not widened.
        narrow = {worker.threads["worker"][0]: f"{9 + npu}" for npu, worker in scene.workers.items()}
        for tid, cpus in narrow.items():
            subprocess.run(["taskset", "-c", "-p", cpus, str(tid)], check=True, capture_output=True)
        write(irqs[0], ELSEWHERE)
        irqs_before = masks(irqs)
        child = scene.workers[0].fork(scene.workers[0].threads["worker"][1])[0]
        before = scene.threads() + taskset(child)

        # How long a start takes until all is bound, on workers of its own: moments are drawn from all of it.
        span = _span()
        moments, late = [], []
        for number in range(KILLS):
            scene.agent.fork()
            moments.append(round(chance.uniform(0, span), 2))
            time.sleep(moments[-1])
            scene.agent.kill()
            # What goes on while nobody looks: threads that come, and somebody's taskset.
            worker = scene.workers[number % 2]
            if number % 3 == 0:
                late += worker.spawn("acl_thread")
            elif number % 3 == 1 and every_worker(scene.agent.status(), scene.pids):
                # Before it was ever bound this would be a mask of its own.
                os.sched_setaffinity(worker.threads["worker"][2], {0, 1})
        scene.agent.fork()
        facts: Facts = {"before": before, "late": late, "span": span, "moments": moments}
        facts["bound"] = scene.settle() | {"child": taskset(child), "irqs": masks(irqs)}
        scene.agent.kill()
        facts["restore"] = scene.agent.command("restore")
        facts["restored"] = scene.threads() + taskset(child)
        facts |= {"irqs": dict(zip(irqs, NAMES, strict=True)), "irqs_before": irqs_before, "irqs_restored": masks(irqs)}
        return facts


def _span() -> float:
    """Seconds from a start until all is bound and one sweep has passed."""
    with Scene("crash-span", "a2", HOMES) as scene:
        for npu in range(2):
            scene.worker(npu, "0-15")
        begun = time.monotonic()
        scene.agent.fork()
        scene.agent.wait(lambda status: status.get("summary", {}).get("bound") == 2)
        return round(time.monotonic() - begun + SWEEP, 1)
