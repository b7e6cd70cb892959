"""kill -9 of what binds, at random moments, with real processes on the running kernel."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.observe import Observer
from agent.control.restore import restore_all
from agent.control.steps import HostSteps
from agent.demo.standin import StandIn
from agent.node.host import LinuxHost
from agent.node.procfs import boot_id
from tests.host.support import A, B, masks, two_cpus

pytestmark = two_cpus

KILLS = 20
PASS_SECONDS = 0.05
"""About what a pass takes here."""
TIMEOUT = 60.0


def test_after_twenty_kills_every_thread_gets_back_what_it_had_before_the_first_start(tmp_path: Path) -> None:
    journal, root = tmp_path / "journal.json", Path("/")
    moments = random.Random(20)
    with (
        StandIn("--threads", "100", "--acl", "--release") as worker,
        subprocess.Popen(
            [sys.executable, "-m", "tests.host.killed_agent", str(journal), str(worker.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as agents,
    ):
        for tid in worker.threads["worker"][::3]:
            os.sched_setaffinity(tid, {moments.choice([A, B])})
        before = masks(worker.pid)
        assert agents.stdin is not None
        assert agents.stdout is not None
        for _ in range(KILLS):
            was = written(journal)
            print(file=agents.stdin, flush=True)
            agent = int(agents.stdout.readline())
            await_other(journal, was)
            time.sleep(moments.uniform(0, 2 * PASS_SECONDS))
            os.kill(agent, signal.SIGKILL)
        agents.stdin.close()
        assert agents.wait(TIMEOUT) == 0
        assert masks(worker.pid) != before
        record, problem = journal_file.load(journal, boot_id(root))
        assert problem is None
        observer = Observer(root)
        steps = HostSteps(root, LinuxHost(), observer.cgroups)
        restored = restore_all(Actor(root / "proc", LinuxHost()), steps, observer, record)
        assert (restored.journal.taken, restored.act.stuck) == ("", {})
        assert masks(worker.pid) == before


def written(journal: Path) -> int:
    """Which file it is: every write makes another one."""
    return journal.stat().st_ino if journal.exists() else 0


def await_other(journal: Path, was: int) -> None:
    end = time.monotonic() + TIMEOUT
    while written(journal) == was:
        assert time.monotonic() < end, "nothing is noted"
        time.sleep(0.001)
