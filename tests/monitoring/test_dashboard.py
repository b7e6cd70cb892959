"""The dashboard shows something: every query of it, asked of a real Prometheus that scrapes an agent at work."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from typing import Any

import pytest

from agent.control.exposed import READ_SECONDS, Exposed
from agent.demo.workload import Worker
from agent.model.address import Address
from agent.model.cpuset import CpuSet
from agent.telemetry.families import FAMILIES
from agent.telemetry.metrics import Metrics, MetricsServer
from tests.control.hearing import ears_of, named
from tests.control.rig import Rig, wait_until
from tests.docs.pages import CHART
from tests.monitoring.server import Prometheus, prometheus, until
from tests.telemetry.listening import port_of

Panel = dict[str, Any]

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards/cpubind.json").read_text())
PANELS: list[Panel] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
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

        def scraped(times: int = 2) -> None:
            """Now, and so many times more."""
            asked = f"count_over_time(cpubind_build_info{{node='{NODE}'}}[1m])"
            before = sum(value for _, value in found.query(asked))
            until(lambda: sum(value for _, value in found.query(asked)) >= before + times)

        scraped()
        [task] = old.grow(1)
        rig.node.kernel.rename(task.tid, "acl_thread")
        ears.stream.tell(named(old.pid, task.tid, "acl_thread"))
        wait_until(lambda: ears.events.placer.moved > 0)
        old.drift(CpuSet.parse("100-103"), 3)
        young = Worker.start(rig.node, 1, rig.node.kubelet.add_pod("llm-1"))
        rig.uptime = young.identity.start_time / 100 + 1.25
        rig.settle()
        scraped()
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


def test_queries_are_of_metrics_values_and_labels_that_there_are_and_of_no_pod() -> None:
    suffixes = re.compile(r"_(bucket|count|sum)$")
    known = {family.name: {label.name: label for label in family.labels} for family in FAMILIES}
    for _, expr in QUERIES:
        used = re.findall(r"(cpubind_\w+)(?:\{([^}]*)\})?", expr)
        assert used
        for name, matchers in used:
            labels = known[name if name in known else suffixes.sub("", name)]
            for label, values in re.findall(r'(\w+)[=!]~?"([^"]*)"', matchers):
                assert label == "node" or all(labels[label].fitted(v) == v for v in values.split("|")), (name, label)
        assert not {"pod", "container"} & set(re.findall(r"\w+", expr))


def test_every_panel_has_its_place_its_name_and_a_sentence() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({panel["title"] for panel in everything}) == len(everything)
    assert all(panel["description"].endswith(".") for panel in PANELS)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)
    lines: dict[int, list[dict[str, int]]] = {}
    for panel in everything:
        lines.setdefault(panel["gridPos"]["y"], []).append(panel["gridPos"])
    for at, line in lines.items():
        assert [place["x"] for place in line] == [sum(p["w"] for p in line[:k]) for k in range(len(line))]
        assert sum(place["w"] for place in line) == 24
        assert len({place["h"] for place in line}) == 1, at
    assert all(above + lines[above][0]["h"] == below for above, below in pairwise(lines))


def test_it_shows_the_fleet_and_a_node() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Fleet", "Node $node"]
    second = next(panel["gridPos"]["y"] for panel in DASHBOARD["panels"] if panel["title"] == rows[1])
    for panel in PANELS:
        of_a_node = panel["gridPos"]["y"] > second
        assert all(('node="$node"' in target["expr"]) is of_a_node for target in panel["targets"])
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "node"]
