"""npu-smi is run so that nothing that it does, or fails to do, holds up the agent. Its stand-ins here are scripts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.command import MAX_OUTPUT, NpuSmiCommand
from tests.node.npu_smi.samples import fixture

SOON = 30.0
"""Seconds within which what is not waited for must have returned; the stand-ins that hang do so for far longer."""

Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Writes a stand-in for npu-smi. It leaves its pid beside itself."""

    def write(body: str) -> Path:
        path = tmp_path / "npu-smi"
        path.write_text(f'#!/bin/sh\necho $$ > "$0.pid"\n{body}\n')
        path.chmod(0o755)
        return path

    return write


def test_what_npu_smi_prints_is_returned_and_its_arguments_reach_it(script: Script) -> None:
    command = NpuSmiCommand(str(script('echo "$#: $*"; echo noise >&2')))
    assert command.query("info", "-t", "board", "-i", "0", "-c", "1") == "7: info -t board -i 0 -c 1\n"
    assert command.query("info") == "1: info\n"


def test_a_table_comes_through_unchanged(script: Script, tmp_path: Path) -> None:
    text = fixture("info", "a3_24.1.rc3.7_idle16")
    (tmp_path / "table").write_text(text)
    assert NpuSmiCommand(str(script('cat "${0%/*}/table"'))).query("info") == text


def test_npu_smi_is_looked_up_in_path(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script("echo found")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    assert NpuSmiCommand().query("info") == "found\n"


def test_the_libraries_of_the_driver_are_for_npu_smi_alone(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    command = NpuSmiCommand(
        str(script('echo "libraries: $LD_LIBRARY_PATH"')), library_path="/driver/lib64:/driver/common"
    )
    assert command.query("info") == "libraries: /driver/lib64:/driver/common\n"
    assert "LD_LIBRARY_PATH" not in os.environ


def test_a_chinese_locale_changes_nothing(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANG", "LC_ALL", "LC_MESSAGES", "LANGUAGE"):
        monkeypatch.setenv(name, "zh_CN.UTF-8")
    body = """
        case "$LC_ALL$LC_MESSAGES$LANG${LANGUAGE-}" in
            CCC) echo "There is no NPU card on this server." ;;
            *) echo "此服务器上没有NPU卡。" ;;
        esac"""
    assert _refusal(NpuSmiCommand(str(script(body)))).reason is Reason.NO_NPUS


def test_npu_smi_finds_nothing_to_read_on_its_input(script: Script) -> None:
    assert NpuSmiCommand(str(script("cat; echo end"))).query("info") == "end\n"


def test_bytes_that_are_no_text_are_replaced(script: Script) -> None:
    assert NpuSmiCommand(str(script(r"printf 'a\377\000b\n'"))).query("info") == "a\ufffd\x00b\n"


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        ("echo 'dcmi module initialize failed. ret is -8005'", Reason.DRIVER_NOT_READY, "-8005"),
        ("echo 'dcmi module initialize failed. ret is -8005'; exit 187", Reason.DRIVER_NOT_READY, "-8005"),
        ("echo 'dcmi module initialize failed. ret is -8005' >&2", Reason.DRIVER_NOT_READY, "-8005"),
        (
            "echo 'npu-smi: error while loading shared libraries: libc_sec.so: cannot open' >&2; exit 127",
            Reason.NPU_SMI_LIBRARY_MISSING,
            "libc_sec.so",
        ),
        ("echo 'Error parameter of -t'; exit 1", Reason.NOT_SUPPORTED, "Error parameter of -t"),
        ("echo '+---+'; echo 'what went wrong' >&2; exit 3", Reason.NPU_SMI_FAILED, "exit status 3: what went wrong"),
        ("exit 3", Reason.NPU_SMI_FAILED, "exit status 3"),
        ("kill -SEGV $$", Reason.NPU_SMI_FAILED, "ended by signal 11"),
    ],
)
def test_a_failure_has_its_reason(script: Script, body: str, reason: Reason, message: str) -> None:
    refused = _refusal(NpuSmiCommand(str(script(body))))
    assert refused.reason is reason
    assert message in refused.message


def test_what_is_no_program_is_not_found(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    assert _refusal(NpuSmiCommand(str(text))).reason is Reason.NPU_SMI_NOT_FOUND
    text.chmod(0o755)
    assert _refusal(NpuSmiCommand(str(text))).reason is Reason.NPU_SMI_NOT_FOUND
    for path in (tmp_path, tmp_path / "nothing", text / "below", "npu-smi-of-another-name", "a\0b"):
        assert _refusal(NpuSmiCommand(str(path))).reason is Reason.NPU_SMI_NOT_FOUND


def test_a_host_without_memory_for_a_child_is_a_failure() -> None:
    def no_memory(command: Sequence[str], environment: Mapping[str, str]) -> UnkillableFake:
        raise OSError(12, "Cannot allocate memory")

    refused = _refusal(NpuSmiCommand(spawn=no_memory))
    assert refused.reason is Reason.NPU_SMI_FAILED
    assert "Cannot allocate memory" in refused.message


@pytest.mark.parametrize(
    "body",
    [
        "exec sleep 1000",
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        "echo the head of a table; exec sleep 1000",
        "exec >&- 2>&-; sleep 1000",
        "sleep 1000 & sleep 1000",
    ],
    ids=["sleeps", "ignores signals", "stops amid its output", "closes its output", "waits for a child of its own"],
)
def test_a_hang_is_killed_with_all_it_started_and_not_waited_for(script: Script, body: str) -> None:
    path = script(body)
    command = NpuSmiCommand(str(path), timeout=0.5)
    started = time.monotonic()
    refused = _refusal(command)
    assert time.monotonic() - started < SOON
    assert refused.reason is Reason.NPU_SMI_HUNG
    assert refused.message == "npu-smi info: no answer in 0.5 s"
    pid = _pid(path)
    _wait_until(lambda: not _group(pid))
    assert not Path(f"/proc/{pid}").exists(), "no zombie is left"
    _wait_until(lambda: not any(thread.name == "npu-smi-left" for thread in threading.enumerate()))
    script("echo back")
    assert command.query("info") == "back\n"


def test_a_grandchild_that_keeps_the_pipe_open_does_not_hold_up_an_answer(script: Script) -> None:
    path = script("sleep 1000 & echo answer")
    started = time.monotonic()
    assert NpuSmiCommand(str(path), timeout=600).query("info") == "answer\n"
    assert time.monotonic() - started < SOON
    os.killpg(_pid(path), signal.SIGKILL)


def test_a_grandchild_that_goes_on_printing_ends_with_the_pipe(script: Script) -> None:
    path = script("yes & exit 0")
    started = time.monotonic()
    with contextlib.suppress(Refused):  # whether it printed too much by then is a matter of luck
        NpuSmiCommand(str(path), timeout=600).query("info")
    assert time.monotonic() - started < SOON
    _wait_until(lambda: not _group(_pid(path)))


@pytest.fixture
def escaped(tmp_path: Path) -> Iterator[Path]:
    """Where a stand-in writes the pid of a child that it put into another session."""
    path = tmp_path / "escaped"
    yield path
    if path.exists():
        os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("then", ["exec sleep 1000", "echo answer"])
def test_a_grandchild_that_got_away_with_the_pipe_holds_up_nothing(script: Script, escaped: Path, then: str) -> None:
    path = script(f"setsid sh -c 'echo $$ > {escaped}; exec sleep 1000' &\nuntil [ -s {escaped} ]; do :; done\n{then}")
    started = time.monotonic()
    if then == "echo answer":
        assert NpuSmiCommand(str(path), timeout=600).query("info") == "answer\n"
    else:
        assert _refusal(NpuSmiCommand(str(path), timeout=1)).reason is Reason.NPU_SMI_HUNG
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize("body", ["exec yes", f"head -c {MAX_OUTPUT + 1} /dev/zero"])
def test_endless_output_is_refused(script: Script, body: str) -> None:
    path = script(body)
    started = time.monotonic()
    refused = _refusal(NpuSmiCommand(str(path), timeout=600))
    assert time.monotonic() - started < SOON
    assert refused.reason is Reason.NPU_SMI_FAILED
    assert refused.message == "npu-smi info: more than 8 MiB of output"
    _wait_until(lambda: not _group(_pid(path)))


def test_noise_on_stderr_is_read_and_dropped(script: Script) -> None:
    assert NpuSmiCommand(str(script("yes | head -c 3000000 >&2; echo answer"))).query("info") == "answer\n"


def test_queries_of_two_threads_run_one_after_the_other(script: Script) -> None:
    command = NpuSmiCommand(str(script('mkdir "$0.lock" || exit 9\nsleep 0.1\nrmdir "$0.lock"\necho answer')))
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(command.query("info"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == 3 * ["answer\n"]


class UnkillableFake:
    """A fake child in uninterruptible sleep: it answers nothing, and SIGKILL does not end it before `let_go`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.kills = 0
        self.gone = False
        self._ends = [os.pipe(), os.pipe()]

    def pipes(self) -> tuple[int, int]:
        return self._ends[0][0], self._ends[1][0]

    def close_pipes(self) -> None:
        for reading, writing in self._ends:
            os.close(reading)
            os.close(writing)

    def poll(self) -> int | None:
        return -9 if self.gone else None

    def kill(self) -> None:
        self.kills += 1


def test_while_a_child_survives_sigkill_no_second_one_starts() -> None:
    children: list[UnkillableFake] = []

    def spawn(command: Sequence[str], environment: Mapping[str, str]) -> UnkillableFake:
        children.append(UnkillableFake(4711 + len(children)))
        return children[-1]

    command = NpuSmiCommand(timeout=0.05, spawn=spawn)
    assert _refusal(command).message == "npu-smi info: no answer in 0.05 s"
    assert children[0].kills == 1
    for _ in range(3):
        started = time.monotonic()
        refused = _refusal(command)
        assert time.monotonic() - started < 1
        assert refused.reason is Reason.NPU_SMI_HUNG
        assert refused.message == "npu-smi (pid 4711) was killed and does not end"
    assert len(children) == 1
    children[0].gone = True
    _refusal(command)
    assert len(children) == 2


def _refusal(command: NpuSmiCommand) -> Refused:
    with pytest.raises(Refused) as refused:
        command.query("info")
    return refused.value


def _pid(script: Path) -> int:
    return int(Path(f"{script}.pid").read_text())


def _group(leader: int) -> list[int]:
    """The processes of a process group; of zombies its leader alone: the others are init's to bury."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader and (fields[0] != "Z" or entry.name == str(leader)):
                found.append(int(entry.name))
    return found


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_ends_a_query_in_another_thread_and_leaves_no_child(script: Script) -> None:
    path = script("exec sleep 3600")
    command = NpuSmiCommand(str(path), timeout=3000.0)
    refused: list[Refused] = []
    thread = threading.Thread(target=lambda: refused.append(_refusal(command)))
    thread.start()
    recorded = path.with_name("npu-smi.pid")
    end = time.monotonic() + 20
    while not (recorded.exists() and recorded.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.01)
    command.close()
    thread.join(20)
    assert not thread.is_alive()
    assert refused[0].reason is Reason.NPU_SMI_FAILED
    with pytest.raises(ProcessLookupError):
        os.kill(int(recorded.read_text()), 0)


def test_an_interrupt_takes_the_child_with_it(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script("exec sleep 3600")
    recorded = path.with_name("npu-smi.pid")
    command = NpuSmiCommand(str(path), timeout=3000.0)

    def interrupted(*_: object) -> None:
        end = time.monotonic() + SOON
        while not (recorded.exists() and recorded.read_text().strip()) and time.monotonic() < end:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.query("info")
    pid = int(recorded.read_text())
    end = time.monotonic() + SOON
    while _alive(pid):
        assert time.monotonic() < end, "the child is still there"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
