"""Programs that tests start: ended with the test process, whatever becomes of that."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class StartError(Exception):
    """A program that did not come up; the message ends with its last words."""


class Program:
    """One program with a log file. `start` and `kill` as often as one likes."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command = tuple(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of a program that was started."""
        assert self._process is not None
        return self._process.pid

    def start(self, ready: Callable[[], bool], timeout: float) -> None:
        """Returns when it is ready. `StartError` when it ends before, or takes too long; it is killed then."""
        # The kernel ends it when this process dies, even by SIGKILL; a session of its own keeps Ctrl-C from it.
        leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*leash, *self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + timeout
        while not ready():
            ended = self._process.poll()
            if ended is not None or time.monotonic() > until:
                self.kill()
                what = f"ended with status {ended}" if ended is not None else f"was not ready within {timeout:g} s"
                raise StartError(f"{Path(self.command[0]).name} {what}: {self._last_words()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """At once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        telling = [line for line in lines if line.startswith(("F", "E", "Error", "panic"))]
        return " | ".join((telling or lines)[-3:])[-600:] or "it said nothing"
