"""A node on which nothing happens: what a pass leaves alone where somebody tells of processes, what it still sees."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.control.news import News
from agent.control.report import resource
from agent.control.scanning import Cause
from agent.demo.virtual import DAVINCI_MAJOR
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.reason import Problem, Reason
from agent.model.workload import ProcessId
from agent.node.host import EVERY_CPU
from tests.control.hearsay import Hearsay
from tests.control.pods import OUT, annotate, by_annotation, delete, free
from tests.control.rig import Rig, masks, narrow, wait_until


class Quiet(Rig):
    """A virtual node with workers of pods, and other processes, with an agent that has been at rest for a while."""

    def __init__(self, folder: Path, *, workers: int = 2, others: int = 40, **parts: Any) -> None:
        self.hearsay = Hearsay()
        super().__init__(folder, "a2", news=self.hearsay, chooses=by_annotation, **parts)
        self.others = [self.node.kernel.start_process(f"other{k}").tid for k in range(others)]
        pods = [self.node.kubelet.add_pod(f"llm-{k}") for k in range(workers)]
        self.workers = [Worker.start(self.node, k, pod, threads=4) for k, pod in enumerate(pods)]
        for worker in self.workers:
            worker.add_role_threads()
        self.rest()

    def rest(self) -> None:
        """Until a pass finds no cause for anything."""
        self.settle()
        for _ in range(5):
            self.sweep()
            if self.cause is None:
                return
        raise AssertionError(f"still {self.cause}")

    @property
    def cause(self) -> Cause | None:
        """Why the last look read the process table."""
        return self.agent.parts.observer.cause

    def step(self) -> Cause | None:
        """One pass and no other; why its look read the process table."""
        self.now += 5.0
        self.agent.step()
        return self.cause

    def bound(self) -> set[int]:
        return {w["pid"] for npu in self.status["npus"] for w in npu.get("workers", []) if w["state"] == "Bound"}


@pytest.fixture
def quiet(tmp_path: Path) -> Quiet:
    return Quiet(tmp_path)


@contextmanager
def opened(rig: Rig) -> Iterator[list[str]]:
    """Paths of the files of the node that are opened meanwhile, as seen from its root."""
    real, found, root = os.open, list[str](), os.fspath(rig.node.root)

    def noting(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        whole = os.fspath(path) if dir_fd is None else f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{path}"
        found.append(whole.removeprefix(root))
        return real(path, flags, mode, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", noting)
        yield found


def processes(paths: list[str]) -> set[int]:
    return {int(match[1]) for path in paths if (match := re.match(r"/proc/([0-9]+)(/|$)", path))}


def test_a_quiet_pass_opens_no_file_of_a_process_that_is_no_worker(quiet: Quiet) -> None:
    writes = quiet.writes()
    with opened(quiet) as paths:
        quiet.sweep()
    # The root cpuset is that of PID 1.
    assert processes(paths) == {worker.pid for worker in quiet.workers} | {1}
    assert [path for path in paths if path.startswith("/proc/1/")] == ["/proc/1/cgroup"]
    assert not [path for path in paths if path.endswith("/status") or "/fd" in path]
    assert quiet.writes() == writes


def test_a_quiet_pass_costs_the_same_with_ten_times_as_many_other_processes(tmp_path: Path) -> None:
    counts = []
    for number in (10, 100):
        rig = Quiet(tmp_path / str(number), others=number)
        with opened(rig) as paths:
            rig.sweep()
        counts.append(len(paths))
    assert counts[0] == counts[1]


def test_a_quiet_pass_reads_each_cgroup_once_however_many_processes_are_in_it(tmp_path: Path) -> None:
    rig = Quiet(tmp_path, workers=1)
    pod = rig.node.kubelet.pods[0]
    rig.workers += [Worker.start(rig.node, k, pod, threads=2) for k in (1, 2, 3)]
    rig.hearsay.tell(processes=True)
    rig.rest()
    with opened(rig) as paths:
        rig.sweep()
    files = [path for path in paths if path.endswith("cpuset.cpus.effective") and pod.container().cgroup in path]
    assert len(files) == 1


def test_a_quiet_pass_reports_the_same_object(quiet: Quiet) -> None:
    before = quiet.agent.plan_object()
    written = quiet.state_file.stat().st_mtime_ns
    quiet.sweep()
    assert quiet.agent.plan_object() is before
    assert (quiet.state_file.stat().st_mtime_ns, quiet.told) == (written, quiet.told)


def test_what_a_quiet_pass_reports_is_what_it_would_report_anew(quiet: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def noting(report, **arguments):  # type: ignore[no-untyped-def]
        made.append((report, arguments))
        return resource(report, **arguments)

    monkeypatch.setattr("agent.control.loop.resource", noting)
    quiet.sweep()
    assert made == []
    narrow(quiet.workers[0], "0")
    quiet.sweep()
    quiet.sweep()
    report, arguments = made[-1]
    now = quiet.agent.plan_object()
    assert resource(report, **(arguments | {"previous": now, "now": "2099-01-01T00:00:00Z"})) == now


@pytest.mark.parametrize("lost", [True, False])
def test_news_make_a_pass_read_every_process(quiet: Quiet, lost: bool) -> None:
    quiet.hearsay.tell(lost=lost, processes=not lost)
    with opened(quiet) as paths:
        quiet.sweep()
    assert set(quiet.others) <= processes(paths)
    quiet.sweep()
    assert quiet.cause is None


def test_a_minute_is_the_longest_that_a_table_is_believed(quiet: Quiet) -> None:
    quiet.sweep(61.0)
    assert quiet.cause is not None
    with opened(quiet) as paths:
        quiet.hearsay.tell()
        quiet.sweep(61.0)
    assert set(quiet.others) <= processes(paths)


@pytest.mark.parametrize("up", [False, None])
def test_where_nobody_tells_every_pass_reads_every_process(quiet: Quiet, up: bool | None) -> None:
    if up is None:
        quiet.restart(news=None)
        quiet.settle()
    else:
        quiet.hearsay.up = False
    for _ in range(3):
        with opened(quiet) as paths:
            quiet.sweep()
        assert set(quiet.others) <= processes(paths)
        assert quiet.cause is Cause.NO_NEWS


def test_the_first_news_after_a_silence_are_not_all(quiet: Quiet) -> None:
    quiet.hearsay.up = False
    quiet.sweep()
    quiet.hearsay.up = True
    quiet.sweep()
    assert quiet.cause is Cause.NO_NEWS
    quiet.sweep()
    assert quiet.cause is None


def test_news_of_a_look_that_failed_are_not_forgotten(quiet: Quiet) -> None:
    online = quiet.node.root / "sys/devices/system/cpu/online"
    text = online.read_text()
    online.write_text("damaged")
    quiet.hearsay.tell(processes=True)
    quiet.sweep()
    online.write_text(text)
    with opened(quiet) as paths:
        quiet.sweep()
    assert set(quiet.others) <= processes(paths)


def test_why_nothing_is_heard_is_in_the_plan(quiet: Quiet) -> None:
    quiet.hearsay.up, quiet.hearsay.trouble = False, Problem(Reason.PERMISSION_DENIED, "no process events")
    quiet.sweep()
    assert quiet.condition("Degraded")["message"] == "no process events"


def test_the_agent_says_whom_it_wants_to_hear_of(quiet: Quiet) -> None:
    assert quiet.hearsay.bound == {worker.identity for worker in quiet.workers}
    assert quiet.hearsay.awaited == frozenset()
    pod = quiet.node.kubelet.add_pod("llm-9")
    server = quiet.node.kernel.start_process("vllm", cgroup=pod.container().cgroup)
    quiet.sweep()
    assert quiet.hearsay.awaited == {server.tid}
    starting = Worker.start(quiet.node, 5, pod, listed=False)
    quiet.sweep()
    assert quiet.hearsay.awaited >= {starting.pid}


def test_of_suspects_only_the_open_files_are_looked_at(quiet: Quiet) -> None:
    quiet.hearsay.tell(suspects=quiet.others[:3])
    with opened(quiet) as paths:
        quiet.sweep()
    assert quiet.cause is None
    of_suspects = [path for path in paths if processes([path]) & set(quiet.others)]
    assert set(of_suspects) == {f"/proc/{pid}/fd" for pid in quiet.others[:3]}


def test_suspects_that_are_workers_or_gone_are_no_cause(quiet: Quiet) -> None:
    quiet.hearsay.tell(suspects=[quiet.workers[0].pid, 4_000_000])
    quiet.sweep()
    assert quiet.cause is None


def test_a_suspect_whose_files_nobody_may_read_is_no_cause(quiet: Quiet) -> None:
    folder = quiet.node.root / "proc" / str(quiet.others[0]) / "fd"
    folder.unlink()
    folder.symlink_to(folder)  # ELOOP, as root may read everything here
    quiet.hearsay.tell(suspects=[quiet.others[0]])
    quiet.sweep()
    assert quiet.cause is None


def test_a_suspect_that_opens_an_npu_is_bound_within_a_second_and_a_half(quiet: Quiet) -> None:
    pod = quiet.node.kubelet.add_pod("llm-9")
    quiet.node.kernel.start_process("vllm", cgroup=pod.container().cgroup)
    quiet.sweep()
    quiet.sweep(130.0)  # too long ago for anybody to be awaited in there
    quiet.rest()
    opening = quiet.now
    worker = Worker.start(quiet.node, 5, pod, listed=False, threads=3)
    quiet.hearsay.tell(suspects=[worker.pid])
    passes = until_bound(quiet, worker)
    assert quiet.now - opening <= 1.5
    assert passes <= 6


def test_a_suspect_on_several_npus_is_bound_as_soon_as_npu_smi_tells_which(quiet: Quiet) -> None:
    pod = quiet.node.kubelet.add_pod("llm-9", annotations=OUT)
    quiet.rest()
    annotate(quiet, pod, {"cpubind.dev/enabled": "true"})
    quiet.sweep()
    quiet.sweep(130.0)
    quiet.rest()
    worker = Worker.start(quiet.node, 5, quiet.node.kubelet.pods[-1], listed=False, threads=3, residual=[0])
    opening = quiet.now
    quiet.hearsay.tell(suspects=[worker.pid])
    asked = quiet.node.npu_smi.calls.count(("info",))
    quiet.sweep(0.0)
    assert worker.pid not in quiet.bound()
    assert waits(quiet) == 0.0, "npu-smi is to be asked at once"
    quiet.sweep(0.0)
    settled(quiet)
    assert quiet.node.npu_smi.calls.count(("info",)) == asked + 1
    assert quiet.now - opening <= 0.5


def test_somebody_new_is_asked_for_at_once_while_others_have_been_awaited_for_long(quiet: Quiet) -> None:
    first = quiet.node.kubelet.add_pod("llm-8")
    for _ in range(60):
        quiet.sweep(1.0)
        settled(quiet)
    assert first in quiet.node.kubelet.pods
    assert waits(quiet) > 1.0
    quiet.node.kubelet.add_pod("llm-9")
    quiet.sweep(0.0)
    assert waits(quiet) == 0.0


def waits(rig: Rig) -> float:
    """For how long the loop would sleep now, unless it is woken."""
    return max(0.0, min(rig.agent.parts.sweep_seconds, rig.agent._next - rig.now))


def settled(rig: Rig) -> None:
    """Until npu-smi has answered."""
    while rig.agent.watch.poll(rig.now, awaiting=False).due is None:
        time.sleep(0.001)


def until_bound(rig: Quiet, worker: Worker) -> int:
    """Passes as the loop would make them; npu-smi answers 0.3 s after it is asked. How many it takes."""
    for count in range(1, 20):
        rig.agent.step()
        if worker.pid in rig.bound():
            return count
        rig.now += waits(rig)
    raise AssertionError("never bound")


def test_a_bound_worker_that_ends_is_noticed_though_nobody_tells(quiet: Quiet) -> None:
    quiet.workers.pop().end()
    assert quiet.step() is Cause.CPUSETS
    assert quiet.bound() == {worker.pid for worker in quiet.workers}


def test_a_process_that_is_not_to_be_bound_and_ends_is_noticed_though_nobody_tells(quiet: Quiet) -> None:
    quiet.workers[0].end()
    unbound = Worker.start(quiet.node, 0, annotate(quiet, quiet.node.kubelet.pods[0], OUT), threads=2)
    quiet.rest()
    assert quiet.bound() == {quiet.workers[1].pid}
    quiet.workers[0] = unbound
    quiet.workers.pop(0).end()
    assert quiet.step() is Cause.CPUSETS
    assert {w["pid"] for npu in quiet.status["npus"] for w in npu.get("workers", [])} == {quiet.workers[0].pid}


def test_a_pid_that_comes_again_is_not_taken_for_the_worker(quiet: Quiet) -> None:
    old = quiet.workers[0]
    cgroup = old.pod.container().cgroup if old.pod else ""
    quiet.node.let_go(old.pid)
    quiet.node.kernel.end(old.pid)
    new = quiet.node.kernel.start_process("bash", cgroup=cgroup, pid=old.pid)
    assert quiet.step() is None  # it is where the other one was
    assert quiet.step() is Cause.NO_NEWS
    assert new.asked is None
    assert old.identity not in quiet.agent.parts.actor.bindings


def test_a_cpuset_that_kubelet_writes_is_planned_with_at_once(quiet: Quiet) -> None:
    quiet.node.kubelet.add_pod("batch", own_cpus=CpuSet.parse("0-7"), annotations=OUT)
    quiet.sweep()
    assert quiet.cause is not None
    for worker in quiet.workers:
        assert all(not CpuSet.parse(cpus) & CpuSet.parse("0-7") for cpus in set().union(*masks(worker).values()))


def test_a_cpuset_that_somebody_else_writes_is_planned_with_at_once(quiet: Quiet) -> None:
    worker = quiet.workers[0]
    assert worker.pod is not None
    quiet.node.kernel.write_cpuset(worker.pod.container().cgroup, CpuSet.parse("0-79"))
    quiet.sweep()
    assert quiet.cause is Cause.CPUSETS


def test_cpus_that_go_offline_are_planned_with_at_once(quiet: Quiet) -> None:
    quiet.node.set_offline(CpuSet.parse("2-3"))
    assert quiet.step() is Cause.TOPOLOGY


def test_a_pod_that_is_deleted_by_force_leaves_its_worker_as_it_is(quiet: Quiet) -> None:
    before = masks(quiet.workers[0])
    delete(quiet, quiet.node.kubelet.pods[0])
    quiet.sweep()
    assert quiet.cause is Cause.PODS
    assert masks(quiet.workers[0]) == before


def test_a_change_of_spec_reads_everything_anew(quiet: Quiet) -> None:
    quiet.ask(helpers="Confine")
    quiet.sweep()
    assert quiet.cause is Cause.SPEC


def test_a_child_with_the_mask_of_an_acl_thread_is_moved_when_all_processes_are_looked_at(quiet: Quiet) -> None:
    worker = quiet.workers[0]
    acl = next(task for task in worker.threads if task.comm == "acl_thread")
    child = worker.fork(creator=acl.tid)
    quiet.hearsay.tell(processes=True)
    quiet.sweep()
    assert {str(child.mask)} == masks(worker)["main"]


def test_a_child_that_nobody_told_of_is_moved_in_a_pass_that_writes(quiet: Quiet) -> None:
    worker = quiet.workers[0]
    acl = next(task for task in worker.threads if task.comm == "acl_thread")
    child = worker.fork(creator=acl.tid)
    main = next(task for task in worker.threads if task.comm not in ("acl_thread", "release_thread"))
    quiet.node.kernel.set_by_other(main.tid, EVERY_CPU)
    quiet.sweep()
    assert quiet.cause is None
    assert {str(child.mask)} == masks(worker)["main"]


def test_undoing_finds_children_and_orphans_that_nobody_told_of(quiet: Quiet) -> None:
    worker = quiet.workers[0]
    child = worker.fork()
    orphan = quiet.node.kernel.start_process("orphan", parent=worker.pid)
    orphan.ppid = 1
    quiet.node.kernel.proc.write_names(orphan)
    annotate(quiet, quiet.node.kubelet.pods[0], OUT)
    quiet.sweep()
    quiet.sweep()
    assert free(*worker.threads, child, orphan)


def test_what_a_worker_leaves_behind_is_given_back_though_nobody_told_of_it(quiet: Quiet) -> None:
    worker = quiet.workers.pop(0)
    orphan = quiet.node.kernel.start_process("orphan", parent=worker.pid)
    orphan.ppid = 1
    quiet.node.kernel.proc.write_names(orphan)
    worker.end()
    quiet.sweep()
    assert ProcessId(worker.pid, worker.identity.start_time) in quiet.agent.parts.actor.bindings
    quiet.ask(mode="Disabled")
    quiet.sweep()
    quiet.sweep()
    assert free(orphan)


def test_device_files_that_come_are_seen(quiet: Quiet) -> None:
    devices = quiet.node.root / "dev/davinci"
    devices.write_text(devices.read_text() + f"9 {DAVINCI_MAJOR}:9\n")
    quiet.sweep()
    assert quiet.cause is Cause.DEVICES


@contextmanager
def running(rig: Quiet, sweep_seconds: float = 3600.0) -> Iterator[list[int]]:
    """The loop as it runs by itself; the list grows with each pass. It rests when this begins."""
    turns: list[int] = []
    rig.agent.parts = replace(rig.agent.parts, sweep_seconds=sweep_seconds, turned=lambda: turns.append(1))
    thread = threading.Thread(target=rig.agent.run)
    thread.start()
    try:
        wait_until(lambda: len(turns) == 1)
        yield turns
    finally:
        rig.agent.stop()
        thread.join(10)


def taken_in(rig: Quiet) -> bool:
    """Whether the loop has taken the news."""
    return rig.hearsay.waiting == News()


def test_news_between_two_passes_that_are_no_cause_make_no_pass(quiet: Quiet) -> None:
    with running(quiet) as turns, opened(quiet) as paths:
        for _ in range(3):
            quiet.hearsay.tell(suspects=quiet.others[:2])
            quiet.agent.glance()
            wait_until(lambda: taken_in(quiet))
        assert len(turns) == 1
        assert processes(paths) == set(quiet.others[:2])
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 2)
    assert quiet.cause is None


@pytest.mark.parametrize("lost", [True, False])
def test_news_between_two_passes_that_are_cause_make_one_that_knows_them(quiet: Quiet, lost: bool) -> None:
    with running(quiet) as turns:
        quiet.hearsay.tell(lost=lost, processes=not lost)
        quiet.agent.glance()
        wait_until(lambda: len(turns) == 2)
        assert quiet.cause is (Cause.LOST if lost else Cause.PROCESSES)


def test_a_suspect_that_opened_an_npu_between_two_passes_makes_one(quiet: Quiet) -> None:
    worker = Worker.start(quiet.node, 5, listed=False, threads=2)
    with running(quiet) as turns:
        quiet.hearsay.tell(suspects=[worker.pid])
        quiet.agent.glance()
        wait_until(lambda: len(turns) >= 2)
    assert quiet.cause in (Cause.SUSPECT, Cause.WAITING, Cause.NPU_SMI)


def test_where_nothing_is_heard_a_glance_is_a_pass(quiet: Quiet) -> None:
    with running(quiet) as turns:
        quiet.hearsay.up = False
        quiet.agent.glance()
        wait_until(lambda: len(turns) == 2)


def test_glances_do_not_put_off_the_next_pass(quiet: Quiet) -> None:
    with running(quiet, sweep_seconds=0.2) as turns:

        def glanced() -> bool:
            quiet.agent.glance()
            return len(turns) >= 4

        wait_until(glanced)


def test_a_fault_in_what_is_told_ends_nothing(quiet: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(quiet) as turns:
        with monkeypatch.context() as patch:
            patch.setattr(quiet.hearsay, "take", lambda: 1 / 0)
            quiet.agent.glance()
            wait_until(lambda: len(turns) == 2)
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 3)
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 4)
    assert quiet.cause is None


def test_a_loop_that_is_stopped_while_a_pass_begins_does_not_wait_for_the_next(quiet: Quiet) -> None:
    agent = quiet.agent
    agent.parts = replace(agent.parts, sweep_seconds=3600.0)
    clear = agent._wake.clear

    def stopped_meanwhile() -> None:
        agent.stop()
        clear()

    agent._wake.clear = stopped_meanwhile  # type: ignore[method-assign]
    thread = threading.Thread(target=agent.run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
