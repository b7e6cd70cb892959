"""Which threads are the UVB driver's, and which only call themselves so."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.demo.fake_kernel import PF_KTHREAD, PF_NO_SETAFFINITY, FakeTask
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason
from agent.model.workload import ThreadId
from agent.node.uvb import UvbThreads, of_the_host

NAME = "uvb_poll_window_thread"
CONTAINER = "3" * 64


@pytest.fixture(params=[True, False], ids=["Linux 6.6", "Linux 5.10"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> VirtualNode:
    return VirtualNode(tmp_path, "ascend950", interrupts=False, remembers_masks=request.param)


def identity(task: FakeTask) -> ThreadId:
    return ThreadId(task.tid, task.start_time)


def the_driver(node: VirtualNode) -> FakeTask:
    return next(t for t in node.kernel.tasks.values() if t.comm.startswith("uvb") and t.flags & PF_KTHREAD)


def others(node: VirtualNode) -> list[ThreadId]:
    """What is found besides the driver's kernel thread."""
    found, problem = UvbThreads(node.root).scan()
    assert problem is None
    assert identity(the_driver(node)) in [seen.thread for seen in found]
    return [seen.thread for seen in found if seen.thread != identity(the_driver(node))]


def test_the_drivers_kernel_thread_is_found_by_either_spelling_of_its_name(node: VirtualNode) -> None:
    assert the_driver(node).comm == (NAME if node.kernel.remembers_masks else NAME[:15])
    (seen,), problem = UvbThreads(node.root).scan()
    assert problem is None
    assert (seen.thread, seen.pid) == (identity(the_driver(node)), the_driver(node).tid)
    assert (seen.cpuset, seen.fixed) == (node.kernel.online, False)


def test_kernel_threads_of_other_names_are_not(node: VirtualNode) -> None:
    for comm in ("uvb_poll", "uvb_poll_window_thread2", "uvb_poll_window_t", "kworker/0:1"):
        node.kernel.start_process(comm, flags=PF_KTHREAD)
    found = others(node)
    # Cut to 15 bytes the names of some are the same.
    names = {node.kernel.tasks[thread.tid].comm for thread in found}
    assert names == (set() if node.kernel.remembers_masks else {NAME[:15]})


def test_one_that_the_kernel_keeps_in_place_is_told_so(node: VirtualNode) -> None:
    fixed = node.kernel.start_process(NAME, flags=PF_KTHREAD | PF_NO_SETAFFINITY)
    found, _ = UvbThreads(node.root).scan()
    assert {seen.thread: seen.fixed for seen in found} == {
        identity(the_driver(node)): False,
        identity(fixed): True,
    }


@pytest.mark.parametrize("cgroup", ["/", "/init.scope", "/system.slice", "/system.slice/ubse.service"])
def test_any_thread_of_that_name_in_a_root_process_of_the_host_is_found(node: VirtualNode, cgroup: str) -> None:
    if cgroup != "/":
        node.kernel.cgroups.create(cgroup, cpuset=False)
    process = node.kernel.start_process("ubse", cgroup=cgroup)
    node.kernel.start_thread(process.tid, "worker")
    thread = node.kernel.start_thread(process.tid, NAME)
    leader = node.kernel.start_process(NAME, cgroup=cgroup)
    assert others(node) == [identity(thread), identity(leader)]


@pytest.mark.parametrize(
    "cgroup",
    [
        "/user.slice/user-0.slice/session-1.scope",
        "/machine.slice/machine-guest.scope",
        f"/docker/{CONTAINER}",
        f"/system.slice/docker-{CONTAINER}.scope",
        f"/system.slice/containerd.service/kubepods-burstable-pod{'0' * 32}.slice:cri-containerd:{CONTAINER}",
        "/kubepods.slice",
    ],
)
def test_a_thread_of_that_name_in_a_container_or_a_session_is_left_alone(node: VirtualNode, cgroup: str) -> None:
    node.kernel.cgroups.create(cgroup, cpuset=False)
    process = node.kernel.start_process(NAME, cgroup=cgroup)
    node.kernel.start_thread(process.tid, NAME)
    assert others(node) == []


def test_a_pods_thread_of_that_name_is_left_alone(node: VirtualNode) -> None:
    worker = Worker.start(node, 0, node.kubelet.add_pod("llm-0"), threads=3)
    node.kernel.start_thread(worker.pid, NAME)
    assert others(node) == []


def test_a_process_that_is_not_roots_is_left_alone(node: VirtualNode) -> None:
    process = node.kernel.start_process("daemon", cgroup="/system.slice", uid=998)
    node.kernel.start_thread(process.tid, NAME)
    assert others(node) == []


def test_a_thread_is_known_again_while_it_lives_and_has_its_name(node: VirtualNode) -> None:
    threads = UvbThreads(node.root)
    process = node.kernel.start_process("ubse", cgroup="/system.slice")
    thread = node.kernel.start_thread(process.tid, NAME)
    seen = next(seen for seen in threads.scan()[0] if seen.thread == identity(thread))
    node.kernel.write_cpuset("/system.slice", CpuSet.parse("0-3"))
    again = threads.again(seen)
    assert again is not None
    assert again.cpuset == CpuSet.parse("0-3")
    node.kernel.rename(thread.tid, "worker")
    assert threads.again(seen) is None
    assert threads.find(seen.thread, process.tid) is not None
    assert threads.find(ThreadId(thread.tid, thread.start_time + 1), process.tid) is None
    node.kernel.end(thread.tid)
    assert threads.find(seen.thread, process.tid) is None


def test_a_process_that_cannot_be_read_is_said_and_hides_no_other(node: VirtualNode) -> None:
    damaged = node.kernel.start_process("x", cgroup="/system.slice")
    (node.root / f"proc/{damaged.tid}/stat").write_text("nonsense")
    found, problem = UvbThreads(node.root).scan()
    assert [seen.thread for seen in found] == [identity(the_driver(node))]
    assert problem is not None
    assert problem.reason is Reason.PROCESS_UNREADABLE


@pytest.mark.parametrize(
    ("lines", "own", "is_of_it"),
    [
        ("0::/\n", "/", True),
        ("0::/system.slice/ubse.service\n", "/", True),
        ("0::/systemd.slice\n", "/", False),
        # v1: the cpuset hierarchy has services and sessions in its root.
        ("5:cpuset:/\n1:name=systemd:/system.slice/ubse.service\n0::/\n", "/", True),
        ("5:cpuset:/\n1:name=systemd:/user.slice/user-0.slice\n0::/\n", "/", False),
        (f"5:cpuset:/docker/{CONTAINER}\n1:name=systemd:/\n", "/", False),
        ("4:memory:/elsewhere\n5:cpuset:/\n", "/", True),
        # Seen from the agent's container, with a cgroup namespace of its own.
        ("0::/../../system.slice/ubse.service\n", "/kubepods/x", True),
        ("0::/../..\n", "/kubepods/x", True),
        ("0::/\n", "/kubepods/x", False),
        ("0::/../../system.slice\n", "/", False),
        ("", "/", False),
        ("4:memory:/\n", "/", False),
    ],
)
def test_the_hosts_own_are_told_by_every_hierarchy_that_has_a_say(lines: str, own: str, is_of_it: bool) -> None:
    assert of_the_host(lines, own) is is_of_it
