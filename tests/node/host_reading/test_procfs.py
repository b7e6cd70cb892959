"""Processes and threads, on this machine's own /proc and on recorded trees."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from agent.node import statx
from agent.node.procfs import ProcessStat, ProcFs, boot_id, parse_stat, parse_status

from .conftest import Tree

MakeDevice = Callable[[Path, int, int], None]

LIVE = ProcFs(Path("/"))
PR_SET_NAME = 15
NOBODY = 65534
ODD_NAMES = [
    b"(sd-pam)",
    b") R 1 (",
    b"a b\tc",
    b"two\nlines",
    b"back\\slash",
    b"\xff\xfe",
    b"",
    b"acl_thread",
    b"x" * 15,
]


@pytest.fixture
def gone() -> int:
    """The pid of a process that has ended."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


@contextmanager
def child(prepare: Callable[[], None]) -> Iterator[int]:
    """A process that does `prepare` and then sleeps; its pid, once that is done."""
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.write(done, b".")
            signal.pause()
        except PermissionError:
            os.write(done, b"-")
        finally:
            os._exit(1)
    os.close(done)
    try:
        said = os.read(ready, 1)
        if said == b"-":
            pytest.skip("root without the capabilities that it has as a rule")
        assert said == b".", "the child failed"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def thread_named(name: bytes) -> Iterator[int]:
    """A thread of this process under that name; its tid."""
    tid: list[int] = []
    started, leave = threading.Event(), threading.Event()

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
        tid.append(threading.get_native_id())
        started.set()
        leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        yield tid[0]
    finally:
        leave.set()
        thread.join()


def test_every_process_is_listed() -> None:
    before = set(psutil.pids())
    listed = LIVE.pids()
    assert listed == sorted(listed)
    assert set(psutil.pids()) & before <= set(listed)


def test_psutil_reads_the_same_of_every_process() -> None:
    compared = 0
    ticks = os.sysconf("SC_CLK_TCK")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            before = LIVE.stat(process.pid), LIVE.status(process.pid)
            name, parent, mask, uid = process.name(), process.ppid(), process.cpu_affinity(), process.uids().real
            created, threads = process.create_time(), {thread.id for thread in process.threads()}
            tids = set(LIVE.thread_ids(process.pid))
            stat, status = LIVE.stat(process.pid), LIVE.status(process.pid)
            if stat is None or status is None or (stat, status) != before:
                continue  # it changed meanwhile
            assert (stat.pid, stat.ppid, status.uid) == (process.pid, parent, uid)
            assert name.startswith(stat.comm[:15])
            assert abs(stat.start_time / ticks + psutil.boot_time() - created) < 1.5
            assert status.cpus_allowed == CpuSet(mask or ())
            assert process.pid in tids & threads
            assert not stat.kernel_thread or stat.ppid in {0, 2}
            compared += 1
    assert compared > 3


def test_this_process_is_no_kernel_thread_and_its_threads_are_its_own() -> None:
    pid = os.getpid()
    stat = LIVE.stat(pid)
    assert stat is not None
    assert not stat.kernel_thread
    assert stat.ppid == os.getppid()
    assert threading.get_native_id() in LIVE.thread_ids(pid)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_thread_may_have_any_name(name: bytes) -> None:
    with thread_named(name) as tid:
        assert LIVE.comm(os.getpid(), tid) == name
        stat = LIVE.stat(os.getpid(), tid)
        whole = LIVE.stat(os.getpid())
        assert stat is not None
        assert whole is not None
        assert os.fsencode(stat.comm) == name
        assert stat.ppid == whole.ppid
        assert stat.start_time >= whole.start_time


def test_a_name_with_newlines_forges_no_line_of_status() -> None:
    with thread_named(b"x\nUid:\t4242") as tid:
        status = LIVE.status(os.getpid(), tid)
        assert status is not None
        assert status.uid == os.getuid()


def test_the_mask_in_status_is_the_threads_own() -> None:
    with thread_named(b"pinned") as tid:
        cpu = min(os.sched_getaffinity(tid))
        os.sched_setaffinity(tid, {cpu})
        status = LIVE.status(os.getpid(), tid)
        assert status is not None
        assert status.cpus_allowed == CpuSet({cpu})
        assert status.mems_allowed
        assert status.nspid[-1:] == (tid,)


def test_a_process_that_is_gone_is_none_or_empty(gone: int) -> None:
    assert LIVE.stat(gone) is None
    assert LIVE.status(gone) is None
    assert LIVE.comm(gone, gone) is None
    assert LIVE.thread_ids(gone) == []
    assert LIVE.open_devices(gone) == frozenset()
    assert LIVE.root_devices(gone, {0: (236, 0)}) is None


def test_a_zombie_is_read_like_any_other() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        stat = LIVE.stat(pid)
        assert stat is not None
        assert stat.ppid == os.getpid()
        assert LIVE.open_devices(pid) == frozenset()
    finally:
        os.waitpid(pid, 0)


def test_processes_that_come_and_go_raise_nothing() -> None:
    leave = threading.Event()

    def churn() -> None:
        while not leave.is_set():
            pid = os.posix_spawn("/bin/true", ["true"], {})
            os.waitpid(pid, 0)

    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(3):
            for pid in LIVE.pids():
                LIVE.stat(pid)
                LIVE.status(pid)
                for tid in LIVE.thread_ids(pid):
                    LIVE.comm(pid, tid)
                with suppress(Refused):  # other users' processes
                    LIVE.open_devices(pid)
                LIVE.root_devices(pid, {})
    finally:
        leave.set()
        churning.join()


@pytest.fixture(params=["statx", "stat"])
def either_call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with statx(2), and without it."""
    if request.param == "stat":
        monkeypatch.setattr(statx, "_look", statx._by_stat)
    elif statx._statx is None:
        pytest.skip("this libc has no statx")


@pytest.mark.usefixtures("either_call")
def test_open_devices_are_the_character_devices_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pipe = os.pipe()
    with open("/dev/zero"), open("/dev/zero"), open("/dev/full"), open(tmp_path / "file"):
        found = LIVE.open_devices(os.getpid())
    for end in pipe:
        os.close(end)
    number = os.stat("/dev/zero").st_rdev
    assert {(os.major(number), os.minor(number)), (1, 7)} <= found
    assert all(major > 0 for major, _ in found)


@pytest.mark.usefixtures("either_call")
def test_a_device_counts_by_its_number_whatever_its_link_says(tmp_path: Path, make_device: MakeDevice) -> None:
    forged, hidden = tmp_path / "davinci0", tmp_path / "notes.txt"
    make_device(forged, 1, 3)  # the null device under the name of an NPU
    make_device(hidden, 1, 5)  # the zero device under a name that says nothing
    try:
        with open(forged) as one, open(hidden) as other:
            files = LIVE.device_files(os.getpid())
            assert os.readlink(f"/proc/self/fd/{one.fileno()}").endswith("davinci0")
            assert (files[one.fileno()], files[other.fileno()]) == ((1, 3), (1, 5))
    except PermissionError:
        pytest.skip("devices cannot be opened on this file system")


@pytest.mark.usefixtures("either_call", "needs_root")
def test_without_the_right_to_look_open_devices_are_refused() -> None:
    def look(pid: int) -> None:
        # A plain user may list nothing of a process of root.
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with pytest.raises(Refused) as refused:
            LIVE.open_devices(pid)
        assert refused.value.reason is Reason.PERMISSION_DENIED
        assert LIVE.root_devices(pid, {}) is None
        assert LIVE.stat(pid) is not None

    with child(lambda: look(os.getppid())):
        pass


def test_a_file_that_only_its_owner_may_stat_hides_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # So it is with FUSE: everyone but the user who mounted it gets EACCES, root included.
    def look(path: str, at: int) -> tuple[int, int] | None:
        found = statx._by_stat(path, at)
        if found is None and os.path.exists(f"/proc/self/fd/{path}"):
            raise PermissionError(13, "Permission denied")
        return found

    monkeypatch.setattr(statx, "_look", look)
    with open(__file__), open("/dev/full"):
        assert (1, 7) in LIVE.open_devices(os.getpid())


def test_the_open_devices_of_a_recorded_process_are_a_list(tree: Tree) -> None:
    proc = ProcFs(tree({"proc/4711/fd": "3 236:0\n4 236:0\n17 237:0\n", "proc/4712/fd": "3 /dev/davinci0\n"}))
    assert proc.open_devices(4711) == {(236, 0), (237, 0)}
    assert proc.device_files(4711) == {3: (236, 0), 4: (236, 0), 17: (237, 0)}
    with pytest.raises(Refused):
        proc.open_devices(4712)


@pytest.mark.usefixtures("needs_root")
def test_the_devices_of_a_container_are_those_in_its_own_dev_by_number(tmp_path: Path, make_device: MakeDevice) -> None:
    host = {0: (236, 0), 1: (236, 1), 2: (236, 2), 3: (236, 3)}
    container = tmp_path / "container"
    make_device(container / "dev/davinci0", 236, 2)  # named from 0 again, as some runtimes do
    make_device(container / "dev/davinci1", 236, 3)
    make_device(container / "dev/null", 1, 3)
    make_device(container / "dev/deeper/davinci0", 236, 0)
    make_device(container / "elsewhere", 236, 1)
    (container / "dev/link").symlink_to("../elsewhere")
    (container / "dev/davinci").write_text("0 236:0\n")  # what a recording has; here the container's own invention
    with child(lambda: os.chroot(container)) as pid:
        assert LIVE.root_devices(pid, host) == frozenset({2, 3})


@pytest.mark.usefixtures("needs_root")
def test_a_container_whose_dev_is_a_link_shows_no_devices(tmp_path: Path) -> None:
    container = tmp_path / "container"
    container.mkdir()
    (container / "dev").symlink_to("/dev")  # would lead into the reader's own /dev
    null = os.stat("/dev/null").st_rdev
    with child(lambda: os.chroot(container)) as pid:
        assert LIVE.root_devices(pid, {0: (os.major(null), os.minor(null))}) is None


def test_the_devices_of_a_recorded_container_are_a_list(tree: Tree) -> None:
    root = tree({"proc/4711/root/dev/davinci": "0 236:2\n9 236:9\n", "proc/4712/stat": ""})
    host = {0: (236, 0), 2: (236, 2)}
    assert ProcFs(root).root_devices(4711, host) == frozenset({2})
    assert ProcFs(root).root_devices(4712, host) is None


def test_a_recorded_process_may_lack_any_file(tree: Tree) -> None:
    proc = ProcFs(tree({"proc/4711/status": "Name:\tx\nCpus_allowed_list:\t0-3\n", "proc/4711/stat": ""}))
    status = proc.status(4711)
    assert status is not None
    assert (status.cpus_allowed, status.mems_allowed, status.uid, status.nspid) == (CpuSet.span(0, 3), None, None, ())
    assert proc.stat(4711) is None
    assert proc.open_devices(4711) == frozenset()


def test_a_tree_without_proc_has_no_processes(tmp_path: Path) -> None:
    assert ProcFs(tmp_path).pids() == []


def test_the_boot_id_is_this_boots(tmp_path: Path) -> None:
    assert boot_id(Path("/")) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id(tmp_path, recorded=True) == ""


@pytest.mark.parametrize("text", [None, "", "\n", "e3e215ff-c53b-4875", "00000000-0000-0000-0000-00000000000g\n"])
def test_a_host_without_the_whole_id_of_its_boot_is_none_to_act_on(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        path = tmp_path / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    with pytest.raises(Refused, match="boot_id"):
        boot_id(tmp_path)


STAT = "4711 (VLLM::Worker) S 1 4711 4711 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 300 0 987654 0 0\n"


def test_a_stat_line_is_read_by_its_fields() -> None:
    assert parse_stat(STAT) == ProcessStat(4711, 1, 987654, "VLLM::Worker", 4194560)


def test_pf_kthread_makes_a_kernel_thread() -> None:
    assert parse_stat("812 (uvb_poll_window_thread) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0").kernel_thread


def test_the_name_of_a_kernel_thread_may_be_longer_than_that_of_others(tree: Tree, fixtures: Path) -> None:
    for name, comm in (("pre517", b"uvb_poll_window"), ("517plus", b"uvb_poll_window_thread")):
        text = (fixtures / f"threads/uvb_thread_comm_{name}.txt").read_text()
        assert ProcFs(tree({"proc/812/comm": text})).comm(812) == comm


def test_the_threads_of_a_recorded_worker_have_their_names(tree: Tree, fixtures: Path) -> None:
    rows = [line.split(None, 4) for line in (fixtures / "threads/ps_Te_worker_sample.txt").read_text().splitlines()[1:]]
    proc = ProcFs(tree({f"proc/{pid}/task/{tid}/comm": f"{name}\n" for pid, tid, _, _, name in rows}))
    assert proc.pids() == [1, 812, 784778]
    names = {proc.comm(784778, tid) for tid in proc.thread_ids(784778)}
    assert {b"VLLM::Worker_TP0", b"acl_thread", b"release_thread", b"ZMQbg/IO/0"} <= names


@given(name=st.binary(max_size=63).filter(lambda name: b"\0" not in name))
@example(name=b") S 1 1 1 1 1 1 (")
def test_any_name_leaves_the_other_fields_alone(name: bytes) -> None:
    text = STAT.replace("VLLM::Worker", name.decode("utf-8", "surrogateescape"))
    stat = parse_stat(text)
    assert os.fsencode(stat.comm) == name
    assert (stat.pid, stat.ppid, stat.start_time) == (4711, 1, 987654)


@given(text=st.text() | st.integers(0, len(STAT)).map(lambda end: STAT[:end]))
@example(text="1 (x) S " + "9" * 5000)
@example(text="1 (x) S -1 " + "0 " * 30)
def test_a_damaged_stat_is_refused_and_nothing_else(text: str) -> None:
    with suppress(Refused):
        parse_stat(text)


@given(
    text=st.text()
    | st.builds(
        "{}:\t{}\n".format, st.sampled_from(["Uid", "NSpid", "Cpus_allowed_list", "Mems_allowed_list"]), st.text()
    )
)
@example(text="Uid:\n")
@example(text="Cpus_allowed_list:\t0-99999\n")
def test_a_damaged_status_is_refused_and_nothing_else(text: str) -> None:
    with suppress(Refused):
        parse_status(text)
