"""``cpubind demo``: the whole agent on a virtual node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from agent.control.act import Actor
from agent.control.loop import Agent, Parts
from agent.control.observe import Observer
from agent.control.statefile import StateFile
from agent.control.steps import HostSteps
from agent.demo.profiles import PROFILES
from agent.demo.show import AgentSetup, run_demo
from agent.model.spec import Spec
from agent.node.npu_smi.command import NpuSmiCommand
from agent.node.procfs import boot_id
from agent.settings import load_settings
from agent.telemetry.text import make_console

if TYPE_CHECKING:
    from agent.cli.serving import Serving


@click.command(short_help="Watch the whole agent at work, without any NPU.")
@click.option(
    "--device",
    envvar="CPUBIND_DEVICE",
    type=click.Choice(sorted(PROFILES)),
    default="a3",
    show_default=True,
    help="Which virtual node: a3 has 640 CPUs and 16 NPUs.",
)
@click.option(
    "--serve", is_flag=True, envvar="CPUBIND_SERVE", help="Keep the virtual node and its agent running until Ctrl-C."
)
@click.option(
    "--real",
    is_flag=True,
    envvar="CPUBIND_REAL",
    help="Real processes and threads on this machine's kernel; needs 5 CPUs.",
)
@click.option(
    "--metrics-address",
    metavar="ADDRESS",
    help="Serve the agent's metrics meanwhile, best with --serve: HOST:PORT or :PORT. Default: off.",
)
def demo(device: str, serve: bool, real: bool, metrics_address: str | None) -> int:
    """Run the real agent on a virtual node: the plan, workers starting, being bound, drifting and being repaired.

    npu-smi, /proc, /sys and the kernel's CPU masks are fake; the agent is the one that runs on a host. It ends by
    itself in well under a minute, and exits with 1 if any thread is not where the plan says.

    \b
    cpubind demo                       an A3 node
    cpubind demo --device ascend950    another one
    cpubind demo --serve               stays up, for `cpubind plan --host-root …` in another terminal
    """
    console = make_console()
    if real:
        from agent.demo.real import run_real  # noqa: PLC0415 - imports what only this needs

        return run_real(console=console, make_agent=make_agent)
    settings = load_settings({"metrics_address": metrics_address})
    if "metrics_address" not in settings.model_fields_set:
        return run_demo(device, serve=serve, console=console, make_agent=make_agent)
    from agent.cli.serving import Serving  # noqa: PLC0415 - as above

    serving = Serving(settings)
    try:
        return run_demo(device, serve=serve, console=console, make_agent=partial(make_agent, serving=serving))
    finally:
        serving.close()


class _Stepped(Agent):
    """One whose passes are made from outside: `run` would say after each that it has ended."""

    def step(self) -> None:
        super().step()
        self.parts.turned()


def make_agent(setup: AgentSetup, serving: Serving | None = None) -> Agent:
    """The agent as `cpubind run --standalone` makes it, on the demo's host."""
    root, npu_smi = setup.root, NpuSmiCommand(str(setup.npu_smi))
    observer = Observer(root, architecture=setup.architecture, pods=setup.pods)
    agent = _Stepped(
        Parts(
            node=setup.node,
            observer=observer,
            npu_smi=npu_smi,
            actor=Actor(root / "proc", setup.host),
            steps=HostSteps(root, setup.host, observer.cgroups, npu_smi=npu_smi),
            defaults=Spec(allow_any_architecture=setup.allow_any_architecture),
            state=StateFile(setup.state_file),
            journal=setup.journal_file,
            boot_id=boot_id(root),
            clock=setup.clock,
            problems=serving.problems if serving is not None else tuple,
            turned=serving.turned if serving is not None else lambda: None,
        )
    )
    if serving is not None:
        serving.adopt(agent)
    return agent
