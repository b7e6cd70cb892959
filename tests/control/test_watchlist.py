"""Who may be moved between the passes: never anybody of whom a pass has just said something else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from agent.control.observe import Candidate, Choice
from agent.control.watchlist import Watched, WatchList
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.node import Topology
from agent.model.plan import Roles
from agent.model.reason import Reason, Refused
from agent.model.spec import Role
from agent.model.workload import ProcessId
from tests.control.hearing import Ears, ears_of, ended, forked, named, thread_born
from tests.control.rig import Rig, masks, wait_until

CPUS = CpuSet.parse("0-9")
ROLES = Roles(main=CpuSet.parse("2-7"), irq=CpuSet.parse("0-1"), acl=CpuSet.parse("8"), release=CpuSet.parse("9"))


def entry(pid: int, start_time: int = 1, roles: Roles = ROLES) -> Watched:
    return Watched(ProcessId(pid, start_time), roles, CPUS, CPUS)


def heard() -> WatchList:
    watched = WatchList()
    watched.heard = True
    watched.withdraw(())
    return watched


def test_only_what_is_the_same_as_before_stays_while_a_pass_acts() -> None:
    watched = heard()
    watched.publish([entry(1), entry(2), entry(3)])
    kept = watched.watches[1]
    watched.withdraw([entry(1), entry(2, start_time=2), entry(3, roles=Roles(main=CPUS))])
    assert dict(watched.watches) == {1: kept}
    watched.publish([entry(1), entry(3, roles=Roles(main=CPUS))])
    assert watched.watches.keys() == {1, 3}
    assert watched.watches[1] is kept, "what is known of it is kept"


def test_nothing_is_published_while_nobody_hears() -> None:
    watched = WatchList()
    watched.withdraw(())
    watched.publish([entry(1)])
    assert not watched.watches


def test_a_process_that_ended_while_the_pass_acted_is_not_published() -> None:
    watched = heard()
    watched.ended(1)
    watched.publish([entry(1), entry(2)])
    assert watched.watches.keys() == {2}
    watched.withdraw([entry(2)])
    watched.publish([entry(1), entry(2)])
    assert watched.watches.keys() == {1, 2}, "another pass has seen it"


def test_what_was_lost_while_the_pass_acted_makes_it_publish_nothing() -> None:
    watched = heard()
    watched.publish([entry(1)])
    watched.clear()
    watched.publish([entry(1)])
    assert not watched.watches
    watched.withdraw([entry(1)])
    watched.publish([entry(1)])
    assert watched.watches.keys() == {1}


def test_whoever_comes_into_the_list_is_looked_at_once_more() -> None:
    watched = heard()
    added: list[int] = []
    watched.added = lambda: added.append(len(watched.watches))
    watched.publish([entry(1)])
    watched.publish([entry(1)])
    assert added == [1]
    watched.publish([entry(1), entry(2)])
    watched.publish([entry(2)])
    assert added == [1, 2]


def test_withdrawing_waits_for_a_move_under_way() -> None:
    watched = heard()
    watched.publish([entry(1)])
    done = threading.Event()

    def withdraw() -> None:
        watched.withdraw(())
        done.set()

    with watched.lock:
        thread = threading.Thread(target=withdraw)
        thread.start()
        assert not done.wait(0.05)
        assert 1 in watched.watches
    thread.join()
    assert not watched.watches


def test_a_worker_may_give_its_threads_any_number_of_names() -> None:
    watched = heard()
    watched.publish([entry(1)])
    watch = watched.watches[1]
    for number in range(10_000):
        assert watch.target(b"name-%d" % number).role is Role.MAIN
    assert watch.target(b"acl_thread").role is Role.ACL
    assert all(len(kept) <= 1024 for kept in vars(watch._targets).values() if isinstance(kept, dict))


def bound(tmp_path: Path, **parts: Any) -> tuple[Rig, Worker, Worker]:
    rig = Rig(tmp_path, "a2", **parts)
    first = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    second = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-1"))
    for worker in (first, second):
        worker.add_role_threads()
    rig.settle()
    return rig, first, second


def hears_of(rig: Rig, ears: Ears, *workers: Worker) -> None:
    rig.sweep()
    assert ears.pids() == {worker.pid for worker in workers}


def test_bound_workers_are_watched_and_their_new_threads_put_in_place(tmp_path: Path) -> None:
    rig, first, second = bound(tmp_path)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        [task] = first.grow(1)
        writes = rig.writes()
        ears.stream.tell(thread_born(first.pid, task.tid))
        assert rig.writes() == writes, "born in place"
        rig.node.kernel.rename(task.tid, "acl_thread")
        ears.stream.tell(named(first.pid, task.tid, "acl_thread"))
        assert str(task.mask) == rig.npu(0)["roles"]["acl"]
        child = second.fork(creator=second.threads[-2].tid)
        ears.stream.tell(forked(second.pid, child.tid))
        assert str(child.mask) == rig.npu(1)["roles"]["main"]
        assert rig.writes() == writes + 2
        assert (ears.events.placer.moved, len(ears.events.placer.latencies)) == (2, 1)
    assert not ears.pids(), "nobody hears any more"


@pytest.mark.parametrize("mode", ["DryRun", "Disabled"])
def test_nobody_is_watched_where_nothing_is_to_be_bound(tmp_path: Path, mode: str) -> None:
    rig, first, second = bound(tmp_path)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        rig.ask(mode=mode)
        rig.sweep()
        assert not ears.pids()
        writes = rig.writes()
        [task] = first.grow(1)
        ears.stream.tell(thread_born(first.pid, task.tid), named(first.pid, task.tid, "acl_thread"))
        assert rig.writes() == writes
        rig.ask(mode="Enforce")
        hears_of(rig, ears, first, second)


def test_a_dry_run_is_obeyed_where_the_host_cant_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_now: float) -> Topology:
        raise Refused(Reason.TOPOLOGY_UNREADABLE, "gone")

    rig, first, second = bound(tmp_path)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        rig.ask(mode="DryRun")
        monkeypatch.setattr(rig.agent.parts.observer, "topology", unreadable)
        rig.sweep()
        assert rig.condition("TopologyDiscovered")["status"] == "False"
        assert not ears.pids()


def test_one_that_opts_out_is_withdrawn_before_it_is_given_back(tmp_path: Path) -> None:
    out: set[int] = set()

    def choose(candidate: Candidate) -> Choice:
        return Choice.RELEASE if candidate.process.pid in out else Choice.BIND

    rig, first, second = bound(tmp_path, chooses=choose)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        out.add(first.pid)
        seen_at_writes = watch_writes(rig, ears)
        rig.sweep()
        assert first.pid not in set().union(*seen_at_writes)
        assert ears.pids() == {second.pid}


def test_one_that_gets_other_cpus_is_withdrawn_until_it_has_them(tmp_path: Path) -> None:
    rig, first, second = bound(tmp_path)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        before = rig.npu(0)["roles"]
        rig.ask(reservedCpus="144-147")
        seen_at_writes = watch_writes(rig, ears)
        rig.sweep(20)
        rig.sweep(20)
        assert rig.npu(0)["roles"] != before
        assert seen_at_writes
        assert first.pid not in seen_at_writes[0]
        assert ears.pids() == {first.pid, second.pid}
        [task] = first.grow(1)
        ears.stream.tell(named(first.pid, task.tid, "acl_thread"))
        assert str(task.mask) == rig.npu(0)["roles"]["acl"]


def watch_writes(rig: Rig, ears: Ears) -> list[set[int]]:
    """Whom the list holds at each write of the agent from now on."""
    seen: list[set[int]] = []
    real = rig.node.kernel.set_affinity

    def set_affinity(tid: int, cpus: CpuSet) -> None:
        seen.append(ears.pids())
        real(tid, cpus)

    rig.node.kernel.set_affinity = set_affinity  # type: ignore[method-assign]
    return seen


def test_a_name_given_between_the_pass_and_the_list_is_found_by_one_more_pass(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    with ears_of(rig) as ears:
        rig.sweep()
        worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
        [task] = worker.grow(1)
        rig.settle()
        rig.agent._wake.clear()
        ears.watched.withdraw(())
        rig.sweep()
        assert worker.pid in ears.pids()
        assert rig.agent._wake.is_set()
        rig.node.kernel.rename(task.tid, "acl_thread")
        rig.sweep()
        assert str(task.mask) == rig.npu(0)["roles"]["acl"]


def test_a_worker_that_ends_is_not_watched_any_more_and_the_loop_is_told(tmp_path: Path) -> None:
    rig, first, second = bound(tmp_path)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        ears.events.take()
        first.end()
        ears.stream.tell(ended(first.pid))
        wait_until(ears.woken.is_set)
        assert ears.events.take().processes
        assert ears.pids() == {second.pid}
        rig.sweep()
        assert ears.pids() == {second.pid}
        assert set(masks(second)["acl_thread"]) == {rig.npu(1)["roles"]["acl"]}


def test_a_worker_of_which_a_thread_cant_be_moved_is_watched_and_one_outside_its_cpuset_is_not(tmp_path: Path) -> None:
    rig, first, second = bound(tmp_path)
    with ears_of(rig) as ears:
        hears_of(rig, ears, first, second)
        rig.node.kernel.denied.add(first.threads[0].tid)
        rig.node.kernel.set_by_other(first.threads[0].tid, CpuSet.parse("0-9"))
        assert second.pod is not None
        rig.node.kernel.write_cpuset(second.pod.container().cgroup, CpuSet.parse("0-3"))
        rig.sweep()
        assert rig.npu(0)["workers"][0]["reason"] == Reason.PERMISSION_DENIED
        assert second.pid not in ears.pids()
        assert first.pid in ears.pids(), "all but one thread can be put in place"
