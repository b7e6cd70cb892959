"""Binds one process of this machine and cuts its CPUs anew, over and over, until it is killed.

``python -m tests.host.killed_agent JOURNAL PID`` forks one that does so, and that keeps its journal as an agent does,
for every line that it reads, prints its pid, and waits for it to be killed.
"""

from __future__ import annotations

import os
import sys
from itertools import cycle
from pathlib import Path
from typing import NoReturn

from agent.control import journal_file
from agent.control.act import Actor
from agent.control.observe import Observation
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Topology
from agent.model.plan import Allotment, Plan, Roles, WorkerPlan
from agent.model.spec import Spec, Strategy
from agent.model.workload import ProcessId, Worker
from agent.node.host import LinuxHost
from agent.node.procfs import ProcFs, boot_id

ROOT = Path("/")


def main() -> None:
    path, pid = Path(sys.argv[1]), int(sys.argv[2])
    for _ in sys.stdin:
        agent = os.fork()
        if agent == 0:
            bind_for_ever(path, pid)
        print(agent, flush=True)
        os.waitpid(agent, 0)


def bind_for_ever(path: Path, pid: int) -> NoReturn:
    every = CpuSet(os.sched_getaffinity(0))
    one, other = CpuSet({min(every)}), CpuSet({max(every)})
    stat = ProcFs(ROOT).stat(pid)
    assert stat is not None
    process = ProcessId(pid, stat.start_time)
    seen = Observation(Topology(every, every, (), ()), cpusets={process: every})
    journal, problem = journal_file.load(path, boot_id(ROOT))
    assert problem is None
    actor = Actor(ROOT / "proc", LinuxHost())
    actor.adopt(journal)
    for main, rest in cycle([(one, other), (other, one)]):
        worker = WorkerPlan(Worker(process, (0,), ""), "", Allotment(every, Roles(main, acl=rest, release=rest)))
        plan = Plan(DeviceType.A2, Strategy.GLOBAL_SLICE, workers=(worker,))
        actor.prepare(plan, seen, Spec())
        journal_file.save(path, actor.noted(journal))
        actor.act(plan, seen, Spec(), lambda keys: dict.fromkeys(keys, ()))
        journal_file.save(path, actor.noted(journal))
    raise AssertionError("cycles have no end")


if __name__ == "__main__":
    main()
