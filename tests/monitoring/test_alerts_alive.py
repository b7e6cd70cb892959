"""Alerts, asked of a real Prometheus about an agent at work: of one that is well, and of one whose node is broken."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from agent.control.exposed import Exposed
from agent.demo.workload import Worker
from agent.model.address import Address
from agent.model.cpuset import CpuSet
from agent.model.figures import Figures
from agent.telemetry.metrics import Metrics, MetricsServer
from tests.control.rig import Rig
from tests.monitoring.server import Prometheus, prometheus, until
from tests.monitoring.test_alerts import ALERTS
from tests.telemetry.listening import port_of

NODE = "a2-0"

Found = dict[str, list[dict[str, str]]]


def found(server: Prometheus) -> Found:
    """The labels of what each alert would fire on, if it lasted."""
    return {
        name: [{k: v for k, v in labels.items() if k != "__name__"} for labels, _ in series]
        for name, rule in ALERTS.items()
        if (series := server.query(rule["expr"]))
    }


def test_alerts_say_nothing_of_a_node_that_is_well_and_what_is_broken_of_one_that_is_not(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    workers = [Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}"), threads=5) for npu in (0, 1)]
    rig.settle()
    exposed = Exposed(rig.agent)
    ages: Mapping[str, float] = {"pods": 12.0, "cpubindingplans": 240.0}
    overlap = 0

    def figures() -> Figures:
        return replace(exposed.figures(), overlap=overlap)

    metrics = Metrics(exposed.document, figures, watch_ages=lambda: ages)
    metrics.swept(time.time())
    server = MetricsServer(Address("127.0.0.1", 0), metrics)
    with ExitStack() as stack:
        stack.callback(server.close)
        asked = stack.enter_context(prometheus(tmp_path, port_of(server), {"node": NODE}))
        asked.scraped()
        assert found(asked) == {}

        rig.node.npu_smi.fail()
        ages = {"pods": 1200.0, "cpubindingplans": 240.0}
        overlap = 3  # a fault of the agent's own, which nothing on a node brings about
        rig.node.kernel.denied = {task.tid for task in workers[1].threads}
        for worker in workers:
            worker.drift(CpuSet.parse("100-103"), 3)
        for _ in range(3):
            rig.settle()
        for _ in range(6):
            workers[0].drift(CpuSet.parse("100-103"), 3)
            rig.sweep()
        metrics.swept(time.time() - 600)
        asked.scraped()
        assert found(asked) == {
            "CpubindSweepStale": [{"node": NODE}],
            "CpubindWorkerUnbound": [{"node": NODE}],
            "CpubindBindErrors": [{"node": NODE, "role": "main", "reason": "PermissionDenied"}],
            "CpubindDriftFight": [{"node": NODE, "kind": "thread"}],
            "CpubindOverlap": [{"node": NODE}],
            "CpubindNpuSmiFailing": [{"node": NODE, "command": "info", "reason": "DriverNotReady"}],
            "CpubindPlanDegraded": [{"node": NODE, "type": "Degraded", "reason": "DriverNotReady"}],
            "CpubindWatchStale": [{"node": NODE, "resource": "pods"}],
        }

        server.close()
        until(lambda: "CpubindAgentAbsent" in found(asked))
        assert found(asked)["CpubindAgentAbsent"] == [{"node": NODE}, {}], "the node's, and with it the only one"
