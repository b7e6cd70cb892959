"""An agent on this machine's processes that makes quiet passes, for somebody who traces its system calls.

``python -m tests.host.quiet_agent FOLDER PASSES PID...`` takes these processes for workers on the NPUs of a virtual A3,
whose CPUs this machine need not have: masks are remembered here, and the kernel is asked for each all the same. Around
each pass it looks for a file called ``pass begins`` and one called ``pass ends``, which are not there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from agent.control.act import Actor
from agent.control.loop import Agent, Parts
from agent.control.news import News
from agent.control.observe import Observer
from agent.control.statefile import StateFile
from agent.control.steps import HostSteps
from agent.demo.profiles import PROFILES
from agent.model.node import ProcessRow
from agent.model.reason import Problem
from agent.model.spec import Spec
from agent.model.workload import ProcessId
from agent.node.procfs import boot_id
from tests.host.wider import WiderHost, make_root

BEGINS, ENDS = "pass begins", "pass ends"
PROFILE = PROFILES["a3"]


class NothingNew:
    """A `NewsSource` of a node on which nothing happens."""

    up = True

    def take(self) -> News:
        return News()

    def problem(self) -> Problem | None:
        return None

    def interest(self, bound: Collection[ProcessId], awaited: Collection[int]) -> None:
        """Nothing comes of it."""


def make_agent(folder: Path, pids: list[int]) -> Agent:
    """A standalone agent with a root folder that has this machine's /proc and the profile's sysfs, cpuset and NPUs."""
    root = folder / "root"
    npu_smi = make_root(root, PROFILE)
    npu_smi.set_rows(ProcessRow(npu, pid, 30_000, "python") for npu, pid in enumerate(pids))
    host = WiderHost(PROFILE)
    observer = Observer(root, architecture="aarch64")
    return Agent(
        Parts(
            node="here",
            observer=observer,
            npu_smi=npu_smi,
            actor=Actor(root / "proc", host),
            steps=HostSteps(root, host, observer.cgroups, npu_smi=npu_smi),
            # Interrupts and memory need hardware.
            defaults=replace(Spec(), irq_binding=False, memory_migration=False),
            state=StateFile(folder / "plan.yaml"),
            news=NothingNew(),
            journal=folder / "journal.json",
            boot_id=boot_id(root),
        )
    )


def at_rest(agent: Agent, workers: int) -> bool:
    """Whether the last pass had nothing to read anew, with all workers bound."""
    status = agent.plan_object().get("status", {})
    return agent.parts.observer.cause is None and status.get("summary", {}).get("bound") == workers


def main() -> None:
    folder, passes, pids = Path(sys.argv[1]), int(sys.argv[2]), [int(pid) for pid in sys.argv[3:]]
    agent = make_agent(folder, pids)
    deadline = time.monotonic() + 30
    agent.step()
    while not at_rest(agent, len(pids)):
        assert time.monotonic() < deadline, agent.plan_object()
        time.sleep(0.05)
        agent.step()
    for _ in range(passes):
        os.access(BEGINS, os.F_OK)
        agent.step()
        os.access(ENDS, os.F_OK)
        assert agent.parts.observer.cause is None, agent.parts.observer.cause


if __name__ == "__main__":
    main()
