"""kill -9 of what binds, at random moments, with real processes on the running kernel."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.observe import Observer
from agent.control.restore import restore_all
from agent.demo.standin import StandIn
from agent.node.host import LinuxHost
from agent.node.procfs import boot_id
from tests.host.support import A, B, masks, two_cpus

pytestmark = two_cpus

KILLS = 20
PASS_SECONDS = 0.05
"""About what a pass takes here."""


def test_after_twenty_kills_every_thread_gets_back_what_it_had_before_the_first_start(tmp_path: Path) -> None:
    journal, root = tmp_path / "journal.json", Path("/")
    moments = random.Random(20)
    with StandIn("--threads", "200", "--acl", "--release") as worker:
        for tid in worker.threads["worker"][::3]:
            os.sched_setaffinity(tid, {moments.choice([A, B])})
        before = masks(worker.pid)
        for kill in range(KILLS):
            with subprocess.Popen(
                [sys.executable, "-m", "tests.host.killed_agent", str(journal), str(worker.pid)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as agent:
                assert agent.stdout is not None
                if kill % 2:
                    agent.stdout.readline()
                else:  # as soon as it begins: it has noted something, or is about to
                    stamp = journal.stat().st_mtime_ns if journal.exists() else 0
                    while agent.poll() is None and (not journal.exists() or journal.stat().st_mtime_ns == stamp):
                        time.sleep(0.001)
                time.sleep(moments.uniform(0, PASS_SECONDS))
                assert agent.poll() is None, agent.stderr and agent.stderr.read()
                agent.kill()
        record, problem = journal_file.load(journal, boot_id(root))
        assert problem is None
        restored = restore_all(Actor(root / "proc", LinuxHost()), Observer(root), record)
        assert (restored.journal.taken, restored.act.stuck) == ("", {})
        assert masks(worker.pid) == before
