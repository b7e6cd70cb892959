"""``cpubind restore``: give back what an agent took, without an agent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agent import __version__
from agent.cli.options import JOURNAL, LOCK, of_file, read_journal, settings_from
from agent.cli.run import check_kernel
from agent.control import journal_file
from agent.control.act import Actor
from agent.control.journal import Journal
from agent.control.observe import Observer
from agent.control.restore import LOOKS, Restored, restore_all
from agent.control.statefile import as_yaml
from agent.control.steps import HostSteps
from agent.model.reason import Problem, Reason, Refused, printable
from agent.node.host import DryRunHost, LinuxHost
from agent.node.procfs import boot_id
from agent.node.storage import HostLock
from agent.settings import Settings


@click.command(short_help="Give back what the agent took, after it was stopped.")
@click.option(
    "--dry-run", is_flag=True, envvar="CPUBIND_DRY_RUN", help="Say what would be given back, write nothing to the host."
)
@click.option(
    "-o",
    "--output",
    envvar="CPUBIND_OUTPUT",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
)
@click.option("--host-root", metavar="DIR", help="Root folder of the host: / or where a container mounts it.")
@click.option("--journal-file", metavar="FILE", help="Default: HOST_ROOT/var/lib/cpubind/journal.json.")
@click.option("--lock-file", metavar="FILE", help="Default: HOST_ROOT/run/cpubind/lock.")
def restore(dry_run: bool, output: str, **flags: Any) -> int:
    """Give back everything that the agent's journal has: threads follow their cpusets again, those that had a narrower
    mask of their own before they were bound get that, interrupts the mask that they had, irqbalance its list. What
    others have changed since is left alone. Memory stays where it was moved to.

    \b
    cpubind restore --dry-run          what would be given back
    cpubind restore                    as root, after the agent was stopped
    cpubind restore -o json            for a script

    Neither the agent nor npu-smi is needed; the agent must not run. One that is started later binds again unless its
    mode is Disabled. Exit 0: nothing is left to give back; 1: something is, and why; 3: an agent runs.
    """
    settings = settings_from(flags)
    root = settings.host_root
    check_kernel(root)
    path = settings.journal_file or root / JOURNAL
    if not os.path.lexists(path):
        return _nothing(output, f"there is no journal {path}")
    lock = HostLock(settings.lock_file or root / LOCK)
    if not dry_run:
        lock.acquire(f"cpubind {__version__} restore, pid {os.getpid()}")
    try:
        journal, problem = read_journal(settings)
        if problem is not None:
            raise Refused(problem.reason, of_file(path, problem.message))
        if journal.boot_id != boot_id(root):
            return _nothing(output, f"the journal {path} is of another boot, of which nothing is left")
        if journal.lost:
            click.echo(f"cpubind: {_LOST}", err=True)
        if not journal.taken:
            return _nothing(output, f"the journal {path} has nothing that was not given back")
        return _restore(settings, path, journal, dry_run=dry_run, output=output)
    finally:
        lock.release()


_LOST = Problem(
    Reason.STATE_UNREADABLE,
    "an earlier journal of this boot could not be used: what it alone told of is not given back; let an agent bind "
    "once more, and set mode: Disabled then",
)


def _restore(settings: Settings, path: Path, journal: Journal, *, dry_run: bool, output: str) -> int:
    root = settings.host_root
    kernel = LinuxHost(root=root)
    host, observer = DryRunHost(kernel) if dry_run else kernel, Observer(root)
    actor, steps = Actor(root / "proc", host), HostSteps(root, host, observer.cgroups)
    # In a dry run a second look would find everything once more.
    done = restore_all(actor, steps, observer, journal, looks=1 if dry_run else LOOKS)
    unsaved: Refused | None = None
    if not dry_run:
        try:
            journal_file.save(path, done.journal)
        except Refused as refused:
            unsaved = refused
    _print(output, _lines(journal, done, dry_run=dry_run), _document(journal, done, dry_run=dry_run))
    for process, problem in sorted(done.act.stuck.items()):
        click.echo(f"cpubind: process {process.pid}: {problem}", err=True)
    for problem in done.steps.stuck:
        click.echo(f"cpubind: {problem}", err=True)
    if unsaved is not None:
        raise unsaved
    if done.act.stuck or done.steps.stuck or (done.journal.taken and not dry_run):
        click.echo(f"cpubind: not given back: {done.journal.taken}", err=True)
        return 1
    return 0


def _lines(journal: Journal, done: Restored, *, dry_run: bool) -> list[str]:
    how = "would be given back" if dry_run else "given back"
    lines = []
    for worker in journal.workers:
        count = done.act.undone.get(worker.process, 0)
        what = f"{count} threads {how} to their cpuset" if count else "no thread is on its CPUs any more"
        lines.append(f"process {worker.process.pid} (CPUs {worker.pool}): {what}")
    return lines + [f"{count} {kind} {how}" for kind, count in done.steps.returned.items()]


def _document(journal: Journal, done: Restored, *, dry_run: bool) -> dict[str, Any]:
    workers = []
    for worker in journal.workers:
        process = worker.process
        problem = done.act.stuck.get(process)
        entry = {
            "pid": process.pid,
            "startTime": process.start_time,
            "pool": str(worker.pool),
            "threads": done.act.undone.get(process, 0),
        }
        if problem is not None:
            entry |= {"reason": problem.reason.value, "message": problem.message}
        workers.append(entry)
    others = [{"what": kind, "count": count} for kind, count in done.steps.returned.items()]
    return {"dryRun": dry_run, "workers": workers, "others": others, "left": done.journal.taken}


def _nothing(output: str, why: str) -> int:
    line = f"nothing to restore: {printable(why, 250)}"
    _print(output, [line], {"workers": [], "others": [], "left": "", "message": line})
    return 0


def _print(output: str, lines: Sequence[str], document: Mapping[str, Any]) -> None:
    match output:
        case "json":
            click.echo(json.dumps(document, indent=2))
        case "yaml":
            click.echo(as_yaml(document), nl=False)
        case _:
            for line in lines:
                click.echo(line)
