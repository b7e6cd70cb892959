"""What people type: ``cpubind``. What goes wrong is one line on stderr and an exit status, not a traceback.

Nothing is imported here but what handling a Ctrl-C takes: `main` can catch one from its first line on, and the time
goes into importing the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn, TextIO

EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_LOCKED = 3
EXIT_INTERRUPTED = 130


def main() -> NoReturn:
    """Entry point of the console script ``cpubind``."""
    _run("cpubind")


def kubectl_main() -> NoReturn:
    """Entry point of the console script ``kubectl-cpubind``, which kubectl runs as ``kubectl cpubind``."""
    _run("kubectl-cpubind")


def _run(name: str) -> NoReturn:
    status = EXIT_INTERRUPTED
    on_interrupt(_leave_at_once)
    try:
        _open_streams()
        from agent.cli.commands import run_command  # noqa: PLC0415 - see above

        status = _flushed(run_command(name))
    except KeyboardInterrupt:
        pass
    finally:
        on_interrupt(_leave_at_once)  # nothing is left to clean up
    sys.exit(status)


def on_interrupt(handler: signal._HANDLER) -> None:
    """Sets what Ctrl-C does, unless whoever started us wants it ignored."""
    with contextlib.suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, handler)


def say(line: str) -> None:
    """One line on stderr; a stderr that takes none is no reason for another failure."""
    try:
        print(f"cpubind: {line}", file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError):
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """What is still to be written to a stream goes nowhere: Python would fail on it once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _flushed(status: int) -> int:
    """The exit status once all is written that was printed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
        status = 0
    except OSError as error:
        drop(sys.stdout)
        say(f"standard output: {error.strerror or error}")
        status = status or EXIT_PROBLEM
    try:
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)
    return status


def _open_streams() -> None:
    """Standard streams that take any text. One that is closed fails when written to, and its number stays taken: the
    next file that is opened would have it, and the output in it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="replace")


def _leave_at_once(_number: int, _frame: object) -> None:
    os._exit(EXIT_INTERRUPTED)
