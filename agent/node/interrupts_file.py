"""/proc/interrupts: which handler an interrupt has, where /sys/kernel/irq does not say.

A line is ``2753:``, a count for each online CPU, the chip and what it says of itself, then two blanks and the names of
the handlers, joined by ``, `` (kernel/irq/proc.c, show_interrupts). With 640 CPUs a line has 7 KiB and the file up to
28 MiB, so that nothing here looks at the counts.
"""

from __future__ import annotations

from typing import Final

_HEAD: Final = 24
"""Bytes within which the colon behind a number is."""


_LINES: Final = 1 << 17
"""Lines that are looked at. Linux numbers some thousands of interrupts (NR_IRQS), on the largest machines."""


def parse_interrupts(content: bytes) -> dict[int, str]:
    """Interrupt -> names of its handlers, joined by commas. Of one that has none it is something else of its line, or
    empty. Lines of another form, such as ``NMI:``, count for nothing."""
    found = {}
    for line in content.split(b"\n", _LINES)[:_LINES]:
        number, colon, _ = line[:_HEAD].partition(b":")
        number = number.strip()
        if colon and number.isdigit():
            found[int(number)] = line.rstrip().rpartition(b"  ")[2].decode("utf-8", "replace")
    return found
