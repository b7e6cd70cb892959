"""A worker ends while its memory is moved, and its number goes to another process: not a page of that one is moved."""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.control.memory import MemoryMover
from agent.demo.fake_kernel import FakeKernel
from agent.demo.fake_memory import pages
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Roles
from agent.model.workload import Worker as Planned
from agent.node.host import Host
from tests.control.rig import wait_until

SIZE = 256 << 20


class Swapping:
    """A kernel in which another process gets the number of one that ended, after so many looks at its pages."""

    def __init__(self, kernel: FakeKernel, looks: int, swap: Callable[[], None]) -> None:
        self._kernel = kernel
        self._looks = looks
        self._swap = swap
        self.swapped = False
        self.moved_after = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._kernel, name)

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        found = self._kernel.page_nodes(pid, addresses)
        self._looks -= 1
        if self._looks == 0:
            self._swap()
            self.swapped = True
        return found

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        self.moved_after += self.swapped
        return self._kernel.move_pages(pid, addresses, node)


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
def test_no_page_is_moved_once_the_number_is_anothers(tmp_path: Path, looks: int) -> None:
    node = VirtualNode(tmp_path, "a3", interrupts=False)
    worker = Worker.start(node, 8, heap=SIZE)
    roles = Roles(main=node.profile.topology.cpus_of(4))
    identity = worker.identity
    kernel = node.kernel

    def swap() -> None:
        worker.end()
        kernel.start_process("victim", pid=identity.pid)
        kernel.map_memory(identity.pid, pages(SIZE, 0))

    host = Swapping(kernel, looks, swap)
    mover = MemoryMover(node.root, as_host(host), page_size=4096)
    mover.submit(Planned(identity, (8,), ""), roles, roles.main, node.topology)
    mover.begin()
    wait_until(lambda: mover.idle)
    outcome: MemoryOutcome = mover.outcomes[identity]
    assert host.swapped, "the worker was through before"
    assert host.moved_after == 0
    assert outcome.problem is not None
    assert outcome.problem.reason == "ProcessGone"
    mover.close()
    shutil.rmtree(node.root)


def as_host(host: object) -> Host:
    """What the rest of the kernel does is the kernel's."""
    return host  # type: ignore[return-value]
