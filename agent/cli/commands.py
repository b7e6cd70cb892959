"""The commands of ``cpubind``, and what their failures come to: a line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from agent import __version__
from agent.cli import EXIT_INTERRUPTED, EXIT_LOCKED, EXIT_PROBLEM, EXIT_USAGE, drop, on_interrupt, say
from agent.model.reason import Reason, Refused, printable
from agent.model.remedies import with_remedy

_USAGE_REASONS = frozenset({Reason.INVALID_SPEC})
_PRINTERS = frozenset({"click.utils", "rich.console"})
_COMMANDS = {
    "run": "agent.cli.run",
    "plan": "agent.cli.look",
    "explain": "agent.cli.look",
    "verify": "agent.cli.look",
    "restore": "agent.cli.restore",
    "doctor": "agent.cli.doctor",
    "capture": "agent.cli.capture",
    "demo": "agent.cli.demo",
}


class _ReaderGone(Exception):  # noqa: N818 - it says what happened
    """Whoever read our output (head, less) has gone; the rest of it is for nobody."""


class Group(click.Group):
    """A reader who has gone is no failure of its commands."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _broken_pipe_told_apart():  # --help prints in here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _broken_pipe_told_apart():
            return super().invoke(ctx)


class _Commands(Group):
    """Imports a command when it is used: an agent has no need of what the demo and the tables are made with."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module = _COMMANDS.get(cmd_name)
        return None if module is None else getattr(import_module(module), cmd_name)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cpubind")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Decides, applies and keeps CPU placement for Ascend NPU inference on a node.

    \b
    cpubind demo                     watch it work, without any NPU
    cpubind plan                     the plan of this node
    cpubind explain npu:3            why these CPUs (or a pid, or a pod)
    cpubind verify                   are the threads where they belong?
    cpubind run                      the agent, in a pod of the Helm chart
    cpubind run --standalone         bind every NPU worker of this host, and keep it bound
    cpubind restore                  give back what the agent took
    cpubind doctor                   is everything there that the agent needs?
    cpubind capture -o node.tar.gz   a support bundle

    Every flag can be set by the environment, too: --npu-smi is CPUBIND_NPU_SMI. A flag counts more.
    Exit status: 0 done, 1 a problem was found, 2 wrong usage, 3 another agent holds this host.
    Each command has examples of its own: cpubind plan --help.

    \b
    Completion of commands, flags and words, in ~/.bashrc (zsh_source and fish_source for others):
    eval "$(_CPUBIND_COMPLETE=bash_source cpubind)"
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    else:
        # From here on there may be something to clean up. The agent has handlers of its own.
        on_interrupt(signal.default_int_handler)
        if ctx.invoked_subcommand != "run":
            ctx.with_resource(ended_in_order())


def run_command(name: str = "cpubind") -> int:
    """Runs what the command line of a console script says; its exit status. Raises KeyboardInterrupt alone, and what is
    a bug."""
    try:
        if name == "cpubind":
            status = cli.main(prog_name=name, standalone_mode=False)
        else:
            from agent.cli.kubectl import kubectl_cli  # noqa: PLC0415 - for this program alone

            on_interrupt(signal.default_int_handler)
            status = kubectl_cli.main(prog_name=name, standalone_mode=False)
    except Refused as refused:
        wrong_usage = refused.reason in _USAGE_REASONS
        # What people can do with kubectl, the plugin says itself.
        say(str(refused.problem if wrong_usage or name != "cpubind" else with_remedy(refused.problem)))
        if refused.reason is Reason.LOCKED:
            return EXIT_LOCKED
        return EXIT_USAGE if wrong_usage else EXIT_PROBLEM
    except click.UsageError as error:
        say(_line(error.format_message()) + (f" (see {error.ctx.command_path} --help)" if error.ctx else ""))
        return EXIT_USAGE
    except click.ClickException as error:
        say(_line(error.format_message()))
        return error.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    except (_ReaderGone, BrokenPipeError):
        drop(sys.stdout)
        return 0
    except OSError as error:
        return _failed(error)
    except MemoryError:
        say("out of memory")
        return EXIT_PROBLEM
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_PROBLEM if ended.code else 0
    return status if isinstance(status, int) else 0


def _failed(error: OSError) -> int:
    """An error that nobody expected: of a file, of a call, or of standard output (full, say), which has no name."""
    where = "" if error.filename is None else f"{printable(str(error.filename), 150)}: "
    if not where and _raised_in(error) in _PRINTERS:
        drop(sys.stdout)
        where = "standard output: "
    say(where + _line(error.strerror or str(error) or type(error).__name__))
    return EXIT_PROBLEM


def _raised_in(error: OSError) -> str:
    """The module that made the call."""
    module = ""
    step = error.__traceback__
    while step is not None:
        module = step.tb_frame.f_globals.get("__name__", "")
        step = step.tb_next
    return module


def _line(text: str) -> str:
    return printable(" ".join(text.split()), 500)


@contextlib.contextmanager
def _broken_pipe_told_apart() -> Iterator[None]:
    """Both click and rich make an exit with 1 of a broken pipe, as if something were wrong."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGone from error
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise _ReaderGone from ended
        raise


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block through SystemExit, so that temporary files are removed; further ones wait."""
    before: Mapping[signal.Signals, Any] = {}

    def end(number: int, _frame: object) -> NoReturn:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        raise SystemExit(128 + number)

    try:
        # SIG_IGN is what nohup sets.
        before = {
            one: signal.signal(one, end)
            for one in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(one) is not signal.SIG_IGN
        }
    except ValueError:  # not in the main thread
        before = {}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
