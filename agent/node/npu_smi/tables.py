"""What the readers of npu-smi's tables share: lines, numbers, and how a refusal is worded.

npu-smi prints with C's printf and pads with blanks (npu_info_print.c of the public driver): nothing is escaped, and a
value wider than its column shifts the rest of its line. So columns come from header lines and separators, never from
positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from agent.model.reason import Reason, Refused, printable

MAX_LINES: Final = 20_000
"""A node of 64 NPUs with full process tables prints fewer than 1,000."""

MAX_LINE: Final = 4096
"""Characters. npu-smi's own lines have about 120; a process name can add a path."""

_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ABSENT: Final = frozenset({"", "NA", "N/A", "-"})


def unreadable(message: str) -> Refused:
    return Refused(Reason.TABLE_UNREADABLE, message)


def truncated(message: str) -> Refused:
    return Refused(Reason.TABLE_TRUNCATED, message)


def shown(text: str, limit: int = 60) -> str:
    """Text of unknown origin for a message: one line, printable, at most `limit` characters and twice as many bytes."""
    line = printable(text.strip(), limit)
    return line.encode()[: 2 * limit].decode(errors="ignore")


def lines_of(text: str, table: str) -> list[str]:
    """The lines of an output without the blanks around them. `table` names the output in messages.

    Lines end in a newline; what follows the last newline is a last element of its own, so that a cut line can be told
    from a whole one: it is whole exactly when it is not the last element. Raises Refused when the text is far larger
    than any table, before anything is done with it that would take long.
    """
    if text.count("\n") > MAX_LINES:
        raise unreadable(f"{table} has more than {MAX_LINES} lines")
    lines = text.split("\n")
    if any(len(line) > MAX_LINE for line in lines):
        raise unreadable(f"{table} has a line of more than {MAX_LINE} characters")
    return [line.strip() for line in lines]


def elided(line: str) -> bool:
    """Whether a line stands for rows that were left out, as in documentation: nothing but dots and separators."""
    bare = line.replace("|", "").replace(" ", "")
    return len(bare) > 1 and not bare.strip(".…·")


def absent(text: str) -> bool:
    """Whether a cell says that there is no value."""
    return text.strip() in _ABSENT


def number(text: str, table: str, column: str) -> int:
    """A non-negative number of at most nine digits; Refused otherwise."""
    if _NUMBER.fullmatch(text) is None:
        raise unreadable(f"{column} in {table} is {shown(text)!r}, not a number")
    return int(text)


def optional_number(text: str, table: str, column: str) -> int | None:
    """As `number`, None for NA and ``-``."""
    return None if absent(text) else number(text, table, column)


def pci_address(text: str) -> str:
    """``0000:C1:00.0`` as sysfs spells it, ``0000:c1:00.0``; empty for anything that is no PCI address.

    npu-smi prints NA where the NPU hangs on another bus (Ascend 950 on UB, some Atlas boards).
    """
    address = text.strip().lower()
    return address if _PCI.fullmatch(address) else ""


def listed(items: Iterable[object], limit: int = 8) -> str:
    """``a, b, c`` for a message, with the number of those that are left out."""
    names = [str(item) for item in items]
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def repeated(items: Iterable[object]) -> object | None:
    """The first item that was there before, None when all differ."""
    seen: set[object] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None
