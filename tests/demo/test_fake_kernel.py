"""The fake kernel behaves as Linux does; where this machine lets us, side by side with its own kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from agent.demo.fake_kernel import PF_KTHREAD, PF_NO_SETAFFINITY, FakeKernel
from agent.model.cpuset import EMPTY, CpuSet
from agent.node.host import Host
from tests.host.support import remove_cgroup

TWO = CpuSet.parse("0-1")
V1_CPUSETS = Path("/sys/fs/cgroup/cpuset")
GROUP = "/group"


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return _kernel(tmp_path, CpuSet.parse("0-7"))


def _kernel(root: Path, online: CpuSet, *, remembers_masks: bool = True, possible: int = 0) -> FakeKernel:
    kernel = FakeKernel(root, online, remembers_masks=remembers_masks, possible=possible)
    kernel.cgroups.create(GROUP)
    kernel.start_process("init", parent=0, pid=1)
    return kernel


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def test_masks_are_cut_to_the_cpuset_without_a_word(kernel: FakeKernel) -> None:
    kernel.write_cpuset(GROUP, cpus("2-5"))
    task = kernel.start_process("w", cgroup=GROUP)
    kernel.set_affinity(task.tid, cpus("0-3"))
    assert kernel.get_affinity(task.tid) == cpus("2-3")
    assert kernel.allowed(task.tid) == cpus("2-5")


@pytest.mark.parametrize("remembers_masks", [True, False])
def test_names_are_cut_but_for_those_of_kernel_threads_on_a_kernel_that_is_not_old(
    tmp_path: Path, remembers_masks: bool
) -> None:
    kernel = _kernel(tmp_path, cpus("0-7"), remembers_masks=remembers_masks)
    thread = kernel.start_process("uvb_poll_window_thread", flags=PF_KTHREAD)
    assert thread.comm == ("uvb_poll_window_thread" if remembers_masks else "uvb_poll_window")
    assert kernel.start_process("uvb_poll_window_thread").comm == "uvb_poll_window"


def test_it_is_a_host(kernel: FakeKernel) -> None:
    host: Host = kernel
    for tid, mask in ((0, TWO), (1, EMPTY)):
        with pytest.raises(ValueError, match="thread"):
            host.set_affinity(tid, mask)
    with pytest.raises(OSError, match="Invalid"):
        kernel.set_by_other(1, EMPTY)


@pytest.mark.parametrize("mask", ["6-7", "4000"])
def test_a_mask_without_a_cpu_of_the_cpuset_is_einval(kernel: FakeKernel, mask: str) -> None:
    kernel.write_cpuset(GROUP, cpus("2-5"))
    task = kernel.start_process("w", cgroup=GROUP)
    with pytest.raises(OSError, match="Invalid argument") as refused:
        kernel.set_affinity(task.tid, cpus(mask))
    assert refused.value.errno == errno.EINVAL
    assert kernel.get_affinity(task.tid) == cpus("2-5")


def test_threads_that_are_gone_or_pinned_or_foreign(kernel: FakeKernel) -> None:
    task = kernel.start_process("w")
    fixed = kernel.start_thread(task.tid, "iou-wrk-7", flags=PF_NO_SETAFFINITY)
    with pytest.raises(OSError, match="Invalid argument"):
        kernel.set_affinity(fixed.tid, cpus("1"))
    kernel.denied.add(task.tid)
    with pytest.raises(PermissionError):
        kernel.set_affinity(task.tid, cpus("1"))
    kernel.end(task.tid)
    for tid in (task.tid, fixed.tid):
        with pytest.raises(ProcessLookupError):
            kernel.set_affinity(tid, cpus("1"))
        with pytest.raises(ProcessLookupError):
            kernel.get_affinity(tid)


def test_a_cpuset_write_keeps_or_resets_masks_as_the_version_does(tmp_path: Path) -> None:
    found = {}
    for remembers in (True, False):
        kernel = _kernel(tmp_path / str(remembers), cpus("0-7"), remembers_masks=remembers)
        told, free = (kernel.start_process(name, cgroup=GROUP) for name in ("told", "free"))
        kernel.set_affinity(told.tid, cpus("2-3"))
        masks = []
        for written in ("0-6", "0-2", "4-7", "0-7", "0-7"):
            kernel.write_cpuset(GROUP, cpus(written))
            masks.append((str(kernel.get_affinity(told.tid)), str(kernel.get_affinity(free.tid))))
        found[remembers] = masks
    assert found[True] == [("2-3", "0-6"), ("2", "0-2"), ("4-7", "4-7"), ("2-3", "0-7"), ("2-3", "0-7")]
    assert found[False] == [(value, value) for value in ("0-6", "0-2", "4-7", "0-7", "0-7")]


def test_the_same_value_again_resets_nothing(tmp_path: Path) -> None:
    kernel = _kernel(tmp_path, cpus("0-7"), remembers_masks=False)
    kernel.write_cpuset(GROUP, cpus("0-6"))
    task = kernel.start_process("w", cgroup=GROUP)
    kernel.set_affinity(task.tid, cpus("3"))
    kernel.write_cpuset(GROUP, cpus("0-6"))
    assert kernel.get_affinity(task.tid) == cpus("3")


def test_children_and_threads_start_with_the_mask_of_their_maker(kernel: FakeKernel) -> None:
    leader = kernel.start_process("w", cgroup=GROUP)
    acl = kernel.start_thread(leader.tid, "acl_thread")
    kernel.set_affinity(acl.tid, cpus("6"))
    late = kernel.start_thread(leader.tid, "late", creator=acl.tid)
    child = kernel.start_process("ccec", parent=acl.tid)
    assert [kernel.get_affinity(t.tid) for t in (leader, acl, late, child)] == [cpus("0-7"), *[cpus("6")] * 3]
    kernel.write_cpuset(GROUP, cpus("0-5"))
    kernel.write_cpuset(GROUP, cpus("0-7"))
    assert kernel.get_affinity(late.tid) == cpus("6"), "the memory of the mask is inherited with it"


def test_offline_cpus_are_hidden_from_getaffinity_only(kernel: FakeKernel) -> None:
    task = kernel.start_process("free")
    boxed = kernel.start_process("boxed", cgroup=GROUP)
    kernel.set_online(cpus("0-5"))
    assert kernel.get_affinity(task.tid) == cpus("0-5")
    assert kernel.tasks[task.tid].mask == cpus("0-7"), "tasks of the root cgroup keep their masks"
    assert kernel.tasks[boxed.tid].mask == cpus("0-5")
    kernel.set_online(cpus("0-7"))
    assert kernel.get_affinity(boxed.tid) == cpus("0-7")


def test_a_task_moves_into_the_cpuset_of_its_new_cgroup(kernel: FakeKernel) -> None:
    kernel.write_cpuset(GROUP, cpus("4-7"))
    task = kernel.start_process("w")
    thread = kernel.start_thread(task.tid, "t")
    kernel.set_affinity(thread.tid, cpus("3-4"))
    kernel.move(task.tid, GROUP)
    assert kernel.get_affinity(task.tid) == cpus("4-7")
    assert kernel.get_affinity(thread.tid) == cpus("4")
    assert kernel.cgroups.procs(GROUP) == [task.tid]


def test_nested_cpusets_take_effect_below(kernel: FakeKernel, tmp_path: Path) -> None:
    mount = tmp_path / "sys/fs/cgroup"
    kernel.cgroups.create(f"{GROUP}/pod/box", cpus("2-7"))
    kernel.cgroups.create(f"{GROUP}/plain", cpuset=False)
    task, plain = (
        kernel.start_process("w", cgroup=f"{GROUP}/pod/box"),
        kernel.start_process("p", cgroup=f"{GROUP}/plain"),
    )
    kernel.write_cpuset(GROUP, cpus("0-3"))
    assert [kernel.get_affinity(t.tid) for t in (task, plain)] == [cpus("2-3"), cpus("0-3")]
    assert (mount / "group/pod/box/cpuset.cpus.effective").read_text() == "2-3\n"
    assert (mount / "group/pod/box/cpuset.cpus").read_text() == "2-7\n"
    assert not (mount / "group/plain/cpuset.cpus.effective").exists()
    kernel.write_cpuset(GROUP, EMPTY)
    assert kernel.get_affinity(task.tid) == cpus("2-7")
    assert (mount / "group/pod/box/cgroup.procs").read_text() == f"{task.tid}\n"


def test_calls_of_the_agent_are_counted_and_others_are_not(kernel: FakeKernel) -> None:
    task = kernel.start_process("w")
    kernel.set_affinity(task.tid, cpus("1"))
    kernel.get_affinity(task.tid)
    kernel.set_by_other(task.tid, cpus("2"))
    with pytest.raises(OSError, match="Invalid"):
        kernel.set_affinity(task.tid, cpus("99"))
    assert kernel.calls == {"sched_setaffinity": 2, "sched_getaffinity": 1}


def test_status_in_the_tree_follows_on_demand(kernel: FakeKernel, tmp_path: Path) -> None:
    task = kernel.start_process("w")
    thread = kernel.start_thread(task.tid, "t\n\\1")
    kernel.set_affinity(thread.tid, cpus("1,3"))
    kernel.sync()
    text = (tmp_path / f"proc/{task.tid}/task/{thread.tid}/status").read_text()
    assert "Cpus_allowed:\t0a\n" in text
    assert "Cpus_allowed_list:\t1,3\n" in text
    assert "Name:\tt\\n\\\\1\n" in text
    assert "Threads:\t2\n" in (tmp_path / f"proc/{task.tid}/status").read_text()
    kernel.end(thread.tid)
    kernel.rename(task.tid, "a name that is far too long")
    kernel.sync()
    assert (tmp_path / f"proc/{task.tid}/comm").read_text() == "a name that is \n"
    assert "Threads:\t1\n" in (tmp_path / f"proc/{task.tid}/status").read_text()


# The same steps on a real kernel.

CHILD = """
import os, sys, threading, time
hold = []
for line in sys.stdin:
    if line == "thread\\n":
        ready = threading.Event()
        made = []
        def run():
            made.append(threading.get_native_id())
            ready.set()
            time.sleep(600)
        threading.Thread(target=run, daemon=True).start()
        ready.wait()
        print(made[0], flush=True)
    else:
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            time.sleep(600)
            os._exit(0)
        print(pid, flush=True)
"""


class Machine(Protocol):
    """Tasks 0, 1, … in one cpuset, driven step by step."""

    def spawn(self, kind: str) -> None: ...
    def set(self, task: int, mask: CpuSet) -> None: ...
    def get(self, task: int) -> CpuSet: ...
    def cpuset(self, mask: CpuSet) -> None: ...


class Real:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        (folder / "tasks").write_text(str(self.process.pid))
        self.tids = [self.process.pid]
        self.children: list[int] = []

    def spawn(self, kind: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{kind}\n")
        self.process.stdin.flush()
        self.tids.append(int(self.process.stdout.readline()))
        if kind == "fork":
            self.children.append(self.tids[-1])

    def set(self, task: int, mask: CpuSet) -> None:
        os.sched_setaffinity(self.tids[task], mask)

    def get(self, task: int) -> CpuSet:
        return CpuSet(os.sched_getaffinity(self.tids[task]))

    def cpuset(self, mask: CpuSet) -> None:
        (self.folder / "cpuset.cpus").write_text(str(mask))

    def close(self) -> None:
        for pid in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


class Fake:
    def __init__(self, root: Path, *, remembers_masks: bool) -> None:
        self.kernel = _kernel(root, TWO, remembers_masks=remembers_masks)
        self.kernel.write_cpuset(GROUP, TWO)
        self.tids = [self.kernel.start_process("w", cgroup=GROUP).tid]

    def spawn(self, kind: str) -> None:
        pid = self.tids[0]
        made = self.kernel.start_thread(pid, "t") if kind == "thread" else self.kernel.start_process("c", parent=pid)
        self.tids.append(made.tid)

    def set(self, task: int, mask: CpuSet) -> None:
        self.kernel.set_by_other(self.tids[task], mask)

    def get(self, task: int) -> CpuSet:
        return self.kernel.get_affinity(self.tids[task])

    def cpuset(self, mask: CpuSet) -> None:
        self.kernel.write_cpuset(GROUP, mask)


def _attempt(machine: Machine, step: tuple[str, int, CpuSet]) -> object:
    what, task, mask = step
    try:
        match what:
            case "set":
                machine.set(task, mask)
            case "cpuset":
                machine.cpuset(mask)
            case kind:
                machine.spawn(kind)
    except OSError as error:
        return error.errno
    return None


def _steps(seed: int) -> list[tuple[str, int, CpuSet]]:
    chance = random.Random(seed)
    steps, tasks = [], 1
    for _ in range(14):
        what = chance.choice(("set", "set", "cpuset", "cpuset", "thread", "fork"))
        masks = ("0", "1", "0-1") if what == "cpuset" else ("0", "1", "0-1", "0-63", "1,70", "5", "")
        steps.append((what, chance.randrange(tasks), CpuSet.parse(chance.choice(masks))))
        tasks += what in {"thread", "fork"}
    return steps


@pytest.fixture
def real() -> Iterator[Real]:
    online = CpuSet.parse(Path("/sys/devices/system/cpu/online").read_text())
    if TWO - (online & CpuSet(os.sched_getaffinity(0))):
        pytest.skip("CPUs 0 and 1 are not both there to be used")
    folder = V1_CPUSETS / f"cpubind-test-{uuid4()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup v1 cpuset can be made here: {error.strerror}")
    machine = None
    try:
        for file in ("cpuset.mems", "cpuset.cpus"):
            (folder / file).write_text((V1_CPUSETS / file).read_text().strip())
        (folder / "cpuset.cpus").write_text("0-1")
        machine = Real(folder)
        yield machine
    finally:
        if machine is not None:
            machine.close()
        remove_cgroup(folder)


@pytest.mark.parametrize("seed", range(24))
def test_the_same_steps_end_alike_on_a_real_kernel(real: Real, seed: int, tmp_path: Path) -> None:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    assert release is not None
    fake = Fake(tmp_path, remembers_masks=(int(release[1]), int(release[2])) >= (6, 2))
    done: list[str] = []
    for step in _steps(seed):
        done.append(f"{step[0]} {step[1]} {step[2]}")
        assert _attempt(fake, step) == _attempt(real, step), done
        masks = [[str(machine.get(task)) for task in range(len(fake.tids))] for machine in (fake, real)]
        assert masks[0] == masks[1], done
