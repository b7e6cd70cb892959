"""What holds for every worker, plan and cpuset, with a fake host and the files of a fake process."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.spec import Role, ThreadRule
from agent.model.workload import ProcessId
from agent.node.host import EVERY_CPU, masks_one_by_one
from agent.node.threads import ThreadBinder

CPUS = 8
PROCESS = ProcessId(4711, 12345)
NAMES = ["python3", "acl_thread", "acl_thread_3", "release_thread", "ucm_io", "Thread-1 (run)", ""]
RULES = (ThreadRule("ucm_", Role.RELEASE),)


@dataclass
class FakeHost:
    """sched_setaffinity(2) and sched_getaffinity(2) of Linux, for threads that exist on paper."""

    masks: dict[int, CpuSet]
    cpuset: CpuSet
    online: CpuSet
    denied: set[int] = field(default_factory=set)
    deadline: set[int] = field(default_factory=set)
    written: list[tuple[int, CpuSet]] = field(default_factory=list)

    def get_affinity(self, tid: int) -> CpuSet:
        if tid not in self.masks:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        return self.masks[tid] & self.online

    def get_masks(self, tids: Sequence[int]) -> list[int]:
        return masks_one_by_one(self.get_affinity, tids)

    def names(self, tids: Sequence[int]) -> None:
        """They are in the files."""

    def set_affinity(self, tid: int, cpus: CpuSet) -> None:
        assert cpus, "an empty set reached the host"
        self.written.append((tid, cpus))
        for threads, number in ((self.denied, errno.EPERM), (self.deadline, errno.EBUSY)):
            if tid in threads:
                raise OSError(number, os.strerror(number))
        if tid not in self.masks:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        if not cpus & self.cpuset & self.online:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self.masks[tid] = cpus & self.cpuset


@contextmanager
def process(names: dict[int, str]) -> Iterator[Path]:
    """The files of PROCESS, with these threads."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        stat = "4711 (python3) S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0\n"
        for tid, name in names.items():
            task = root / "4711" / "task" / str(tid)
            task.mkdir(parents=True)
            (task / "comm").write_text(name + "\n")
            (task / "stat").write_text(stat)
        (root / "4711" / "stat").write_text(stat)
        yield root


cpus = st.integers(0, (1 << CPUS) - 1).map(CpuSet.from_bits)
some_cpus = st.integers(1, (1 << CPUS) - 1).map(CpuSet.from_bits)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[int, str], FakeHost, Roles]:
    names = dict(enumerate(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6)), start=4711))
    online = draw(some_cpus)
    cpuset = draw(some_cpus)
    # A thread may have vanished between the listing and the look at its mask.
    masks = {tid: draw(some_cpus) for tid in names if tid == 4711 or draw(st.integers(0, 9))}
    within = st.sampled_from([cpuset, CpuSet.span(0, CPUS - 1)])
    main = draw(some_cpus) & draw(within) or cpuset
    roles = Roles(main, *(draw(cpus) & draw(within) for _ in range(3)))
    return names, FakeHost(masks, cpuset, online), roles


@settings(deadline=None, max_examples=80)
@given(situations(), st.booleans())
def test_binding_writes_only_what_the_cpuset_holds_and_is_done_after_one_pass(
    situation: tuple[dict[int, str], FakeHost, Roles], first: bool
) -> None:
    names, host, roles = situation
    with process(names) as root:
        binder = ThreadBinder(root, host)
        before = dict(host.masks)
        found = binder.check(PROCESS, roles, cpuset=host.cpuset, online=host.online, rules=RULES)
        assert host.written == []

        def bind(*, first: bool) -> Reason | None:
            outcome = binder.bind(PROCESS, roles, cpuset=host.cpuset, online=host.online, rules=RULES, first=first)
            assert sum(counts.total for counts in outcome.threads.values()) + outcome.vanished == len(names)
            assert outcome.written == len(host.written)
            assert (outcome.state == "Bound") is (outcome.problem is None)
            return outcome.problem.reason if outcome.problem else None

        reason = bind(first=first)
        assert all(cpus <= host.cpuset and cpus & host.online for _, cpus in host.written)
        assert len({tid for tid, _ in host.written}) == len(host.written), "one write for a thread"
        assert {tid for tid, _ in host.written} <= host.masks.keys()
        if not first:
            inside = {entry.tid for entry in found if entry.target <= host.cpuset and entry.target & host.online}
            assert {tid for tid, _ in host.written} == inside, "a check says what a later pass would write"
        untouched = host.masks.keys() - {tid for tid, _ in host.written}
        assert all(host.masks[tid] == before[tid] for tid in untouched)

        host.written.clear()
        for again in (first, False):
            assert bind(first=again) is reason
            assert host.written == []
        within = all(
            role <= host.cpuset and role & host.online for role in (roles.main, roles.acl, roles.release) if role
        )
        assert (reason is Reason.CPUSET_CHANGED) == (not within)
        if reason is None and first:
            assert binder.check(PROCESS, roles, cpuset=host.cpuset, online=host.online, rules=RULES) == []


@settings(deadline=None, max_examples=50)
@given(situations(), st.sets(st.integers(4711, 4716)), st.sets(st.integers(4711, 4716)))
def test_a_thread_that_cannot_be_moved_does_not_keep_the_others_from_it(
    situation: tuple[dict[int, str], FakeHost, Roles], denied: set[int], deadline: set[int]
) -> None:
    names, host, roles = situation
    host.cpuset = host.online = CpuSet.span(0, CPUS - 1)
    host.denied, host.deadline = denied, deadline - denied
    with process(names) as root:
        binder = ThreadBinder(root, host)
        for first in (True, False):
            host.written.clear()
            outcome = binder.bind(PROCESS, roles, cpuset=host.cpuset, online=host.online, rules=RULES, first=first)
            tried = {tid for tid, _ in host.written}
            expected = Reason.PERMISSION_DENIED if tried & denied else Reason.UNMOVABLE if tried & deadline else None
            assert (outcome.problem.reason if outcome.problem else None) is expected
        misplaced = binder.check(PROCESS, roles, cpuset=host.cpuset, online=host.online, rules=RULES)
        assert {entry.tid for entry in misplaced} <= denied | deadline


@settings(deadline=None, max_examples=50)
@given(situations(), some_cpus)
def test_a_release_touches_exactly_what_lies_within_the_pool(
    situation: tuple[dict[int, str], FakeHost, Roles], pool: CpuSet
) -> None:
    names, host, _ = situation
    ours = {tid for tid, mask in host.masks.items() if mask & host.online and mask & host.online <= pool}
    with process(names) as root:
        released = ThreadBinder(root, host).release(PROCESS, pool=pool, online=host.online)
    assert {tid for tid, _ in host.written} == ours
    assert all(cpus == EVERY_CPU for _, cpus in host.written)
    assert released.threads == (len(ours) if host.cpuset & host.online else 0)
