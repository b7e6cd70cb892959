"""Masks out of a recording: what is not recorded is no thread that ended."""

from __future__ import annotations

import errno

import pytest

from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.reason import Reason, Refused
from agent.model.workload import ProcessId
from agent.node.recorded import ProcStatusHost
from agent.node.threads import ThreadBinder

from .conftest import Tree

WORKER = ProcessId(4711, 99)
ONLINE = CpuSet.span(0, 15)
ROLES = Roles(main=CpuSet.span(0, 7), acl=CpuSet({8}), release=CpuSet({9}))


def status(cpus: str) -> str:
    return f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n"


def stat(pid: int) -> str:
    return f"{pid} (python) S 1 {' '.join(['0'] * 15)} 2 0 {WORKER.start_time} 0 0\n"


MINIMAL = {
    "proc/4711/stat": stat(4711),
    "proc/4711/status": status("0-7"),
    "proc/4711/task/4711/comm": "python\n",
}


def check(tree: Tree, files: dict[str, str]) -> list[int]:
    proc = tree(files) / "proc"
    binder = ThreadBinder(proc, ProcStatusHost(proc, WORKER.pid))
    return [thread.tid for thread in binder.check(WORKER, ROLES, cpuset=ONLINE, online=ONLINE)]


def test_the_main_threads_mask_is_that_of_the_process_where_only_this_is_recorded(tree: Tree) -> None:
    assert check(tree, MINIMAL) == []
    assert check(tree, MINIMAL | {"proc/4711/status": status("0-15")}) == [4711]


def test_the_threads_own_status_goes_before_that_of_the_process(tree: Tree) -> None:
    assert check(tree, MINIMAL | {"proc/4711/task/4711/status": status("3-12")}) == [4711]


@pytest.mark.parametrize("more", [{}, {"proc/4711/task/4712/status": "Name:\tacl_thread\n"}])
def test_a_thread_whose_mask_is_not_recorded_is_not_in_place(tree: Tree, more: dict[str, str]) -> None:
    with pytest.raises(Refused, match="the mask of thread 4712 is not recorded") as refused:
        check(tree, MINIMAL | {"proc/4711/task/4712/comm": "acl_thread\n"} | more)
    assert refused.value.reason is Reason.PROCESS_UNREADABLE


def test_a_process_without_any_status_is_not_in_place(tree: Tree) -> None:
    with pytest.raises(Refused, match="thread 4711 is not recorded"):
        check(tree, {name: text for name, text in MINIMAL.items() if name != "proc/4711/status"})


def test_a_thread_without_a_folder_has_ended(tree: Tree) -> None:
    host = ProcStatusHost(tree(MINIMAL) / "proc", WORKER.pid)
    with pytest.raises(OSError, match=r".") as gone:
        host.get_affinity(4712)
    assert gone.value.errno == errno.ESRCH
