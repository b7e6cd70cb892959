"""Pages of a real process on the kernel of this machine."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.control.memory import MemoryMover
from agent.demo.fake_memory import ABSENT, FakeMemory, FakeRegion
from agent.demo.fake_memory import PAGE as FAKE_PAGE
from agent.model.cpuset import EMPTY
from agent.model.node import NumaNode
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Roles
from agent.model.workload import ProcessId, Worker
from agent.node.host import LinuxHost
from agent.node.memory import PageMover, Range, free_memory, read_account, read_ranges
from agent.node.pages import page_addresses
from agent.node.sysfs import read_topology
from tests.host.support import identity

ROOT = Path("/")
PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 16 << 20

TOPOLOGY = read_topology(ROOT)
NODE = next(node.id for node in TOPOLOGY.nodes if node.has_memory)

CHILD = f"""
import ctypes, mmap, sys
address = lambda memory: ctypes.addressof(ctypes.c_char.from_buffer(memory))
private = mmap.mmap(-1, {SIZE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, {SIZE})
half = mmap.mmap(-1, {SIZE}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, {SIZE}, {PAGE}):
    private[at] = shared[at] = 1
for at in range(0, {SIZE} // 2, {PAGE}):
    half[at] = 1
print(address(private), address(shared), address(half), flush=True)
sys.stdin.read()
"""


def may_look_at_others() -> bool:
    """CAP_SYS_PTRACE, or a process of the same user that this kernel lets it look at."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        LinuxHost().page_nodes(child.pid, page_addresses(PAGE, 2 * PAGE, PAGE))
    except OSError:
        return False
    finally:
        child.communicate()
    return True


pytestmark = pytest.mark.skipif(
    not may_look_at_others(), reason="move_pages(2) on another process is not allowed here, or there is none"
)


class Child:
    """A process with memory of its own and memory that it shares."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        starts = list(map(int, self.process.stdout.readline().split()))
        self.private, self.shared, self.half = (Range(start, start + SIZE) for start in starts)
        self.pid = self.process.pid
        self.identity = identity(self.pid)

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.end()


def test_pages_of_another_process_answer_with_the_node_that_they_are_on(child: Child) -> None:
    host = LinuxHost()
    wanted = page_addresses(child.half.start, child.half.end, PAGE)
    assert list(host.page_nodes(child.pid, wanted)) == list(host.move_pages(child.pid, wanted, NODE))
    nodes = host.page_nodes(child.pid, wanted)
    half = len(wanted) // 2
    if len(TOPOLOGY.nodes) == 1:
        assert set(nodes[:half]) == {NODE}
    assert min(nodes[:half]) >= 0
    assert set(nodes[half:]) == {-errno.ENOENT}


def test_the_fake_kernel_answers_as_this_one_does(child: Child) -> None:
    fake = FakeMemory({NODE: 1 << 30})
    for of, node in ((child.private, NODE), (child.half, ABSENT)):
        fake.map(child.pid, FakeRegion(array("i", [node] * (SIZE // FAKE_PAGE))), start=of.start)
    for asked in (child.private.start, child.half.end - PAGE, PAGE):
        wanted = page_addresses(asked, asked + PAGE, PAGE)
        real = LinuxHost()
        answers = [real.page_nodes(child.pid, wanted)[0], real.move_pages(child.pid, wanted, NODE)[0]]
        imitated = [fake.page_nodes(child.pid, wanted)[0], fake.move_pages(child.pid, wanted, NODE)[0]]
        assert answers == imitated
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        fake.move_pages(child.pid, page_addresses(0, PAGE, PAGE), 1000)


@pytest.mark.parametrize(
    ("pid", "node", "number"),
    [
        ((1 << 22) - 3, NODE, errno.ESRCH),
        (None, 1000, errno.ENODEV),
    ],
)
def test_what_the_kernel_refuses_is_its_own_errno(child: Child, pid: int | None, node: int, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as raised:
        LinuxHost().move_pages(pid or child.pid, page_addresses(child.private.start, child.private.end, PAGE), node)
    assert raised.value.errno == number


def test_private_memory_is_found_in_maps_and_shared_memory_is_not(child: Child) -> None:
    ranges = read_ranges(ROOT, child.pid)
    assert ranges is not None
    # The kernel merges neighbours.
    assert any(each.start <= child.private.start and child.private.end <= each.end for each in ranges)
    assert not any(each.start < child.shared.end and child.shared.start < each.end for each in ranges)
    account = read_account(ROOT, child.pid)
    assert account is not None
    assert SIZE * 3 // 2 <= account.resident < SIZE * 3 // 2 + (32 << 20)
    assert (free_memory(ROOT, NODE) or 0) > 0


def test_maps_hold_more_than_what_is_private_and_resident_at_most(child: Child) -> None:
    """What is counted page by page, against what the kernel's account has."""
    mover = PageMover(ROOT, LinuxHost())
    ranges = read_ranges(ROOT, child.pid)
    account = read_account(ROOT, child.pid)
    assert ranges
    assert account
    counted = [mover.count(child.pid, window, NODE) for window in mover.windows(ranges)]
    present = sum(each.there + each.elsewhere for each in counted)
    # The account is updated in steps of 64 pages a thread, and has pages of private mappings of files, too.
    assert SIZE * 3 // 2 <= present <= account.resident + 64 * PAGE


def move(child: Child, identity: ProcessId, *, second_node: bool, opened: list[str] | None = None) -> MemoryOutcome:
    """As the agent does it, on this machine or on one that has another NUMA node with memory besides."""
    topology = TOPOLOGY
    if second_node:
        topology = replace(topology, nodes=(*topology.nodes, NumaNode(999, EMPTY)))
    cpus = topology.cpus_of(NODE) & topology.online
    done = threading.Event()
    mover = MemoryMover(ROOT, LinuxHost(), wake=done.set)
    mover.submit(Worker(identity, (0,), "container"), Roles(cpus), cpus, topology)
    mover.begin()
    try:
        assert mover.idle or done.wait(60)
        return mover.outcomes[identity]
    finally:
        mover.close()


@pytest.mark.skipif(len(TOPOLOGY.nodes) > 1, reason="this machine has several NUMA nodes")
def test_on_a_machine_with_one_numa_node_nothing_is_even_looked_at(child: Child) -> None:
    outcome = move(child, child.identity, second_node=False)
    assert (outcome.state, outcome.problem and outcome.problem.reason.value) == ("Skipped", "OneNumaNode")


def test_a_worker_whose_memory_is_in_place_is_moved_without_a_byte(child: Child) -> None:
    outcome = move(child, child.identity, second_node=True)
    assert (outcome.state, outcome.problem, outcome.left) == ("Moved", None, 0)
    if len(TOPOLOGY.nodes) == 1:
        assert outcome.moved == 0
    account = read_account(ROOT, child.pid)
    assert account
    assert outcome.skipped < account.resident - SIZE


def test_another_process_with_that_pid_is_not_touched(child: Child) -> None:
    other = replace(child.identity, start_time=child.identity.start_time - 1)
    outcome = move(child, other, second_node=True)
    assert (outcome.state, outcome.problem and outcome.problem.reason.value) == ("Skipped", "ProcessGone")


def test_neither_smaps_nor_numa_maps_is_ever_opened() -> None:
    """For these the kernel walks all page tables while it holds the memory lock. Asked of the interpreter, which tells
    of every file that is opened."""
    script = """
import subprocess, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from tests.host.test_memory import Child, move
child = Child()
opened.clear()
outcome = move(child, child.identity, second_node=True)
child.end()
of_processes = [name.rpartition("/")[2] for name in opened if name.startswith("/proc/")]
print(outcome.state, *sorted(set(of_processes)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60,
        cwd=Path(__file__).parents[2], env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert run.stdout.split() == ["Moved", "maps", "stat", "status"]
