"""A node with NPUs that only npu-smi knows, and stand-in workers on these, in containers: what a scenario acts on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent.demo.check import LiveMasks, astray
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES
from agent.demo.standin import StandIn
from agent.model.cpuset import CpuSet
from agent.model.node import Inventory, ProcessRow
from agent.node.host import LinuxHost
from agent.node.sysfs import read_topology
from tests.vm.inside.agent_run import PATIENCE, SWEEP, AgentRun, every_worker
from tests.vm.inside.cgroup import Container, leave

Facts = dict[str, Any]

MEMORY_MIB = 30_000
THREADS = 6


class Scene:
    """NPUs, workers and an agent. A context manager, at whose end all processes are killed."""

    def __init__(
        self,
        name: str,
        device: str,
        homes: Iterable[str | None],
        *,
        bus_ids: Iterable[str] = (),
        root: Path = Path("/"),
    ) -> None:
        """`device`: a profile of the demo. `homes`: of each NPU the CPUs near it, as npu-smi is to print them. `root`:
        where the agent is to see this machine."""
        model = PROFILES[device]
        homes = list(homes)
        npus = [
            replace(npu, affinity=None if home is None else CpuSet.parse(home))
            for npu, home in zip(model.inventory.npus, homes, strict=False)
        ]
        for k, bus_id in enumerate(bus_ids):
            npus[k] = replace(npus[k], bus_id=bus_id)
        profile = replace(
            model,
            name=name,
            topology=read_topology(Path("/")),
            inventory=Inventory(tuple(npus), model.inventory.device_type),
        )
        self.folder = Path("/tmp/scenes") / name
        self.npu_smi = NpuSmiStandIn(self.folder, profile)
        self.workers: dict[int, StandIn] = {}
        self.containers: dict[int, Container] = {}
        self.agent = AgentRun(self.folder / "agent", self.npu_smi.path, root=root)
        self._name = name
        self._stack = ExitStack()
        self._live = LiveMasks(LinuxHost())

    def worker(self, npu: int, cpus: str, *arguments: str) -> StandIn:
        """A worker on an NPU, in a container of its own with these CPUs, and threads of every role."""
        options = arguments or ("--threads", str(THREADS), "--acl", "--release")
        worker = self._stack.enter_context(StandIn(*options))
        self.containers[npu] = Container(f"{self._name}-{npu}", cpus)
        self.containers[npu].add(worker.pid)
        self.workers[npu] = worker
        self.npu_smi.set_rows(ProcessRow(k, w.pid, MEMORY_MIB, "vllm_worker") for k, w in self.workers.items())
        return worker

    def bystander(self, cpus: str | None, *arguments: str) -> tuple[StandIn, Container | None]:
        """A process that is on no NPU: in a container of its own with these CPUs, or a service of the host."""
        process = self._stack.enter_context(StandIn(*arguments, "--name", "bystander"))
        container = None if cpus is None else Container(f"{self._name}-bystander", cpus)
        if container is None:
            leave(process.pid)
        else:
            container.add(process.pid)
        return process, container

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers.values()]

    def threads(self, *pids: int) -> list[Facts]:
        """Each thread of these processes, of all workers without any, with its mask as taskset prints it."""
        return [fact for pid in pids or self.pids for fact in taskset(pid)]

    def settle(self, also: Callable[[Facts], bool] = lambda _status: True, seconds: float = PATIENCE) -> Facts:
        """Waits until every worker is bound, `also` is so, and nothing has moved for two sweeps. Tells what is then,
        settled or not: it is for the test to say whether that is right."""
        begun = time.monotonic()
        quiet = 0.0
        found: float | None = None
        while time.monotonic() - begun < seconds:
            self.agent.check()
            status = self.agent.status()
            calm = every_worker(status, self.pids) and also(status) and not astray({"status": status}, self._live)
            now = time.monotonic() - begun
            if not calm:
                found = None
            elif found is None:
                found = quiet = now
            elif now - quiet >= 2 * SWEEP:
                break
            time.sleep(0.5)
        said = "not settled" if found is None else f"settled after {found:.0f} s"
        print(f"  {self._name}: {said}", flush=True)
        return self.look() | {"settled": found is not None, "seconds": None if found is None else round(found, 1)}

    def look(self) -> Facts:
        """Masks, status and the end of the log, as they are now."""
        return {
            "workers": {str(npu): worker.pid for npu, worker in self.workers.items()},
            "threads": self.threads(),
            "status": self.agent.status(),
            "log": self.agent.log(),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.agent.kill()
        self._stack.close()


def taskset(pid: int) -> list[Facts]:
    """The threads of a process with their masks, as ``taskset -a`` prints them: kernel lists, offline CPUs left out."""
    ran = subprocess.run(["taskset", "-a", "-c", "-p", str(pid)], capture_output=True, text=True, check=False)
    facts = []
    for line in ran.stdout.splitlines():
        # pid 4711's current affinity list: 0-3
        who, _, mask = line.partition("'s current affinity list: ")
        tid = int(who.split()[-1])
        try:
            comm = Path(f"/proc/{pid}/task/{tid}/comm").read_text().rstrip("\n")
        except OSError:
            continue
        facts.append({"pid": pid, "tid": tid, "comm": comm, "mask": mask})
    return facts
