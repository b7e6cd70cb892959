"""What holds for every container, its processes and their masks, on the fake kernel."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.control.confine import Confiner
from agent.control.confinement import Confinement, ConfineResult
from agent.demo.fake_files import scratch
from agent.demo.fake_kernel import FakeKernel, FakeTask
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.workload import ProcessId
from agent.node.cgroups import CgroupTree

ONLINE = CpuSet.span(0, 7)
POD = f"/kubepods/pod{'0' * 32}"
KEYS = {name: name * 64 for name in "ab"}

cpus = st.integers(0, 255).map(CpuSet.from_bits)
some_cpus = st.integers(1, 255).map(CpuSet.from_bits)
masks = st.one_of(st.none(), some_cpus)
"""Of a thread: None where it has its whole cpuset."""


@dataclass(frozen=True)
class Situation:
    cpusets: dict[str, CpuSet]
    processes: list[tuple[str, list[CpuSet | None]]]
    """Container, and the masks of the threads."""
    workers: set[int]
    """Which of them are workers."""
    remembers_masks: bool


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    cpusets = {name: draw(some_cpus) for name in KEYS}
    threads = st.lists(masks, min_size=1, max_size=3)
    processes = draw(st.lists(st.tuples(st.sampled_from(["a", "a", "b"]), threads), min_size=1, max_size=4))
    return Situation(cpusets, processes, draw(st.sets(st.integers(0, 3), max_size=1)), draw(st.booleans()))


class Kernel(FakeKernel):
    """Remembers whose masks the agent wrote."""

    written: list[int]

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        self.written.append(tid)
        super().set_affinity(tid, cpus)


class Host:
    """The containers on a fake kernel."""

    def __init__(self, root: Path, situation: Situation) -> None:
        self.kernel = Kernel(root, ONLINE, remembers_masks=situation.remembers_masks)
        self.kernel.start_process("init", parent=0, pid=1)
        for name, cpuset in situation.cpusets.items():
            self.kernel.cgroups.create(f"{POD}/{KEYS[name]}", cpuset)
        self.leaders: list[FakeTask] = []
        for name, asked in situation.processes:
            leader = self.kernel.start_process("x", cgroup=f"{POD}/{KEYS[name]}")
            tasks = [leader, *(self.kernel.start_thread(leader.tid, "x") for _ in asked[1:])]
            for task, mask in zip(tasks, asked, strict=True):
                if mask is not None and mask & situation.cpusets[name]:
                    self.kernel.set_by_other(task.tid, mask)
            self.leaders.append(leader)
        self.workers = {self.process(leader) for k, leader in enumerate(self.leaders) if k in situation.workers}
        self.written: list[int] = []
        self.kernel.written = self.written
        self.root = root
        self.confiner = self.started()

    def started(self) -> Confiner:
        self.confiner = Confiner(self.root / "proc", self.kernel, CgroupTree(self.root))
        return self.confiner

    @staticmethod
    def process(leader: FakeTask) -> ProcessId:
        return ProcessId(leader.tid, leader.start_time)

    def members(self) -> dict[str, tuple[ProcessId, ...]]:
        return {
            key: tuple(self.process(self.kernel.tasks[pid]) for pid in self.kernel.cgroups.procs(f"{POD}/{key}"))
            for key in KEYS.values()
        }

    def sweep(self, off: CpuSet, wanted: str = "a") -> ConfineResult:
        self.written.clear()
        keys = frozenset(KEYS[name] for name in wanted)
        ask = Confinement(keys, self.members(), self.workers, off, self.kernel.online)
        self.confiner.survey(ask)
        assert self.written == [], "a survey writes nothing"
        return self.confiner.act(ask)

    def helpers(self, name: str = "a") -> list[FakeTask]:
        """Threads of processes in a container that are no workers."""
        return [
            self.kernel.tasks[tid]
            for process in self.members()[KEYS[name]]
            if process not in self.workers
            for tid in self.kernel.tasks[process.pid].threads
        ]

    def others(self) -> set[int]:
        return self.kernel.tasks.keys() - {task.tid for task in self.helpers()}

    def state(self) -> dict[int, CpuSet]:
        return {tid: task.mask for tid, task in self.kernel.tasks.items()}


@contextmanager
def host(situation: Situation) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        yield Host(Path(folder), situation)


def free_again(host: Host) -> None:
    """Nothing is to be confined any more."""
    for _ in range(3):
        host.sweep(EMPTY)
    assert host.confiner.taken == ()


@settings(max_examples=40)
@given(situations(), cpus, cpus)
def test_no_helper_can_run_where_it_is_not_to_unless_it_has_no_other_cpu(
    situation: Situation, off: CpuSet, later: CpuSet
) -> None:
    with host(situation) as node:
        before = node.state()
        for taken in (off, later):
            result = node.sweep(taken)
            assert node.others().isdisjoint(node.written)
            assert len(set(node.written)) == len(node.written), "one write for a thread"
            stays = [task for task in node.helpers() if not task.mask.isdisjoint(taken)]
            cpuset = node.kernel.cgroups.effective(f"{POD}/{KEYS['a']}")
            assert all(before[task.tid] <= taken or before[task.tid] & cpuset <= taken for task in stays)
            if taken and result.outcomes:
                assert node.sweep(taken).outcomes[KEYS["a"]].left == len(stays)
            assert node.sweep(taken).outcomes.keys() == result.outcomes.keys()
            assert node.written == []


@settings(max_examples=40)
@given(situations(), st.lists(cpus, min_size=1, max_size=3), st.booleans())
def test_everybody_has_what_he_had_before_once_nothing_is_confined(
    situation: Situation, offs: list[CpuSet], restarts: bool
) -> None:
    with host(situation) as node:
        before = node.state()
        for off in offs:
            node.sweep(off)
            if restarts:
                taken = node.confiner.taken
                node.started().adopt(taken)
                assert node.confiner.taken == taken
        free_again(node)
        assert node.state() == before


@settings(max_examples=30)
@given(situations(), some_cpus, some_cpus, some_cpus)
def test_an_agent_killed_at_any_moment_leaves_what_it_takes_to_give_everything_back(
    situation: Situation, off: CpuSet, later: CpuSet, denied: CpuSet
) -> None:
    with host(situation) as node:
        before = node.state()
        node.sweep(off)
        ask = Confinement(frozenset({KEYS["a"]}), node.members(), node.workers, later, node.kernel.online)
        node.confiner.survey(ask)
        taken = node.confiner.taken
        tids = sorted(task.tid for task in node.helpers())
        node.kernel.denied = {tid for k, tid in enumerate(tids) if k % 8 in denied}  # as if it had ended before them
        node.confiner.act(ask)
        node.kernel.denied = set()
        node.started().adopt(taken)
        free_again(node)
        assert node.state() == before


@settings(max_examples=30)
@given(situations(), some_cpus, st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=4))
def test_whoever_is_made_by_a_confined_thread_is_free_when_that_is(
    situation: Situation, off: CpuSet, births: list[tuple[int, bool]]
) -> None:
    with host(situation) as node:
        before = node.state()
        node.sweep(off)
        made: dict[int, int] = {}
        for pick, is_process in births:
            helpers = node.helpers()
            if not helpers:
                return
            maker = helpers[pick % len(helpers)]
            if is_process:
                task = node.kernel.start_process("y", parent=maker.tgid)
                task.mask, task.asked = maker.mask, maker.asked
            else:
                task = node.kernel.start_thread(maker.tgid, "y", creator=maker.tid)
            made[task.tid] = made.get(maker.tid, maker.tid)
        node.sweep(off)
        assert node.written == []
        confined = node.state()
        cpuset = node.kernel.cgroups.effective(f"{POD}/{KEYS['a']}")
        free_again(node)
        for child, first in made.items():
            # Confined, threads that had chosen different CPUs may look alike: then a child has what one of them has.
            alike = {was for was in (*before.values(), cpuset) if was - off == confined[first]}
            assert node.kernel.tasks[child].mask in {node.kernel.tasks[first].mask, *alike}
