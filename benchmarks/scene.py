"""A real standalone agent on this machine's kernel, with stand-ins for npu-smi, NPUs and workers.

The host root is a folder that has this machine's own /proc and /sys in it, and a ``dev/davinci`` in the form of a
snapshot: it names terminals in place of NPUs, which nobody else has open, need no rights, and go with this process. The
agent is told to bind processes of the stand-ins' name alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES
from agent.demo.standin import StandIn
from agent.model.node import ProcessRow
from benchmarks.cases import Skipped
from benchmarks.clock import cpu_seconds, rss_mib

ROOT = Path(__file__).parents[1]
NAME = "vllm_worker"
PATIENCE = 30.0
CONTEXT_MIB = 55_000

EVERY = os.sched_getaffinity(0)
MAIN, APART = {min(EVERY)}, {max(EVERY)}
"""Where `benchmarks.agent_process` has threads be: main ones, and those of ACL and release."""

HAS_EVENTS = importlib.util.find_spec("agent.control.events") is not None
"""Whether this agent hears of what processes do, or finds it in its sweeps alone."""


class Agent:
    """A running ``cpubind run --standalone``."""

    def __init__(self, host: Host, *flags: str, log_level: str = "info") -> None:
        folder = host.folder
        self.log_file = folder / "log.json"
        self._state = folder / "plan.yaml"
        for left in (self._state, folder / "journal.json"):
            left.unlink(missing_ok=True)
        self.begun = time.monotonic()
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.agent_process", "run", "--standalone"),
                    *("--allow-any-architecture", "--host-root", str(host.root), "--node-name", "bench"),
                    *("--npu-smi", str(host.npu_smi.path), "--select", f"comm={NAME}"),
                    *("--state-file", str(self._state), "--journal-file", str(folder / "journal.json")),
                    *("--lock-file", str(folder / "lock"), "--log-format", "json", "--log-level", log_level, *flags),
                ],
                cwd=ROOT,
                env={key: value for key, value in os.environ.items() if not key.startswith("CPUBIND_")},
                stderr=log,
            )
        self.pid = self.process.pid

    @property
    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_seconds(self.pid)

    @property
    def rss(self) -> float:
        """Resident memory in MiB."""
        return rss_mib(self.pid)

    def log(self) -> list[dict[str, Any]]:
        """What it has logged; a line under way is left out."""
        found = []
        for line in self.log_file.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                found.append({"level": "error", "message": line})
        return found

    def errors(self) -> list[str]:
        """What it has logged as an error, or not logged but written."""
        return [entry["message"] for entry in self.log() if entry.get("level") in ("error", "critical")]

    def status(self) -> Mapping[str, Any]:
        """`status` of its plan; empty before the first."""
        with contextlib.suppress(FileNotFoundError):
            document = yaml.safe_load(self._state.read_text()) or {}
            status: Mapping[str, Any] = document.get("status") or {}
            return status
        return {}

    def wait(self, holds: Callable[[], bool], what: str, *, every: float = 0.02) -> None:
        """Until something is so; AssertionError with the end of the log when it does not come to be."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, f"the agent ended: {self.log_file.read_text()[-2000:]}"
            assert time.monotonic() < end, f"{what}: not in {PATIENCE:g} s: {self.log_file.read_text()[-2000:]}"
            time.sleep(every)

    def wait_until_bound(self, workers: Collection[StandIn]) -> None:
        """Until every thread of these is in place, as the kernel has it."""
        self.wait(lambda: not any(astray(worker.pid) for worker in workers), "bound", every=0.2)

    def close(self) -> None:
        """SIGTERM, and SIGKILL for one that does not heed it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Host:
    """A host root, its npu-smi and its NPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.npu_smi = NpuSmiStandIn(folder, PROFILES["a3"])
        self.npus = PROFILES["a3"].inventory.npus
        self._masters: list[int] = []
        self._paths: list[Path] = []
        (self.root / "dev").mkdir(parents=True)
        for name in ("proc", "sys"):
            (self.root / name).symlink_to(f"/{name}")
        lines = []
        for npu in self.npus:
            master, slave = os.openpty()
            number = os.fstat(slave).st_rdev
            self._masters.append(master)
            self._paths.append(Path(os.ttyname(slave)))
            # This process is not to be one that has an NPU open.
            os.close(slave)
            lines.append(f"{npu.device_number} {os.major(number)}:{os.minor(number)}\n")
        (self.root / "dev/davinci").write_text("".join(lines))

    def device(self, npu: int) -> Path:
        """What a worker opens."""
        return self._paths[npu]

    def hold(self, npu: int, worker: StandIn) -> None:
        """A worker opens an NPU, and npu-smi lists it."""
        rows = [row for row in self.npu_smi.rows if row.pid != worker.pid]
        worker.open(self.device(npu))
        self.npu_smi.set_rows(sorted([*rows, ProcessRow(npu, worker.pid, CONTEXT_MIB, NAME)], key=lambda row: row.npu))

    def let_go(self, worker: StandIn) -> None:
        """It is not listed any more."""
        self.npu_smi.set_rows(row for row in self.npu_smi.rows if row.pid != worker.pid)

    def close(self) -> None:
        """Gives the terminals back."""
        for master in self._masters:
            os.close(master)


class Scene(ExitStack):
    """A host with workers on it; a context manager, at whose end all of them are gone."""

    def __init__(self) -> None:
        super().__init__()
        if len(EVERY) < 2:
            raise Skipped("one CPU: a thread can't be moved")
        folder = self.enter_context(tempfile.TemporaryDirectory(prefix="cpubind-bench-"))
        self.host = Host(Path(folder))
        self.callback(self.host.close)

    def worker(self, npu: int, threads: int = 20) -> StandIn:
        """A worker on an NPU, with an ACL and a release thread among its threads."""
        worker = self.enter_context(StandIn("--threads", str(threads - 3), "--acl", "--release"))
        self.host.hold(npu, worker)
        return worker

    def agent(self, *flags: str) -> Agent:
        """Starts it."""
        return self.enter_context(Agent(self.host, *flags))


def astray(pid: int) -> list[int]:
    """Threads of a worker that are not where they belong, as far as they still live."""
    found = []
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            comm = Path(f"/proc/{pid}/task/{name}/comm").read_bytes()
            wanted = APART if comm.startswith((b"acl_thread", b"release_thread")) else MAIN
            if os.sched_getaffinity(int(name)) != wanted:
                found.append(int(name))
    return found


@contextmanager
def crowd(count: int) -> Iterator[None]:
    """So many other processes, that do nothing; they end when the caller does, however that ends."""
    alive, held = os.pipe()
    try:
        others = [subprocess.Popen(["cat"], stdin=alive, stdout=subprocess.DEVNULL) for _ in range(count)]
        os.close(alive)
        try:
            yield
        finally:
            os.close(held)
            held = -1
            for other in others:
                other.wait()
    finally:
        if held >= 0:
            os.close(held)


def system_calls(pid: int, seconds: float) -> dict[str, int] | None:
    """System calls of a process and all its threads over some seconds, by name; None where strace can't count them."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.TemporaryDirectory(prefix="cpubind-bench-") as folder:
        out = Path(folder) / "counts"
        tracer = subprocess.Popen(
            [strace, "-c", "-f", "-U", "calls,name", "-p", str(pid), "-o", str(out)], stderr=subprocess.DEVNULL
        )
        time.sleep(seconds)
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
        return _counts(out.read_text()) if out.exists() else None


def _counts(text: str) -> dict[str, int] | None:
    """The table of ``strace -c -U calls,name``."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdecimal() and words[1] != "total":
            found[words[1]] = int(words[0])
    return found or None
