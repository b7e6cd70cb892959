"""Runs ``cpubind`` in this process, and makes snapshots of virtual nodes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli import main
from agent.demo.virtual import VirtualNode
from agent.node.capture import capture


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def plan_status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.document["status"]
        return status

    def npu(self, npu: int) -> dict[str, Any]:
        entry: dict[str, Any] = next(entry for entry in self.plan_status["npus"] if entry["id"] == npu)
        return entry


Cpubind = Callable[..., Result]


@pytest.fixture
def cpubind(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cpubind:
    """``cpubind ARGS``: its exit status and what it printed."""

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["cpubind", *map(str, args)])
        capsys.readouterr()
        interrupt = signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            main()
        signal.signal(signal.SIGINT, interrupt)
        printed = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


def snapshot_of(node: VirtualNode, target: Path, *, with_pods: bool = True) -> Path:
    """A capture of a virtual node."""
    node.kernel.sync()
    pids = [task.tid for task in node.kernel.tasks.values() if task.is_leader]
    capture(
        node.root,
        node.npu_smi.query,
        target,
        node=node.name,
        architecture="aarch64",
        pids=pids,
        chips=[(npu.card, npu.chip) for npu in node.inventory.npus],
        pods=[pod.model() for pod in node.kubelet.pods] if with_pods else [],
    )
    return target
