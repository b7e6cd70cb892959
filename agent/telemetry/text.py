"""What the pictures of a plan share: reading an object of unknown origin, and saying it in text that is safe to show.

Objects come from files, API servers and other versions of the agent. What is not of the form that is expected is shown
as it is or left out; nothing here raises for it. All text goes through `printable` and into `rich.text.Text`, so that
neither terminal escapes nor rich's markup in a pod's name ever act.
"""

from __future__ import annotations

import html
import os
import unicodedata
from collections.abc import Mapping
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from agent.model.cpuset import EMPTY, CpuListError, CpuSet
from agent.model.reason import printable

NPU_STYLES = ("bright_blue", "yellow", "cyan", "green")
"""Of the sixteen colours that every terminal has and people choose to fit their background. Neighbours differ, and none
is near the red that means failure, as magenta is in many a theme."""

FAINT = "grey58"

STATE_STYLES = {
    "Bound": "green",
    "Partial": "yellow",
    "Failed": "bold red",
    "Pending": "cyan",
    "Planned": "cyan",
    "Skipped": "yellow",
    "Idle": FAINT,
}


def make_console(file: IO[str] | None = None, *, environ: Mapping[str, str] = os.environ) -> Console:
    """Where pictures are printed to: `file`, by default standard output.

    Text is text (no markup, no guessing at numbers or emoji), and NO_COLOR means no escapes at all: rich alone would
    keep bold and reverse. On a dumb terminal and into a pipe there are none either. A COLUMNS that is no width, such as
    the 0 of a serial line, counts for nothing: rich alone would print nothing.
    """
    columns = environ.get("COLUMNS", "")
    if not (columns.isascii() and columns.isdigit() and len(columns) < 6 and int(columns)):
        environ = {name: value for name, value in environ.items() if name != "COLUMNS"}
    wanted = bool(environ.get("FORCE_COLOR"))
    plain = bool(environ.get("NO_COLOR")) or (environ.get("TERM") in ("dumb", "unknown") and not wanted)
    return Console(
        file=file,
        color_system=None if plain else "auto",
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
        _environ=environ,
    )


def npu_style(npu: int) -> str:
    return NPU_STYLES[npu % len(NPU_STYLES)]


def word(value: object, limit: int = 200) -> str:
    """A value as one printable line; empty for None and for what is no word or number.

    Characters that would reorder what stands beside them, or that pile up on others, are shown by their numbers.
    """
    if not isinstance(value, (str, int, float)):
        return ""
    text = str(value)
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    line = printable(text, limit)
    return line if line.isascii() else printable("".join(map(_upright, line)), limit)


def _upright(char: str) -> str:
    aside = unicodedata.category(char)[0] == "M" or unicodedata.bidirectional(char) in ("R", "AL", "AN")
    return f"\\x{ord(char):02x}" if aside else char


def marked_up(value: object, limit: int = 200) -> str:
    """A `word` for XML and HTML, in an attribute too. What is printable is a character that XML has."""
    return html.escape(word(value, limit))


def number(value: object, default: int = -1) -> int:
    return value if isinstance(value, int) else default


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def entries(value: object) -> list[Mapping[str, Any]]:
    """The mappings in a list; empty for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def cpus(value: object) -> CpuSet:
    """A CPU list; empty where it is none."""
    try:
        return CpuSet.parse(value) if isinstance(value, str) else EMPTY
    except CpuListError:
        return EMPTY


def fitted(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Text in characters that the terminal has."""
    if options.ascii_only:
        text = text.encode("ascii", "backslashreplace").decode()
    return Text(text, style=style)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, of which a character may take two, broken behind a comma, a slash or a blank
    where there is one."""
    lines = []
    text = text.rstrip()
    while cell_len(text) > width:
        room = width
        while cell_len(text[:room]) > width and room > 1:
            room -= 1
        cut = max(text.rfind(mark, 0, room) for mark in ", /") + 1
        lines.append(text[: cut or room].rstrip())
        text = text[cut or room :].lstrip()
    return [*lines, text]
