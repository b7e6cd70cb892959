"""The kernel's events of processes, on this machine's kernel: what is done at once, without any pass of the loop."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.control.events import Events
from agent.demo.standin import StandIn
from agent.model.plan import Roles
from agent.model.reason import Reason, Refused
from agent.model.spec import Mode, Spec
from agent.node.proc_events import ProcEvents
from agent.node.procfs import ProcFs
from tests.host.hearing import hearing, hears, wait_for
from tests.host.support import ALL, APART, BOTH, ON_A, ON_B, A, B, mask, tids, two_cpus

pytestmark = [hears, two_cpus]


def test_a_thread_that_calls_itself_acl_thread_is_moved_without_a_pass() -> None:
    with hearing() as ears, StandIn("--threads", "3") as worker:
        ears.bind(worker, APART)
        [tid] = worker.spawn("worker")
        ears.caught_up()
        assert mask(tid) == {A}, "it was born in place"
        assert ears.host.written == []
        worker.rename(tid, "acl_thread")
        wait_for(lambda: mask(tid) == {B})
        ears.caught_up()
        assert ears.host.written == [tid]
        [latency] = ears.events.placer.latencies
        assert 0 < latency < 20
        assert not ears.sweep().outcomes[next(iter(ears.workers))].drift, "it is no drift"


def test_a_thread_that_gives_the_name_up_goes_back_to_main() -> None:
    with hearing() as ears, StandIn("--acl") as worker:
        ears.bind(worker, APART)
        [tid] = worker.threads["acl_thread"]
        assert mask(tid) == {B}
        worker.rename(tid, "worker")
        wait_for(lambda: mask(tid) == {A})


def test_a_thread_that_pinned_itself_within_main_is_left_there() -> None:
    with hearing() as ears, StandIn("--threads", "3") as worker:
        ears.bind(worker, Roles(main=BOTH, acl=ON_B, release=ON_B))
        [tid] = worker.threads["worker"][:1]
        os.sched_setaffinity(tid, {A})
        worker.rename(tid, "omp")
        ears.caught_up()
        assert mask(tid) == {A}
        assert ears.host.written == []


def test_a_thread_born_of_one_out_of_place_is_put_in_place() -> None:
    with hearing() as ears, StandIn() as worker:
        ears.bind(worker, APART)
        # Threads of a stand-in are made by its main thread, and begin with its mask.
        os.sched_setaffinity(worker.pid, {B})
        [tid] = worker.spawn("worker")
        wait_for(lambda: mask(tid) == {A})


def test_a_child_born_on_the_cpu_of_the_acl_thread_goes_to_main() -> None:
    with hearing() as ears, StandIn("--acl", "--threads", "1") as worker:
        ears.bind(worker, APART)
        [acl] = worker.threads["acl_thread"]
        [child] = worker.fork(acl)
        wait_for(lambda: mask(child) == {A})
        [other] = worker.fork(*worker.threads["worker"])
        ears.caught_up()
        assert mask(other) == {A}
        assert ears.host.written == [child]


def test_threads_of_other_processes_are_left_alone_whatever_their_names() -> None:
    with hearing() as ears, StandIn() as worker, StandIn("--threads", "2") as stranger:
        ears.bind(worker, APART)
        [tid] = stranger.spawn("worker")
        stranger.rename(tid, "acl_thread")
        [child] = stranger.fork(tid)
        ears.caught_up()
        assert mask(tid) == mask(child) == set(ALL)
        assert ears.host.written == []


def test_the_end_of_a_worker_is_told_at_once() -> None:
    with hearing() as ears, StandIn() as worker:
        ears.bind(worker, APART)
        worker.kill()
        wait_for(lambda: ears.events.take().processes)
        assert worker.pid not in ears.actor.watched.watches
        assert ears.woken.wait(20)
        ears.workers.clear()
        ears.sweep()
        assert not ears.actor.bindings


def test_a_worker_that_becomes_another_program_is_told() -> None:
    program = "import sys, os; sys.stdin.readline(); os.execv('/bin/cat', ['cat'])"
    command = [sys.executable, "-I", "-S", "-c", program]
    with hearing() as ears, subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as worker:
        ears.bind(worker, APART)
        assert worker.stdin is not None
        worker.stdin.write("now\n")
        worker.stdin.flush()
        wait_for(lambda: ears.events.take().processes)
        assert ears.woken.wait(20)
        worker.kill()


def test_what_descends_from_an_awaited_process_is_awaited_too() -> None:
    with hearing() as ears, StandIn("--threads", "1") as awaited:
        ears.events.take()
        ears.events.interest((), {awaited.pid})
        wait_for(lambda: ears.events.take().processes)  # it may have done something before that
        ears.woken.clear()
        [child] = awaited.fork(*awaited.threads["worker"])
        wait_for(lambda: ears.events.take().processes)
        assert ears.woken.wait(20)
        os.kill(child, 9)
        wait_for(lambda: ears.events.take().processes)


def test_the_helpers_that_a_bound_worker_forks_are_no_news() -> None:
    with hearing() as ears, StandIn("--acl", "--threads", "1") as worker:
        ears.bind(worker, APART)
        [thread] = worker.threads["worker"]
        for _ in range(3):
            worker.fork(thread)
        worker.rename(thread, "acl_thread")
        wait_for(lambda: mask(thread) == {B})  # events keep their order
        assert not ears.events.take().processes


def test_a_process_that_made_threads_is_suspected_and_a_bound_worker_is_not() -> None:
    with hearing() as ears, StandIn() as worker, StandIn() as stranger:
        ears.bind(worker, APART)
        worker.spawn("worker", 3)
        stranger.spawn("worker", 3)
        suspects: set[int] = set()

        def suspected() -> bool:
            suspects.update(ears.events.take().suspects)
            return stranger.pid in suspects

        wait_for(suspected)
        assert worker.pid not in suspects
        assert ears.woken.is_set()


def test_what_was_lost_is_found_by_one_pass() -> None:
    with hearing(receive_bytes=4096) as ears, StandIn() as worker:
        ears.bind(worker, APART, wait=False)
        with ears.events._lock:  # the thread can't go on, and the smallest buffer that there is runs over
            worker.spawn("worker", 50)
            named = worker.spawn("acl_thread", 3)
        wait_for(lambda: ears.events.take().lost)
        assert ears.woken.wait(20)
        ears.sweep()
        assert all(mask(tid) == ({B} if tid in named else {A}) for tid in tids(worker.pid))
        ears.sweep()
        [late] = worker.spawn("acl_thread")
        wait_for(lambda: mask(late) == {B})


@pytest.mark.parametrize("mode", [Mode.DRY_RUN, Mode.DISABLED])
def test_nothing_is_moved_any_more_once_nothing_is_to_be_bound(mode: Mode) -> None:
    with hearing() as ears, StandIn("--threads", "1") as worker:
        ears.bind(worker, APART)
        ears.sweep(Spec(mode=mode))
        ears.host.written.clear()
        [tid] = worker.spawn("acl_thread")
        ears.caught_up()
        assert ears.host.written == []
        assert mask(tid) == (set(ALL) if mode is Mode.DISABLED else {A})


def test_new_cpus_are_those_that_count_from_the_pass_on() -> None:
    with hearing() as ears, StandIn() as worker:
        process = ears.bind(worker, APART)
        ears.workers[process] = Roles(main=ON_B, acl=ON_A, release=ON_A)
        ears.sweep()
        [tid] = worker.spawn("acl_thread")
        wait_for(lambda: mask(tid) == {A})
        [other] = worker.spawn("worker")
        ears.caught_up()
        assert mask(other) == {B}


NOWHERE = "/proc/999999999/ns/net"

PROGRAM = """
import sys
from agent.model.reason import Refused
from agent.node.proc_events import ProcEvents
try:
    ProcEvents.listen(*sys.argv[1:], proof_seconds=0.3).close()
    print("heard")
except Refused as refused:
    print(refused.problem)
"""


def listen_below(*command: str, namespaces: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, *namespaces],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{command}: {done.stderr}")
    return done.stdout.strip()


def test_in_another_network_namespace_it_says_what_is_needed() -> None:
    said = listen_below("unshare", "--net")
    assert said.startswith(Reason.EVENTS_UNAVAILABLE)
    assert "network namespace" in said
    there = listen_below("unshare", "--net", namespaces=(NOWHERE,))
    assert f"{NOWHERE}: No such file" in there


def test_from_another_network_namespace_the_socket_is_made_in_the_hosts() -> None:
    here = f"/proc/{os.getpid()}/ns/net"
    assert listen_below("unshare", "--net", namespaces=(here,)) == "heard"
    assert listen_below("unshare", "--net", namespaces=(NOWHERE, "/proc/self/ns/net", here)) == "heard"
    assert listen_below(namespaces=(NOWHERE,)) == "heard", "there is no need to go anywhere"


def test_the_hosts_namespace_is_found_below_its_root() -> None:
    program = PROGRAM.replace("ProcEvents.listen(*sys.argv[1:], proof_seconds=0.3)", "ProcEvents.of_host(Path('/'))")
    program = program.replace("import sys", "from pathlib import Path")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode or not os.access("/proc/2/ns/net", os.R_OK):
        pytest.skip("not allowed here")
    assert done.stdout.strip() == "heard"


def test_in_another_pid_namespace_silence_is_noticed() -> None:
    said = listen_below("unshare", "--pid", "--fork")
    assert said.startswith(Reason.EVENTS_UNAVAILABLE)
    assert "PID namespace" in said


def test_where_there_are_none_that_is_said_and_nothing_else_changes() -> None:
    def refused() -> ProcEvents:
        raise Refused(Reason.EVENTS_UNAVAILABLE, "not here")

    with hearing() as ears, StandIn() as worker:
        deaf = Events(refused, ProcFs(Path("/")), ears.host, type(ears.actor.watched)())
        woken = threading.Event()
        deaf.wake = woken.set
        with deaf:
            assert woken.wait(20)
            problem = deaf.problem()
            assert problem is not None
            assert problem.reason is Reason.EVENTS_UNAVAILABLE
            assert not deaf.up
        ears.bind(worker, APART)
