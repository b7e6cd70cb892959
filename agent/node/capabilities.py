"""The capabilities that the agent has a use for, and what goes away without each: the one table of it.

`doctor` says it, docs/security.md has it, and tests/privileges takes each away and sees what goes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from agent.model.reason import Reason
from agent.node.files import read_text


class Capability(IntEnum):
    """Those that the agent has a use for, by their bits in ``CapEff`` (linux/capability.h)."""

    DAC_READ_SEARCH = 2
    NET_ADMIN = 12
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_NICE = 23


class Feature(Enum):
    """What a capability is needed for: what goes away without it, and how the agent says so."""

    MASKS = (
        "threads of other users are not placed",
        f"those workers are `Failed`: `{Reason.PERMISSION_DENIED}`, and `Ready` is False",
    )
    DEVICES = (
        "open devices of other users' processes are not seen: workers that npu-smi does not list are not found",
        f"`Degraded`: `{Reason.PERMISSION_DENIED}`",
    )
    MEMORY = ("memory of workers stays where it was allocated", f"`memoryReason` `{Reason.PERMISSION_DENIED}`")
    EVENTS = (
        "in a pod without hostNetwork no events of processes: new threads wait for the next sweep",
        f"`Degraded`: `{Reason.EVENTS_UNAVAILABLE}`",
    )
    NAMES = ("names of threads are read one by one: the same result, slower", "the line `taskstats` of `doctor`")

    def __init__(self, without: str, said: str) -> None:
        self.without = without
        self.said = said
        """In Markdown."""


@dataclass(frozen=True, slots=True)
class Need:
    """Why the agent has a capability."""

    use: str
    """What it does with it."""
    reach: str
    """What else can be done with it by somebody who took the agent over."""
    features: tuple[Feature, ...]
    """What goes away without it, with Linux 6.6 or newer, the others being held."""
    besides: str = ""
    """What goes away besides, on older hosts."""

    @property
    def without(self) -> str:
        """What goes away without it, in one line."""
        return "; ".join([*(feature.without for feature in self.features), *([self.besides] if self.besides else [])])


NEEDS: Final[Mapping[Capability, Need]] = {
    Capability.SYS_NICE: Need(
        "sets CPU masks of threads",
        "scheduling of every process of the node",
        (Feature.MASKS,),
    ),
    Capability.SYS_PTRACE: Need(
        "sees which devices processes hold open, moves their memory, finds the host's network namespace",
        "memory, environment and files of every process, and thereby its secrets",
        (Feature.DEVICES, Feature.MEMORY, Feature.EVENTS),
    ),
    Capability.DAC_READ_SEARCH: Need(
        "sees open devices past the permissions of files",
        "every file that it sees",
        (Feature.DEVICES,),
    ),
    Capability.SYS_ADMIN: Need(
        "makes a socket in the host's network namespace",
        "mounts and namespaces: the whole node",
        (Feature.EVENTS,),
        f"an irqbalance before 1.5 is not told which interrupts to leave alone ({Reason.IRQBALANCE_ACTIVE})",
    ),
    Capability.NET_ADMIN: Need(
        "asks for the names of threads in bulk; hears of new threads, before Linux 6.6",
        "its own network, and with `SYS_ADMIN` the host's",
        (Feature.NAMES,),
        "before Linux 6.6 no events of processes",
    ),
}
"""The gravest first. Without SYS_NICE nobody is bound but whose threads are root's own."""


def capabilities() -> frozenset[Capability]:
    """Those of `Capability` that this process has in effect."""
    text = read_text("/proc/self/status", Reason.PROCESS_UNREADABLE) or ""
    found = re.search(r"^CapEff:\s*([0-9a-f]{1,16})", text, re.MULTILINE)
    bits = int(found[1], 16) if found else 0
    return frozenset(one for one in Capability if bits >> one & 1)
