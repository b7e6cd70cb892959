"""``cpubind run --standalone`` as a process on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

TIMEOUT = 60.0


class Running:
    """A running agent and its files."""

    def __init__(self, folder: Path, *args: str, below: tuple[str, ...] = (), program: str = "agent") -> None:
        """Its npu-smi is below `folder`, and its files are in there. `below` is a command that runs it, `program` the
        module that is run."""
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *below,
                *(sys.executable, "-m", program, "run", "--standalone", "--allow-any-architecture"),
                *("--npu-smi", str(folder / "usr/local/bin/npu-smi"), "--node-name", "test-node"),
                *("--state-file", str(folder / "plan.yaml"), "--journal-file", str(folder / "journal.json")),
                *("--lock-file", str(folder / "lock"), "--log-format", "json", "--sweep-interval", "0.2", *args),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )

    def state(self, holds: Callable[[dict[str, Any]], bool], name: str = "plan.yaml") -> dict[str, Any]:
        """The state file, once it is as expected."""
        end = time.monotonic() + TIMEOUT
        document: dict[str, Any] = {}
        while time.monotonic() < end:
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            try:
                document = yaml.safe_load((self.folder / name).read_text()) or {}
            except FileNotFoundError:
                document = {}
            if document and holds(document):
                return document
            time.sleep(0.05)
        raise AssertionError(f"not as expected: {document}")

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """SIGTERM; the exit status and the log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, [json.loads(line) for line in log.splitlines()]

    def close(self) -> None:
        """Kills it, where it still runs."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def condition(document: dict[str, Any], kind: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(c for c in document["status"]["conditions"] if c["type"] == kind)
    return entry
