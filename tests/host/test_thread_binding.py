"""Binding the threads of a worker, with real processes on the running kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.demo.standin import StandIn
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.outcome import ThreadCounts, WorkerOutcome
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.spec import Role, ThreadRule
from agent.model.workload import ProcessId
from agent.node.taskdir import PF_NO_SETAFFINITY, TaskDir
from agent.node.threads import ThreadBinder
from tests.host.support import (
    ALL,
    APART,
    BOTH,
    ON_A,
    ON_B,
    WIDE,
    A,
    B,
    CountingHost,
    identity,
    mask,
    masks,
    tids,
    two_cpus,
)

pytestmark = two_cpus

PROC = Path("/proc")


class Bench:
    """A binder on the real host, with the arguments that most tests don't vary."""

    def __init__(self) -> None:
        self.host = CountingHost()
        self.binder = ThreadBinder(PROC, self.host)

    def bind(
        self,
        worker: StandIn | ProcessId,
        roles: Roles = APART,
        *,
        first: bool = False,
        rules: tuple[ThreadRule, ...] = (),
    ) -> WorkerOutcome:
        process = worker if isinstance(worker, ProcessId) else identity(worker.pid)
        self.host.read.clear()
        self.host.written.clear()
        return self.binder.bind(process, roles, cpuset=ALL, online=ALL, rules=rules, first=first)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def worker() -> Iterator[StandIn]:
    with StandIn("--threads", "4", "--acl", "--release") as worker:
        yield worker


def reason(outcome: WorkerOutcome) -> Reason | None:
    return outcome.problem.reason if outcome.problem else None


# Where threads belong


def test_every_thread_is_put_where_its_name_says(bench: Bench, worker: StandIn) -> None:
    outcome = bench.bind(worker, first=True)
    expected = {tid: {A} for tid in tids(worker.pid)}
    for name in ("acl_thread", "release_thread"):
        for tid in worker.threads[name]:
            expected[tid] = {B}
    assert masks(worker.pid) == expected
    assert (outcome.state, outcome.problem) == ("Bound", None)
    assert outcome.threads == {
        Role.MAIN: ThreadCounts(written=5),
        Role.ACL: ThreadCounts(written=1),
        Role.RELEASE: ThreadCounts(written=1),
    }


def test_taskset_reads_back_the_same_masks(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, first=True)
    shown = subprocess.run(["taskset", "-acp", str(worker.pid)], capture_output=True, text=True, check=True).stdout
    lists = [line.rpartition(": ")[2] for line in shown.splitlines()]
    assert sorted(lists) == sorted([str(A)] * 5 + [str(B)] * 2)


def test_a_name_counts_by_its_beginning(bench: Bench, worker: StandIn) -> None:
    (tid,) = worker.spawn("acl_thread_17")
    (other,) = worker.spawn("my_acl_thread")
    bench.bind(worker, first=True)
    assert mask(tid) == {B}
    assert mask(other) == {A}


def test_more_prefixes_can_be_given_and_the_longest_decides(bench: Bench, worker: StandIn) -> None:
    rules = (
        ThreadRule("ucm_", Role.ACL),
        ThreadRule("ucm_main", Role.MAIN),
        ThreadRule("acl_thread_x", Role.MAIN),
        ThreadRule("acl_thread", Role.MAIN),
        ThreadRule("", Role.RELEASE),
    )
    expected = {"ucm_io": B, "ucm_main_loop": A, "acl_thread_x1": A, "acl_thread": B, "other": A}
    tid_of = {name: worker.spawn(name)[0] for name in expected}
    bench.bind(worker, first=True, rules=rules)
    assert {name: mask(tid) for name, tid in tid_of.items()} == {name: {cpu} for name, cpu in expected.items()}


def test_a_prefix_longer_than_a_name_can_be_is_cut_as_the_kernel_cuts_the_name(bench: Bench, worker: StandIn) -> None:
    name = "storage_prefetch_loop"
    (tid,) = worker.spawn(name)
    bench.bind(worker, first=True, rules=(ThreadRule(name, Role.ACL),))
    assert mask(tid) == {B}


@pytest.mark.parametrize(
    "name", ["\xff\xfe\x80", "two\nlines\n", "\n", "a) R 1 (b", "-1", "\\x1b[31m", "acl\x00thread"]
)
def test_a_name_may_hold_any_bytes(bench: Bench, worker: StandIn, name: str) -> None:
    (tid,) = worker.spawn(name)
    assert bench.bind(worker, first=True).state == "Bound"
    assert mask(tid) == {A}


def test_a_name_that_ends_in_newlines_is_told_apart_by_its_beginning(bench: Bench, worker: StandIn) -> None:
    (tid,) = worker.spawn("acl_thread\n\n\xff")
    bench.bind(worker, first=True)
    assert mask(tid) == {B}


def test_where_the_pool_is_main_alone_every_thread_is_a_main_thread(bench: Bench, worker: StandIn) -> None:
    (acl,) = worker.threads["acl_thread"]
    outcome = bench.bind(worker, Roles(main=BOTH), first=True)
    assert outcome.threads == {Role.MAIN: ThreadCounts(placed=7)}
    os.sched_setaffinity(acl, {A})
    assert bench.bind(worker, Roles(main=BOTH)).threads == {Role.MAIN: ThreadCounts(placed=6, left=1)}


# Calls


def test_a_second_pass_writes_nothing(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, first=True)
    assert len(bench.host.written) == len(bench.host.read) == 7
    for first in (False, True):
        outcome = bench.bind(worker, first=first)
        assert bench.host.written == []
        assert sorted(bench.host.read) == sorted(tids(worker.pid))
        assert outcome.threads[Role.MAIN] == ThreadCounts(placed=5)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_kernel_sees_one_write_for_each_thread_and_none_in_a_second_pass(worker: StandIn, tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.workload import ProcessId
from agent.node.host import LinuxHost
from agent.node.threads import ThreadBinder
a, b, both = CpuSet([{A}]), CpuSet([{B}]), CpuSet([{A}, {B}])
binder = ThreadBinder(Path("/proc"), LinuxHost())
for first in (True, True, False):
    binder.bind({identity(worker.pid)!r}, Roles(main=a, acl=b, release=b), cpuset=both, online=both, first=first)
"""
    log = tmp_path / "strace"
    command = ["strace", "-f", "-e", "trace=sched_setaffinity", "-o", str(log), sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if "ptrace" in done.stderr:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert log.read_text().count("sched_setaffinity(") == 7
    assert set(masks(worker.pid)) == set(tids(worker.pid))


# Threads that come, go and change


def test_a_thread_born_during_the_pass_is_bound_in_it(bench: Bench, worker: StandIn) -> None:
    born: list[int] = []

    def give_birth(tid: int) -> None:
        if len(born) < 3:
            born.extend(worker.spawn(("acl_thread", "late", "release_thread")[len(born)]))

    bench.host.before_write = give_birth
    assert bench.bind(worker, first=True).state == "Bound"
    assert [mask(tid) for tid in born] == [{B}, {A}, {B}]


def test_threads_that_end_during_the_pass_are_no_error(bench: Bench, worker: StandIn) -> None:
    victims = worker.spawn("short", 3)
    bench.host.before_write = lambda tid: worker.end(victims.pop()) if victims else None
    outcome = bench.bind(worker, first=True)
    assert (outcome.state, outcome.vanished) == ("Bound", 3)
    assert outcome.written == 7


def test_a_process_that_makes_threads_faster_than_they_can_be_bound_is_left_for_later(
    bench: Bench, worker: StandIn
) -> None:
    bench.host.before_write = lambda tid: worker.spawn("acl_thread")
    outcome = bench.bind(worker, first=True)
    assert (outcome.state, reason(outcome)) == ("Partial", Reason.THREADS_CHANGING)
    bench.host.before_write = lambda tid: None
    assert bench.bind(worker).state == "Bound"


def test_a_thread_that_changes_its_name_is_noticed_later(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, first=True)
    tid = worker.threads["worker"][0]
    worker.rename(tid, "acl_thread")
    outcome = bench.bind(worker)
    assert mask(tid) == {B}
    assert bench.host.written == [tid]
    assert outcome.repaired == 0, "it had not moved: it has another role now"


def test_a_thousand_short_lived_threads_a_second_make_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with StandIn("--threads", "20", "--acl", "--release", "--churn", "1000") as worker:
        states = {bench.bind(worker, first=True).state}
        end = time.monotonic() + 2
        passes = 0
        while time.monotonic() < end:
            states.add(bench.bind(worker).state)
            passes += 1
        assert passes > 10
        assert states <= {"Bound", "Partial"}
        for name, cpu in (("worker", A), ("acl_thread", B), ("release_thread", B), ("vllm_worker", A)):
            assert [mask(tid) for tid in worker.threads[name]] == [{cpu}] * len(worker.threads[name])
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


# Threads that somebody else moved


def test_a_mask_that_openmp_narrowed_before_the_first_binding_is_widened(bench: Bench, worker: StandIn) -> None:
    for tid in tids(worker.pid):
        os.sched_setaffinity(tid, {A})
    bench.bind(worker, WIDE, first=True)
    assert all(mask(tid) == {A, B} for tid in (worker.pid, *worker.threads["worker"]))


def test_a_main_thread_that_narrows_itself_later_is_left_alone(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, WIDE, first=True)
    tid = worker.threads["worker"][1]
    os.sched_setaffinity(tid, {B})
    outcome = bench.bind(worker, WIDE)
    assert mask(tid) == {B}
    assert bench.host.written == []
    assert outcome.state == "Bound"
    assert outcome.threads[Role.MAIN] == ThreadCounts(placed=4, left=1)


def test_main_threads_that_are_all_narrowed_at_once_are_put_back(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, WIDE, first=True)
    main = [worker.pid, *worker.threads["worker"]]
    for tid in main:
        os.sched_setaffinity(tid, {B})
    outcome = bench.bind(worker, WIDE)
    assert [mask(tid) for tid in main] == [{A, B}] * 5
    assert outcome.threads[Role.MAIN] == ThreadCounts(written=5)
    assert outcome.repaired == 5


def test_the_only_main_thread_of_a_process_may_narrow_itself(bench: Bench) -> None:
    with StandIn("--acl") as worker:
        bench.bind(worker, WIDE, first=True)
        os.sched_setaffinity(worker.pid, {B})
        assert bench.bind(worker, WIDE).threads[Role.MAIN] == ThreadCounts(left=1)
        assert mask(worker.pid) == {B}


def test_a_thread_born_of_a_narrowed_one_while_all_are_put_back_is_put_back_too(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, WIDE, first=True)
    for tid in (worker.pid, *worker.threads["worker"]):
        os.sched_setaffinity(tid, {B})
    born: list[int] = []
    # Made by the main thread, which is the first to be written.
    bench.host.before_write = lambda tid: None if born else born.extend(worker.spawn("late"))
    bench.bind(worker, WIDE)
    assert mask(born[0]) == {A, B}


def test_an_acl_thread_is_always_put_back(bench: Bench, worker: StandIn) -> None:
    roles = Roles(main=ON_A, acl=BOTH, release=ON_B)
    bench.bind(worker, roles, first=True)
    (tid,) = worker.threads["acl_thread"]
    os.sched_setaffinity(tid, {B})
    bench.bind(worker, roles)
    assert mask(tid) == {A, B}


def test_threads_that_had_moved_away_are_told_with_the_mask_they_had(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, first=True)
    (acl,) = worker.threads["acl_thread"]
    os.sched_setaffinity(acl, {A, B})
    worker.spawn("acl_thread")
    outcome = bench.bind(worker)
    (drift,) = outcome.drift
    assert (drift.tid, drift.comm, drift.role, drift.mask, drift.target) == (acl, "acl_thread", Role.ACL, BOTH, ON_B)
    assert outcome.threads[Role.ACL] == ThreadCounts(written=2), "a new thread is written, and is no drift"


def test_threads_that_move_because_the_plan_changed_are_no_drift(bench: Bench, worker: StandIn) -> None:
    bench.bind(worker, APART, first=True)
    outcome = bench.bind(worker, Roles(main=ON_B, acl=ON_A, release=ON_A))
    assert (outcome.written, outcome.repaired) == (7, 0)


def test_a_check_lists_what_is_out_of_place_and_writes_nothing(bench: Bench, worker: StandIn) -> None:
    process = identity(worker.pid)
    assert len(bench.binder.check(process, APART, cpuset=ALL, online=ALL)) == 7
    bench.bind(worker, WIDE, first=True)
    assert bench.binder.check(process, WIDE, cpuset=ALL, online=ALL) == []
    (acl,) = worker.threads["acl_thread"]
    main = [worker.pid, *worker.threads["worker"]]
    os.sched_setaffinity(acl, {B})
    os.sched_setaffinity(main[2], {B})
    bench.host.written.clear()
    (found,) = bench.binder.check(process, WIDE, cpuset=ALL, online=ALL)
    assert (found.tid, found.comm, found.role, found.mask, found.target) == (acl, "acl_thread", Role.ACL, ON_B, ON_A)
    for tid in main:
        os.sched_setaffinity(tid, {A})
    assert len(bench.binder.check(process, WIDE, cpuset=ALL, online=ALL)) == 6
    assert bench.host.written == []


# Processes that end, and those that take their numbers


def test_a_process_that_ended_is_gone_and_no_error(bench: Bench, worker: StandIn) -> None:
    process = identity(worker.pid)
    worker.kill()
    outcome = bench.bind(process)
    assert (outcome.state, reason(outcome)) == ("Pending", Reason.PROCESS_GONE)
    assert bench.binder.check(process, APART, cpuset=ALL, online=ALL) == []
    assert bench.binder.release(process, pool=ALL, online=ALL).threads == 0


def test_a_zombie_is_gone(bench: Bench, worker: StandIn) -> None:
    process = identity(worker.pid)
    worker.kill(reap=False)
    for _ in range(1000):
        # The last thread has the state of a zombie, and is the only one.
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        if (fields[0], fields[17]) == ("Z", "1"):
            break
        time.sleep(0.005)
    assert reason(bench.bind(process)) is Reason.PROCESS_GONE
    assert bench.host.written == []


def test_a_process_that_dies_in_the_middle_is_gone(bench: Bench, worker: StandIn) -> None:
    process = identity(worker.pid)
    bench.host.before_write = lambda tid: worker.kill() if len(bench.host.written) == 3 else None
    outcome = bench.bind(process, first=True)
    assert (outcome.state, reason(outcome)) == ("Pending", Reason.PROCESS_GONE)
    assert outcome.written == 3


def test_a_process_that_has_the_number_of_another_is_not_touched(bench: Bench, worker: StandIn) -> None:
    now = identity(worker.pid)
    before = ProcessId(now.pid, now.start_time - 1)
    assert reason(bench.bind(before, first=True)) is Reason.PROCESS_GONE
    assert bench.binder.check(before, APART, cpuset=ALL, online=ALL) == []
    assert bench.binder.release(before, pool=ALL, online=ALL).threads == 0
    assert bench.host.written == bench.host.read == []


def test_the_threads_of_an_ended_process_cannot_be_mistaken(worker: StandIn) -> None:
    tasks = TaskDir.open("/proc", worker.pid)
    assert tasks is not None
    with tasks:
        assert sorted(map(int, tasks.names())) == sorted(tids(worker.pid))
        worker.kill()
        assert tasks.names() == []
        assert tasks.comm(str(worker.pid)) is None
        assert tasks.stat(str(worker.pid)) is None


def test_a_worker_whose_main_thread_ended_before_the_others_is_bound(bench: Bench) -> None:
    program = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print(flush=True)
libc = ctypes.CDLL(None)
libc.syscall({"x86_64": 60, "aarch64": 93}[__import__("platform").machine()], 0)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (other,) = set(tids(process.pid)) - {process.pid}
        assert bench.bind(identity(process.pid), first=True).state == "Bound"
        assert mask(other) == {A}
        process.kill()


# Threads that can't be moved


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_without_the_right_it_is_said_once_and_the_masks_stay(bench: Bench, worker: StandIn) -> None:
    os.seteuid(65534)
    try:
        outcome = bench.bind(worker, first=True)
    finally:
        os.seteuid(0)
    assert (outcome.state, reason(outcome)) == ("Failed", Reason.PERMISSION_DENIED)
    assert outcome.threads[Role.MAIN] == ThreadCounts(denied=5)
    assert len(bench.host.written) == 7, "each was tried"
    assert set(map(frozenset, masks(worker.pid).values())) == {frozenset(ALL)}


def per_cpu_kernel_thread() -> ProcessId | None:
    """A kernel thread that lives on one CPU and can't be moved. Those of work queues come and go."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (tasks := TaskDir.open("/proc", int(entry))) is not None:
            with tasks:
                stays = tasks.leader.ppid == 2 and not (tasks.comm(entry) or b"").startswith(b"kworker/")
                if stays and tasks.leader.flags & PF_NO_SETAFFINITY and mask(int(entry)) == {A}:
                    return ProcessId(int(entry), tasks.leader.start_time)
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others get EPERM from kernel threads")
def test_a_thread_that_the_kernel_keeps_in_place_is_tried_once(bench: Bench) -> None:
    process = per_cpu_kernel_thread()
    if process is None:
        pytest.skip("no kernel threads are visible here")
    roles = Roles(main=ON_B)
    for attempts in (1, 0, 0):
        outcome = bench.bind(process, roles, first=True)
        assert (outcome.state, reason(outcome)) == ("Failed", Reason.UNMOVABLE)
        assert outcome.threads == {Role.MAIN: ThreadCounts(unmovable=1)}
        assert len(bench.host.written) == attempts
    assert mask(process.pid) == {A}
    assert bench.binder.check(process, roles, cpuset=ALL, online=ALL) == [], "nobody can put it right"
    bench.binder.retain([])
    bench.bind(process, roles)
    assert len(bench.host.written) == 1


# Roles outside the cpuset


def test_roles_outside_the_cpuset_are_not_touched_and_the_others_are_bound(bench: Bench, worker: StandIn) -> None:
    outcome = bench.binder.bind(identity(worker.pid), APART, cpuset=ON_A, online=ALL, first=True)
    assert (outcome.state, reason(outcome)) == ("Failed", Reason.CPUSET_CHANGED)
    assert outcome.threads == {
        Role.MAIN: ThreadCounts(written=5),
        Role.ACL: ThreadCounts(outside=1),
        Role.RELEASE: ThreadCounts(outside=1),
    }
    assert sorted(bench.host.written) == sorted([worker.pid, *worker.threads["worker"]])


def test_a_role_whose_cpus_are_all_offline_is_not_touched(bench: Bench, worker: StandIn) -> None:
    outcome = bench.binder.bind(identity(worker.pid), APART, cpuset=ALL, online=ON_A, first=True)
    assert reason(outcome) is Reason.CPUSET_CHANGED
    assert outcome.threads[Role.ACL] == ThreadCounts(outside=1)
    assert bench.host.written == []


def test_an_offline_cpu_of_a_role_makes_no_difference_to_what_is_in_place(bench: Bench, worker: StandIn) -> None:
    beyond = CpuSet({4000})
    roles = Roles(main=ON_A | beyond, acl=ON_B | beyond, release=ON_B)
    for written in (7, 0):
        bench.host.written.clear()
        outcome = bench.binder.bind(identity(worker.pid), roles, cpuset=ALL | beyond, online=ALL, first=True)
        assert (outcome.state, outcome.written) == ("Bound", written)
    assert EMPTY not in map(CpuSet, masks(worker.pid).values())
