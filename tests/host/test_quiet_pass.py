"""What one pass of the agent asks of this kernel where nothing happens, counted by strace."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.demo.standin import StandIn
from tests.host import quiet_agent
from tests.host.support import tids

PASSES = 3
FIXED = 120
"""System calls of a pass that do not depend on how many workers there are."""
PER_WORKER = 20
PER_THREAD = 4
"""Its mask, and its name in a file."""

_CALL = re.compile(r"^(?:[0-9]+ +)?([a-z_0-9]+)\((.*)$")
_OF_PROCESS = re.compile(r"/proc/([0-9]+)(?:/|\")")


@dataclass(frozen=True, slots=True)
class Pass:
    calls: Counter[str]
    opened: frozenset[int]
    """Pids below whose folder in /proc a path of a call lies."""

    @property
    def total(self) -> int:
        return sum(self.calls.values())


def traced(folder: Path, workers: list[StandIn]) -> list[Pass]:
    """The quiet passes of an agent with these workers; of its main thread alone, the others are asleep."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("NOT TESTED: system calls of a quiet pass, for want of strace (Debian: apt-get install strace)")
    trace = folder / "trace"
    program = [sys.executable, "-m", "tests.host.quiet_agent", str(folder), str(PASSES)]
    done = subprocess.run(
        [strace, "-qq", "-s", "200", "-o", str(trace), *program, *(str(worker.pid) for worker in workers)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "ptrace" in done.stderr and not trace.stat().st_size:
        pytest.skip(f"NOT TESTED: system calls of a quiet pass, strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return list(passes(trace.read_text(errors="replace").splitlines()))


def passes(lines: list[str]) -> Iterator[Pass]:
    calls: Counter[str] | None = None
    opened: set[int] = set()
    for line in lines:
        if f'"{quiet_agent.BEGINS}"' in line:
            calls, opened = Counter(), set()
        elif f'"{quiet_agent.ENDS}"' in line and calls is not None:
            yield Pass(calls, frozenset(opened))
            calls = None
        elif calls is not None and (match := _CALL.match(line)):
            calls[match[1]] += 1
            opened.update(map(int, _OF_PROCESS.findall(match[2])))


@contextmanager
def standins(count: int, threads: int) -> Iterator[list[StandIn]]:
    with ExitStack() as stack:
        arguments = ("--threads", str(threads), "--acl", "--release")
        yield [stack.enter_context(StandIn(*arguments)) for _ in range(count)]


@contextmanager
def idle(count: int) -> Iterator[list[int]]:
    """Processes that are nobody's worker."""
    sleepers = [subprocess.Popen(["sleep", "300"]) for _ in range(count)]
    try:
        yield [sleeper.pid for sleeper in sleepers]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_a_quiet_pass_asks_little_of_the_kernel_and_changes_nothing(tmp_path: Path) -> None:
    with standins(3, threads=20) as workers, idle(30):
        found = traced(tmp_path, workers)
        threads = sum(len(tids(worker.pid)) for worker in workers)
        pids = {worker.pid for worker in workers}
    assert len(found) == PASSES
    for one in found:
        assert one.total <= FIXED + PER_WORKER * len(workers) + PER_THREAD * threads, one.calls
        assert one.opened <= pids | {1}
        writing = {
            "sched_setaffinity",
            "write",
            "pwrite64",
            "rename",
            "fsync",
            "unlink",
            "mkdir",
            "connect",
            "clone",
            "clone3",
        }
        assert not one.calls.keys() & writing, one.calls


def test_a_quiet_pass_does_not_depend_on_how_many_other_processes_there_are(tmp_path: Path) -> None:
    totals = []
    with standins(1, threads=3) as workers:
        for count in (5, 60):
            folder = tmp_path / str(count)
            folder.mkdir()
            with idle(count):
                totals.append(min(one.total for one in traced(folder, workers)))
    assert abs(totals[0] - totals[1]) <= 2
