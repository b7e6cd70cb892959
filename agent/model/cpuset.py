"""A set of CPUs, and the two texts that the kernel writes for one.

*List*: ``0-3,7`` (``cpuset.cpus``, ``online``, ``Cpus_allowed_list``, ``smp_affinity_list``); an empty set is an empty
text. *Mask*: hexadecimal groups of 32 bits, highest first, joined by commas (``Cpus_allowed``, ``smp_affinity``);
bit 0 is CPU 0. Both are described in the kernel's Documentation/core-api/printk-formats.rst (``%*pbl`` and ``%*pb``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Final

MAX_CPUS: Final = 4096
"""CPU numbers are below this. It is CONFIG_NR_CPUS of the arm64 distribution kernels."""

_LONGEST: Final = 1 << 16
"""Characters of a list or mask, at most: every other one of 4,096 CPUs makes a list of 10 KiB."""

_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
_GROUP: Final = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)


class CpuListError(ValueError):
    """A text that is no CPU list or mask; its message is one line that names the offending part."""


class CpuSet:
    """An immutable set of CPU numbers; iteration is ascending.

    Kept as one integer with bit n for CPU n, so that the set operations of the planner cost the same for 16 CPUs and
    for 4,096, and so that equality, hashing and ordering by content are exact.
    """

    __slots__ = ("bits",)

    bits: int
    """Bit n is CPU n."""

    def __init__(self, cpus: Iterable[int] = ()) -> None:
        object.__setattr__(self, "bits", reduce(or_, (1 << _checked(cpu) for cpu in cpus), 0))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"CpuSet is immutable: {name}")

    @classmethod
    def from_bits(cls, bits: int) -> CpuSet:
        """The set whose CPU n is bit n of a non-negative integer."""
        if bits < 0 or bits >> MAX_CPUS:
            raise CpuListError(f"CPU mask goes beyond CPU {MAX_CPUS - 1}")
        return _of(bits)

    @classmethod
    def span(cls, first: int, last: int) -> CpuSet:
        """The CPUs first..last, both included."""
        return cls.from_bits(((1 << (_checked(last) + 1)) - 1) >> _checked(first) << first)

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Reads a kernel list. Blank text is the empty set; anything else that is malformed raises CpuListError."""
        text = _short(text, "list")
        bits = 0
        for part in text.split(",") if text else ():
            match = _RANGE.fullmatch(part)
            if match is None:
                raise CpuListError(f"{_shown(part)} in CPU list {_shown(text)} is neither a number nor a range")
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            if last < first:
                raise CpuListError(f"range {part} in CPU list {_shown(text)} runs backwards")
            if last >= MAX_CPUS:
                raise CpuListError(f"CPU {last} in CPU list {_shown(text)} is beyond {MAX_CPUS - 1}")
            bits |= ((1 << (last - first + 1)) - 1) << first
        return cls.from_bits(bits)

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """Reads a kernel mask, short forms such as ``f`` and ``1,00000000`` included; malformed raises CpuListError."""
        bits = 0
        text = _short(text, "mask")
        groups = text.split(",")
        if len(groups) > MAX_CPUS // 32:
            raise CpuListError(f"CPU mask {_shown(text)} goes beyond CPU {MAX_CPUS - 1}")
        for group in groups:
            if _GROUP.fullmatch(group) is None:
                raise CpuListError(f"{_shown(group)} in CPU mask {_shown(text)} is not one to eight hexadecimal digits")
            bits = bits << 32 | int(group, 16)
        return cls.from_bits(bits)

    def mask(self, cpus: int | None = None) -> str:
        """The kernel's mask text, for a kernel with that many possible CPUs (default: just as many as needed)."""
        width = max(self.bits.bit_length(), 1) if cpus is None else cpus
        if width < self.bits.bit_length():
            raise CpuListError(f"CPU {self.bits.bit_length() - 1} does not fit a mask of {width} CPUs")
        groups = [f"{self.bits >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range((width + 31) // 32))]
        if top := width % 32:  # the kernel prints only as many digits as its highest group has bits
            groups[0] = groups[0][-((top + 3) // 4) :]
        return ",".join(groups)

    def ranges(self) -> list[tuple[int, int]]:
        """(first, last) of each run of adjacent CPUs, ascending."""
        runs = []
        bits, base = self.bits, 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            bits >>= skip
            length = (~bits & (bits + 1)).bit_length() - 1
            runs.append((base + skip, base + skip + length - 1))
            bits >>= length
            base += skip + length
        return runs

    def take(self, count: int) -> CpuSet:
        """The lowest `count` CPUs (all of them where there are fewer)."""
        bits, taken = self.bits, 0
        for first, last in self.ranges():
            if count <= 0:
                break
            span = min(count, last - first + 1)
            taken |= ((1 << span) - 1) << first
            count -= span
        return _of(bits & taken)

    def cut(self, sizes: Iterable[int]) -> list[CpuSet]:
        """Consecutive pieces of these sizes, from the lowest CPU on; what is left over is not returned."""
        rest = self
        pieces = []
        for size in sizes:
            piece = rest.take(size)
            pieces.append(piece)
            rest -= piece
        return pieces

    @property
    def first(self) -> int:
        """The lowest CPU; ValueError when the set is empty."""
        if not self.bits:
            raise ValueError("an empty CPU set has no first CPU")
        return (self.bits & -self.bits).bit_length() - 1

    def isdisjoint(self, other: CpuSet) -> bool:
        return not self.bits & other.bits

    def __and__(self, other: CpuSet) -> CpuSet:
        return _of(self.bits & other.bits)

    def __or__(self, other: CpuSet) -> CpuSet:
        return _of(self.bits | other.bits)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return _of(self.bits & ~other.bits)

    def __le__(self, other: CpuSet) -> bool:
        """Whether every CPU of this set is in the other."""
        return not self.bits & ~other.bits

    def __lt__(self, other: CpuSet) -> bool:
        return self.bits != other.bits and self <= other

    def __contains__(self, cpu: int) -> bool:
        return cpu >= 0 and bool(self.bits >> cpu & 1)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges():
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuSet) and self.bits == other.bits

    def __hash__(self) -> int:
        return hash(self.bits)

    def __str__(self) -> str:
        """The kernel's list text, e.g. ``0-1,7``."""
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges())

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return CpuSet.from_bits, (self.bits,)


_set_bits: Final = CpuSet.__dict__["bits"].__set__


def _of(bits: int) -> CpuSet:
    """A set from bits that are known to be in range. Planning makes thousands of sets: it is worth a function."""
    self = CpuSet.__new__(CpuSet)
    _set_bits(self, bits)
    return self


EMPTY: Final = CpuSet()


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """All CPUs that are in any of the sets."""
    return _of(reduce(or_, (s.bits for s in sets), 0))


def _checked(cpu: int) -> int:
    if not 0 <= cpu < MAX_CPUS:
        raise CpuListError(f"CPU {cpu} is not in 0..{MAX_CPUS - 1}")
    return cpu


def _short(text: str, kind: str) -> str:
    """Without the blanks around it; CpuListError for a text that is longer than any list or mask, before it is taken
    apart: ten million commas are as many parts."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise CpuListError(f"CPU {kind} {_shown(text)} has more than {_LONGEST} characters")
    return text


def _shown(text: str) -> str:
    """Quoted, printable and short, so that a message stays one line whatever was read."""
    quoted = ascii(text[:60])
    return quoted if len(quoted) <= 60 else quoted[:56] + "...'"
