"""--help teaches by examples that work, and the shell completes what there is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from agent.cli.commands import cli
from agent.model.node import DeviceType
from agent.model.spec import Mode, Rebalance, Strategy
from agent.planning.validation import AUTO
from tests.cli.conftest import Cpubind

with click.Context(cli) as _root:
    COMMANDS = {name: cli.get_command(_root, name) for name in cli.list_commands(_root)}


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CPUBIND_")]:
        monkeypatch.delenv(name)


def examples(name: str) -> list[list[str]]:
    """The command lines in a command's help, as the shell would take them apart."""
    command = COMMANDS[name]
    assert command is not None
    lines = [line.strip() for line in (command.help or "").splitlines()]
    typed = [re.split(r"\s{2,}| \|\| | >", line)[0] for line in lines if line.startswith("cpubind ")]
    return [shlex.split(line)[1:] for line in typed]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_examples_of_it_that_it_takes(name: str) -> None:
    found = examples(name)
    assert len([words for words in found if words[0] == name]) >= 2
    for words in found:
        command = COMMANDS[words[0]]
        assert command is not None
        with click.Context(cli) as parent:
            command.make_context(words[0], words[1:], parent=parent)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    command = COMMANDS[name]
    assert command is not None
    for option in command.params:
        if isinstance(option, click.Option) and option.name != "output":
            assert option.help, option.name


def test_the_help_fits_a_terminal_of_100_columns(cpubind: Cpubind) -> None:
    for name in ("", *COMMANDS):
        text = cpubind(*([name] if name else []), "--help").out
        assert max(map(len, text.splitlines())) <= 100, name


def completed(*words: str) -> list[str]:
    """What the shell is offered after these words."""
    typed = {"COMP_WORDS": shlex.join(["cpubind", *words]), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        [sys.executable, "-m", "agent"],
        env={**os.environ, **typed, "_CPUBIND_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_the_shell_is_offered_commands_flags_and_their_words() -> None:
    assert completed("pl") == ["plan"]
    assert completed("plan", "-o", "") == ["table", "json", "yaml", "svg"]
    assert "--snapshot" in completed("explain", "--s")
    assert completed("plan", "--mode", "D") == ["DryRun", "Disabled"]
    known = {
        "--mode": list(Mode),
        "--strategy": [AUTO, *Strategy],
        "--device-type": [AUTO, *(device for device in DeviceType if device is not DeviceType.UNKNOWN)],
        "--rebalance": list(Rebalance),
    }
    for flag, words in known.items():
        assert set(completed("plan", flag, "")) == set(map(str, words))


def test_bash_completes_with_what_the_readme_says(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    line = next(line for line in readme.splitlines() if "_CPUBIND_COMPLETE=bash_source" in line).partition("  #")[0]
    program = tmp_path / "cpubind"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m agent "$@"\n')
    program.chmod(0o755)
    press_tab = "COMP_WORDS=(cpubind capt); COMP_CWORD=1; _cpubind_completion cpubind; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{line}\n{press_tab}\ncomplete -p cpubind"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    first, registered = done.stdout.splitlines()
    assert first == "capture"
    assert registered.endswith("-F _cpubind_completion cpubind")
