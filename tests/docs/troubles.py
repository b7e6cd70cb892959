"""The stories of docs/troubleshooting.md, told by the agent on a virtual node: ``python -m tests.docs.troubles`` writes
them into the page."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from agent.demo.profiles import small
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.spec import Spec
from agent.telemetry.table import not_plain
from tests.control.rig import Rig
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/troubleshooting.md"

_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def node(folder: Path) -> Rig:
    """48 CPUs on two NUMA nodes, two NPUs."""
    return Rig(folder, small(cpus=48), spec=Spec())


def cpuset_too_small(folder: Path) -> Rig:
    rig = node(folder)
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0", own_cpus=CpuSet.parse("4-7")))
    Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-1"))
    rig.settle()
    rig.settle()
    return rig


def npu_smi_fails(folder: Path) -> Rig:
    rig = node(folder)
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    rig.node.npu_smi.fail()
    rig.settle()
    return rig


def somebody_moves_threads(folder: Path) -> Rig:
    rig = node(folder)
    worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    for _ in range(3):
        worker.drift(CpuSet.parse("40-43"), 5)
        rig.sweep()
    return rig


def spec_cannot_be_used(folder: Path) -> Rig:
    rig = node(folder)
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    plan = yaml.safe_load(rig.state_file.read_text())
    rig.state_file.write_text(yaml.safe_dump(plan | {"spec": {"reservedCpus": "7-0"}}))
    rig.settle()
    return rig


STORIES: Mapping[str, Callable[[Path], Rig]] = {
    "A cpuset that is too small": cpuset_too_small,
    "npu-smi fails": npu_smi_fails,
    "Somebody else moves threads": somebody_moves_threads,
    "A spec that can't be used": spec_cannot_be_used,
}
"""In the order of the page, by heading."""


def told(status: Mapping[str, Any]) -> str:
    """What of a status is not plain: of conditions, of NPUs, of their workers."""
    lines = [f"{', '.join(said.kinds)}: {said.status}  {said.reason}\n  {said.message}" for said in not_plain(status)]
    for npu in status["npus"]:
        lines += _entry(f"NPU {npu['id']}", npu)
        for worker in npu.get("workers", []):
            lines += _entry(f"NPU {npu['id']}, worker in pod {worker.get('pod')}", worker)
    return "".join(f"{line}\n" for line in lines)


def _entry(name: str, entry: Mapping[str, Any]) -> list[str]:
    if "reason" not in entry:
        return []
    return [f"{name}: {entry['state']}  {entry['reason']}", *([f"  {entry['message']}"] if "message" in entry else [])]


def story(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return told(STORIES[name](Path(folder)).status)


def written(text: str) -> list[str]:
    """The stories that a page has."""
    return _BLOCK.findall(text)


if __name__ == "__main__":
    made = iter(map(story, STORIES))
    PAGE.write_text(_BLOCK.sub(lambda _: f"```text\n{next(made)}```", PAGE.read_text()))
