"""Prints the picture of the README: ``python -m tests.docs.picture >docs/pictures/node.svg`` (``make picture``)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from agent.demo.profiles import small
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.spec import Spec, Strategy
from agent.telemetry.svg import plan_svg
from tests.control.rig import Rig

FILE = Path(__file__).parents[2] / "docs/pictures/node.svg"


def document(folder: Path) -> dict[str, Any]:
    """What an agent reports of a little node: two CPUs reserved, one NPU in use, the other idle."""
    rig = Rig(folder, small(cpus=48), spec=Spec(strategy=Strategy.NUMA_SLICE, reserved_cpus=CpuSet.parse("0-1")))
    Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    rig.settle()
    return rig.agent.plan_object()


def picture() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return plan_svg(document(Path(folder)))


if __name__ == "__main__":
    sys.stdout.write(picture())
