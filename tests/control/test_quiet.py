"""A node on which nothing happens: what a pass leaves alone where somebody tells of processes, what it still sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.control.report import resource
from agent.control.scanning import Cause
from agent.demo.virtual import DAVINCI_MAJOR
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.reason import Problem, Reason
from agent.model.workload import ProcessId
from agent.node.host import EVERY_CPU
from tests.control.pods import OUT, annotate, delete, free
from tests.control.quiet import Quiet, opened, processes
from tests.control.rig import masks, narrow


@pytest.fixture
def quiet(tmp_path: Path) -> Quiet:
    return Quiet(tmp_path)


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

    monkeypatch.setattr("agent.control.publication.resource", noting)
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


def test_a_helper_that_comes_into_a_confined_container_is_confined_though_nobody_told(quiet: Quiet) -> None:
    quiet.ask(helpers="Confine")
    quiet.rest()
    pod = quiet.node.kubelet.pods[0]
    shell = quiet.node.kernel.start_process("bash", cgroup=pod.container().cgroup)
    assert quiet.step() is None
    apart = [CpuSet.parse(cpus) for role, cpus in quiet.npu(0)["roles"].items() if role != "main"]
    assert all(shell.mask.isdisjoint(cpus) for cpus in apart)


def test_npus_of_an_owner_of_cpus_are_believed_once_they_have_been_still_though_nothing_happens(quiet: Quiet) -> None:
    pod = quiet.node.kubelet.add_pod("owner", own_cpus=CpuSet.parse("0-15"))
    worker = Worker.start(quiet.node, 5, pod, threads=2)
    quiet.settle()
    assert worker.pid not in quiet.bound()
    for _ in range(3):
        quiet.step()
    assert worker.pid in quiet.bound()
    quiet.step()
    assert quiet.step() is None


def test_cpus_that_time_gives_anew_reach_children_that_nobody_told_of(quiet: Quiet) -> None:
    worker = quiet.workers[0]
    before = masks(worker)
    quiet.agent.planner.keeper.taken_at = float("-inf")  # long ago
    quiet.ask(strategy="GlobalSlice")
    assert quiet.step() is Cause.SPEC
    child = worker.fork()
    while masks(worker) == before:
        assert quiet.step() is None
    assert {str(child.mask)} == masks(worker)["main"]
