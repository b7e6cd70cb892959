"""What docs/kubernetes.md says of chart and agent is so."""

from __future__ import annotations

import re

from agent.cli.doctor import RIGHTS
from agent.model.address import parse_address
from agent.model.reason import Reason
from agent.planning.bases import INTERVAL_SECONDS, SETTLE_SECONDS
from agent.settings import Settings
from tests.chart.crd import schema
from tests.docs.pages import ROOT, code, one_line, sections, table
from tests.docs.values import VALUES, has

PAGE = ROOT / "docs/kubernetes.md"
TEXT = PAGE.read_text()
SECTIONS = sections(PAGE)
APPROVED = table(SECTIONS["What you approve"])


def test_the_rights_on_the_page_are_all_that_the_agent_has() -> None:
    said = set()
    for group, resource, verbs, _ in APPROVED:
        name, _, subresource = code(resource)[0].partition("/")
        said |= {(verb, "".join(code(group)), name, subresource) for verb in code(verbs)}
    assert said == set(RIGHTS)


def test_who_approves_it_reads_of_all_that_is_done_to_a_host() -> None:
    """Each row of the table that docs/host.md begins with."""
    rows = [row[0] for row in table(sections(ROOT / "docs/host.md")["What is done to a host, and taken back"])]
    words = {
        "threads of a worker": "sched_setaffinity(2)",
        "children of a worker": "and of their children's",
        "other processes in its container": "of other processes of such a container where `helpers` is `Confine`",
        "interrupts of its NPUs": "`smp_affinity_list`",
        "irqbalance": "tells irqbalance to leave these alone",
        "its private memory": "move_pages(2)",
        "UVB threads of the host, on Ascend950": "UVB threads of the host on Ascend950",
    }
    assert rows == list(words)
    text = one_line(SECTIONS["What you approve"])
    assert [row for row, said in words.items() if said not in text] == []


def test_the_ports_on_the_page_are_those_of_chart_and_agent() -> None:
    fields = Settings.model_fields
    for kind in ("health", "metrics"):
        address = parse_address(fields[f"{kind}_address"].default)
        assert address is not None
        assert address.port == VALUES[kind]["port"]
        assert str(address.port) in SECTIONS["What you approve"]


def test_the_labels_of_nodes_on_the_page_are_those_of_the_charts_affinity() -> None:
    terms = VALUES["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    text = SECTIONS["Install"]
    for term in terms:
        for rule in term["matchExpressions"]:
            for value in rule["values"]:
                both = f"`{rule['key']}={value}`" in text
                assert both or (f"`{rule['key']}`" in text and f"`{value}`" in text), (rule["key"], value)


def test_every_setting_on_the_page_is_a_value_of_the_chart() -> None:
    named = [name for row in table(SECTIONS["Settings that matter"]) for name in code(row[0])]
    assert [name for name in named if not has(name)] == []
    assert len(named) == len(set(named))
    assert schema("spec")["properties"].keys() <= set(named), "every field of spec is among them"


def test_every_value_of_the_chart_that_the_page_names_in_passing_is_there() -> None:
    dotted = {name for name in code(TEXT) if re.fullmatch(r"[a-z]+[A-Za-z]*(?:\.[a-z][A-Za-z]+)+", name)}
    files = {name for name in dotted if name.rpartition(".")[2] in ("md", "yaml", "json")}
    others = {"status.npus", "openshift.scc.create", "spec.template.metadata.annotations", "cpubind.dev"}
    assert [name for name in dotted - files - others if not has(name)] == []


def test_every_reason_on_the_page_exists() -> None:
    reasons = {reason.value for reason in Reason}
    words = {w for w in code(TEXT) if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", w)}
    conditions = {"PlanValid", "TopologyDiscovered"}
    states = {"DryRun", "AllNpuPods", "NumaSlice", "GlobalSlice", "TopoAffinity"}
    assert words - conditions - states <= reasons


def test_the_times_on_the_page_are_the_agents() -> None:
    assert (SETTLE_SECONDS, INTERVAL_SECONDS) == (10, 300)
    assert "after ten quiet seconds and at most once in five minutes" in one_line(SECTIONS["Ask for something else"])
