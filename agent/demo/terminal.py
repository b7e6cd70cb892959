"""What the demo has to do with the terminal that it runs in."""

from __future__ import annotations

import re
import signal
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


def say(console: Console, text: str, *, indent: int = 0, style: str = "") -> None:
    """Prints a sentence in lines that fit, without blanks at their ends."""
    number = re.match(r"[0-9]+\. ", text)
    hang = " " * (indent + (len(number[0]) if number else 0))
    lines = textwrap.wrap(
        text,
        console.width,
        initial_indent=" " * indent,
        subsequent_indent=hang,
        break_on_hyphens=False,
        break_long_words=False,
    )
    for line in lines or [""]:
        console.print(Text(line, style=style), soft_wrap=True)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does, so that the node's folder is removed then, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
