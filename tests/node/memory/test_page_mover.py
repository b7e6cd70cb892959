"""Moving pages batch by batch, over a kernel that stops where it can't move one (agent.demo.fake_memory)."""

from __future__ import annotations

import errno
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.demo.fake_memory import ABSENT, PAGE, FakeMapping, FakeMemory, FakeRegion, pages
from agent.node.host import DryRunHost, Host, Move
from agent.node.memory import BATCH_BYTES, Batch, PageMover, Range
from agent.node.pages import UNTRIED, PageCalls, page_addresses
from tests.host.support import identity

PID = 42
MIB = 1 << 20
PLENTY = {0: 1 << 40, 1: 1 << 40}


class Pages(FakeMemory):
    """The part of a `Host` that has to do with memory; remembers the calls."""

    def __init__(self) -> None:
        super().__init__(PLENTY)
        self.asked: list[tuple[str, int]] = []

    def page_nodes(self, pid: int, addresses: array[int]) -> array[int]:
        self.asked.append(("where", len(addresses)))
        return super().page_nodes(pid, addresses)

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        self.asked.append(("move", len(addresses)))
        return super().move_pages(pid, addresses, node)

    def get_affinity(self, tid: int) -> object:
        raise AssertionError

    set_affinity = get_affinity


def mover(memory: object, root: Path = Path("/nowhere")) -> PageMover:
    host: Host = memory  # type: ignore[assignment]  # masks play no part
    return PageMover(root, host, page_size=PAGE)


def move(memory: Pages, *mappings: FakeMapping, root: Path = Path("/nowhere")) -> Batch:
    """All of these mappings to node 1, added up."""
    total = Batch()
    moves = mover(memory, root)
    for window in moves.windows(Range(mapping.start, mapping.end) for mapping in mappings):
        batch = moves.move(PID, window, 1)
        total = Batch(
            total.there + batch.there, total.moved + batch.moved, total.left + batch.left, total.error or batch.error
        )
    return total


def test_what_is_elsewhere_is_moved_and_what_is_there_or_absent_costs_no_move() -> None:
    memory = Pages()
    away, there, absent = (memory.map(PID, pages(4 * MIB, node)) for node in (0, 1, ABSENT))
    assert move(memory, away, there, absent) == Batch(there=4 * MIB, moved=4 * MIB)
    assert set(away.region.nodes) == {1}
    assert set(absent.region.nodes) == {ABSENT}
    assert memory.asked == [("where", 192), ("move", 64), ("where", 64)]
    assert move(memory, away, there, absent) == Batch(there=8 * MIB)
    assert memory.asked[3:] == [("where", 192)]


def test_batches_are_of_64_mib_at_most_however_many_ranges_there_are() -> None:
    memory = Pages()
    mappings = [memory.map(PID, pages(200 * MIB, 0)), *(memory.map(PID, pages(PAGE, 0)) for _ in range(300))]
    assert move(memory, *mappings).moved == 200 * MIB + 300 * PAGE
    moves = [count for what, count in memory.asked if what == "move"]
    assert sum(moves) == (200 * MIB) // PAGE + 300
    assert max(moves) * PAGE <= BATCH_BYTES
    assert len(moves) <= 6


def test_a_pinned_page_is_tried_once_and_holds_up_none_of_the_others() -> None:
    memory = Pages()
    region = pages(4 * MIB, 0)
    region.pinned = {7}
    region.nodes[20] = ABSENT  # the kernel moves what it has so far there, fails, and ends
    mapping = memory.map(PID, region)
    assert move(memory, mapping) == Batch(moved=4 * MIB - 2 * PAGE, left=PAGE)
    assert [node for node in region.nodes if node != 1] == [0, ABSENT]


def test_what_comes_behind_a_list_that_could_not_be_moved_is_moved_with_another_call() -> None:
    """A page that goes away between the look and the move ends a list."""
    memory = Pages()
    region = pages(4 * MIB, 0)
    region.pinned = {7}
    mapping = memory.map(PID, region)
    inner = memory.move_pages

    def vanish(pid: int, addresses: array[int], node: int) -> array[int]:
        if len(addresses) == 64:
            region.nodes[20] = ABSENT
        return inner(pid, addresses, node)

    memory.move_pages = vanish  # type: ignore[method-assign]
    assert move(memory, mapping) == Batch(moved=4 * MIB - 2 * PAGE, left=PAGE)
    assert [each for each in memory.asked if each[0] == "move"] == [("move", 64), ("move", 44)]


def huge(root: Path, size: int) -> Path:
    folder = root / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    (folder / "hpage_pmd_size").write_text(f"{size}\n")
    return root


class HugePages(Pages):
    """Each 2 MiB are a huge page: the first address takes all of it, the second is told EBUSY."""

    SIZE = 2 * MIB

    def move_pages(self, pid: int, addresses: array[int], node: int) -> array[int]:
        self.asked.append(("move", len(addresses)))
        statuses = array("i", [UNTRIED]) * len(addresses)
        done: dict[int, int] = {}
        for k, address in enumerate(addresses):
            block = address // self.SIZE
            if block in done:
                statuses[k] = done[block]
                done[block] = node
                continue
            start = block * self.SIZE
            whole = array("Q", range(start, start + self.SIZE, PAGE))
            region, first = self._page(pid, start)
            assert region is not None
            if region.pinned & set(range(first, first + len(whole))):
                if k + 1 < len(addresses):  # its second page is looked at before the list is moved
                    statuses[k + 1] = -errno.EBUSY
                return statuses
            self._move_list(pid, whole, node)
            statuses[k], done[block] = node, -errno.EBUSY
        return statuses


def test_huge_pages_that_moved_are_counted_though_the_kernel_calls_their_pages_busy(tmp_path: Path) -> None:
    memory = HugePages()
    mapping = memory.map(PID, pages(16 * MIB, 0), start=1 << 30)
    assert move(memory, mapping, root=huge(tmp_path, 2 * MIB)) == Batch(moved=16 * MIB)


def test_a_pinned_huge_page_is_tried_once_and_not_page_by_page(tmp_path: Path) -> None:
    memory = HugePages()
    region = pages(16 * MIB, 0)
    region.pinned = {3, 100}  # of the first and the fourth huge page
    mapping = memory.map(PID, region, start=1 << 30)
    assert move(memory, mapping, root=huge(tmp_path, 2 * MIB)) == Batch(moved=12 * MIB, left=4 * MIB)
    assert [count for what, count in memory.asked if what == "move"] == [256, 224, 128]


def test_of_a_huge_page_that_is_larger_than_a_batch_all_counts_as_moved(tmp_path: Path) -> None:
    """With pages of 64 KiB a huge one has 512 MiB, and goes with the first of its addresses."""
    memory = HugePages()
    memory.SIZE = 512 * MIB
    mapping = memory.map(PID, pages(512 * MIB, 0), start=1 << 30)
    assert move(memory, mapping, root=huge(tmp_path, 512 * MIB)) == Batch(moved=512 * MIB)
    assert [count for what, count in memory.asked if what == "move"] == [1024]


def test_pages_that_children_share_since_a_fork_are_left() -> None:
    memory = Pages()
    region = pages(2 * MIB, 0)
    mine = memory.map(PID, region)
    memory.map(PID + 1, region)
    assert move(memory, mine) == Batch(left=2 * MIB)
    assert memory.moved == {}


def test_a_node_that_fills_up_ends_it_with_what_was_moved_counted() -> None:
    memory = Pages()
    memory.free[1] = 3 * PAGE
    batch = move(memory, memory.map(PID, pages(MIB, 0)))
    assert (batch.moved, batch.left) == (3 * PAGE, MIB - 3 * PAGE)
    assert batch.error is not None
    assert batch.error.errno == errno.ENOMEM


@given(
    nodes=st.lists(st.sampled_from([ABSENT, 0, 1, 2]), min_size=1, max_size=60),
    pinned=st.sets(st.integers(0, 59), max_size=8),
)
def test_whatever_is_pinned_or_absent_every_page_that_can_be_moved_is(nodes: list[int], pinned: set[int]) -> None:
    memory = Pages()
    memory.free[2] = 0
    region = FakeRegion(array("i", nodes), pinned)
    mapping = memory.map(PID, region)
    batch = move(memory, mapping)
    away = {k for k, node in enumerate(nodes) if node in (0, 2)}
    assert batch.moved == PAGE * len(away - pinned)
    assert batch.left == PAGE * len(away & pinned)
    assert batch.there == PAGE * nodes.count(1)
    expected = [1 if k in away - pinned else node for k, node in enumerate(nodes)]
    assert list(region.nodes) == expected


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 3000)), min_size=1, max_size=20))
def test_windows_have_every_page_once_and_cut_no_huge_page(found: list[tuple[int, int]]) -> None:
    base, ranges = 0, []
    for gap, count in found:
        ranges.append(Range((base + gap) * PAGE, (base + gap + count) * PAGE))
        base += gap + count
    parts = list(mover(Pages()).windows(ranges))
    assert all(sum(piece.bytes for piece in part) <= BATCH_BYTES for part in parts)
    covered = sorted((piece.start, piece.end) for part in parts for piece in part)
    assert sum(end - start for start, end in covered) == sum(each.bytes for each in ranges)
    assert {start for start, _ in covered} >= {each.start for each in ranges}
    edges = {each.start for each in ranges} | {each.end for each in ranges}
    assert all(edge % (2 * MIB) == 0 for piece in covered for edge in piece if edge not in edges)


def test_a_dry_run_records_the_move_and_moves_nothing() -> None:
    memory = Pages()
    mapping = memory.map(PID, pages(MIB, 0))
    inner: Host = memory  # type: ignore[assignment]
    host = DryRunHost(inner)
    statuses = host.move_pages(PID, page_addresses(mapping.start, mapping.end, PAGE), 1)
    assert set(statuses) == {0}
    assert host.moves == [Move(PID, MIB // PAGE, 1)]
    assert memory.moved == {}


def test_an_architecture_whose_call_number_is_not_known_moves_nothing() -> None:
    calls = PageCalls("riscv64")
    with pytest.raises(OSError, match="not implemented") as raised:
        calls.move(identity(1).pid, page_addresses(0x1000, 0x2000, 0x1000), 0)
    assert raised.value.errno == errno.ENOSYS


@pytest.mark.parametrize("pid", [0, -1])
def test_no_call_is_made_for_what_is_no_process(pid: int) -> None:
    with pytest.raises(ValueError, match="process id"):
        PageCalls().move(pid, page_addresses(0x1000, 0x2000, 0x1000), 0)
