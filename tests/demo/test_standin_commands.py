"""What a stand-in worker can be told to do while a test or a benchmark looks on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.demo.standin import StandIn

CPUS = os.sched_getaffinity(0)
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@contextmanager
def placing(worker: StandIn) -> Iterator[None]:
    """Somebody who puts every acl_thread of a worker on one CPU."""
    ends = threading.Event()

    def run() -> None:
        while not ends.is_set():
            for task in Path(f"/proc/{worker.pid}/task").iterdir():
                with suppress(OSError):
                    if (task / "comm").read_text() == "acl_thread\n":
                        os.sched_setaffinity(int(task.name), {min(CPUS)})
            time.sleep(0.005)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_it_opens_a_file_and_keeps_it_open(tmp_path: Path) -> None:
    file = tmp_path / "davinci0"
    file.touch()
    with StandIn() as worker:
        worker.open(file)
        opened = {os.readlink(link) for link in Path(f"/proc/{worker.pid}/fd").iterdir()}
    assert str(file) in opened


@two_cpus
def test_it_says_how_long_a_thread_waited_for_another_mask() -> None:
    with StandIn() as worker, placing(worker):
        taken = worker.placed("acl_thread", 5, gap=0.0)
        left = os.listdir(f"/proc/{worker.pid}/task")
    assert len(taken) == 5
    assert all(seconds > 0 for seconds in taken)
    assert left == [str(worker.pid)]


def test_threads_that_nobody_moves_are_left_out() -> None:
    with StandIn() as worker:
        assert worker.placed("acl_thread", 2, gap=0.0, patience=0.05) == []


@pytest.mark.parametrize("what", ["churn", "forks"])
def test_it_makes_threads_and_children_until_it_is_told_to_stop(what: str) -> None:
    with StandIn() as worker:
        tell = getattr(worker, what)
        assert tell(200) == 0
        wait_until(lambda: tell(200) > 5)
        tell(0)
        wait_until(lambda: children(worker.pid) == [])
        wait_until(lambda: not goes_on(tell))  # one is being made yet, perhaps
        wait_until(lambda: len(os.listdir(f"/proc/{worker.pid}/task")) <= 2)  # the one that made them stays


def goes_on(tell: Callable[[int], int]) -> bool:
    """Whether more are made in a tenth of a second: twenty, at the rate that there was."""
    before = tell(0)
    time.sleep(0.1)
    return tell(0) != before


def children(pid: int) -> list[str]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found += (task / "children").read_text().split()
    return found
