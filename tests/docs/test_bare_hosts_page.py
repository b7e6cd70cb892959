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
from agent.cli.select import chooser
from agent.control.observe import Candidate, Choice
from agent.model.workload import CgroupIdentity, ProcessId
from agent.planning.attribution import Attribution
from tests.docs.pages import ROOT, blocks, commands
from tests.docs.test_commands import problem

PAGE = ROOT / "docs/bare-hosts.md"
TEXT = PAGE.read_text()
ID = "4561e2e3ceb8377038c27ea5c40aa64a44c2dc02e53a141d20b7c98b2af59b1a"


def unit() -> configparser.ConfigParser:
    (text,) = blocks(PAGE, "ini")
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser


@pytest.mark.parametrize(
    ("path", "chosen"),
    [
        (f"/docker/{ID}", Choice.BIND),
        (f"/system.slice/docker-{ID}.scope", Choice.BIND),
        ("/user.slice/user-1000.slice/session-3.scope", Choice.LEAVE),
    ],
)
def test_the_pattern_for_containers_of_docker_fits_by_whichever_driver_its_cgroups_are_made(
    path: str, chosen: Choice
) -> None:
    (asked,) = (command for command in commands(PAGE) if "--select" in command.words)
    pattern = next(text for text in asked.all_after("--select") if text.startswith("cgroup="))
    assert pattern in (ROOT / "agent/cli/run.py").read_text()
    candidate = Candidate(ProcessId(7, 1), "python", 0, CgroupIdentity(path), None, "", Attribution((0,)))
    assert chooser([pattern])(candidate) is chosen


def test_the_unit_starts_a_command_that_cpubind_takes_from_where_the_page_installs_it() -> None:
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert problem(tuple(words)) == ""
    (folder,) = [command.words[-1] for command in commands(PAGE) if command.words[:3] == ("python3", "-m", "venv")]
    assert program == f"{folder}/bin/cpubind"


def test_nobody_is_told_to_install_into_the_python_of_the_system() -> None:
    """Debian and Ubuntu refuse that (externally-managed-environment)."""
    for page in (PAGE, ROOT / "README.md"):
        made = [one.words[-1] for one in commands(page) if one.words[:3] == ("python3", "-m", "venv")]
        used = {one.words[0] for one in commands(page) if one.words[0].endswith("pip")}
        assert used == {f"{folder}/bin/pip" for folder in made}


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
