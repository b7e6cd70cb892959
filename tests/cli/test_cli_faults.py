"""Whatever goes wrong: one line and an exit status, no traceback, and nothing left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from agent.demo.virtual import VirtualNode
from agent.model.reason import Reason, Refused
from agent.model.remedies import REMEDIES
from agent.node.storage import HostLock
from tests.cli.conftest import Cpubind, snapshot_of


@pytest.fixture(autouse=True)
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "aarch64")


CPUBIND = f"{shlex.quote(sys.executable)} -m agent"


@pytest.fixture
def a2(tmp_path: Path) -> VirtualNode:
    return VirtualNode(tmp_path / "root", "a2", interrupts=False)


@pytest.fixture
def snapshot(a2: VirtualNode, tmp_path: Path) -> Path:
    return snapshot_of(a2, tmp_path / "s.tar.gz")


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash with pipefail; what stderr says must be no traceback."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.parametrize("command", ["--help", "plan --help", "plan {} -o yaml", "plan {} -o json", "plan {}"])
@pytest.mark.parametrize(
    ("redirection", "said"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_a_stdout_that_takes_nothing_is_said(snapshot: Path, command: str, redirection: str, said: str) -> None:
    command = command.format(f"--snapshot {shlex.quote(str(snapshot))}")
    done = shell(f"{CPUBIND} {command} {redirection}")
    assert (done.returncode, done.stderr) == (1, f"cpubind: standard output: {said}\n")


def test_a_stderr_that_takes_nothing_changes_no_exit_status(snapshot: Path) -> None:
    for redirection in ("2>/dev/full", "2>&-"):
        assert shell(f"{CPUBIND} plan --strategy x {redirection}").returncode == 2
        assert shell(f"{CPUBIND} plan --snapshot {snapshot} -o yaml {redirection}").returncode == 0


@pytest.mark.parametrize("command", ["plan {} -o yaml", "plan {}", "--help"])
def test_a_reader_that_had_enough_is_no_failure(snapshot: Path, command: str) -> None:
    command = command.format(f"--snapshot {shlex.quote(str(snapshot))}")
    # true has ended by the time that anything is written
    done = shell(f"(sleep 0.3; {CPUBIND} {command}) | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_the_terminal_has_not_are_replaced(snapshot: Path, encoding: str, tmp_path: Path) -> None:
    for command, status in (
        (f"plan --snapshot {snapshot}", 0),
        ("demo --help", 0),
        ("explain npu:\u20ac", 2),
        ("plan --snapshot odd-\u20ac", 1),
    ):
        done = shell(f"{CPUBIND} {command}", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert done.returncode == status, command


def test_an_error_of_a_file_that_nobody_expected_is_one_line(cpubind: Cpubind, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*args: object) -> object:
        raise PermissionError(13, "Permission denied", "/secret\nplace")

    monkeypatch.setattr("agent.cli.look.settings_from", look)
    result = cpubind("plan")
    assert (result.status, result.err) == (1, "cpubind: /secret\\x0aplace: Permission denied\n")


def test_cpubind_alone_prints_its_help(cpubind: Cpubind) -> None:
    result = cpubind()
    assert (result.status, result.err) == (0, "")
    assert result.out == cpubind("--help").out


def test_wrong_usage_is_one_line(cpubind: Cpubind) -> None:
    for args in (["plan", "-o", "a\nb"], ["plan", "-o"], ["no\nsuch"], ["--nothing"], ["capture"]):
        result = cpubind(*args)
        assert result.status == 2
        assert result.err.startswith("cpubind: ")
        assert result.err.count("\n") == 1


def slow(folder: Path) -> Path:
    """An npu-smi that takes its time."""
    program = folder / "slow-npu-smi"
    program.write_text(f"#!/bin/sh\ntouch {folder}/asked\nexec sleep 60\n")
    program.chmod(0o755)
    return program


def capturing(a2: VirtualNode, folder: Path) -> subprocess.Popen[str]:
    """A capture that waits for npu-smi with its archive begun."""
    program = folder / "npu-smi-then-slow"
    program.write_text(
        f'#!/bin/sh\nif [ -n "$(ls -A {folder}/out)" ]; then touch {folder}/asked; exec sleep 60; fi\n'
        f'exec {a2.npu_smi.path} "$@"\n'
    )
    program.chmod(0o755)
    (folder / "out").mkdir()
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "agent", "capture", "-o", str(folder / "out/node.tar.gz")),
            *("--host-root", str(a2.root), "--npu-smi", str(program), "--node-name", "n"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_command_in_order(a2: VirtualNode, tmp_path: Path, number: signal.Signals) -> None:
    process = capturing(a2, tmp_path)
    try:
        wait_for(tmp_path / "asked")
        assert list((tmp_path / "out").iterdir())
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []


def test_nohup_is_heeded(a2: VirtualNode, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = capturing(a2, tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        wait_for(tmp_path / "asked")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_while_it_starts_is_no_traceback(delay: float, tmp_path: Path) -> None:
    """From the moment on at which Python runs code of ours."""
    code = (
        "import os, sys; sys.argv = ['cpubind', *sys.argv[1:]]; from agent.cli import main\n"
        "class Out:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'agent.cli.commands': os.write(2, b'!')\n"
        "sys.meta_path.insert(0, Out())\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "plan", "--host-root", "/", "--npu-smi", str(slow(tmp_path))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.stderr.read(1) == b"!"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"Traceback" in err, b"ignored" in err) == (130, False, False)


def test_nothing_heavy_is_imported_before_ctrl_c_is_handled() -> None:
    code = (
        "import agent.cli, sys; print([m for m in ('click', 'typing_extensions', 'yaml', 'rich') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# capture


def host(node: VirtualNode) -> list[object]:
    return ["--host-root", node.root, "--npu-smi", node.npu_smi.path, "--node-name", node.name]


def test_capture_says_what_it_wrote_in_numbers_that_fit(cpubind: Cpubind, a2: VirtualNode, tmp_path: Path) -> None:
    result = cpubind("capture", "-o", tmp_path / "b.tgz", *host(a2))
    assert result.status == 0
    assert " files, " in result.out
    assert " kB, " in result.out
    with tarfile.open(tmp_path / "b.tgz") as archive:
        assert f": {len(archive.getnames())} files" in result.out
    assert cpubind("plan", "--snapshot", tmp_path / "b.tgz").status == 0
    help_text = " ".join(cpubind("capture", "--help").out.split())
    assert ".tar.gz, .tgz or .tar" in help_text


def test_capture_without_npu_smi_writes_the_bundle_and_exits_with_1(
    cpubind: Cpubind, a2: VirtualNode, tmp_path: Path
) -> None:
    result = cpubind("capture", "-o", tmp_path / "b.tar", *host(a2), "--npu-smi", tmp_path / "none")
    assert result.status == 1
    assert (tmp_path / "b.tar").exists()
    assert result.err.splitlines()[-1] == "cpubind: npu-smi info did not answer: no plan can be made of this bundle"
    assert [line.count("npu-smi info:") for line in result.err.splitlines() if "npu-smi info:" in line] == [1]


def test_capture_into_a_place_that_cannot_be_looked_into(
    cpubind: Cpubind, a2: VirtualNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "closed/b.tar"
    lstat = Path.lstat

    def denied(path: Path) -> os.stat_result:
        if path == target:
            raise PermissionError(13, "Permission denied", str(target))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", denied)
    result = cpubind("capture", "-o", target, *host(a2))
    what_to_do = REMEDIES[Reason.SNAPSHOT_NOT_WRITTEN]
    assert result.status == 1
    assert result.err == f"cpubind: SnapshotNotWritten: {target}: Permission denied; {what_to_do}\n"


# the lock


def test_a_file_that_is_no_lock_of_ours_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("precious\n")
    lock, second = HostLock(path), HostLock(path)
    lock.acquire("cpubind 1, pid 1")
    with pytest.raises(Refused, match="another agent acts on this host: an unnamed process") as refused:
        second.acquire("cpubind 1, pid 2")
    assert refused.value.reason is Reason.LOCKED
    lock.release()
    assert path.read_text() == "precious\n"
    second.acquire("cpubind 1, pid 2")
    second.release()


def test_the_name_of_a_holder_that_died_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("cpubind 0.9, pid 123456789\n")
    lock = HostLock(path)
    lock.acquire("cpubind 1, pid 1")
    assert path.read_text() == "cpubind 1, pid 1\n"
    lock.release()
    assert path.read_text() == ""


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "pread"])
def test_a_name_that_cannot_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    lock, second = HostLock(tmp_path / "lock"), HostLock(tmp_path / "lock")
    monkeypatch.setattr(os, call, full)
    lock.acquire("cpubind 1, pid 1")
    with pytest.raises(Refused) as refused:
        second.acquire("cpubind 1, pid 2")
    assert refused.value.reason is Reason.LOCKED
    lock.release()
    second.acquire("cpubind 1, pid 2")
    second.release()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_lock_that_is_no_regular_file_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("elsewhere")
    with pytest.raises(Refused, match="not a regular file") as refused:
        HostLock(path).acquire("cpubind 1, pid 1")
    assert refused.value.reason is Reason.STATE_NOT_WRITTEN
    with pytest.raises(Refused, match="a folder"):
        HostLock(Path()).acquire("cpubind 1, pid 1")


def test_a_lock_on_a_file_that_can_only_be_read_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    opened = os.open

    def read_only(name: object, flags: int, *more: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(30, "Read-only file system")
        return opened(name, flags, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    lock, second = HostLock(path), HostLock(path)
    lock.acquire("cpubind 1, pid 1")
    with pytest.raises(Refused) as refused:
        second.acquire("cpubind 1, pid 2")
    assert refused.value.reason is Reason.LOCKED
    lock.release()
