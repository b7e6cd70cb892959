"""What a pod can lay below /proc/<pid>: links that lead out, FIFOs, devices under forged names, processes in any state.

The processes, their roots and mounts are real, and the agent reads with the rights of root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo.standin import StandIn
from agent.model.reason import Refused
from agent.node.capture import capture
from agent.node.cgroups import CgroupTree
from agent.node.procfs import ProcFs
from agent.node.threads import ThreadBinder
from tests.host.support import ALL, APART, A, CountingHost, identity, mask, two_cpus

LIVE = ProcFs(Path("/"))
SECRET = "cpubind-secret"
DAVINCI = {0: (236, 0), 1: (236, 1)}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change a root folder")


@contextmanager
def child(prepare: Callable[[], object]) -> Iterator[int]:
    """A process that has prepared itself."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.write(tell, b"x")
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(told, 1) == b"x"
        yield pid
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """The root folder of a container that has laid out traps."""
    root = tmp_path / "container"
    (root / "dev").mkdir(parents=True)
    (root / "dev/davinci0").symlink_to("/dev/null")
    (root / "dev/davinci1").symlink_to("../../../../../../dev/null")
    os.mkfifo(root / "dev/davinci2")
    os.mkfifo(root / "dev/davinci")
    (root / "dev/davinci3").mkdir()
    (root / "dev/loop").symlink_to("loop")
    (root / "dev/\x1b[31m\n").write_text("")
    return root


def test_links_fifos_and_folders_in_a_containers_dev_are_no_npus(container: Path) -> None:
    null = os.stat("/dev/null").st_rdev
    host = {0: (os.major(null), os.minor(null)), **{n: d for n, d in DAVINCI.items() if n}}
    with child(lambda: os.chroot(container)) as pid:
        begun = time.monotonic()
        assert LIVE.root_devices(pid, host) == frozenset()
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("target", ["/dev", "/proc/self/root/dev", "../../../../../dev", "/nowhere", "dev"])
def test_a_dev_that_is_a_link_leads_nowhere(tmp_path: Path, target: str) -> None:
    root = tmp_path / "container"
    root.mkdir()
    (root / "dev").symlink_to(target)
    null = os.stat("/dev/null").st_rdev
    with child(lambda: os.chroot(root)) as pid:
        assert not LIVE.root_devices(pid, {0: (os.major(null), os.minor(null))})


def test_a_dev_that_is_a_fifo_or_a_file_holds_up_nobody(tmp_path: Path) -> None:
    for make in (os.mkfifo, lambda path: Path(path).write_text("0 236:0\n")):
        root = tmp_path / make.__name__.strip("<>")
        root.mkdir()
        make(root / "dev")
        with child(lambda: os.chroot(root)) as pid:  # noqa: B023 - used before the next one
            begun = time.monotonic()
            assert not LIVE.root_devices(pid, DAVINCI)
            assert time.monotonic() - begun < 5


def test_a_file_descriptor_counts_by_its_device_whatever_its_name_says(tmp_path: Path) -> None:
    forged = tmp_path / "dev/davinci0"
    forged.parent.mkdir()
    forged.write_text(SECRET)
    os.mknod(tmp_path / "dev/davinci1", 0o600 | 0o020000, os.makedev(1, 3))
    fifo = tmp_path / "dev/davinci2"
    os.mkfifo(fifo)

    def opened() -> None:
        for path in (forged, tmp_path / "dev/davinci1"):
            os.open(path, os.O_RDONLY)
        os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    with child(opened) as pid:
        assert not set(LIVE.device_files(pid).values()) & set(DAVINCI.values())


def test_a_bundle_follows_no_link_out_of_a_containers_root(container: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    (container / "dev/davinci0").unlink()
    (container / "dev/davinci0").symlink_to(secret)
    (container / "dev/davinci4").symlink_to(f"/proc/1/root{secret}")

    def refuse(*args: str) -> str:
        from agent.model.reason import Reason

        raise Refused(Reason.NPU_SMI_NOT_FOUND, "none here")

    target = tmp_path / "bundle"
    with child(lambda: os.chroot(container)) as pid:
        capture(Path("/"), refuse, target, node="here", architecture="aarch64", pids=[pid], chips=[], pods=[])
    for folder, _, files in os.walk(target):
        for name in files:
            assert SECRET.encode() not in Path(folder, name).read_bytes(), name


# Processes of all states


@two_cpus
@pytest.mark.parametrize("state", ["stopped", "traced", "zombie", "vfork"])
def test_a_process_in_any_state_is_looked_at_without_waiting(state: str) -> None:
    host = CountingHost()
    binder = ThreadBinder(Path("/proc"), host)
    with in_state(state) as pid:
        begun = time.monotonic()
        outcome = binder.bind(identity(pid), APART, cpuset=ALL, online=ALL, first=True)
        LIVE.device_files(pid)
        LIVE.root_devices(pid, DAVINCI)
        LIVE.status(pid)
        CgroupTree(Path("/")).identity(pid)
        assert time.monotonic() - begun < 5
        if state == "zombie":
            assert outcome.problem is not None
            assert (outcome.problem.reason, host.written) == ("ProcessGone", [])
        else:
            assert (outcome.state, mask(pid)) == ("Bound", {A})


@contextmanager
def in_state(state: str) -> Iterator[int]:
    if state == "vfork":
        # Until its child becomes another program, which this one never does, a vfork's parent is in state D.
        code = (
            "import ctypes, os, sys\n"
            "print(os.getpid(), flush=True)\n"
            "libc = ctypes.PyDLL(None)\n"
            "if libc.syscall(56, 0x4000 | 0x11, 0, 0, 0, 0) == 0:\n"  # CLONE_VFORK without CLONE_VM
            "    libc.sleep(600)\n"
        )
        if os.uname().machine != "x86_64":
            pytest.skip("the number of clone(2) is that of x86_64")
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            until = time.monotonic() + 10
            while state_of(process.pid) != "D":
                assert time.monotonic() < until, state_of(process.pid)
                time.sleep(0.01)
            try:
                yield process.pid
            finally:
                os.killpg(process.pid, signal.SIGKILL)
        return
    with StandIn("--threads", "1") as process_:
        pid = process_.pid
        if state == "zombie":
            process_.kill(reap=False)
            wait_for_state(pid, "Z")
            yield pid
            return
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
            wait_for_state(pid, "T")
            yield pid
            os.kill(pid, signal.SIGCONT)
            return
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        seize, interrupt, detach = 0x4206, 0x4207, 17
        assert libc.ptrace(seize, pid, None, None) == 0
        assert libc.ptrace(interrupt, pid, None, None) == 0
        wait_for_state(pid, "t")
        yield pid
        os.waitpid(pid, os.WUNTRACED)
        libc.ptrace(detach, pid, None, None)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_state(pid: int, state: str) -> None:
    until = time.monotonic() + 10
    while state_of(pid) != state:
        assert time.monotonic() < until, state_of(pid)
        time.sleep(0.01)


def test_where_proc_hides_processes_from_others_root_sees_them(tmp_path: Path) -> None:
    """hidepid is of the mount: a pod's own, or the host's."""
    proc = tmp_path / "proc"
    proc.mkdir()
    mounted = subprocess.run(["mount", "-t", "proc", "-o", "hidepid=2", "proc", proc], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount /proc")
    try:
        with StandIn() as worker:
            worker.open(Path("/dev/null"))
            assert worker.pid in ProcFs(tmp_path).pids()
            assert ProcFs(tmp_path).device_files(worker.pid)
    finally:
        subprocess.run(["umount", proc], check=True)
