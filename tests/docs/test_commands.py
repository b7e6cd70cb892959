"""What a page tells people to type exists: commands, flags, values of the chart, fields and conditions of the plan."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import click
import pytest

from agent.cli.commands import cli
from agent.cli.kubectl import kubectl_cli
from agent.control.conditions import Conditions
from agent.control.report import Report
from agent.model.spec import Mode, Spec
from agent.planning.validation import parse_spec
from agent.settings import Settings
from tests.chart.crd import complaints, definition, fields, schema
from tests.docs.pages import PAGES, ROOT, Command, commands, spans
from tests.docs.values import Values, paths
from tests.docs.values import complaints as complaints_of_chart

ALL = commands()


def called(*names: str) -> list[Command]:
    """The commands that begin so."""
    return [command for command in ALL if command.words[: len(names)] == names]


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CPUBIND_")]:
        monkeypatch.delenv(name)


def problem(words: tuple[str, ...]) -> str:
    """Why click would refuse a command line of cpubind; nothing of it is run."""
    name, *args = words
    with click.Context(cli) as parent:
        command = cli.get_command(parent, name)
        if command is None:
            return f"no command {name}"
        try:
            command.make_context(name, list(args), parent=parent)
        except click.UsageError as error:
            return error.format_message()
        except click.exceptions.Exit:
            pass  # --help
    return ""


@pytest.mark.parametrize("command", called("cpubind"), ids=str)
def test_every_command_of_cpubind_is_one_that_it_takes(command: Command) -> None:
    words = command.words[1:]
    if len(words) == 1:  # prose names commands without their arguments
        assert words[0].startswith("-") or cli.get_command(click.Context(cli), words[0])
    else:
        assert problem(words) == ""


@pytest.mark.parametrize("command", called("kubectl", "cpubind"), ids=str)
def test_every_command_of_the_plugin_is_one_that_it_takes(command: Command) -> None:
    if len(command.words) == 2:  # prose names it without a command
        return
    name, *args = command.words[2:]
    with click.Context(kubectl_cli) as parent:
        found = kubectl_cli.get_command(parent, name)
        assert found is not None
        found.make_context(name, args, parent=parent)


@pytest.mark.parametrize("words", [("run", "--standalon"), ("plans",), ("plan", "-o", "xml"), ("explain", "a", "b")])
def test_a_command_that_cpubind_does_not_take_would_be_noticed(words: tuple[str, ...]) -> None:
    assert problem(words)


def test_every_variable_of_the_agent_is_a_setting() -> None:
    known = {f"CPUBIND_{name.upper()}" for name in Settings.model_fields}
    for page in PAGES:
        assert set(re.findall(r"\bCPUBIND_[A-Z_]+\b", page.read_text())) <= known


def test_every_target_of_make_is_there() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.words[1] for command in called("make")} <= targets


def _typed(text: str) -> Any:
    """As `--set` takes a value: numbers and booleans are no text."""
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    return int(text) if text.isdigit() else text.replace("\\,", ",").replace("YOUR-REPOSITORY", "repository")


def _given(command: Command) -> Values:
    """The values that a command of helm sets."""
    given: Values = {}
    for flag, kind in (("--set", _typed), ("--set-string", str)):
        for assignment in command.all_after(flag):
            path, _, text = assignment.strip("'").partition("=")
            *parents, last = path.split(".")
            at = given
            for parent in parents:
                at = at.setdefault(parent, {})
            at[last] = kind(text)
    return given


SETTERS = [
    *called("helm"),
    *(Command("prose", tuple(span.split())) for page in PAGES for span in spans(page) if span.startswith("--set")),
]


@pytest.mark.parametrize("command", SETTERS, ids=str)
def test_every_value_that_is_set_is_one_that_the_chart_takes(command: Command) -> None:
    assert complaints_of_chart(_given(command)) == []


@pytest.mark.parametrize("wrong", ["mod=Disabled", "mode=Off", "crds.instal=true", "reservedCpus=7"])
def test_a_value_that_the_chart_does_not_take_would_be_noticed(wrong: str) -> None:
    assert complaints_of_chart(_given(Command("", ("helm", "upgrade", "--set", wrong))))


def test_the_values_that_pages_set_are_seen() -> None:
    seen = {path for command in SETTERS for path in paths(_given(command))}
    assert {"mode", "image.repository", "crds.install", "reservedCpus"} <= seen
    assert "updateStrategy.rollingUpdate.maxUnavailable" in seen


@pytest.mark.parametrize("command", called("helm"), ids=str)
def test_helm_is_given_this_chart_and_files_that_are_there(command: Command) -> None:
    if command.words[1] in ("install", "upgrade") and len(command.words) > 2:  # prose names them without arguments
        assert command.words[3] == "charts/cpubind"
    for file in command.all_after("--values", "-f"):
        assert (ROOT / file).is_file()


@pytest.mark.parametrize("command", called("kubectl", "patch", "cbp"), ids=str)
def test_every_patch_of_a_plan_is_one_that_api_server_and_agent_take(command: Command) -> None:
    patch = json.loads(command.after("-p", "--patch") or "")
    assert command.after("--type") == "merge"
    spec = {name: value for name, value in patch.get("spec", {}).items() if value is not None}
    assert set(patch.get("spec", {})) <= set(schema("spec")["properties"])
    assert complaints("spec", spec) == []
    parse_spec(spec)
    assert set(patch) <= {"spec", "metadata"}


def test_every_field_that_is_explained_is_there() -> None:
    known = {path.replace("[]", "") for path, _ in fields(schema())}
    asked = {command.words[2].removeprefix("cbp.") for command in called("kubectl", "explain")}
    assert asked
    assert asked <= known


def test_every_condition_that_is_waited_for_is_one_of_the_plan() -> None:
    made = {
        entry["type"]
        for mode in Mode
        for entry in Conditions([], "2026-01-01T00:00:00Z", 1).of(Report("node", Spec(mode=mode)), [])
    }
    waited = [target for command in called("kubectl", "wait", "cbp") for target in command.all_after("--for")]
    named = {target.removeprefix("condition=").partition("=")[0] for target in waited if target[0] == "c"}
    assert {"Ready", "Restored"} <= named <= made


def test_every_path_into_a_plan_is_a_field_of_it() -> None:
    """Of custom columns and JSONPath."""
    known = {path.replace("[]", "") for path, _ in fields(schema())}
    text = "\n".join(str(command) for command in called("kubectl") if "cbp" in str(command))
    paths = set(re.findall(r"\.(spec|status)((?:\.\w+|\[\*\])+)", text))
    asked = {part + rest.replace("[*]", "") for part, rest in paths}
    assert {"spec.mode", "status.npus", "status.summary.bound"} <= asked
    assert asked <= known


def test_every_name_of_the_resource_is_its_own() -> None:
    names = definition()["spec"]["names"]
    assert names["shortNames"] == ["cbp"]
    for command in called("kubectl", "get", "crd") + called("kubectl", "delete", "crd"):
        assert command.words[3] == definition()["metadata"]["name"]
