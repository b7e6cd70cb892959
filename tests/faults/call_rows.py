"""Faults of the calls that read and write masks, interrupts and memory, and of what listens on sockets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agent.model.reason import Reason
from tests.faults.table import Row, Side


@dataclass(frozen=True, slots=True)
class CallRow(Row):
    """A call of the agent's that fails with an errno."""

    call: str = ""
    """The method of `agent.node.host.Host`."""
    device: str = "a2"
    lasts: bool = False
    """It is still said of whom it met: memory is moved once, be it that a right was missing then."""


_DENIED: Final = Reason.PERMISSION_DENIED
_CALLS: Final[tuple[tuple[str, str, str, dict[str, Reason | None]], ...]] = (
    (
        "sched_setaffinity(2)", "set_affinity", "a2",
        {"ESRCH": Reason.PROCESS_UNREADABLE, "EINVAL": Reason.CPUSET_CHANGED,
         "EPERM": _DENIED, "EACCES": _DENIED, "EIO": Reason.UNMOVABLE,
         "ENOENT": Reason.UNMOVABLE, "ENODEV": Reason.UNMOVABLE, "EBUSY": Reason.UNMOVABLE},
    ),
    (
        "sched_getaffinity(2)", "get_affinity", "a2",
        {"EPERM": _DENIED, "EACCES": _DENIED, "EIO": Reason.UNMOVABLE, "EINVAL": Reason.CPUSET_CHANGED},
    ),
    (
        "/proc/irq/<N>/smp_affinity_list, written", "set_irq_affinity", "a2",
        {"EIO": Reason.IRQ_REFUSED, "EACCES": Reason.IRQ_REFUSED, "EINVAL": Reason.IRQ_REFUSED, "ENOENT": None,
         "EROFS": Reason.IRQ_READ_ONLY, "ENODEV": Reason.IRQ_REFUSED, "ESRCH": Reason.IRQ_REFUSED},
    ),
    (
        "irqbalance's socket, a list sent", "ban_irqs", "a2",
        dict.fromkeys(("ECONNREFUSED", "ETIMEDOUT", "EPERM", "ENOENT", "EIO", "ECONNRESET"), Reason.IRQBALANCE_ACTIVE),
    ),
    (
        "move_pages(2), where pages are", "page_nodes", "a2",
        {"ESRCH": Reason.PROCESS_GONE, "EINVAL": Reason.PROCESS_GONE, "EPERM": _DENIED,
         "ENOSYS": Reason.MIGRATION_UNSUPPORTED, "EIO": Reason.MIGRATION_UNSUPPORTED},
    ),
)  # fmt: skip


def _lasts(call: str, reason: Reason | None) -> bool:
    return call == "page_nodes" and reason is not Reason.PROCESS_GONE


ROWS: tuple[Row, ...] = tuple(
    CallRow(Side.HOST, place, fault, reason, call=call, device=device, lasts=_lasts(call, reason))
    for place, call, device, faults in _CALLS
    for fault, reason in faults.items()
)

SILENT: Final = Row(
    Side.HOST,
    "irqbalance's socket",
    "hang",
    Reason.IRQBALANCE_ACTIVE,
    why="it is not asked again before it answers",
)
NONSENSE: Final = Row(Side.HOST, "irqbalance's socket", "garbage", Reason.IRQBALANCE_ACTIVE)
CLOSES: Final = Row(Side.HOST, "irqbalance's socket", "closes at once", Reason.IRQBALANCE_ACTIVE)
PIPES: Final = tuple(
    Row(Side.HOST, place, "hang (a FIFO)", reason)
    for place, reason in (
        ("the state file", Reason.STATE_UNREADABLE),
        ("the journal", Reason.STATE_NOT_WRITTEN),
        ("/var/lib/kubelet/cpu_manager_state", Reason.KUBELET_STATE_UNREADABLE),
    )
)
SLEEPS: Final = Row(
    Side.HOST,
    "any file of /proc, /sys and /dev",
    "hang",
    why="no time limit helps a thread that sleeps in the kernel: the loop stands; /healthz says so in three sweeps",
)
EVENTS: Final = tuple(
    Row(Side.HOST, "events of processes (netlink)", fault, reason, why)
    for fault, reason, why in (
        ("ENOBUFS", None, "a sweep finds what was lost"),
        ("EIO", Reason.EVENTS_UNAVAILABLE, ""),
        ("ENODEV", Reason.EVENTS_UNAVAILABLE, ""),
        ("ECONNREFUSED", Reason.EVENTS_UNAVAILABLE, "nobody listens: every pass looks for itself"),
    )
)
LOCK: Final = tuple(
    Row(Side.HOST, "the lock", fault, Reason.STATE_NOT_WRITTEN, "the agent does not start")
    for fault in ("ENOENT", "EACCES", "EIO", "EINVAL", "ENODEV", "ENOSPC", "EROFS")
)
OTHERS: tuple[Row, ...] = (*EVENTS, *LOCK, SILENT, NONSENSE, CLOSES, *PIPES, SLEEPS)
