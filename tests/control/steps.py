"""What an agent on a virtual node does besides placing the threads of workers, seen from outside of it."""

from __future__ import annotations

from agent.control import journal_file
from agent.control.journal import Journal
from agent.demo.fake_kernel import FakeTask
from agent.demo.virtual import UVB_THREAD
from agent.node.irq import read_affinity
from agent.node.procfs import boot_id
from tests.control.rig import Rig

SQ, CQ, MAILBOX = "sq_send_trigger_irq", "cq_update_irq", "trs-mbox-"

WRITES = ("sched_setaffinity", "smp_affinity_list", "ban irqs", "move_pages")
"""All that an agent does to a host."""


def irqs(rig: Rig, npu: int) -> tuple[str, str]:
    """Where the interrupts of an NPU may go: the one for submissions, and all of those for completions."""
    found: list[str] = []
    for action in (SQ, CQ):
        masks = {mask(rig, irq) for irq in rig.node.irqs_of(npu, action)}
        assert len(masks) == 1, f"NPU {npu}: {action} on {masks}"
        found += masks
    sq, cq = found
    return sq, cq


def mask(rig: Rig, irq: int) -> str:
    return str(read_affinity(rig.node.root, irq))


def all_irqs(rig: Rig) -> dict[int, str]:
    return {irq.number: mask(rig, irq.number) for irq in rig.node.irqs}


def moved(rig: Rig) -> set[int]:
    """NPUs any of whose interrupts are not as the driver left them."""
    untouched = str(rig.node.profile.cpus)
    return {irq.npu for irq in rig.node.irqs if mask(rig, irq.number) != untouched}


def effects(rig: Rig) -> dict[str, int]:
    """How often the agent wrote to the host, by kind."""
    return {name: rig.node.kernel.calls[name] for name in WRITES}


def journal(rig: Rig) -> Journal:
    """As it is on the disk."""
    found, problem = journal_file.load(rig.journal_file, boot_id(rig.node.root))
    assert problem is None
    return found


def uvb_thread(rig: Rig) -> FakeTask:
    """The kernel thread of the driver."""
    return next(task for task in rig.node.kernel.tasks.values() if task.comm == UVB_THREAD)
