"""How many system calls a pass over a worker's threads takes, as strace sees them: calls, and not time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent.demo.standin import StandIn
from agent.node.taskstats import BATCH, TaskStats
from tests.host.support import A, B, identity, masks, two_cpus

THREADS = 200

PROGRAM = """
import gc, os
from pathlib import Path
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.workload import ProcessId
from agent.node.comms import CommCache
from agent.node.host import LinuxHost
from agent.node.threads import ThreadBinder
a, b, both = CpuSet([{a}]), CpuSet([{b}]), CpuSet([{a}, {b}])
comms = CommCache()
comms.live = {live}
host = LinuxHost()
if {files}:
    host.names = lambda tids: None
host.names([os.getpid()])
binder = ThreadBinder(Path("/proc"), host, comms)
process = {process!r}

def bind(first):
    outcome = binder.bind(process, Roles(main=a, acl=b, release=b), cpuset=both, online=both, first=first)
    assert outcome.state == "Bound", outcome

gc.disable()
for name in ("cold", "second", "warm"):
    os.access("/begin " + name, os.F_OK)
    if name == "cold":
        binder.masks(process, cpuset=both, online=both)
    bind(name == "cold")
    os.access("/end", os.F_OK)
"""

MEMORY = {"brk", "mmap", "munmap", "mremap", "madvise", "mprotect"}
"""Calls by which Python gets memory: as it pleases."""

pytestmark = [two_cpus, pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")]


def calls(tmp_path: Path, *, live: bool, files: bool) -> tuple[dict[str, Counter[str]], int]:
    """Pass -> calls by name; and how many threads the worker has."""
    with StandIn("--threads", str(THREADS), "--acl", "--release") as worker:
        program = PROGRAM.format(a=A, b=B, live=live, files=files, process=identity(worker.pid))
        log = tmp_path / "strace"
        command = ["strace", "-f", "-qq", "-o", str(log), sys.executable, "-c", program]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if "ptrace" in done.stderr:
            pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        found: dict[str, Counter[str]] = {}
        name = ""
        for line in log.read_text(errors="replace").splitlines():
            if begin := re.search(r'"/begin (\w+)"', line):
                name = begin[1]
                found[name] = Counter()
            elif '"/end"' in line:
                name = ""
            elif name and (call := re.match(r"\d+ +(\w+)\(", line)) and call[1] not in MEMORY:
                found[name][call[1]] += 1
        return found, len(masks(worker.pid))


LISTING = 5
"""Moving to the beginning, and reading until nothing comes any more."""


@pytest.mark.parametrize("files", [False, True], ids=["taskstats", "files"])
def test_a_pass_that_knows_the_names_takes_one_call_for_each_thread(tmp_path: Path, *, files: bool) -> None:
    found, threads = calls(tmp_path, live=True, files=files)
    warm = found["warm"]
    assert warm.pop("sched_getaffinity") == threads
    assert warm.total() <= LISTING, warm


def test_a_pass_that_reads_names_by_taskstats_takes_a_message_for_many_more(tmp_path: Path) -> None:
    if TaskStats().names([os.getpid()]) is None:
        pytest.skip("needs taskstats: CONFIG_TASKSTATS and CAP_NET_ADMIN")
    found, threads = calls(tmp_path, live=False, files=False)
    batches = -(-threads // BATCH)
    for name in ("second", "warm"):
        assert found[name].pop("sched_getaffinity") == threads
        assert found[name].total() <= LISTING + 3 * batches, found[name]
    cold = found["cold"]
    assert (cold.pop("sched_getaffinity"), cold.pop("sched_setaffinity")) == (threads, threads)
    assert cold.total() <= 12 + 2 * LISTING + 3 * batches, cold


def test_a_pass_that_reads_names_from_files_takes_three_more_for_each_thread(tmp_path: Path) -> None:
    found, threads = calls(tmp_path, live=False, files=True)
    for name in ("second", "warm"):
        assert found[name].pop("sched_getaffinity") == threads
        assert found[name].pop("openat") == found[name].pop("read") == threads
        assert found[name].total() <= LISTING + threads, found[name]
    cold = found["cold"]
    assert (cold.pop("sched_getaffinity"), cold.pop("sched_setaffinity")) == (threads, threads)
    assert cold.total() <= 12 + 2 * LISTING + 3 * threads, cold
