"""Pods come and go on a virtual node: what a cycle costs, the first ones and the last ones, and what stays behind.

The whole agent in this process, on a fake kernel, so that a thousand of them are a matter of seconds. What is counted
are the elements of everything that the agent's own objects hold, however deep, and the series of its metrics.
"""

from __future__ import annotations

import gc
import tempfile
from collections import deque
from pathlib import Path
from statistics import median
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from prometheus_client.exposition import generate_latest

from agent.control.exposed import Exposed
from agent.demo.fake_files import scratch
from agent.demo.fake_kernel import FakeKernel
from agent.demo.fake_kubelet import FakeKubelet, VirtualPod
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.profiles import small
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.node.cgroups import CgroupTree
from agent.telemetry.metrics import Metrics
from benchmarks.clock import cpu_ms, progress, rss_mib
from benchmarks.figures import Figure, figure, single
from tests.control.rig import Rig

CYCLES = 1000
WARM_UP = 100
THREADS = 8

_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)
_BEYOND = (*_CODE, FakeKernel, FakeKubelet, NpuSmiStandIn, VirtualNode, Rig, CgroupTree)
"""What does not belong to the agent: code, and the virtual node that it looks at. And the cgroup tree, which remembers
some thousands of paths and then none."""


def run(*, quick: bool) -> list[Figure]:
    """A pod, a worker in it on an NPU, bound, gone; over and over on the same NPU."""
    cycles = 200 if quick else CYCLES
    with tempfile.TemporaryDirectory(prefix="cpubind-bench-", dir=scratch()) as folder:
        rig = Rig(Path(folder), small(16, 2, 2))
        rig.settle()
        exposed = Exposed(rig.agent)
        metrics = Metrics(exposed.document, exposed.figures)
        progress(f"{WARM_UP} pods to warm up")
        life = _Life(rig)
        for _ in range(WARM_UP):
            life.next()
        life.end()
        held, series, memory = _held(rig), _series(metrics), rss_mib()
        progress(f"{cycles} pods")
        costs = [cpu_ms(life.next) for _ in range(cycles)]
        life.end()
        grown = _held(rig) - held
        tenth = cycles // 10
        first, last = costs[:tenth], costs[-tenth:]
        return [
            figure("a pod's life", costs, unit="ms", note=f"{cycles} pods; CPU time, the virtual node's own included"),
            figure("the last tenth / the first tenth", [cost / median(first) for cost in last], compared=True),
            single("elements that stay behind", grown, unit="", budget=0.0),
            single("series of metrics that stay behind", _series(metrics) - series, unit="", budget=0.0),
            single("RSS that stays behind", rss_mib() - memory, unit="MiB", budget=2.0),
        ]


class _Life:
    """One pod after the other, each with a worker on the same NPU."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._number = 0
        self._pod: VirtualPod | None = None
        self._worker: Worker | None = None

    def next(self) -> None:
        """The pod that is there goes, another one comes, and its worker is bound."""
        self._go()
        self._number += 1
        self._pod = self._rig.node.kubelet.add_pod(f"llm-{self._number}")
        self._worker = Worker.start(self._rig.node, npu=0, pod=self._pod, threads=THREADS)
        self._worker.add_role_threads()
        self._settle("Bound")

    def end(self) -> None:
        """The last one goes."""
        self._go()
        self._settle("Idle")
        # The conditions of an idle node settle one pass later.
        self._rig.settle()

    def _go(self) -> None:
        if self._worker is not None and self._pod is not None:
            self._worker.end()
            self._rig.node.kubelet.remove_pod(self._pod)
        self._pod = self._worker = None

    def _settle(self, state: str) -> None:
        self._rig.settle()
        entry = self._rig.npu(0)
        assert entry["state"] == state, entry
        self._rig.told.clear()


def _series(metrics: Metrics) -> int:
    return sum(1 for line in generate_latest(metrics.registry).splitlines() if line and not line.startswith(b"#"))


def _held(rig: Rig) -> int:
    """Elements of all containers that can be reached from the agent."""
    gc.collect()
    seen: set[int] = {id(rig.told)}
    todo: deque[Any] = deque([rig.agent])
    count = 0
    while todo:
        found = todo.popleft()
        if id(found) in seen or isinstance(found, _BEYOND):
            continue
        seen.add(id(found))
        if isinstance(found, dict | list | set | frozenset | deque):
            count += len(found)
        if isinstance(found, MethodType) and isinstance(found.__self__, _BEYOND):
            continue
        todo.extend(gc.get_referents(found))
    return count
