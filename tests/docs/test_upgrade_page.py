"""What docs/upgrade.md says of upgrades and of removal is so; tests/e2e follows its commands on a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from agent.control.journal_file import VERSION
from agent.kube.publisher import RETRY_SCHEMA_SECONDS
from agent.model.reason import Reason
from tests.docs.pages import CHART, ROOT, code, commands, one_line, sections, table
from tests.docs.values import VALUES

PAGE = ROOT / "docs/upgrade.md"
SECTIONS = sections(PAGE)
STEPS = [" ".join(command.words) for command in commands(PAGE) if command.words[0] in ("helm", "kubectl")]


def test_the_removal_ends_in_the_order_in_which_nothing_is_left_bound() -> None:
    disable = next(n for n, step in enumerate(STEPS) if "mode=Disabled" in step)
    wait = next(n for n, step in enumerate(STEPS) if "condition=Restored" in step)
    remove = next(n for n, step in enumerate(STEPS) if step.startswith("helm uninstall"))
    assert disable < wait < remove


def test_what_was_set_is_kept_by_every_upgrade_and_what_is_new_in_the_chart_is_taken() -> None:
    """With `--reuse-values` a chart with new values is refused."""
    upgrades = [command for command in commands() if command.words[:2] == ("helm", "upgrade")]
    assert {f"docs/{name}.md" for name in ("upgrade", "kubernetes", "security")} <= {one.page for one in upgrades}
    for command in upgrades:
        assert len(command.words) == 2 or "--reset-then-reuse-values" in command.words, command
    assert "--reset-then-reuse-values --set mode=Disabled" in (CHART / "templates/NOTES.txt").read_text()


def test_the_crd_that_is_applied_by_hand_is_the_one_source() -> None:
    (path,) = {command.after("-f") for command in commands(PAGE) if command.words[:2] == ("kubectl", "apply")}
    assert path is not None
    assert Path(ROOT, path).samefile(ROOT / "crds/cpubindingplans.yaml")


def test_the_crd_outlives_the_release_and_is_upgraded_with_it() -> None:
    text = (CHART / "templates/crd.yaml").read_text()
    assert "helm.sh/resource-policy" in text
    assert not (CHART / "crds").exists()
    assert "is of no namespace" not in SECTIONS["Removed without disabling it first"]
    assert yaml.safe_load((CHART / "files/cpubindingplans.yaml").read_text())["spec"]["scope"] == "Cluster"


def test_the_figures_on_the_page_are_the_agents() -> None:
    older = table(SECTIONS["What may be older than what"])
    text = one_line(SECTIONS["What may be older than what"])
    assert RETRY_SCHEMA_SECONDS == 600
    assert "It tries again every ten minutes." in text
    assert f"All releases so far write version {VERSION}," in text
    assert len(older) == 5
    assert "A tenth of the agents is replaced at a time." in one_line(SECTIONS["Upgrade"])
    assert VALUES["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"


def test_every_reason_on_the_page_exists() -> None:
    words = {word for word in code(PAGE.read_text()) if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", word)}
    assert {"SchemaOutdated", "BoundBefore", "AgentStopped", "InvalidSpec", "StateUnreadable"} <= words
    assert words - {"PlanValid"} <= {reason.value for reason in Reason}
