"""Runs ``cpubind`` in this process, and makes snapshots of virtual nodes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli import kubectl_main, main
from agent.demo.virtual import VirtualNode
from agent.node.capture import capture
from tests.cli.plan_server import Server


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
Plugin = Callable[..., Result]


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


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    contexts = {"prod": {"namespace": "prod"}, "other": {}}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": name, **more}} for name, more in contexts.items()
        ],
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}} for name in contexts],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kubeconfig: Path) -> Plugin:
    """``kubectl cpubind ARGS``."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    def run(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["kubectl-cpubind", *map(str, args)])
        capsys.readouterr()
        interrupt = signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            kubectl_main()
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
