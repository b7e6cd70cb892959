"""``cpubind run`` as a process on this machine, as in a pod whose API server a test plays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES
from tests.cluster.background import free_port
from tests.cluster.client import eventually

T = TypeVar("T")

NODE = "this-node"
TIMEOUT = 60.0
"""Seconds for what takes one or two; other tests may have the CPUs."""


class AgentProcess:
    """A running agent. Its host is this one, without whatever NPUs and kubelet it has; its files are in `folder`, its
    npu-smi is a stand-in that is there only if `npus` says so."""

    def __init__(
        self,
        folder: Path,
        server: tuple[str, int] | None,
        account: Path,
        *args: str,
        npus: bool = True,
        health: int = 0,
        **environment: str,
    ) -> None:
        """`server` is the API server's address; without one this is no pod. `health` is the port for probes."""
        self.health, self.metrics = health or free_port(), free_port()
        self._log = folder / f"log-{time.monotonic_ns()}"
        npu_smi, root = folder / "usr/local/bin/npu-smi", folder / "host"
        if npus and not npu_smi.exists():
            NpuSmiStandIn(folder, PROFILES["a2"])
        if not root.exists():
            (root / "sys").mkdir(parents=True)
            for part in ("proc", "sys/devices", "sys/fs"):
                (root / part).symlink_to(Path("/", part))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("CPUBIND_", "KUBERNETES_"))}
        if server is not None:
            inherited |= {"KUBERNETES_SERVICE_HOST": server[0], "KUBERNETES_SERVICE_PORT": str(server[1])}
        cluster: tuple[str, ...] = (
            *("--service-account-dir", str(account), "--health-address", f"127.0.0.1:{self.health}"),
            *("--status-interval", "0.3", "--api-jitter", "0"),
        )
        if "--standalone" in args:
            cluster = ()
        self.begun = time.monotonic()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "agent", "run", "--node-name", NODE, "--npu-smi", str(npu_smi)),
                    *("--host-root", str(root)),
                    *("--log-format", "json", "--sweep-interval", "0.2", *cluster),
                    *("--journal-file", str(folder / "journal.json"), "--lock-file", str(folder / "lock")),
                    *("--metrics-address", f"127.0.0.1:{self.metrics}", *args),
                ],
                stderr=log,
                env=inherited | {"CPUBIND_ARCHITECTURE": "x86_64"} | environment,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Its log; nothing else may be on stderr."""
        return [json.loads(line) for line in self.text.splitlines(keepends=True) if line.endswith("\n")]

    def lines(self, part: str = "") -> list[str]:
        """The messages of the log with these words."""
        return [entry["message"] for entry in self.log if part in entry["message"]]

    def until(self, look: Callable[[], T], what: str) -> T:
        def looked() -> T:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.text}"
            return look()

        return eventually(looked, what, TIMEOUT)

    def until_said(self, part: str) -> str:
        """The first line of its log with these words."""
        return self.until(lambda: self.lines(part), f"it says {part!r}")[0]

    def get(self, path: str, port: int = 0) -> tuple[int, str]:
        """The status and the body of a probe; (0, "") where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.health}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def until_ready(self, status: int = 200, part: str = "") -> str:
        """What ``/readyz`` says once it has this status and these words."""
        self.until(lambda: (found := self.get("/readyz"))[0] == status and part in found[1], f"{status} {part}")
        return self.get("/readyz")[1].rstrip("\n")

    def rss_mib(self) -> float:
        """The memory that it occupies."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    def terminate(self) -> tuple[int, float]:
        """SIGTERM; its exit status, and the seconds until then."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT), time.monotonic() - begun

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self.process.kill()
        self.process.wait()
