"""``cpubind demo``: a day of a node in a few seconds, with the real agent on a virtual node.

What the agent is made of is left to the caller, so that this file needs nothing of `agent.control`: `make_agent` in
`agent.cli.demo` makes it from an `AgentSetup`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from rich.console import Console
from rich.text import Text

from agent.control.vectors import CQ, SQ
from agent.demo.check import FakeMasks, astray, npu_entry, pools, unassigned, worker_threads
from agent.demo.fake_files import scratch
from agent.demo.profiles import PROFILES
from agent.demo.terminal import ended_by_sigterm, say
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.workload import Pod
from agent.node.host import Host
from agent.node.irq import read_affinity
from agent.telemetry.picture import numa_map, plan_table

SPEED = 20.0
"""How much faster the agent's clock runs than time does: it asks npu-smi once a second when it awaits something."""

PATIENCE = 10.0
"""Seconds that the agent has for each thing; each takes it a fraction of one."""

PAUSE = 0.8
"""Seconds that a person gets to read a step."""

SERVE_SECONDS = 0.5
"""Between two passes while the node is served."""

BATCH_CPUS = 8
ASTRAY_THREADS = 9


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """What the demo's agent is to be made of."""

    node: str
    root: Path
    """The host root."""
    npu_smi: Path
    host: Host
    """Takes the masks that the agent sets."""
    architecture: str
    pods: Callable[[], Sequence[Pod]]
    """The pods of the node, as they are when it is called."""
    state_file: Path
    journal_file: Path
    clock: Callable[[], float] = time.monotonic
    allow_any_architecture: bool = False


class DemoAgent(Protocol):
    """An agent that is driven pass by pass."""

    def step(self) -> None:
        """One pass: observe, plan, act, report."""
        ...

    def plan_object(self) -> dict[str, Any]:
        """The CpuBindingPlan object of the last pass; empty before the first."""
        ...


MakeAgent: TypeAlias = Callable[[AgentSetup], DemoAgent]


class DemoFailed(Exception):  # noqa: N818 - it says what happened
    """The agent did not do what the demo shows."""


def run_demo(device: str, *, serve: bool, console: Console, make_agent: MakeAgent) -> int:
    """Shows the agent at work on a virtual node of a profile; 0 when everything ended up where the plan says.

    With `serve` the node stays, with its agent running, until Ctrl-C. ValueError for a profile that is not known.
    """
    if device not in PROFILES:
        raise ValueError(f"no virtual node is called {device!r}: choose one of {', '.join(PROFILES)}")
    with tempfile.TemporaryDirectory(prefix="cpubind-demo-", dir=scratch()) as folder:
        # An old kernel, since most Ascend hosts have one, and since it forgets masks where a new one remembers them.
        node = VirtualNode(Path(folder), device, remembers_masks=False)
        setup = AgentSetup(
            node=node.name,
            root=node.root,
            npu_smi=node.npu_smi.path,
            host=node.kernel,
            architecture=node.topology.architecture,
            pods=lambda: tuple(pod.model() for pod in node.kubelet.pods),
            state_file=node.root / "var/lib/cpubind/plan.yaml",
            journal_file=node.root / "var/lib/cpubind/journal.json",
            clock=lambda: time.monotonic() * SPEED,
        )
        show = Show(node, make_agent(setup), console)
        result = 130
        try:
            with ended_by_sigterm():
                result = show.play()
                if serve:
                    show.serve(setup)
        except DemoFailed as failed:
            say(console, f"The demo failed: {failed}", style="bold red")
            return 1
        except KeyboardInterrupt:
            say(console, "")
            say(console, "Stopped; the virtual node is gone.")
        return result


class Show:
    """The scenes, one after the other, and what is counted on the way."""

    def __init__(self, node: VirtualNode, agent: DemoAgent, console: Console) -> None:
        self.node = node
        self.agent = agent
        self.console = console
        self.masks = FakeMasks(node.kernel)
        self.workers: list[Worker] = []
        self.repaired = 0
        self._scene = 0

    def play(self) -> int:
        """Everything; the exit status."""
        self.say(f"A virtual {self.node.profile.title}.")
        self.say("Fake: npu-smi, /proc, /sys and the kernel's CPU masks. Real: the agent.")
        self.idle()
        self.start_workers()
        self.role_threads()
        self.taskset()
        self.kubelet()
        self.end_worker()
        return self.summary()

    def serve(self, setup: AgentSetup) -> None:
        """Passes of the agent until Ctrl-C."""
        self.say("")
        self.say("The node stays, with its agent running, until you press Ctrl-C.")
        lines = (
            f"state file  {setup.state_file}",
            f"host root   {setup.root}",
            "in another terminal:",
            f"    export CPUBIND_HOST_ROOT={setup.root}",
            f"    export CPUBIND_NPU_SMI={setup.npu_smi}",
            f"    export CPUBIND_NODE_NAME={setup.node} CPUBIND_ARCHITECTURE={setup.architecture}",
            "    cpubind plan",
            "    cpubind verify",
            "    cpubind explain npu:0",
        )
        for line in lines:
            # As it is, however narrow the terminal: it is for copying.
            self.console.print(Text(f"  {line}"), soft_wrap=True)
        while True:
            self.step()
            time.sleep(SERVE_SECONDS)

    # Scenes

    def idle(self) -> None:
        self.scene("The node is idle. The agent reads what it is made of and plans CPUs for every NPU.")
        self.until("a plan for every NPU", lambda: len(pools(self.plan)) == len(self.node.inventory.npus))
        self.console.print()
        self.console.print(plan_table(self.plan))
        self.console.print()
        self.console.print(numa_map(self.plan))
        self._pause()

    def start_workers(self) -> None:
        """All but the last NPU get a worker, in a pod of its own."""
        ids = self.node.inventory.ids[:-1]
        self.scene(
            f"Inference workers start on NPUs {CpuSet(ids)}, one after the other. Each is bound when it appears."
        )
        for npu in ids:
            pod = self.node.kubelet.add_pod(f"llm-{npu}")
            worker = Worker.start(self.node, npu, pod)
            self.workers.append(worker)
            free, before = self.masks.mask(worker.pid), self.writes
            self.until(f"the worker of NPU {npu} to be bound", partial(self._bound, npu))
            main = npu_entry(self.plan, npu)["roles"]["main"]
            self.tell(
                f"NPU {npu:<3} {pod.namespace}/{pod.name:<7} {len(worker.threads)} threads: "
                f"CPUs {free} -> {main}, {self.writes - before} calls"
            )
            self._pause(PAUSE / 8)

    def role_threads(self) -> None:
        count = len(self.workers)
        self.scene(f"The CANN runtime makes an ACL thread and a release thread in each of the {count} workers.")
        for worker in self.workers:
            worker.add_role_threads()
        made = 2 * count
        before = self.writes
        self.until("the new threads to be placed", self._in_place)
        first, entry = self.workers[0], npu_entry(self.plan, self.workers[0].npu)
        roles = entry["roles"]
        if "acl" in roles:
            self.tell(
                f"{made} new threads, {self.writes - before} calls: that of NPU {first.npu} for ACL to CPU "
                f"{roles['acl']}, that for release to CPU {roles['release']}, and so on."
            )
            self._compiler(self.workers[1])
        else:
            self.tell(f"{made} new threads, {self.writes - before} calls: on this device they stay in the cluster.")
        self._pause()

    def _compiler(self, worker: Worker) -> None:
        """A child inherits the mask of the thread that forks it."""
        acl = next(task for task in worker.threads if task.comm == "acl_thread")
        child = worker.fork("ccec", creator=acl.tid)
        inherited = self.masks.mask(child.tid)
        roles = npu_entry(self.plan, worker.npu)["roles"]
        main = CpuSet.parse(roles["main"])
        self.until("the child to be returned to main", lambda: self.masks.mask(child.tid) == main)
        self.tell(
            f"The ACL thread of NPU {worker.npu} forks a compiler, which inherits CPU {inherited} from it: "
            f"returned to {main}."
        )

    def taskset(self) -> None:
        worker = self.workers[1]
        elsewhere = CpuSet([CpuSet.parse(pools(self.plan)[self.workers[0].npu]).first])
        count = len(worker.drift(elsewhere, ASTRAY_THREADS))
        self.scene(f"Somebody's taskset moves {count} threads of NPU {worker.npu}'s worker to CPU {elsewhere}.")
        self._repair()

    def kubelet(self) -> None:
        """A pod with CPUs of its own arrives, and every other cpuset is rewritten."""
        before = pools(self.plan)
        free = unassigned(self.plan)
        own = free if len(free) >= BATCH_CPUS else CpuSet.parse(before[self.node.inventory.ids[-1]])
        own = own - own.take(len(own) - BATCH_CPUS)
        pod = self.node.kubelet.add_pod("etl-0", namespace="batch", containers=("etl",), own_cpus=own, annotations={})
        self.scene(
            f"kubelet gives CPUs {own} to pod {pod.namespace}/{pod.name} and takes them out of every other container's "
            "cpuset. Linux 5.10 forgets all masks in these."
        )
        self._repair(show_map=True)
        moved = [w.npu for w in self.workers if pools(self.plan)[w.npu] != before[w.npu]]
        if moved:
            raise DemoFailed(f"the CPUs of NPUs {CpuSet(moved)} changed with kubelet's cpusets")
        self.tell("No worker got other CPUs than before: the plan keeps its base.")
        self._pause()

    def _repair(self, *, show_map: bool = False) -> None:
        lost = astray(self.plan, self.masks)
        if show_map:
            self.console.print()
            self.console.print(numa_map(self.plan, drifted={thread.npu for thread in lost}))
            self.console.print()
        if not lost:
            raise DemoFailed("no thread drifted")
        before = self.writes
        self.until("the drifted threads to be back", self._in_place)
        self.repaired += len(lost)
        self.tell(f"{len(lost)} threads had drifted: found and put back, {self.writes - before} calls.")
        self._pause()

    def end_worker(self) -> None:
        worker = self.workers.pop(1)
        self.scene(f"The worker on NPU {worker.npu} ends.")
        before = self.writes
        worker.end()
        self.until("the NPU to be idle", lambda: npu_entry(self.plan, worker.npu).get("state") == "Idle")
        pool = pools(self.plan)[worker.npu]
        self.tell(f"CPUs {pool} wait for the next one. Nobody else was touched: {self.writes - before} calls.")
        self._pause()

    def summary(self) -> int:
        self.scene("The plan at the end, and what came of it.")
        self.console.print()
        self.console.print(plan_table(self.plan))
        self.console.print()
        before = self.writes
        self.step()
        idle_writes = self.writes - before
        threads = list(worker_threads(self.plan, self.masks))
        lost = [thread for thread in threads if thread.astray]
        bound = self.plan["status"]["summary"]["bound"]
        rows = [
            ("workers bound", f"{bound} of {len(self.workers)}"),
            ("threads where the plan says", f"{len(threads) - len(lost)} of {len(threads)}"),
            ("drifted threads repaired", str(self.repaired)),
            *self._interrupts(),
            ("masks set, all in all", str(self.writes)),
            ("masks set by one more pass", str(idle_writes)),
        ]
        for what, count in rows:
            self.tell(f"{what:<29}{count:>11}")
        for thread in lost[:5]:
            self.tell(f"astray: {thread.comm!r} {thread.tid} of NPU {thread.npu} on {thread.mask}, not {thread.target}")
        good = not lost and len(threads) > 0 and bound == len(self.workers) and idle_writes == 0
        self.say("")
        verdict = "Every thread of every worker is where the plan says." if good else "Not everything is in place."
        self.say(verdict, style="bold green" if good else "bold red")
        return 0 if good else 1

    def _interrupts(self) -> list[tuple[str, str]]:
        """A row that says how many interrupts of NPUs with a worker are where the plan says; none on Ascend 950."""
        placed = count = 0
        for entry in self.plan["status"]["npus"]:
            cpus = CpuSet.parse(entry.get("roles", {}).get("irq", ""))
            if not (cpus and entry.get("workers")):
                continue
            for vector in (irq for irq in self.node.irqs if irq.npu == entry["id"] and irq.action in (SQ, CQ)):
                target = cpus.take(1) if vector.action == SQ else cpus - cpus.take(1)
                placed += read_affinity(self.node.root, vector.number) == target
                count += 1
        return [("interrupts on their CPUs", f"{placed} of {count}")] if count else []

    # Machinery

    @property
    def plan(self) -> dict[str, Any]:
        return self.agent.plan_object()

    @property
    def writes(self) -> int:
        """Calls of sched_setaffinity that the agent has made."""
        return self.node.kernel.calls["sched_setaffinity"]

    def say(self, text: str, indent: int = 0, style: str = "") -> None:
        """A sentence, or an empty line."""
        say(self.console, text, indent=indent, style=style)

    def tell(self, text: str) -> None:
        """What came of a scene."""
        self.say(text, indent=4)

    def scene(self, text: str) -> None:
        self._scene += 1
        self.say("")
        self.say(f"{self._scene}. {text}", style="bold")

    def step(self) -> None:
        """One pass of the agent, after which the tree shows the masks that it set."""
        self.agent.step()
        self.node.kernel.sync()

    def until(self, what: str, reached: Callable[[], bool]) -> None:
        """Passes until something is so."""
        end = time.monotonic() + PATIENCE
        while True:
            self.step()
            if reached():
                return
            if time.monotonic() > end:
                raise DemoFailed(f"waited {PATIENCE:g} s for {what}")
            time.sleep(0.01)

    def _bound(self, npu: int) -> bool:
        return npu_entry(self.plan, npu).get("state") == "Bound" and self._in_place()

    def _in_place(self) -> bool:
        return not astray(self.plan, self.masks)

    def _pause(self, seconds: float = PAUSE) -> None:
        if self.console.is_terminal:
            time.sleep(seconds)
