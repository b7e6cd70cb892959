"""Alerts: what they fire on, what they don't, and that each has a page which helps whoever it wakes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.model.figures import OPERATION_ROLES, WORKER_ROLES
from agent.telemetry.families import FAMILIES
from tests.docs.pages import CHART, ROOT, code, links, one_line, sections, table

RULES = CHART / "files/alerts.yaml"
PAGES = ROOT / "docs/runbooks"
CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())

Rule = dict[str, Any]
ALERTS: dict[str, Rule] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
HEADINGS = ["What it means", "What to look at", "How to mend it", "When to ignore it"]


def promtool(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("NO promtool HERE: install Debian's prometheus")
    return subprocess.run(["promtool", *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    checked = promtool("check", "rules", str(RULES), cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in checked.stdout


def filled(cases: dict[str, Any], rules: Path) -> dict[str, Any]:
    """With the annotations of the rules that do not depend on series."""
    for test in cases["tests"]:
        for case in test["alert_rule_test"]:
            for alert in case["exp_alerts"]:
                constant = {k: v for k, v in ALERTS[case["alertname"]]["annotations"].items() if k != "summary"}
                alert["exp_annotations"] = constant | alert["exp_annotations"]
    return {**cases, "rule_files": [str(rules)]}


def test_every_alert_fires_when_it_should_and_not_else(tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(filled(CASES, RULES)))
    tested = promtool("test", "rules", "cases.yaml", cwd=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("expr", ["vector(1)", "vector(1) > 1"], ids=["always", "never"])
def test_an_alert_that_fires_always_or_never_would_be_noticed(expr: str, tmp_path: Path) -> None:
    rules = [{**rule, "expr": expr} for rule in ALERTS.values()]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "cpubind", "rules": rules}]}))
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(filled(CASES, tmp_path / "rules.yaml")))
    tested = promtool("test", "rules", "cases.yaml", cwd=tmp_path)
    assert tested.returncode != 0
    assert set(re.findall(r"alertname: (\w+),", tested.stdout + tested.stderr)) == ALERTS.keys()


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    seen: dict[str, set[bool]] = defaultdict(set)
    for test in CASES["tests"]:
        for case in test["alert_rule_test"]:
            seen[case["alertname"]].add(bool(case["exp_alerts"]))
    assert seen == {alert: {True, False} for alert in ALERTS}


def test_alerts_are_about_metrics_values_and_labels_that_there_are() -> None:
    labels = {family.name: {label.name: label for label in family.labels} for family in FAMILIES}
    for rule in ALERTS.values():
        used = re.findall(r"(cpubind_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert used
        for name, matchers in used:
            for label, values in re.findall(r'(\w+)[=!]~?"([^"]*)"', matchers):
                assert all(labels[name][label].fitted(value) == value for value in values.split("|")), (name, label)
        assert "pod" not in re.findall(r"\w+", rule["expr"])


def test_every_alert_says_what_it_is_and_what_that_does() -> None:
    for name, rule in ALERTS.items():
        assert name.startswith("Cpubind")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["annotations"]["summary"].rstrip("}{% end").endswith(".")
        assert rule["annotations"]["description"].endswith(".")
        assert rule["labels"] == {"severity": "warning"}


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*ALERTS, "README"}
    listed = {"".join(code(row[0])): row for row in table((PAGES / "README.md").read_text())}
    assert listed.keys() == ALERTS.keys()
    assert {f"{name}.md" for name in ALERTS} <= set(links(PAGES / "README.md"))


@pytest.mark.parametrize("alert", ALERTS)
def test_a_page_says_what_it_means_what_to_look_at_how_to_mend_it_and_when_to_ignore_it(alert: str) -> None:
    page = sections(PAGES / f"{alert}.md")
    assert list(page) == [alert, *HEADINGS]
    assert all(text.strip() for text in page.values())
    assert re.search(r"^(kubectl|cpubind) ", page["What to look at"], re.MULTILINE), "with which command"
    assert f"for {waits(ALERTS[alert])}" in one_line(page[alert]).lower(), "how long it has to last"


def test_the_page_of_bind_errors_names_the_roles_whose_failures_count_in_each_pass() -> None:
    meaning = sections(PAGES / "CpubindBindErrors.md")["What it means"]
    assert set(code(meaning)) & set(OPERATION_ROLES) == {role.value for role in WORKER_ROLES}


def waits(rule: Rule) -> str:
    """How long what it fires on has to last, in words."""
    minutes = {"1m": "one minute", "2m": "two minutes", "5m": "five minutes", "15m": "fifteen minutes"}
    return minutes[rule["for"]] if "for" in rule else "no time at all"
