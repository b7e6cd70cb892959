"""``cpubind capture``: a support bundle that replays to the same plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agent.cli.options import host_options, settings_from, source
from agent.control.journal import dump
from agent.control.observe import Observation
from agent.control.survey import survey
from agent.node.capture import capture as write_capture


@click.command(short_help="Write what the plan depends on into a folder or archive.")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR|FILE.tar.gz",
    help="Where to write: an archive when the name ends in .tar.gz, else a folder. Must not exist.",
)
@host_options
def capture(target: Path, **flags: Any) -> int:
    """Write what the plan of this node depends on: npu-smi's tables, topology, cgroups, and the processes on NPUs.

    No environment, no command lines and no files of containers are taken. `cpubind plan --snapshot FILE` makes the
    same plan from it anywhere.

    \b
    cpubind capture -o node.tar.gz
    cpubind plan --snapshot node.tar.gz
    """
    settings, spec = settings_from(flags)
    if target.exists():
        raise click.UsageError(f"{target} exists already: name a new file or folder")
    with source(settings, None) as origin:
        click.echo("looking at the node", err=True)
        found = survey(origin.observer, origin.npu_smi, spec, node=origin.node, journal=origin.journal)
        chips = [(npu.card, npu.chip) for npu in found.decision.inp.inventory.npus] if found.decision else []
        summary = write_capture(
            settings.host_root,
            origin.npu_smi.query,
            target,
            node=settings.node_name,
            architecture=settings.architecture,
            pids=_pids(found.seen),
            chips=chips,
            journal=dump(origin.journal),
            progress=lambda line: click.echo(line, err=True),
        )
    for note in summary.notes:
        click.echo(f"left out: {note}", err=True)
    click.echo(f"{target}: {summary.files} files, {summary.size / 1e6:.1f} MB, {summary.processes} processes")
    return 0


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
