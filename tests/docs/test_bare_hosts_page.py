"""docs/bare-hosts.md: the unit starts what cpubind takes, and what is removed is what there was."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli import EXIT_LOCKED
from agent.cli.options import JOURNAL, LOCK
from agent.cli.options import STATE as PLAN
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.test_commands import problem

PAGE = ROOT / "docs/bare-hosts.md"
TEXT = PAGE.read_text()


def unit() -> configparser.ConfigParser:
    (text,) = blocks(PAGE, "ini")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser


def test_the_unit_starts_a_command_that_cpubind_takes_from_where_the_page_installs_it() -> None:
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert problem(tuple(words)) == ""
    (folder,) = [command.words[-1] for command in commands(PAGE) if command.words[:3] == ("python3", "-m", "venv")]
    assert program == f"{folder}/bin/cpubind"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    (text,) = blocks(PAGE, "ini")
    file = tmp_path / "cpubind.service"
    file.write_text(text.replace("/opt/cpubind/bin/cpubind", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in done.stderr.splitlines() if "cpubind.service" in line] == []


def test_the_unit_does_not_begin_again_while_another_agent_has_the_lock() -> None:
    assert unit()["Service"]["RestartPreventExitStatus"] == str(EXIT_LOCKED)
    assert f"Status {EXIT_LOCKED} says" in TEXT


def test_all_that_was_installed_and_written_is_removed_after_it_was_restored() -> None:
    lines = [command.words for command in commands(PAGE)]
    (removed,) = [words[2:] for words in lines if words[0] == "rm"]
    kept = {str(Path("/", file).parent) for file in (PLAN, JOURNAL, LOCK)}
    linked = {words[-1] for words in lines if words[0] == "ln"}
    units = set(re.findall(r"`(/etc/systemd/\S+)`", TEXT))
    assert set(removed) == {*kept, *linked, *units, "/opt/cpubind"}
    first = [words[0] if words[0] == "rm" else " ".join(words) for words in lines]
    assert first.index("systemctl disable --now cpubind") < first.index("cpubind restore") < first.index("rm")
