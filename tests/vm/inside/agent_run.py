"""The agent as a process of this machine: started, killed, and watched through the state file that it keeps."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

# For the agents and commands that are forked off: importing all this takes half a minute here.
from agent.cli import commands as _commands  # noqa: F401
from agent.cli import restore as _restore  # noqa: F401
from agent.cli import run as _run  # noqa: F401

PATIENCE = 480.0
"""Seconds until something has happened. The machine is emulated, and its host has other things to do."""
SWEEP = 2.0

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Status = dict[str, Any]


class AgentRun:
    """``cpubind run --standalone`` with files of its own in a folder, which outlast its death."""

    def __init__(self, folder: Path, npu_smi: Path, *, root: Path = Path("/")) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state_file = folder / "plan.yaml"
        self.journal_file = folder / "journal.json"
        self.log_file = folder / "log"
        self.files = [
            "--host-root",
            str(root),
            "--journal-file",
            str(self.journal_file),
            "--lock-file",
            str(folder / "lock"),
        ]
        self._command = ["run", "--standalone", "--npu-smi", str(npu_smi), "--npu-smi-timeout", "60", *self.files]
        self._command += ["--state-file", str(self.state_file)]
        self._command += ["--sweep-interval", str(SWEEP), "--node-name", "node-arm"]
        self._seen: tuple[int, Status] = (0, {})
        self.pid = 0

    def start(self) -> None:
        """Starts it as people do. Importing it takes most of a minute here."""
        self.pid = os.fork()
        if self.pid == 0:
            _detach(self.log_file)
            os.execv(sys.executable, [sys.executable, "-m", "agent", *self._command])

    def fork(self) -> None:
        """Starts it as a child of this process, which has imported it already."""
        self.pid = os.fork()
        if self.pid == 0:
            _become(self._command, self.log_file)

    def kill(self) -> None:
        """SIGKILL, wherever it is just now."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and until it has ended."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def check(self) -> None:
        """RuntimeError, with the end of its log, where it has ended by itself: nothing is to be waited for then."""
        if self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                code = os.waitstatus_to_exitcode(status)
                raise RuntimeError("\n".join([f"the agent ended with status {code}:", *self.log()]))

    def status(self) -> Status:
        """`status` as the state file has it now; empty before the first."""
        try:
            stamp = self.state_file.stat().st_mtime_ns
            if stamp != self._seen[0]:
                # The agent renames a whole file into place: what is read is never half of one.
                document = yaml.load(self.state_file.read_text(), Loader=_LOADER) or {}
                self._seen = stamp, document.get("status", {})
        except FileNotFoundError:
            return {}
        return self._seen[1]

    def set_spec(self, **spec: object) -> None:
        """Edits the state file as a person would: all but `spec` stays."""
        document = yaml.load(self.state_file.read_text(), Loader=_LOADER)
        fresh = self.state_file.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(document | {"spec": spec}))
        fresh.rename(self.state_file)

    def wait(self, done: Callable[[Status], bool], seconds: float = PATIENCE) -> tuple[Status, float]:
        """Until `done` is so: the status then, and after how many seconds. A host test judges a status that never
        came, so that here it is told as it is."""
        begun = time.monotonic()
        while not done(self.status()) and time.monotonic() - begun < seconds:
            self.check()
            time.sleep(0.5)
        return self.status(), round(time.monotonic() - begun, 1)

    def log(self, lines: int = 40) -> list[str]:
        """The last lines that it has said, over all starts."""
        return self.log_file.read_text(errors="replace").splitlines()[-lines:] if self.log_file.exists() else []

    def command(self, *words: str) -> dict[str, Any]:
        """Another command of cpubind, with the same files: its exit status and what it printed."""
        output = self.log_file.with_suffix(".command")
        output.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            _become([*words, *self.files], output)
        _, status = os.waitpid(pid, 0)
        return {"exit": os.waitstatus_to_exitcode(status), "output": output.read_text(errors="replace").splitlines()}


def every_worker(status: Status, workers: Sequence[int]) -> bool:
    """Whether each of these pids is Bound."""
    states = {w["pid"]: w.get("state") for npu in status.get("npus", ()) for w in npu.get("workers", ())}
    return all(states.get(pid) == "Bound" for pid in workers)


def _become(arguments: list[str], output: Path) -> None:
    """Turns this child into ``cpubind ARGUMENTS``; does not return."""
    status = 70
    try:
        _detach(output)
        sys.argv = ["cpubind", *arguments]
        from agent.cli import main

        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _detach(output: Path) -> None:
    """Makes this child a session of its own, which writes to a file."""
    os.setsid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
