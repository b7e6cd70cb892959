"""``cpubind run``: the agent."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import click

from agent import __version__
from agent.cli.options import JOURNAL, LOCK, STATE, host_options, select_option, settings_from, spec_options
from agent.cli.select import chooser
from agent.control.act import Actor
from agent.control.loop import Agent, Parts
from agent.control.observe import Observer
from agent.control.statefile import StateFile
from agent.model.reason import Reason, Refused
from agent.model.spec import Spec
from agent.node.devices import has_npu
from agent.node.host import LinuxHost
from agent.node.npu_smi.command import NpuSmi, NpuSmiCommand
from agent.node.procfs import boot_id
from agent.node.storage import HostLock
from agent.settings import Settings
from agent.telemetry.log import setup

log = logging.getLogger("agent.run")


@click.command(short_help="Run the agent: bind, watch, repair.")
@click.option(
    "--standalone",
    is_flag=True,
    envvar="CPUBIND_STANDALONE",
    help="Without Kubernetes: bind every NPU worker of this host, or --select.",
)
@click.option(
    "--dry-run", is_flag=True, envvar="CPUBIND_DRY_RUN", help="Compute and show everything, write nothing to the host."
)
@click.option("--state-file", metavar="FILE", help="The plan as YAML. Default: HOST_ROOT/var/lib/cpubind/plan.yaml.")
@click.option("--journal-file", metavar="FILE", help="Default: HOST_ROOT/var/lib/cpubind/journal.json.")
@click.option("--lock-file", metavar="FILE", help="Default: HOST_ROOT/run/cpubind/lock.")
@click.option("--sweep-interval", type=float, metavar="SECONDS", help="Longest time until drift is found. Default: 5.")
@click.option("--log-format", metavar="FORMAT", help="text or json. Default: text.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: info.")
@select_option
@host_options
@spec_options
def run(standalone: bool, dry_run: bool, selects: tuple[str, ...], **flags: Any) -> int:
    """Run the agent on this host until SIGTERM or SIGINT; bindings stay when it ends.

    Its state is a CpuBindingPlan in the state file. `spec` in there is yours to edit, the agent follows within one
    sweep; `status` is rewritten by the agent. In a dry run the state file is written only if you name one.

    \b
    cpubind run --standalone --dry-run                        see what it would do
    cpubind run --standalone --select cgroup=/docker/*        only processes in docker containers
    """
    if not standalone:
        raise click.UsageError("the cluster mode is not part of this version: use --standalone")
    settings = settings_from(flags)
    setup(settings.log_format, settings.log_level)
    return serve(settings, settings.spec(), dry_run=dry_run, selects=selects)


def serve(settings: Settings, spec: Spec, *, dry_run: bool, selects: tuple[str, ...]) -> int:
    """Builds the agent from settings and runs it on this kernel."""
    root = settings.host_root
    check_kernel(root)
    acts = not dry_run
    lock = HostLock(settings.lock_file or root / LOCK)
    if acts:
        lock.acquire(f"cpubind {__version__}, pid {os.getpid()}, node {settings.node_name}")
    npu_smi = NpuSmiCommand(settings.npu_smi, settings.npu_smi_timeout)
    try:
        agent = build(settings, spec, npu_smi, dry_run=dry_run, selects=selects)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        log.info("cpubind %s on %s, %s", __version__, settings.node_name, "dry run" if dry_run else "binding")
        if not has_npu(root):
            log.warning("no Ascend device on this host: no /dev/davinciN and no PCI function 19e5, class 1200")
        agent.run()
        log.info("stopped; bindings stay as they are")
    finally:
        npu_smi.close()
        lock.release()
    return 0


def build(settings: Settings, spec: Spec, npu_smi: NpuSmi, *, dry_run: bool, selects: tuple[str, ...]) -> Agent:
    """The agent of a host, with the files that it keeps there."""
    root = settings.host_root
    observer = Observer(root, architecture=settings.architecture, chooses=chooser(selects))
    state = settings.state_file or (None if dry_run else root / STATE)
    return Agent(
        Parts(
            node=settings.node_name,
            observer=observer,
            npu_smi=npu_smi,
            actor=Actor(root / "proc", LinuxHost()),
            defaults=spec,
            state=StateFile(state) if state else None,
            journal=None if dry_run else settings.journal_file or root / JOURNAL,
            boot_id=boot_id(root),
            sweep_seconds=settings.sweep_interval,
            force_dry_run=dry_run,
        )
    )


def check_kernel(root: Path) -> None:
    """Refuses a host root whose /proc is not this kernel's, as seen from this PID namespace.

    Pids from a recorded tree, or read in another PID namespace, would name other processes of this kernel. A procfs
    shows the reader's own pid in its own namespace as ``self``.
    """
    try:
        same = (root / "proc/self").readlink() == Path(str(os.getpid()))
    except OSError:
        same = False
    if not same:
        message = f"{root}/proc is not the /proc of this kernel and PID namespace (a container needs hostPID)"
        raise Refused(Reason.NOT_THIS_KERNEL, message)
