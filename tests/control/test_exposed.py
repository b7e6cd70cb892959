"""What happens on a node, and which sample changes (docs/metrics.md)."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cli.serving import Serving
from agent.control.exposed import READ_SECONDS
from agent.control.tally import Tally
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.outcome import MemoryOutcome
from agent.model.plan import Roles
from agent.model.reason import Problem, Reason
from agent.model.workload import ProcessId
from agent.settings import load_settings
from agent.telemetry.families import FAMILIES
from tests.control.exported import Scraper
from tests.control.hearing import ears_of, named
from tests.control.pods import by_annotation
from tests.control.rig import Rig, wait_until

ELSEWHERE = CpuSet.parse("100-103")


def start(folder: Path, profile: str = "a2", *npus: int, interrupts: bool = False) -> tuple[Rig, list[Worker]]:
    """Workers with seven threads of which two have roles, bound, each in a pod of its own."""
    rig = Rig(folder, profile, chooses=by_annotation, interrupts=interrupts)
    workers = [Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}"), threads=5) for npu in npus or (0,)]
    for worker in workers:
        worker.add_role_threads()
    rig.settle()
    return rig, workers


def test_workers_threads_and_interrupts_are_counted_by_where_they_are(tmp_path: Path) -> None:
    rig, (first, _) = start(tmp_path, "a2", 0, 1, interrupts=True)
    scraper = Scraper(rig)
    each = len(rig.node.irqs_of(0, "cq_update_irq")) + 1
    assert scraper.of("workers") == {("Bound",): 2}
    assert scraper.of("threads") == {("main",): 10, ("acl",): 2, ("release",): 2}
    assert scraper.of("irqs") == {("placed",): 2 * each}
    assert scraper.value("journal_entries") == 2 + 2 * each
    first.grow(3)
    rig.sweep()
    assert scraper.of("threads")["main",] == 13
    first.end()
    rig.settle()
    assert scraper.of("threads") == {("main",): 5, ("acl",): 1, ("release",): 1}
    assert scraper.of("irqs") == {("placed",): each}
    assert scraper.value("journal_entries") == 1 + each


def test_an_interrupt_that_the_kernel_refuses_to_move_is_astray_and_failed_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    [refused] = rig.node.irqs_of(0, "sq_send_trigger_irq")
    rig.node.kernel.irq_errors[refused] = errno.EIO
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    rig.sweep()
    scraper = Scraper(rig)
    assert scraper.of("irqs") == {("placed",): len(rig.node.irqs_of(0, "cq_update_irq")), ("astray",): 1}
    operations = scraper.of("bind_operations_total")  # by reason, result, role
    assert operations["IrqRefused", "failed", "irq"] == 1
    assert operations["AsPlanned", "bound", "irq"] == len(rig.node.irqs_of(0, "cq_update_irq"))


def test_every_mask_written_is_an_operation_by_role(tmp_path: Path) -> None:
    rig, (worker,) = start(tmp_path)
    scraper = Scraper(rig)
    bound = {("AsPlanned", "bound", role): count for role, count in (("main", 5), ("acl", 1), ("release", 1))}
    assert scraper.of("bind_operations_total") == bound
    assert scraper.value("bind_duration_seconds_count") == 1
    rig.sweep()
    assert scraper.of("bind_operations_total") == bound, "nothing to do, nothing done"
    assert scraper.value("bind_duration_seconds_count") == 1
    worker.drift(ELSEWHERE, 2)
    rig.sweep()
    assert scraper.of("bind_operations_total") == bound | {("AsPlanned", "bound", "main"): 7}
    assert scraper.value("bind_duration_seconds_count") == 2


def test_a_thread_that_may_not_be_moved_fails_in_each_pass_and_one_that_cannot_be_once(tmp_path: Path) -> None:
    rig, (worker,) = start(tmp_path)
    scraper = Scraper(rig)
    denied, fixed = worker.grow(2)
    rig.node.kernel.denied.add(denied.tid)
    fixed.flags |= 0x04000000  # PF_NO_SETAFFINITY
    for thread in (denied, fixed):
        thread.mask = ELSEWHERE
    rig.node.kernel.proc.write_names(fixed)
    rig.sweep()
    once = scraper.of("bind_operations_total")
    assert once["PermissionDenied", "failed", "main"] == 1
    assert once["Unmovable", "failed", "main"] == 1
    rig.sweep()
    twice = scraper.of("bind_operations_total")
    assert twice["PermissionDenied", "failed", "main"] == 2
    assert twice["Unmovable", "failed", "main"] == 1


def test_helpers_that_are_taken_off_cpus_set_apart_are_operations_of_their_own(tmp_path: Path) -> None:
    rig, (worker,) = start(tmp_path)
    child = worker.fork()
    rig.node.kernel.set_by_other(child.tid, CpuSet.parse(rig.npu(0)["roles"]["acl"]))
    rig.sweep()
    assert Scraper(rig).of("bind_operations_total")["AsPlanned", "bound", "helper"] == 1


def test_uvb_threads_are_counted_on_an_ascend_950(tmp_path: Path) -> None:
    rig, _ = start(tmp_path, "ascend950")
    scraper = Scraper(rig)
    assert scraper.of("threads")["uvb",] == 1
    assert scraper.of("bind_operations_total")["AsPlanned", "bound", "uvb"] == 1
    assert scraper.of("irqs") == {}


def test_the_way_from_start_to_bound_is_timed_once_and_of_workers_that_are_younger_than_the_agent(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, "a2")
    old = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("old"))
    rig.uptime = old.identity.start_time / 100 + 0.005  # between the two: clock ticks are hundredths of a second
    rig.restart()
    young = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("young"))
    rig.uptime = young.identity.start_time / 100 + 1.25
    rig.settle()
    scraper = Scraper(rig)
    assert rig.status["summary"]["bound"] == 2
    assert scraper.value("worker_start_to_bound_seconds_count") == 1
    assert scraper.value("worker_start_to_bound_seconds_sum") == pytest.approx(1.25)
    young.drift(ELSEWHERE, 2)
    rig.ask(reservedCpus="24-27")  # other CPUs for it
    rig.settle()
    assert scraper.value("worker_start_to_bound_seconds_count") == 1


def test_a_thread_that_is_put_in_place_when_the_kernel_tells_of_it_is_timed_and_counted(tmp_path: Path) -> None:
    rig, (worker,) = start(tmp_path)
    scraper = Scraper(rig)
    before = scraper.of("bind_operations_total")["AsPlanned", "bound", "acl"]
    assert scraper.value("event_stream_up") == 0
    assert scraper.of("node_info").keys() == {("aarch64", "v2", "static", "A2", "off", "TopoAffinity")}
    with ears_of(rig) as ears:
        rig.sweep()
        assert scraper.value("event_stream_up") == 1
        [task] = worker.grow(1)
        rig.node.kernel.rename(task.tid, "acl_thread")
        ears.stream.tell(named(worker.pid, task.tid, "acl_thread"))
        wait_until(lambda: ears.events.placer.moved > 0)
        assert scraper.value("event_to_pinned_seconds_count") == 1
        assert scraper.of("bind_operations_total")["AsPlanned", "bound", "acl"] == before + 1
    assert scraper.value("event_stream_up") == 0
    assert scraper.of("node_info").keys() == {("aarch64", "v2", "static", "A2", "down", "TopoAffinity")}


@pytest.mark.parametrize("mode", ["DryRun", "Disabled"])
def test_a_worker_that_waited_for_people_is_not_timed(tmp_path: Path, mode: str) -> None:
    rig, _ = start(tmp_path)
    scraper = Scraper(rig)
    before = scraper.value("worker_start_to_bound_seconds_count")
    rig.ask(mode=mode)
    rig.settle()
    waiting = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-1"))
    rig.uptime = waiting.identity.start_time / 100 + 3600
    rig.settle()
    rig.ask(mode="Enforce")
    rig.settle()
    assert scraper.of("workers") == {("Bound",): 2}
    assert scraper.value("worker_start_to_bound_seconds_count") == before


def test_what_had_moved_is_counted_with_what_came_of_it(tmp_path: Path) -> None:
    rig, (worker,) = start(tmp_path, interrupts=True)
    scraper = Scraper(rig)
    worker.drift(ELSEWHERE, 3)
    rig.node.set_irq(rig.node.irqs_of(0, "cq_update_irq")[0], ELSEWHERE)
    rig.sweep()
    assert scraper.of("drift_detected_total") == {("thread",): 3, ("irq",): 1}
    assert scraper.of("drift_repaired_total") == {("thread", "repaired"): 3, ("irq", "repaired"): 1}


def test_memory_is_counted_by_what_came_of_it_and_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    worker = Worker.start(rig.node, 7, rig.node.kubelet.add_pod("llm-0"), heap=4 << 20)
    rig.settle()
    scraper = Scraper(rig)
    assert scraper.of("memory_bytes_total") == {("moved",): 4 << 20}
    worker.allocate(1 << 20, 0)
    rig.settle()
    rig.restart()
    rig.settle()
    assert Scraper(rig).of("memory_bytes_total") == {}, "that was done by another run of the agent"


def test_memory_that_is_looked_at_again_is_counted_once() -> None:
    process, unread = ProcessId(4711, 7), Problem(Reason.TOPOLOGY_UNREADABLE, "how much is free cannot be read")
    tally = Tally({})
    for size in (100, 100, 120):
        tally.remembered({process: MemoryOutcome("Pending")})
        tally.remembered({process: MemoryOutcome("Skipped", unread, 0, skipped=size)})
    assert tally.memory_bytes == {"moved": 0, "left": 0, "skipped": 120}
    tally.remembered({process: MemoryOutcome("Moved", None, 0, moved=90, left=30)})
    assert tally.memory_bytes == {"moved": 90, "left": 30, "skipped": 120}


def test_memory_that_is_where_its_worker_runs_is_a_part_of_all_that_its_container_has(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    rig.ask(memoryMigration=False)
    pod = rig.node.kubelet.add_pod("llm-7")
    worker = Worker.start(rig.node, 7, pod, heap=3 << 20)
    rig.settle()
    scraper = Scraper(rig)
    assert scraper.of("memory_locality_ratio") == {}, "not a byte where it runs"
    assert ("cpubind_memory_locality_ratio", "7") in scraper.all()
    [home] = rig.npu(7)["numaNodes"]
    worker.allocate(1 << 20, home)
    assert scraper.of("memory_locality_ratio") == {}, "read a moment ago"
    assert scraper.later().of("memory_locality_ratio") == {("7",): 0.25}
    worker.end()
    rig.settle()
    assert scraper.later().of("memory_locality_ratio") == {}
    assert ("cpubind_memory_locality_ratio", "7") not in scraper.all()


def test_what_threads_were_taken_off_cpus_counts_by_npu_and_role(tmp_path: Path) -> None:
    rig, (worker, other) = start(tmp_path, "a2", 0, 5)
    scraper = Scraper(rig)
    assert scraper.of("involuntary_context_switches_total") == {}, "what was before is nobody's"
    switch(rig, worker.threads[0].tid, 10)
    switch(rig, worker.threads[1].tid, 5)
    switch(rig, next(t.tid for t in other.threads if t.comm == "acl_thread"), 3)
    assert scraper.of("involuntary_context_switches_total") == {}, "read a moment ago"
    assert scraper.later().of("involuntary_context_switches_total") == {("0", "main"): 15, ("5", "acl"): 3}
    worker.end()
    rig.settle()
    assert scraper.later().of("involuntary_context_switches_total") == {("0", "main"): 15, ("5", "acl"): 3}


def test_the_host_is_read_once_in_a_while_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _ = start(tmp_path)
    scraper = Scraper(rig)
    looks: list[object] = []
    monkeypatch.setattr(scraper.exposed._switches, "look", looks.append)
    for _ in range(10):
        scraper.text()
    assert len(looks) == 1
    scraper.later(READ_SECONDS - 1).text()
    assert len(looks) == 1
    scraper.later(1).text()
    assert len(looks) == 2


def test_who_asks_while_the_host_is_read_for_another_does_not_wait_nor_does_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, _ = start(tmp_path)
    scraper = Scraper(rig)
    reading, go_on = threading.Event(), threading.Event()

    def slow(_workers: object) -> None:
        reading.set()
        assert go_on.wait(30)

    monkeypatch.setattr(scraper.exposed._switches, "look", slow)
    first = threading.Thread(target=scraper.text)
    first.start()
    try:
        assert reading.wait(30)
        assert scraper.value("npus") == 8
        rig.sweep()
        assert rig.status["summary"]["bound"] == 1
    finally:
        go_on.set()
        first.join()


def test_a_change_of_plan_is_counted_by_what_had_changed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a3")
    rig.settle()
    scraper = Scraper(rig)
    assert scraper.of("plan_changes_total") == {("start",): 1}
    rig.sweep()
    assert scraper.of("plan_changes_total") == {("start",): 1}
    rig.ask(reservedCpus="0-3")
    rig.settle()
    assert scraper.of("plan_changes_total") == {("start",): 1, ("spec",): 1}
    rig.node.set_offline(CpuSet.parse("600-639"))
    rig.settle()
    rig.settle()
    assert scraper.of("plan_changes_total")["topology",] == 1


def test_a_pod_that_takes_cpus_for_itself_changes_the_plan(tmp_path: Path) -> None:
    rig, _ = start(tmp_path, "a3", 0)
    rig.node.kubelet.add_pod("batch", own_cpus=CpuSet.parse("2-9"), annotations={})
    rig.settle()
    assert Scraper(rig).of("plan_changes_total") == {("start",): 1, ("workload",): 1}


def test_queries_of_npu_smi_are_timed_and_those_without_an_answer_counted(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    scraper = Scraper(rig)
    assert set(scraper.of("npu_query_duration_seconds_count")) == {("info",), ("info -m",), ("info -t topo",)}
    assert scraper.of("npu_query_errors_total") == {}
    assert ("cpubind_npu_query_errors_total", "info", "NpuSmiHung") in scraper.all()
    before = scraper.of("npu_query_duration_seconds_count")["info",]
    rig.node.npu_smi.fail()
    rig.settle()
    assert scraper.of("npu_query_errors_total") == {("info", "DriverNotReady"): 1}
    assert scraper.of("npu_query_duration_seconds_count")["info",] == before + 1


def test_an_answer_of_npu_smi_that_cannot_be_used_is_an_error_too(tmp_path: Path) -> None:
    rig, _ = start(tmp_path)
    scraper = Scraper(rig)
    rig.node.npu_smi.fail("+---- no table that anybody knows\n", status=0)
    rig.settle()
    [((command, reason), count)] = scraper.of("npu_query_errors_total").items()
    assert (command, count) == ("tables", 1)
    assert reason.startswith("Table")


def test_no_cpu_is_in_two_pools_and_one_that_is_would_be_seen(tmp_path: Path) -> None:
    rig, _ = start(tmp_path, "a2", 0, 5)
    scraper = Scraper(rig)
    assert scraper.value("overlap_cpus") == 0
    [(_, binding), _] = rig.agent.parts.actor._bindings.items()
    theirs = CpuSet.parse(rig.npu(5)["pool"])
    roles = Roles(main=CpuSet(sorted(theirs)[:3]))
    standing = rig.agent.tally.standing
    wrong = tuple(type(p)(p.process, p.npus, roles if p.npus == (0,) else p.roles) for p in standing.placed)
    rig.agent.tally.standing = type(standing)(wrong, standing.pools)
    assert scraper.value("overlap_cpus") == 3
    assert binding.roles != roles


def test_under_disabled_nothing_is_held_and_in_a_dry_run_what_would_be_is_shown(tmp_path: Path) -> None:
    rig, (worker,) = start(tmp_path, interrupts=True)
    scraper = Scraper(rig)
    rig.ask(mode="Disabled")
    rig.settle()
    rig.sweep()
    assert scraper.value("journal_entries") == 0
    assert scraper.of("irqs") == {}
    operations = scraper.of("bind_operations_total")
    rig.ask(mode="DryRun")
    rig.settle()
    assert scraper.of("workers") == {("Planned",): 1}
    assert scraper.of("threads")["main",] == 5
    assert scraper.of("irqs") == {}
    assert scraper.of("bind_operations_total") == operations, "nothing was done"
    scraper.later().text()
    switch(rig, worker.pid, 4)
    assert scraper.later().of("involuntary_context_switches_total") == {("0", "main"): 4}


def test_nothing_of_a_pod_is_in_any_label_and_series_of_pods_that_are_gone_are_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", chooses=by_annotation)
    rig.settle()
    scraper = Scraper(rig)
    series: set[tuple[str, ...]] = set()
    for k in range(4):
        pod = rig.node.kubelet.add_pod(f"zebra-{k}", namespace=f"savanna-{k}")
        worker = Worker.start(rig.node, 0, pod, comm=f"gnu-{k}")
        rig.settle()
        assert rig.npu(0)["state"] == "Bound"
        scraper.later()
        assert not any(word in scraper.text() for word in ("zebra", "savanna", "gnu", str(worker.pid)))
        worker.end()
        rig.node.kubelet.remove_pod(pod)
        rig.settle()
        if k:
            assert set(scraper.all()) == series, "no series of its own for the next pod"
        series = set(scraper.all())


def test_each_label_of_a_live_agent_has_one_of_its_listed_values(tmp_path: Path) -> None:
    rig, _ = start(tmp_path, "a3", 0, 3, 9, interrupts=True)
    scraper = Scraper(rig)
    known = {family.stem: family for family in FAMILIES}
    for family in scraper.metrics.registry.collect():
        labels = {label.name: label for label in known[family.name].labels}
        for sample in family.samples:
            for name, value in sample.labels.items():
                assert name == "le" or labels[name].fitted(value) == value


def switch(rig: Rig, tid: int, more: int) -> None:
    """A thread is taken off its CPU so many times more."""
    status = rig.node.root / f"proc/{rig.node.kernel.tasks[tid].tgid}/task/{tid}/status"
    head, label, count = status.read_text().rpartition("nonvoluntary_ctxt_switches:\t")
    status.write_text(f"{head}{label}{int(count) + more}\n")


def test_who_scrapes_while_passes_go_on_always_gets_an_answer_that_can_be_read(tmp_path: Path) -> None:
    rig, workers = start(tmp_path, "a2", 0, 5)
    scraper = Scraper(rig)
    ended = threading.Event()
    faults: list[BaseException] = []

    def scrape() -> None:
        try:
            while not ended.is_set():
                assert scraper.later().all()["cpubind_npus",] == 8
        except BaseException as fault:
            faults.append(fault)

    asking = threading.Thread(target=scrape)
    asking.start()
    try:
        for k in range(15):
            workers[k % 2].drift(ELSEWHERE, 2)
            workers[0].grow(1)
            rig.sweep()
    finally:
        ended.set()
        asking.join()
    assert faults == []


def test_a_pass_that_fails_is_none_that_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _ = start(tmp_path)
    serving = Serving(load_settings({"metrics_address": "off"}))
    serving.adopt(rig.agent)
    swept: list[float] = []
    monkeypatch.setattr(serving.metrics, "swept", swept.append)
    ended: list[bool] = []

    def turned() -> None:
        serving.turned()
        ended.append(rig.agent.failing)
        rig.agent.wake() if len(ended) < 3 else rig.agent.stop()

    def fail() -> None:
        if len(ended) == 1:
            raise ZeroDivisionError

    monkeypatch.setattr(rig.agent, "step", fail)
    rig.agent.parts = replace(rig.agent.parts, turned=turned)
    rig.agent.run()
    assert ended == [False, True, False]
    assert len(swept) == 2
