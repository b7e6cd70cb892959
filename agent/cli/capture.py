"""``cpubind capture``: a support bundle that replays to the same plan."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from agent.cli.cluster import cluster_view
from agent.cli.options import (
    host_options,
    recorded_settings,
    reported_status,
    settings_from,
    source,
    spec_in_force,
)
from agent.control.journal_file import dump
from agent.control.observe import Observation
from agent.control.survey import survey
from agent.model.reason import Reason
from agent.node.capture import capture as write_capture
from agent.node.files import refusal

STANDARD_OUTPUT = Path("-")


@click.command(short_help="Write what the plan depends on into a folder or archive.")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR|FILE.tar.gz|-",
    help="Where to write: an archive when the name ends in .tar.gz, .tgz or .tar, else a folder. Must not exist. "
    "`-` is a .tar.gz on standard output.",
)
@click.option(
    "--with-environment",
    is_flag=True,
    envvar="CPUBIND_WITH_ENVIRONMENT",
    help="Also the environment of the processes on NPUs. Tokens and passwords may be in it.",
)
@click.option(
    "--with-command-lines",
    is_flag=True,
    envvar="CPUBIND_WITH_COMMAND_LINES",
    help="Also their command lines. Tokens and passwords may be in them.",
)
@host_options
def capture(target: Path, with_environment: bool, with_command_lines: bool, **flags: Any) -> int:
    """Write what the plan of this node depends on: npu-smi's tables, topology, interrupts, cgroups, the processes on
    NPUs with their threads, kubelet's records, the agent's journal, and what spec asks for.

    No environment, no command lines and no files of containers are taken unless you ask for them. Names of pods and
    processes are in it. `cpubind plan --snapshot FILE` makes the same plan from it anywhere.

    \b
    cpubind capture -o node.tar.gz              an archive
    cpubind capture -o node                     a folder, to look into
    cpubind capture -o - >node.tar.gz           an archive, out of a container
    cpubind plan --snapshot node.tar.gz         the plan of that node
    cpubind explain npu:3 --snapshot node.tar.gz
    cpubind verify --snapshot node.tar.gz

    Exit 1: npu-smi did not answer. What else there is has been written, and says why, but no plan can be made of it.
    """
    settings = settings_from(flags)
    view = cluster_view(settings)
    spec, _, _ = spec_in_force(settings, live=True, view=view)
    if target != STANDARD_OUTPUT and _exists(target):
        raise click.UsageError(f"{target} exists already: name a new file or folder")
    if target == STANDARD_OUTPUT and sys.stdout.isatty():
        # It makes CR LF of each LF: what kubectl exec -t then writes into a file can't be opened any more.
        raise click.UsageError("standard output is a terminal: send it to a file, and leave out -t of kubectl exec")
    private = ("environ",) * with_environment + ("cmdline",) * with_command_lines
    if private:
        what = " and ".join(("environments",) * with_environment + ("command lines",) * with_command_lines)
        click.echo(
            f"cpubind: warning: {what} of the processes on NPUs go into {target}; they may hold tokens and passwords: "
            "look before you send it",
            err=True,
        )
    with source(settings, None, view=view) as origin, _file_for(target) as file:
        for problem in origin.problems:
            click.echo(f"cpubind: {problem}: what it would have told is left out", err=True)
        click.echo("looking at the node", err=True)
        found = survey(origin.observer, origin.npu_smi, spec, node=origin.node, journal=origin.journal)
        chips = [(npu.card, npu.chip) for npu in found.decision.inp.inventory.npus] if found.decision else []
        summary = write_capture(
            settings.host_root,
            origin.npu_smi.query,
            file,
            node=settings.node_name,
            architecture=settings.architecture,
            pids=_pids(found.seen),
            chips=chips,
            journal=dump(origin.journal),
            pods=origin.pods,
            pod_resources=view.resources or None if view else None,
            settings=recorded_settings(settings, spec, view),
            status=reported_status(settings, view),
            private=private,
            progress=lambda line: click.echo(line, err=True),
        )
    parts = (_number(summary.files, "file"), _size(summary.size), _number(summary.processes, "process", "processes"))
    click.echo(f"{target}: {', '.join(parts)}", err=target == STANDARD_OUTPUT)
    if not summary.inventory:
        click.echo("cpubind: npu-smi info did not answer: no plan can be made of this bundle", err=True)
        return 1
    return 0


@contextmanager
def _file_for(target: Path) -> Iterator[Path]:
    """Where to write; what standard output is to get is written whole first, and not at all where that fails."""
    if target != STANDARD_OUTPUT:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="cpubind-capture-") as folder:
        file = Path(folder, "node.tar.gz")
        yield file
        with file.open("rb") as archive:
            shutil.copyfileobj(archive, sys.stdout.buffer)
        sys.stdout.flush()


def _exists(target: Path) -> bool:
    try:
        target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False  # writing says what is wrong with the folder
    except OSError as error:
        raise refusal(Reason.SNAPSHOT_NOT_WRITTEN, target, error) from error
    return True


def _number(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _pids(seen: Observation | None) -> list[int]:
    """Everyone on an NPU, to be bound or not, with their descendants."""
    if seen is None:
        return []
    strangers = [c.process.pid for group in seen.strangers.values() for c in group]
    found: dict[int, None] = {}
    waiting = [w.process.pid for w in seen.workers] + strangers
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found[pid] = None
            waiting.extend(seen.children.get(pid, ()))
    return sorted(found)
