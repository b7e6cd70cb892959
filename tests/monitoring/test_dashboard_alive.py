"""The dashboard shows something: every query of it, asked of a real Prometheus that scrapes an agent at work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from agent.control.exposed import READ_SECONDS, Exposed
from agent.demo.workload import Worker
from agent.model.address import Address
from agent.model.cpuset import CpuSet
from agent.telemetry.metrics import Metrics, MetricsServer
from tests.control.hearing import ears_of, named
from tests.control.rig import Rig, wait_until
from tests.monitoring.server import Prometheus, prometheus
from tests.monitoring.test_dashboard import DASHBOARD, PANELS, QUERIES
from tests.telemetry.listening import port_of

NODE = "a2-0"
VARIABLES = {"$node": NODE, "$__rate_interval": "1m"}


def filled(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """What a Prometheus has seen of an agent on a virtual node, on which things happened between two scrapes."""
    folder = tmp_path_factory.mktemp("dashboard")
    rig = Rig(folder, "a2", interrupts=True)
    old = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    old.add_role_threads()
    rig.settle()
    reads = count(step=2 * READ_SECONDS)  # the host is read for every scrape
    exposed = Exposed(rig.agent, clock=lambda: next(reads))
    metrics = Metrics(exposed.document, exposed.figures)
    server = MetricsServer(Address("127.0.0.1", 0), metrics)
    with ExitStack() as stack:
        stack.callback(server.close)
        ears = stack.enter_context(ears_of(rig))
        rig.sweep()
        metrics.swept(1_800_000_000.0)
        found = stack.enter_context(prometheus(folder, port_of(server), {"node": NODE}))
        found.scraped()
        [task] = old.grow(1)
        rig.node.kernel.rename(task.tid, "acl_thread")
        ears.stream.tell(named(old.pid, task.tid, "acl_thread"))
        wait_until(lambda: ears.events.placer.moved > 0)
        old.drift(CpuSet.parse("100-103"), 3)
        young = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-1"))
        rig.uptime = young.identity.start_time / 100 + 1.25
        rig.settle()
        found.scraped()
        yield found


def test_prometheus_has_the_agent_under_the_name_of_its_node(seen: Prometheus) -> None:
    variable = next(one for one in DASHBOARD["templating"]["list"] if one["name"] == "node")
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert found
    assert seen.get(f"/api/v1/label/{found[2]}/values", **{"match[]": found[1]}) == [NODE]


def test_every_query_of_every_panel_gives_numbers(seen: Prometheus) -> None:
    without = []
    for title, expr in QUERIES:
        values = [value for _, value in seen.query(filled(expr))]
        if not any(math.isfinite(value) for value in values):
            without.append((title, expr, values))
    assert without == []


def test_a_series_is_named_by_labels_that_its_query_keeps(seen: Prometheus) -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert all(wanted <= labels.keys() for labels, _ in seen.query(filled(target["expr"]))), panel["title"]


def value_of(seen: Prometheus, title: str) -> dict[tuple[str, ...], float]:
    """What a panel shows, by the values of labels in alphabetical order."""
    found = {}
    for panel_title, expr in QUERIES:
        if panel_title == title:
            for labels, value in seen.query(filled(expr)):
                found[tuple(value for _, value in sorted(labels.items()))] = value
    assert found
    return found


def test_a_query_that_prometheus_does_not_take_would_be_noticed(seen: Prometheus) -> None:
    with pytest.raises(AssertionError, match="parse error"):
        seen.query("sum by (node (cpubind_workers)")
    assert seen.query('cpubind_workers{node="another"}') == []


def test_what_happened_is_what_is_shown(seen: Prometheus) -> None:
    assert value_of(seen, "Nodes with an agent") == {(): 1}
    assert value_of(seen, "Nodes by state") == {("AsPlanned", "True"): 1}
    assert value_of(seen, "Bound workers") == {(): 2}
    assert value_of(seen, "Unbound workers") == {(): 0}
    assert value_of(seen, "CPUs by NPU and role")["0", "acl"] == 1
    assert value_of(seen, "Drift rate")["thread",] > 0
    assert value_of(seen, "Memory locality").keys() == {("0",), ("1",)}
    assert ("0", "acl") in value_of(seen, "Involuntary context switches")
