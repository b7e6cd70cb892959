"""What people type: ``cpubind``. Every failure is one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from agent import __version__
from agent.model.reason import Reason, Refused

EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_LOCKED = 3

_USAGE_REASONS = frozenset({Reason.INVALID_SPEC})


_COMMANDS = {
    "run": "agent.cli.run",
    "plan": "agent.cli.look",
    "explain": "agent.cli.look",
    "verify": "agent.cli.look",
    "capture": "agent.cli.capture",
    "demo": "agent.cli.demo",
}


class _Commands(click.Group):
    """Imports a command when it is used: an agent has no need of what the demo and the tables are made with."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = _COMMANDS.get(cmd_name)
        return None if module is None else getattr(import_module(module), cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cpubind")
def cli() -> None:
    """Decides, applies and keeps CPU placement for Ascend NPU inference on a node.

    \b
    cpubind demo                     watch it work, without any NPU
    cpubind plan                     the plan of this node
    cpubind explain npu:3            why these CPUs (or a pid, or a pod)
    cpubind verify                   are the threads where they belong?
    cpubind run --standalone         bind every NPU worker of this host, and keep it bound
    cpubind capture -o node.tar.gz   a support bundle

    Every flag can be set by the environment, too: --npu-smi is CPUBIND_NPU_SMI. A flag counts more.
    Exit status: 0 done, 1 a problem was found, 2 wrong usage, 3 another agent holds this host.
    """


def main() -> NoReturn:
    """Entry point of the console script."""
    try:
        status = cli.main(prog_name="cpubind", standalone_mode=False)
    except Refused as refused:
        click.echo(f"cpubind: {refused.problem}", err=True)
        if refused.reason is Reason.LOCKED:
            sys.exit(EXIT_LOCKED)
        sys.exit(EXIT_USAGE if refused.reason in _USAGE_REASONS else EXIT_PROBLEM)
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        click.echo(f"cpubind: {error.format_message()}{hint}", err=True)
        sys.exit(EXIT_USAGE)
    except click.ClickException as error:
        click.echo(f"cpubind: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output (head, less) has gone; the rest of it is for nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(status if isinstance(status, int) else 0)
