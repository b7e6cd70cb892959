"""Starts stand-in workers and talks to them: the other end of `agent.demo.standin_worker`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PROGRAM = Path(__file__).with_name("standin_worker.py")


class StandIn:
    """Starts a stand-in worker and talks to it. A context manager, at whose end the worker is killed."""

    def __init__(self, *arguments: str, below: Sequence[str] = ()) -> None:
        """`arguments` are those of the program, `below` is a command that runs it, such as setpriv(1). Returns once it
        is ready."""
        self._process = subprocess.Popen(
            # -I -S: the standard library is all it needs, and site-packages take their time.
            [*below, sys.executable, "-I", "-S", str(PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = self._answer()
        self.pid: int = ready["pid"]
        self.threads: dict[str, list[int]] = ready["threads"]
        """tids by name, as they were when it was ready."""

    def spawn(self, name: str, count: int = 1) -> list[int]:
        """Starts threads and returns their tids."""
        tids: list[int] = self._ask(do="spawn", name=name, count=count)["tids"]
        return tids

    def end(self, *tids: int) -> None:
        """Ends threads."""
        self._ask(do="end", tids=tids)

    def rename(self, tid: int, name: str) -> None:
        """Renames a thread; Latin-1."""
        self._ask(do="rename", tid=tid, name=name)

    def fork(self, tid: int, depth: int = 1) -> list[int]:
        """Forks a child from a thread, and a child from that and so on; returns their pids, eldest first."""
        pids: list[int] = self._ask(do="fork", tid=tid, depth=depth)["pids"]
        return pids

    def map(self, kind: str, mib: int, path: Path | None = None) -> int:
        """Maps memory and touches all of it; returns its address. For the kinds see the program."""
        file = {} if path is None else {"path": str(path)}
        address: int = self._ask(do="map", kind=kind, mib=mib, **file)["address"]
        return address

    def pace(self, address: int) -> None:
        """Starts a thread that touches what was mapped there, page after page."""
        self._ask(do="pace", address=address)

    def pace_end(self) -> dict[str, float]:
        """Ends that: how often it touched a page (`touches`), and the longest time between two (`longest_ms`)."""
        return self._ask(do="pace_end")

    def open(self, path: Path) -> None:
        """Opens a file and keeps it open."""
        self._ask(do="open", path=str(path))

    def placed(self, name: str, count: int, *, gap: float = 0.01, patience: float = 10.0) -> list[float]:
        """Starts threads one after the other that take a name: seconds until each had another mask. Those to whom
        nobody gave one in time are left out."""
        taken = self._ask(do="placed", name=name, count=count, gap=gap, patience=patience)["ns"]
        return [ns / 1e9 for ns in taken]

    def churn(self, rate: int) -> int:
        """From now on so many threads a second that live for a moment; how many there have been."""
        made: int = self._ask(do="churn", rate=rate)["made"]
        return made

    def forks(self, rate: int) -> int:
        """From now on so many children a second that live for a moment; how many there have been."""
        made: int = self._ask(do="forks", rate=rate)["made"]
        return made

    def kill(self, *, reap: bool = True) -> None:
        """SIGKILL. Without `reap` a zombie stays behind until the context ends."""
        self._process.kill()
        if reap:
            self._process.wait()

    def close(self) -> None:
        """Kills it and frees what it took."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **command: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the stand-in worker ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
