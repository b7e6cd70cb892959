"""``demo --real``: what it says where it can't be shown. With five CPUs or more it is, on this machine's kernel."""

from __future__ import annotations

import io
import os
import time
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from agent.demo import real
from agent.demo.show import AgentSetup
from agent.model.cpuset import CpuSet
from agent.node.npu_smi.command import NpuSmiCommand
from agent.node.npu_smi.inventory import read_inventory
from agent.node.procfs import ProcFs

PLACES = {"irq": [0, 1], "main": [2], "acl": [3], "release": [4]}


class OneNpu:
    """Plans NPU 0 alone, on the first five CPUs that this process may use, and puts threads there."""

    def __init__(self, setup: AgentSetup) -> None:
        self.setup = setup
        usable = sorted(os.sched_getaffinity(0))
        self.roles = {role: str(CpuSet(usable[k] for k in places)) for role, places in PLACES.items()}
        self.proc = ProcFs(setup.root)
        self.document: dict[str, Any] = {}

    def plan_object(self) -> dict[str, Any]:
        return self.document

    def step(self) -> None:
        rows = read_inventory(NpuSmiCommand(str(self.setup.npu_smi)), {}).processes.rows
        npus = []
        for row in rows:
            for tid in self.proc.thread_ids(row.pid):
                role = (self.proc.comm(row.pid, tid) or b"").decode().partition("_")[0]
                self.setup.host.set_affinity(tid, CpuSet.parse(self.roles.get(role, self.roles["main"])))
            workers = [{"pid": row.pid, "state": "Bound"}]
            npus.append({"id": row.npu, "roles": self.roles, "state": "Bound", "workers": workers})
        self.document = {"status": {"npus": npus}}


def shown() -> tuple[int, str]:
    file = io.StringIO()
    status = real.run_real(console=Console(file=file, width=200), make_agent=OneNpu)
    return status, file.getvalue()


def test_too_few_cpus_are_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert shown() == (1, "This machine has 2 usable CPUs; an NPU needs 5. Try the demo without --real.\n")


def test_a_machine_with_npus_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(real, "has_npu", lambda _root: True)
    status, text = shown()
    assert status == 1
    assert "has NPUs of its own" in text


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 5, reason="needs five usable CPUs")
def test_it_moves_real_threads() -> None:
    status, text = shown()
    assert status == 0, text
    assert "are where the plan says." in text.splitlines()[-1]


def test_an_agent_that_does_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # The stand-ins run on whatever there is; only their placement needs five CPUs.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(real, "has_npu", lambda _root: False)
    monkeypatch.setattr(real, "PATIENCE", 0.2)
    monkeypatch.setattr(OneNpu, "step", partial(time.sleep, 0.01))
    status, text = shown()
    assert status == 1
    assert "The demo failed: the workers were not bound." in text
