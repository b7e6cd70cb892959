"""Secrets of workers come neither to the API server nor to the page of the node."""

from __future__ import annotations

import json
from collections.abc import Iterable

from agent.demo.fake_kubelet import OPT_IN
from agent.demo.workload import Worker
from agent.telemetry.page import NodePage
from tests.api.rig import KubeRig

SECRET = "hf_0123456789abcdef"


def give_secrets(rig: KubeRig, workers: Iterable[Worker]) -> None:
    for worker in workers:
        folder = rig.node.root / f"proc/{worker.pid}"
        (folder / "environ").write_text(f"PATH=/bin\0HF_TOKEN={SECRET}\0")
        (folder / "cmdline").write_text(f"vllm\0serve\0--api-key={SECRET}\0")


def test_plan_events_journal_and_page_have_no_environment_and_no_command_line(a2: KubeRig) -> None:
    _, bound = a2.run_pod("llm-0", [0])
    _, refused = a2.run_pod("llm-1", [1], annotations={**OPT_IN, "cpubind.dev/memory-migration": "perhaps"})
    _, strangers = a2.run_pod("llm-2", [2], annotations={})
    agent = a2.start()
    give_secrets(a2, [*bound, *refused, *strangers])
    a2.until_bound(bound)
    a2.until(lambda: a2.events("CpuBound") and a2.events("InvalidAnnotation"), "events are posted")
    page = NodePage(lambda: "ready")
    page.passed(agent.agent.plan_object(), agent.agent.moved())
    said = {
        "plan": json.dumps(a2.plan()),
        "events": json.dumps(a2.events()),
        "page": page.response().body.decode(),
        "journal": (a2.folder / "journal.json").read_text(),
    }
    for worker in bound:
        assert str(worker.pid) in said["plan"]
        assert str(worker.pid) in said["page"]
        assert SECRET in (a2.node.root / f"proc/{worker.pid}/environ").read_text(), "it is there to be read"
    assert [name for name, text in said.items() if SECRET in text] == []
