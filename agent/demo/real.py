"""``cpubind demo --real``: the agent on this machine's own kernel, with stand-in workers that have real threads.

Fake is npu-smi alone. Nothing but the threads of the stand-ins, which end with the demo, is moved; the state file and
the journal are in a temporary folder. `make_agent` is that of `agent.demo.show.run_demo`.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from agent.demo.check import LiveMasks, astray, npu_entry, worker_threads
from agent.demo.fake_files import scratch
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import PROFILES, Profile
from agent.demo.show import PATIENCE, AgentSetup, DemoAgent, MakeAgent
from agent.demo.standin import StandIn
from agent.demo.terminal import ended_by_sigterm, say
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, ProcessRow
from agent.node.devices import has_npu
from agent.node.host import LinuxHost
from agent.node.sysfs import read_topology
from agent.telemetry.picture import numa_map, plan_table

CPUS_PER_NPU = 5
"""Two for interrupts, one each for main, ACL and release."""

MAX_NPUS = 4
THREADS = 20
HOST = Path("/")


def run_real(*, console: Console, make_agent: MakeAgent) -> int:
    """Shows the agent at work on real threads; 0 when they ended up where the plan says, 1 where it can't be shown."""
    usable = CpuSet(os.sched_getaffinity(0))
    if len(usable) < CPUS_PER_NPU:
        say(
            console,
            f"This machine has {len(usable)} usable CPUs; an NPU needs {CPUS_PER_NPU}. Try the demo without --real.",
        )
        return 1
    if has_npu(HOST):
        say(console, "This machine has NPUs of its own: see `cpubind plan` for what the agent would do on it.")
        return 1
    profile = _this_machine(usable)
    npus = profile.inventory.ids
    say(console, f"This machine's kernel, as a node with {profile.title}.")
    say(console, "Fake: npu-smi, and the workers do nothing. Real: their threads, the kernel, the agent.")
    with ended_by_sigterm(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpubind-demo-", dir=scratch())))
        npu_smi = NpuSmiStandIn(folder, profile)
        workers = {npu: stack.enter_context(StandIn("--threads", str(THREADS))) for npu in npus}
        memory = profile.memory_mib * 17 // 20
        npu_smi.set_rows(ProcessRow(npu, worker.pid, memory, "vllm_worker") for npu, worker in workers.items())
        host = LinuxHost()
        setup = AgentSetup(
            node=platform.node(),
            root=HOST,
            npu_smi=npu_smi.path,
            host=host,
            architecture=platform.machine(),
            pods=tuple,
            state_file=folder / "plan.yaml",
            journal_file=folder / "journal.json",
            allow_any_architecture=True,
        )
        try:
            return _play(console, make_agent(setup), workers, LiveMasks(host))
        except KeyboardInterrupt:
            return 130


def _play(console: Console, agent: DemoAgent, workers: dict[int, StandIn], masks: LiveMasks) -> int:
    say(console, "")
    say(
        console,
        f"1. {len(workers)} workers with {THREADS + 1} threads each run. The agent finds and binds them.",
        style="bold",
    )
    if not _settle(agent, masks, workers):
        return _failed(console, agent, masks, "the workers were not bound")
    console.print()
    console.print(plan_table(agent.plan_object()))
    console.print()
    console.print(numa_map(agent.plan_object()))
    say(console, "")
    say(console, "2. Each worker makes an ACL thread and a release thread.", style="bold")
    for worker in workers.values():
        worker.spawn("acl_thread")
        worker.spawn("release_thread")
    if not _settle(agent, masks, workers):
        return _failed(console, agent, masks, "the new threads were not placed")
    first = next(iter(workers))
    roles = npu_entry(agent.plan_object(), first)["roles"]
    say(
        console, f"Placed: on NPU {first} the one on CPU {roles['acl']}, the other on CPU {roles['release']}.", indent=4
    )
    say(console, "")
    say(console, "3. Somebody's taskset moves half of the threads to CPUs of their worker's interrupts.", style="bold")
    moved = 0
    for npu, worker in workers.items():
        irq = CpuSet.parse(npu_entry(agent.plan_object(), npu)["roles"]["irq"])
        for tid in worker.threads["worker"][::2]:
            os.sched_setaffinity(tid, irq)
            moved += 1
    lost = len(astray(agent.plan_object(), masks))
    if not _settle(agent, masks, workers):
        return _failed(console, agent, masks, "the drifted threads were not put back")
    say(console, f"{moved} threads moved, {lost} found astray, all put back.", indent=4)
    count = sum(1 for _ in worker_threads(agent.plan_object(), masks))
    say(console, "")
    say(console, f"All {count} threads of {len(workers)} workers are where the plan says.", style="bold green")
    return 0


def _settle(agent: DemoAgent, masks: LiveMasks, workers: dict[int, StandIn]) -> bool:
    """Passes until every worker is bound and no thread is astray; False when that does not come to be."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        agent.step()
        plan = agent.plan_object()
        states = [npu_entry(plan, npu).get("state") for npu in workers]
        if set(states) == {"Bound"} and not astray(plan, masks):
            return True
        time.sleep(0.05)
    return False


def _failed(console: Console, agent: DemoAgent, masks: LiveMasks, what: str) -> int:
    say(console, f"The demo failed: {what}.", style="bold red")
    for thread in astray(agent.plan_object(), masks)[:5]:
        say(console, f"{thread.comm!r} {thread.tid} is on {thread.mask}, not {thread.target}", indent=4)
    console.print(plan_table(agent.plan_object()))
    return 1


def _this_machine(usable: CpuSet) -> Profile:
    """This machine's topology with as many NPUs 910B3 as it has CPUs for, in turn at home on its NUMA nodes."""
    topology = read_topology(HOST)
    nodes = [node for node in topology.nodes if node.cpus & usable]
    model = PROFILES["a2"]
    count = max(1, min(MAX_NPUS, len(usable) // CPUS_PER_NPU))
    npus = tuple(replace(npu, affinity=nodes[npu.id % len(nodes)].cpus) for npu in model.inventory.npus[:count])
    title = f"{count} NPUs, {len(usable)} CPUs in {len(nodes)} NUMA nodes"
    return replace(model, name="real", title=title, topology=topology, inventory=Inventory(npus, DeviceType.A2))
