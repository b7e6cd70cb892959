"""The dashboard by itself: what it asks for exists, and everything on it has a place, a name and a sentence."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from agent.telemetry.families import FAMILIES
from tests.docs.pages import CHART

Panel = dict[str, Any]

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards/cpubind.json").read_text())
PANELS: list[Panel] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
"""The title of a panel, and what it asks for."""


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
