"""What people see of a plan with kubectl, on the real API server."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from tests.api.rig import KubeRig
from tests.api.tools import ToolError, Tools, tool
from tests.cluster.real_apiserver import RealApiServer

pytestmark = pytest.mark.api

ROOT = Path(__file__).parents[2]


@pytest.fixture
def a2(real_cluster: RealApiServer, tmp_path: Path) -> Iterator[KubeRig]:
    """A node with a bound worker."""
    with KubeRig(real_cluster, tmp_path, "a2") as made:
        made.register()
        made.start()
        _, workers = made.run_pod("llm-0", [0])
        made.until_bound(workers)
        yield made


@pytest.fixture
def tools(real_cluster: RealApiServer, tmp_path: Path) -> Tools:
    if not tool("kubectl"):
        pytest.skip("no kubectl: put it on PATH, or into the folder that KUBEBUILDER_ASSETS names")
    return Tools(real_cluster, tmp_path / "tools")


def table(text: str) -> tuple[list[str], list[str]]:
    """Head and only row of what `kubectl get` prints."""
    head, row = text.splitlines()
    return head.split(), row.split(maxsplit=len(head.split()) - 1)


def test_kubectl_shows_plans_as_a_table_in_full_and_explained(a2: KubeRig, tools: Tools) -> None:
    head, row = table(tools.kubectl("get", "cbp"))
    assert head == [
        "NAME",
        "DEVICE",
        "STRATEGY",
        "MODE",
        "NPUS",
        "WORKERS",
        "BOUND",
        "FAILED",
        "READY",
        "REASON",
        "AGE",
    ]
    assert " ".join(row[:-1]) == "a2-0 A2 TopoAffinity Enforce 8 1 1 0 True AsPlanned"

    # A bad value of a good form: told wherever people look.
    assert "patched" in tools.kubectl("patch", "cbp", "a2-0", "--type=merge", "-p", '{"spec":{"reservedCpus":"5-3"}}')
    a2.until(lambda: a2.condition("Ready")["reason"] == "InvalidSpec" and a2.events("InvalidSpec"), "it is told")
    head, row = table(tools.kubectl("get", "cbp", "-o", "wide"))
    assert head[-2:] == ["HASH", "MESSAGE"]
    assert row[8:10] == ["False", "InvalidSpec"]
    assert row[-2] == a2.status["planHash"]
    said = "spec.reservedCpus: range 5-3 in CPU list '5-3' runs backwards"
    assert row[-1] == f"{said}; {REMEDIES[Reason.INVALID_SPEC]}"
    described = tools.kubectl("describe", "cbp", "a2-0")
    assert "Reserved Cpus:  5-3" in described
    events = described.partition("Events:")[2]
    assert "Warning  InvalidSpec" in events
    assert "cpubind-agent" in events
    events = tools.kubectl("describe", "pod", "llm-0", "--namespace=prod").partition("Events:")[2]
    assert "Normal  CpuBound" in events
    assert "on NPU 0 (irq 144-145, main 146-165, acl 166, release 167)" in events

    # A bad form is refused with a sentence.
    for field, value in {"strategy": '"Fastest"', "deviceType": "950", "reservedCpus": '"all"'}.items():
        with pytest.raises(ToolError, match=f"spec.{field}: "):
            tools.kubectl("patch", "cbp", "a2-0", "--type=merge", "-p", f'{{"spec":{{"{field}":{value}}}}}')

    # The API server describes a new resource some seconds after it serves it.
    def explained() -> str:
        try:
            return tools.kubectl("explain", "cbp.status.npus")
        except ToolError:
            return ""

    text = a2.until(explained, "kubectl explain")
    assert "Every NPU of the node, ascending by id." in text
    assert "The CPUs that this NPU has and no other." in text
    assert "it is the pause button" in " ".join(tools.kubectl("explain", "cbp.spec.mode").split())


def test_people_can_wait_for_what_they_asked_for(a2: KubeRig, tools: Tools) -> None:
    tools.kubectl("patch", "cbp", "a2-0", "--type=merge", "-p", '{"spec":{"mode":"Disabled"}}')
    assert "condition met" in tools.kubectl("wait", "cbp", "--all", "--for=condition=Restored", "--timeout=10s")
    assert a2.status["summary"]["bound"] == 0
    tools.kubectl("patch", "cbp", "a2-0", "--type=merge", "-p", '{"spec":null}')
    assert "condition met" in tools.kubectl("wait", "cbp/a2-0", "--for=condition=Bound", "--timeout=10s")
    assert a2.status["summary"]["bound"] == 1


def test_kubectl_runs_the_plugin_with_the_user_s_rights(
    a2: KubeRig, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/kubectl-cpubind"
    program.parent.mkdir()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from agent.cli import kubectl_main; kubectl_main()"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert "1 nodes, 1 ready; 1 workers, 1 bound" in tools.kubectl("cpubind", "status")
    assert "144-167" in tools.kubectl("cpubind", "plan", "a2-0")
    told = tools.kubectl("cpubind", "explain", "llm-0", "-n", "prod")
    assert "works on NPU 0 of node a2-0: Bound." in told
    with pytest.raises(ToolError, match="there is no such pod that you may read"):
        tools.kubectl("cpubind", "explain", "nobody", "-n", "prod")
