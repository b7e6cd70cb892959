"""How often threads were taken off their CPUs, as this kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.model.workload import ProcessId
from agent.node.procfs import ProcFs
from agent.node.switches import Counted, SwitchCounter

ROOT = Path("/")


def myself() -> ProcessId:
    stat = ProcFs(ROOT).stat(os.getpid())
    assert stat is not None
    return ProcessId(stat.pid, stat.start_time)


def by_name(comm: bytes) -> str:
    return "acl" if comm.startswith(b"acl_thread") else "main"


def counted(process: ProcessId) -> list[Counted[str]]:
    return [Counted(process, by_name)]


@contextmanager
def contention() -> Iterator[None]:
    """Two processes of which only one can run."""
    cpu = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    other = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"])
    try:
        os.sched_setaffinity(0, {cpu})
        yield
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()


def busy(switches: int) -> None:
    """Works until this thread was taken off its CPU so often."""
    tid = threading.get_native_id()

    def now() -> int:
        for line in Path(f"/proc/self/task/{tid}/status").read_text().splitlines():
            if line.startswith("nonvoluntary"):
                return int(line.split()[1])
        raise AssertionError("no such line")

    first, end = now(), time.monotonic() + 20
    while now() < first + switches:
        assert time.monotonic() < end, "nobody takes it off its CPU"


def test_what_happens_between_two_looks_is_counted_and_what_was_before_is_not() -> None:
    counter: SwitchCounter[str] = SwitchCounter(ROOT, seconds=5)
    processes = counted(myself())
    counter.look(processes)
    assert set(counter.totals.values()) == {0}
    with contention():
        busy(5)
    counter.look(processes)
    assert counter.totals["main"] >= 5


def test_a_thread_counts_by_its_name() -> None:
    counter: SwitchCounter[str] = SwitchCounter(ROOT, seconds=5)
    named, go_on = threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("acl_thread")
        named.set()
        go_on.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert named.wait(30)
    counter.look(counted(myself()))
    go_on.set()
    thread.join()
    assert set(counter.totals) == {"acl", "main"}


def test_another_process_with_the_same_number_is_not_looked_at() -> None:
    counter: SwitchCounter[str] = SwitchCounter(ROOT, seconds=5)
    me = myself()
    counter.look(counted(ProcessId(me.pid, me.start_time - 1)))
    counter.look(counted(ProcessId(4_190_000, 7)))
    assert counter.totals == {}


class Tree:
    """Threads on paper, whose counts the test sets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = ProcessId(100, 7)
        folder = root / "proc/100"
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"100 (a) S 1 100 100 0 -1 0 {'0 ' * 12}7 0\n")
        self.reads = 0

    def set(self, tid: int, count: int, name: str = "a") -> None:
        folder = self.root / f"proc/100/task/{tid}"
        folder.mkdir(parents=True, exist_ok=True)
        switches = f"voluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t{count}\n"
        (folder / "status").write_text(f"Name:\t{name}\n{switches}")

    def end(self, tid: int) -> None:
        folder = self.root / f"proc/100/task/{tid}"
        (folder / "status").unlink()
        folder.rmdir()


def test_of_a_thread_that_began_between_two_looks_everything_counts(tmp_path: Path) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=5)
    tree.set(100, 50)
    counter.look(counted(tree.process))
    tree.set(100, 51)
    tree.set(101, 20, "acl_thread_0")
    counter.look(counted(tree.process))
    assert counter.totals == {"main": 1, "acl": 20}


def test_a_number_that_another_thread_has_now_never_makes_a_total_smaller(tmp_path: Path) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=5)
    tree.set(100, 50)
    counter.look(counted(tree.process))
    tree.set(100, 3)
    counter.look(counted(tree.process))
    assert counter.totals == {"main": 3}


def test_threads_that_ended_are_forgotten_and_their_counts_are_not(tmp_path: Path) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=5)
    for tid in range(100, 200):
        tree.set(tid, 1)
    counter.look(counted(tree.process))
    for tid in range(100, 200):
        tree.set(tid, 2)
    counter.look(counted(tree.process))
    for tid in range(101, 200):
        tree.end(tid)
    counter.look(counted(tree.process))
    assert counter.totals == {"main": 100}
    assert len(counter._seen) == 1


def test_a_look_that_may_take_no_time_goes_on_in_the_next_and_loses_nothing(tmp_path: Path) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=0)
    for tid in range(100, 110):
        tree.set(tid, 1)
    for k in range(10):
        counter.look(counted(tree.process))
        assert len(counter._seen) == k + 1, "one thread a look"
    assert counter.totals == {"main": 0}
    tree.set(110, 2)
    for tid in range(100, 110):
        tree.set(tid, 4)
    for _ in range(11):
        counter.look(counted(tree.process))
    assert counter.totals == {"main": 32}
    counter.look([])
    counter.look([])
    assert counter.totals == {"main": 32}


@pytest.mark.parametrize(
    "text", ["", "Name:\ta\n", "nonvoluntary_ctxt_switches:\t5\n", "Name:\ta\nnonvoluntary_ctxt_switches:\tx\n"]
)
def test_a_file_of_another_form_counts_for_nothing(tmp_path: Path, text: str) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=5)
    tree.set(100, 1)
    (tmp_path / "proc/100/task/100/status").write_text(text)
    counter.look(counted(tree.process))
    assert counter.totals == {}


def test_a_process_that_was_left_out_for_a_while_counts_from_when_it_is_back(tmp_path: Path) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=0)
    for tid in range(100, 104):
        tree.set(tid, 1000)
    counter.look(counted(tree.process))
    counter.look([])  # its worker is not bound, say
    for _ in range(10):
        counter.look(counted(tree.process))
    assert counter.totals == {"main": 0}


def test_what_could_not_be_read_counts_from_when_it_can_be(tmp_path: Path) -> None:
    tree, counter = Tree(tmp_path), SwitchCounter[str](tmp_path, seconds=5)
    tree.set(100, 1000)
    counter.look(counted(tree.process))
    folder, aside = tmp_path / "proc/100/task", tmp_path / "aside"
    folder.rename(aside)
    folder.write_text("")  # no folder: it can't be listed, as where an agent has too many files open
    counter.look(counted(tree.process))
    folder.unlink()
    aside.rename(folder)
    status = folder / "100/status"
    text = status.read_text()
    status.write_text("")
    counter.look(counted(tree.process))
    status.write_text(text)
    counter.look(counted(tree.process))
    assert counter.totals == {"main": 0}
