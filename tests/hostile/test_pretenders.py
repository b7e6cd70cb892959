"""Processes of pods that pretend to be something else: by names of threads, environment, command line, cgroups, open
files. Each is moved as what it is, within its own cpuset, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from agent.demo.fake_kernel import FakeTask
from agent.demo.standin import StandIn
from agent.demo.virtual import UVB_THREAD
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.node.cgroups import CgroupTree
from agent.node.procfs import ProcFs
from agent.node.uvb import UvbThreads
from tests.control.pods import IN, by_annotation
from tests.control.rig import Rig, masks
from tests.control.steps import uvb_thread
from tests.host.alone import one_at_a_time
from tests.host.support import CPUSETS, ON_A, cpuset_cgroup, two_cpus

OWN = CpuSet.parse("64-95")


def everything(rig: Rig) -> dict[int, str]:
    """The mask of every thread of the node."""
    return {tid: str(task.mask) for tid, task in rig.node.kernel.tasks.items()}


@pytest.fixture
def rig950(tmp_path: Path) -> Rig:
    return Rig(tmp_path, "ascend950", chooses=by_annotation)


# Names of threads


def test_a_pods_thread_with_the_name_of_the_drivers_stays_in_its_cpuset(rig950: Rig) -> None:
    pod = rig950.node.kubelet.add_pod("owner", own_cpus=OWN, annotations={})
    forger = rig950.node.kernel.start_process(UVB_THREAD, cgroup=pod.containers[0].cgroup, uid=0)
    rig950.node.kernel.start_thread(forger.tid, UVB_THREAD)
    worker = Worker.start(rig950.node, 0, rig950.node.kubelet.add_pod("llm"), threads=3, comm=UVB_THREAD)
    before = {tid: rig950.node.kernel.tasks[tid].mask for tid in forger.threads}
    rig950.settle()
    assert str(uvb_thread(rig950).mask) == rig950.status["uvb"]["cpus"]
    assert rig950.status["uvb"]["threads"] == 1
    assert {tid: rig950.node.kernel.tasks[tid].mask for tid in forger.threads} == before
    assert masks(worker) == {"main": {rig950.npu(0)["roles"]["main"]}}


@pytest.mark.parametrize("name", ["acl_thread", "release_thread", "sq_send_trigger"])
def test_threads_with_names_of_roles_outside_of_workers_are_left_alone(tmp_path: Path, name: str) -> None:
    rig = Rig(tmp_path, chooses=by_annotation)
    pod = rig.node.kubelet.add_pod("llm")
    worker = Worker.start(rig.node, 0, pod, threads=2)
    stranger = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("other", annotations={}), threads=2)
    helper = rig.node.kernel.start_process(name, cgroup=pod.containers[0].cgroup)
    others = [
        helper,
        rig.node.kernel.start_thread(helper.tid, name),
        rig.node.kernel.start_thread(stranger.pid, name),
        rig.node.kernel.start_process(name, cgroup="/system.slice"),
    ]
    before = [task.mask for task in others]
    rig.settle()
    assert masks(worker)["main"] == {rig.npu(0)["roles"]["main"]}
    assert [task.mask for task in others] == before


def test_a_worker_all_of_whose_threads_have_the_name_of_a_role_gets_that_one_cpu_of_its_own(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    worker = Worker.start(rig.node, 0, threads=20, comm="acl_thread")
    neighbour = Worker.start(rig.node, 1, threads=3)
    rig.settle()
    assert masks(worker)["acl_thread"] == {rig.npu(0)["roles"]["acl"]}
    assert masks(neighbour)["main"] == {rig.npu(1)["roles"]["main"]}


@two_cpus
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a cgroup")
def test_a_real_thread_of_that_name_in_a_container_is_no_uvb_thread() -> None:
    name = "kubepods/pod12345678-1234-1234-1234-123456789abc/" + "e" * 64
    # Until it is in the pod it is one.
    with one_at_a_time("uvb"), StandIn("--threads", "1") as pretender, pod_cgroup(name) as folder:
        (tid,) = pretender.spawn(UVB_THREAD)
        (folder / "cgroup.procs").write_text(str(pretender.pid))
        assert tid not in [seen.thread.tid for seen in UvbThreads(Path("/")).scan()[0]]


# Environment and command line


def test_environment_and_command_line_say_nothing(tmp_path: Path) -> None:
    found = []
    for lie in (False, True):
        rig = Rig(tmp_path / str(lie))
        workers = [Worker.start(rig.node, npu, threads=3) for npu in (2, 5)]
        if lie:
            for worker in workers:
                folder = rig.node.root / f"proc/{worker.pid}"
                (folder / "environ").write_bytes(
                    b"ASCEND_RT_VISIBLE_DEVICES=0,1\0RANK=0\0LOCAL_RANK=7\0CPUBIND_MODE=Disabled\0OMP_NUM_THREADS=640\0"
                )
                (folder / "cmdline").write_bytes(b"irqbalance\0--banmod=ascend\0--device=0\0--cpus=0-639\0")
        rig.settle()
        found.append([masks(worker) for worker in workers])
    assert found[0] == found[1]


def test_no_pass_opens_an_environment_or_a_command_line(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm"), threads=3)
    for name in ("environ", "cmdline"):
        os.mkfifo(rig.node.root / f"proc/{worker.pid}/{name}")  # whoever opens it for reading waits for ever
    rig.settle()
    assert masks(worker)["main"] == {rig.npu(0)["roles"]["main"]}


# Cgroups


LOOK_ALIKES = (
    "kubepods.slice/kubepods-pod{uid}.slice/cri-containerd-{id}.scope",
    "kubepods/pod{uid}/{id}",
    "cri-containerd-{id}.scope",
    "system.slice/kubelet.service",
    "init.scope",
    "..",
    "0::",
    "a (deleted)",
)


@pytest.mark.parametrize("below", [path for path in LOOK_ALIKES if path != ".."])
def test_a_cgroup_below_its_own_makes_a_process_no_other_pods(tmp_path: Path, below: str) -> None:
    rig = Rig(tmp_path, chooses=by_annotation)
    victim = rig.node.kubelet.add_pod("victim", own_cpus=OWN, annotations=IN)
    plain = rig.node.kubelet.add_pod("plain", annotations={})
    path = below.format(uid=victim.uid.replace("-", "_"), id=victim.containers[0].id)
    cgroup = f"{plain.containers[0].cgroup}/{path}"
    rig.node.kernel.cgroups.create(cgroup, OWN)
    worker = Worker.start(rig.node, 0, victim, threads=3)
    forger = Worker.start(rig.node, 1, plain, threads=3)
    rig.node.kernel.move(forger.pid, cgroup)
    before = {task.tid: task.mask for task in forger.threads}
    rig.settle()
    assert {task.tid: task.mask for task in forger.threads} == before
    assert [w["pid"] for npu in rig.status["npus"] for w in npu.get("workers", [])] == [worker.pid]
    assert all(task.mask <= OWN for task in worker.threads)


def test_a_worker_that_moves_itself_is_kept_within_whatever_cgroup_it_is_in(tmp_path: Path) -> None:
    """At each step of a pass, and between passes, to one with other CPUs and back."""
    rig = Rig(tmp_path)
    pod = rig.node.kubelet.add_pod("llm")
    inner = f"{pod.containers[0].cgroup}/inner"
    rig.node.kernel.cgroups.create(inner, CpuSet.parse("20-179"))
    neighbour = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("other"), threads=3)
    rig.settle()
    worker = Worker.start(rig.node, 0, pod, threads=8)
    places = [inner, pod.containers[0].cgroup]
    set_affinity, moves = rig.node.kernel.set_affinity, 0

    def racing(tid: int, cpus: CpuSet) -> None:
        nonlocal moves
        moves += 1
        if tid in rig.node.kernel.tasks[worker.pid].threads:
            rig.node.kernel.move(worker.pid, places[moves % 2])
        set_affinity(tid, cpus)

    rig.node.kernel.set_affinity = racing  # type: ignore[method-assign]
    for number in range(8):
        rig.node.kernel.move(worker.pid, places[number % 2])
        rig.settle()
        allowed = rig.node.kernel.allowed(worker.pid)
        assert all(task.mask <= allowed for task in worker.threads)
        assert masks(neighbour)["main"] == {rig.npu(1)["roles"]["main"]}
    assert moves > 0, "nothing was written"
    rig.node.kernel.set_affinity = set_affinity  # type: ignore[method-assign]
    rig.node.kernel.move(worker.pid, pod.containers[0].cgroup)
    rig.settle()
    assert masks(worker)["main"] == {rig.npu(0)["roles"]["main"]}


@two_cpus
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make cgroups")
def test_real_cgroups_with_look_alike_names_are_told_by_the_first_pod() -> None:
    tree = CgroupTree(Path("/"))
    outer = "12345678-1234-1234-1234-123456789abc"
    inner = "99999999-9999-9999-9999-999999999999"
    name = f"kubepods/pod{outer}/{'e' * 64}/kubepods/pod{inner}/{'f' * 64}"
    with StandIn() as process, pod_cgroup(name) as folder:
        (folder / "cgroup.procs").write_text(str(process.pid))
        identity = tree.identity(process.pid)
        assert identity is not None
        assert (identity.pod_uid, identity.container_id) == (outer, "e" * 64)
        assert tree.process_cpus(process.pid) == ON_A


# Open NPUs


def test_a_process_that_opens_every_npu_changes_nobody_elses(tmp_path: Path) -> None:
    rig = Rig(tmp_path, chooses=by_annotation)
    workers = [Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}"), threads=3) for npu in range(4)]
    rig.settle()
    before = [masks(worker) for worker in workers]
    for said in ({}, IN):
        pod = rig.node.kubelet.add_pod(f"greedy{len(said)}", annotations=said)
        greedy = rig.node.kernel.start_process("greedy", cgroup=pod.containers[0].cgroup)
        rig.node.hold(greedy.tid, [(npu, None) for npu in range(16)], greedy.comm)
        rig.settle()
        rig.settle()
        assert [masks(worker) for worker in workers] == before
        assert [rig.npu(npu)["state"] for npu in range(4)] == ["Bound"] * 4
        assert_apart(rig, greedy)


def assert_apart(rig: Rig, greedy: FakeTask) -> None:
    """What takes all NPUs is, if bound, on main CPUs of them alone: no CPU of an interrupt, ACL or release thread."""
    apart = [CpuSet.parse(npu["roles"][role]) for npu in rig.status["npus"] for role in ("irq", "acl", "release")]
    if greedy.mask != rig.node.kernel.online:
        assert all(greedy.mask.isdisjoint(cpus) for cpus in apart)


def test_thousands_of_open_files_are_looked_through_in_no_time(tmp_path: Path) -> None:
    null = os.stat("/dev/null").st_rdev
    code = "import os, sys; [os.open('/dev/null', 0) for _ in range(900)]; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        begun = time.thread_time()
        devices = ProcFs(Path("/")).device_files(child.pid)
        assert time.thread_time() - begun < 0.5
        assert list(devices.values()).count((os.major(null), os.minor(null))) >= 900
        child.communicate()


class pod_cgroup:  # noqa: N801 - reads as what it does
    """A cgroup of that path, below one of the test's own in the cpuset hierarchy of this machine, with one CPU."""

    def __init__(self, name: str) -> None:
        self._parts = [f"cpubind-test-{uuid4()}", *name.split("/")]

    def __enter__(self) -> Path:
        self._made = [cpuset_cgroup(ON_A, "/".join(self._parts[:n])) for n in range(1, len(self._parts) + 1)]
        for group in self._made:
            group.__enter__()
        return CPUSETS.joinpath(*self._parts)

    def __exit__(self, *_: object) -> None:
        for group in reversed(self._made):
            group.__exit__(None, None, None)
