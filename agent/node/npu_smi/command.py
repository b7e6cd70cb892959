"""Running npu-smi: the real one, and the replay of recorded outputs.

npu-smi talks to the driver. When the driver is stuck, npu-smi sleeps uninterruptibly and survives SIGKILL, so that
nothing here ever waits for it to end: past its time it is killed, left alone, and looked at again before the next run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from agent.model.reason import Reason, Refused
from agent.node.npu_smi.recognise import refuse_errors
from agent.node.npu_smi.tables import shown

__all__ = ["MAX_OUTPUT", "Child", "NpuSmi", "NpuSmiCommand", "RecordedNpuSmi"]

MAX_OUTPUT: Final = 8 << 20
"""Bytes. A table of 64 NPUs has about 30 KiB."""

_MAX_ERRORS: Final = 64 << 10  # of stderr, what is kept; the rest is read and dropped
_CHUNK: Final = 64 << 10
_LOOK: Final = 0.05  # seconds between looks whether the child ended, for when somebody else holds its pipes open
_LOOK_CLOSED: Final = 0.002  # the same once its pipes are closed: it is about to end
_NO_PROGRAM: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP})
_STATUS: Final = re.compile(r"-?[0-9]{1,3}", re.ASCII)
_LOCALE: Final = {"LC_ALL": "C", "LANG": "C", "LC_MESSAGES": "C"}


class NpuSmi(Protocol):
    """Something that answers as npu-smi does."""

    def query(self, *args: str) -> str:
        """What npu-smi prints for these arguments, such as ``"info", "-t", "topo"``.

        Raises Refused with NpuSmiNotFound, NpuSmiLibraryMissing, NpuSmiFailed, NpuSmiHung, DriverNotReady, DriverBusy,
        NotSupported or NoNpus; a replay also with SnapshotUnreadable.
        """
        ...


class Child(Protocol):
    """A running npu-smi, as far as `NpuSmiCommand` needs it."""

    pid: int

    def pipes(self) -> tuple[int, int]:
        """File descriptors to read its stdout and stderr from."""
        ...

    def close_pipes(self) -> None: ...

    def poll(self) -> int | None:
        """Its exit status (negative for a signal), None while it is there. Never waits; leaves no zombie."""
        ...

    def kill(self) -> None:
        """SIGKILL to it, if it is there, and to what it started. Never waits; sees to it that no zombie stays."""
        ...


class NpuSmiCommand:
    """The real npu-smi.

    `path` is looked up in PATH unless it has a slash, `timeout` is seconds for one query. Queries run one at a time: a
    second thread waits for the first. `library_path` is LD_LIBRARY_PATH for it, as the dynamic linker takes it.
    `spawn` starts the child; tests put a fake there.
    """

    def __init__(
        self,
        path: str = "npu-smi",
        timeout: float = 10.0,
        *,
        library_path: str = "",
        spawn: Callable[[Sequence[str], Mapping[str, str]], Child] | None = None,
    ) -> None:
        self._path = path
        self._timeout = timeout
        self._library_path = library_path
        self._spawn = _Process if spawn is None else spawn
        self._lock = threading.Lock()
        self._left: Child | None = None  # killed, and perhaps still there
        self._running: Child | None = None
        self._closed = False

    def query(self, *args: str) -> str:
        """As `NpuSmi.query`. Returns or raises within `timeout` seconds and a little."""
        with self._lock:
            if self._left is not None:
                if self._left.poll() is None:
                    raise Refused(Reason.NPU_SMI_HUNG, f"npu-smi (pid {self._left.pid}) was killed and does not end")
                self._left = None
            return self._run(args)

    def close(self) -> None:
        """Ends the query under way, in whatever thread it is, and refuses more: nothing stays when the agent ends."""
        self._closed = True
        if (child := self._running) is not None:
            child.kill()

    def _run(self, args: tuple[str, ...]) -> str:
        deadline = time.monotonic() + self._timeout
        try:
            child = self._spawn([self._path, *args], _environment(self._library_path))
        except (OSError, ValueError) as error:
            code = error.errno if isinstance(error, OSError) else errno.ENOENT
            reason = Reason.NPU_SMI_NOT_FOUND if code in _NO_PROGRAM else Reason.NPU_SMI_FAILED
            why = os.strerror(code) if code else "cannot be started"
            raise Refused(reason, f"{shown(self._path)}: {why}") from None
        self._running = child
        try:
            if self._closed:  # meanwhile: whoever closed it had no child to kill yet
                child.kill()
            output, errors, status = self._collect(child, deadline, _command(args))
        except Refused:
            raise
        except BaseException:  # Ctrl-C, say, which the child in its own session does not get
            child.kill()
            raise
        finally:
            self._running = None
            child.close_pipes()
        # stderr comes first: what it says of a failure is clearer than the head of a table.
        said = output if status == 0 and output.strip() else f"{errors}\n{output}"
        refuse_errors(_command(args), said, status)
        return output

    def _collect(self, child: Child, deadline: float, command: str) -> tuple[str, str, int]:
        """stdout, stderr and the exit status; a child that goes on for too long or prints too much is given up."""
        stdout, stderr = child.pipes()
        kept = {stdout: bytearray(), stderr: bytearray()}
        with selectors.DefaultSelector() as selector:
            for pipe in kept:
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            status = None
            while status is None or selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._give_up(child, Reason.NPU_SMI_HUNG, f"{command}: no answer in {self._timeout:g} s")
                # Asked before reading: all that an ended child wrote is in the pipe by then, so that there is no need
                # to wait for an end of file that a child of its own may hold back.
                status = child.poll()
                pause = 0 if status is not None else min(left, _LOOK if selector.get_map() else _LOOK_CLOSED)
                ready = selector.select(pause)
                if status is not None and not ready:
                    break
                for key, _ in ready:
                    data = _read(key.fd)
                    if data == b"":
                        selector.unregister(key.fd)
                    elif key.fd == stdout:
                        kept[stdout] += data
                    else:
                        kept[stderr] += data[: _MAX_ERRORS - len(kept[stderr])]
                if len(kept[stdout]) > MAX_OUTPUT:
                    mebibytes = MAX_OUTPUT >> 20
                    raise self._give_up(child, Reason.NPU_SMI_FAILED, f"{command}: more than {mebibytes} MiB of output")
        return kept[stdout].decode(errors="replace"), kept[stderr].decode(errors="replace"), status

    def _give_up(self, child: Child, reason: Reason, message: str) -> Refused:
        child.kill()
        if child.poll() is None:
            self._left = child
        return Refused(reason, message)


class _Process:
    """A real child: in a session of its own, so that one signal reaches whatever it started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self.pid = self._popen.pid

    def pipes(self) -> tuple[int, int]:
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        return self._popen.stdout.fileno(), self._popen.stderr.fileno()

    def close_pipes(self) -> None:
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()

    def poll(self) -> int | None:
        return self._popen.poll()

    def kill(self) -> None:
        if self._popen.poll() is not None:
            return  # its number may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # Takes its exit status whenever it ends, be it in hours, so that no zombie stays.
        threading.Thread(target=self._popen.wait, name="npu-smi-left", daemon=True).start()


def _command(args: Sequence[str]) -> str:
    """For messages."""
    return shown(" ".join(("npu-smi", *args)))


def _read(pipe: int) -> bytes:
    """What is there, at most a chunk; empty at the end."""
    return os.read(pipe, _CHUNK)


def _environment(library_path: str) -> dict[str, str]:
    """This process's, in the C locale: npu-smi's texts are looked for as they are in English (vllm-ascend #8251).

    The driver's libraries are for npu-smi alone: among them are some that would take the place of Python's own.
    """
    environment = {name: value for name, value in os.environ.items() if name != "LANGUAGE"} | _LOCALE
    return environment | ({"LD_LIBRARY_PATH": library_path} if library_path else {})


class RecordedNpuSmi:
    """Replays the outputs of a snapshot (design section 8).

    `folder` is the snapshot's folder. The answer to ``npu-smi info -t topo`` is ``npu-smi/info-t-topo.txt``: the
    arguments without their dashes, joined by one. Beside it ``info-t-topo.rc`` or ``info-t-topo.txt.rc`` holds the
    exit status where that was not 0. A missing recording is a query that the host does not answer: NpuSmiNotFound for
    ``info`` itself, NotSupported for the others. Snapshots come from anywhere, so that links out of the folder, files
    of more than 8 MiB and files that are none are refused as SnapshotUnreadable.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def query(self, *args: str) -> str:
        """As `NpuSmi.query`."""
        name = "-".join(arg.lstrip("-") for arg in args)
        if "/" in name or "\0" in name:
            raise Refused(Reason.NOT_SUPPORTED, f"{shown(name)}: no recording can have this name")
        output = self._text(f"{name}.txt")
        status = self._status(name)
        if output is None and not status:
            missing = Reason.NPU_SMI_NOT_FOUND if args == ("info",) else Reason.NOT_SUPPORTED
            raise Refused(missing, f"npu-smi/{shown(name)}.txt is not in the snapshot")
        refuse_errors(_command(args), output or "", status)
        return output or ""

    def _status(self, name: str) -> int:
        for file in (f"{name}.rc", f"{name}.txt.rc"):
            text = self._text(file)
            if text is not None:
                digits = text.strip()  # of more kinds of blanks than int() takes
                if _STATUS.fullmatch(digits) is None:
                    raise Refused(Reason.SNAPSHOT_UNREADABLE, f"npu-smi/{shown(file)} holds no exit status")
                return int(digits)
        return 0

    def _text(self, file: str) -> str | None:
        """The text of a file of the recording, None when there is none."""
        path = self._folder / "npu-smi" / file
        try:
            real = path.resolve(strict=True)
            if not real.is_relative_to(self._folder.resolve()):
                raise Refused(Reason.SNAPSHOT_UNREADABLE, f"npu-smi/{shown(file)} leads out of the snapshot")
            if not stat.S_ISREG(real.stat().st_mode):
                raise Refused(Reason.SNAPSHOT_UNREADABLE, f"npu-smi/{shown(file)} is no file")
            with real.open("rb") as stream:
                data = stream.read(MAX_OUTPUT + 1)
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError) as error:  # RuntimeError: links that go round in a circle
            why = shown(getattr(error, "strerror", None) or "links go round in a circle")
            raise Refused(Reason.SNAPSHOT_UNREADABLE, f"npu-smi/{shown(file)}: {why}") from None
        if len(data) > MAX_OUTPUT:
            raise Refused(Reason.SNAPSHOT_UNREADABLE, f"npu-smi/{shown(file)} has more than {MAX_OUTPUT >> 20} MiB")
        return data.decode(errors="replace")
