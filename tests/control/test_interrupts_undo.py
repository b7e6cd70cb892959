"""Putting interrupts back: when an NPU's last worker goes, on restore, and nothing that isn't the agent's any more."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.control.journal import Journal
from agent.control.journal_file import dump, parse
from agent.demo.fake_sysfs import CQ_IRQS
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason
from tests.control.irq_rig import CQ, SQ, IrqRig, cpus

EACH = 1 + CQ_IRQS


@pytest.fixture
def rig(tmp_path: Path) -> IrqRig:
    return IrqRig(tmp_path / "root")


def test_the_interrupts_go_back_when_the_last_worker_of_their_npu_goes(rig: IrqRig) -> None:
    first = rig.node.irqs_of(0, CQ)[0]
    rig.node.set_irq(first, cpus("100-103"))
    before = rig.all_masks()
    rig.step(0, 1)
    rig.step(1)
    now = rig.all_masks()
    assert {irq: now[irq] for irq in rig.node.irqs_of(0)} == {irq: before[irq] for irq in rig.node.irqs_of(0)}
    assert rig.masks(1, SQ) == {"24"}
    assert {entry.pci for entry in rig.interrupts.taken} == {rig.node.npu(1).bus_id}
    writes = rig.writes()
    rig.step(1)
    assert rig.writes() == writes


def test_restore_gives_every_interrupt_the_mask_from_before_the_first_start(rig: IrqRig) -> None:
    for number, irq in enumerate(rig.node.irqs):
        rig.node.set_irq(irq.number, CpuSet([number % 190, number % 190 + 1]))
    before = rig.all_masks()
    rig.step(0, 1, 2)
    rig.restart()
    rig.step(0, 1)
    rig.restart()
    assert rig.interrupts.restore() == 2 * EACH
    assert rig.all_masks() == before
    assert (rig.interrupts.taken, rig.interrupts.bans, rig.interrupts.problems) == ((), None, [])
    assert rig.interrupts.restore() == 0


def test_a_mask_that_somebody_else_set_later_is_left_alone(rig: IrqRig) -> None:
    rig.step(0)
    theirs = rig.node.irqs_of(0, CQ)[3]
    rig.node.set_irq(theirs, cpus("77"))
    assert rig.interrupts.restore() == EACH - 1
    assert rig.mask(theirs) == "77"
    assert rig.interrupts.taken == ()


def test_a_number_that_belongs_to_another_device_now_is_left_alone(rig: IrqRig) -> None:
    rig.step(0)
    old = rig.node.irqs_of(0)
    rig.node.reset_npu(0, first=7000)
    # The freed numbers are given to another NPU, which has the very mask that the agent gave.
    rig.node.reset_npu(5, first=old[0])
    for irq in rig.node.irqs_of(5, CQ):
        rig.node.set_irq(irq, cpus("1"))
    masks = rig.masks(5, CQ)
    assert rig.interrupts.restore() == 0
    assert rig.masks(5, CQ) == masks
    assert rig.masks(0) == {"0-191"}
    assert rig.interrupts.taken == ()


def test_what_an_npu_that_was_reset_has_is_put_back_at_its_new_number(rig: IrqRig) -> None:
    rig.node.set_irq(rig.node.irqs_of(0, SQ)[0], cpus("9"))
    rig.step(0)
    rig.node.reset_npu(0, first=7000)
    rig.step(0)
    rig.restart()
    assert rig.interrupts.restore() == EACH
    assert rig.masks(0, SQ) == {"9"}
    assert rig.masks(0, CQ) == {"0-191"}


def test_one_interrupt_without_a_handler_does_not_keep_the_others_from_being_put_back(rig: IrqRig) -> None:
    """The first that an agent does is a restore, or it starts under `Disabled`: it has not seen them by name yet."""
    (rig.node.root / f"sys/kernel/irq/{rig.node.irqs_of(0)[0]}/actions").write_text("\n")
    for _ in range(4):
        rig.step(0, seconds=30)
    assert (rig.masks(0, SQ), rig.masks(0, CQ)) == ({"0"}, {"1"})
    rig.restart()
    assert rig.interrupts.restore() == EACH
    assert rig.masks(0) == {"0-191"}
    assert (rig.interrupts.taken, rig.interrupts.problems) == ((), [])


def test_what_has_no_handler_just_now_is_put_back_once_it_has(rig: IrqRig) -> None:
    """An NPU under reset: its interrupts keep their masks for the handlers to come."""
    rig.step(0)
    names = {rig.node.root / f"sys/kernel/irq/{irq}/actions": "" for irq in rig.node.irqs_of(0)}
    for path in names:
        names[path] = path.read_text()
        path.write_text("\n")
    rig.restart()
    for _ in range(4):
        assert rig.interrupts.restore() == 0
        assert len(rig.interrupts.taken) == EACH
        (problem,) = rig.interrupts.problems
        assert (problem.reason, "has no handler just now" in problem.message) == (Reason.PENDING, True)
        rig.now += 60
    for path, text in names.items():
        path.write_text(text)
    assert rig.interrupts.restore() == EACH
    assert rig.masks(0) == {"0-191"}


def test_of_a_device_that_is_gone_nothing_is_kept(rig: IrqRig) -> None:
    rig.step(0)
    shutil.rmtree(rig.node.root / "sys/bus/pci/devices" / rig.node.npu(0).bus_id)
    assert rig.interrupts.restore() == 0
    assert (rig.interrupts.taken, rig.interrupts.problems) == ((), [])


def test_what_cannot_be_put_back_stays_noted_is_said_and_is_tried_again(rig: IrqRig) -> None:
    rig.step(0)
    stuck = rig.node.irqs_of(0, CQ)[1]
    rig.node.kernel.irq_errors[stuck] = errno.EIO
    assert rig.interrupts.restore() == EACH - 1
    assert [entry.irq for entry in rig.interrupts.taken] == [stuck]
    (problem,) = rig.interrupts.problems
    assert problem.reason is Reason.IRQ_REFUSED
    assert str(stuck) in problem.message
    rig.node.kernel.irq_errors = {}
    rig.journal = (rig.interrupts.taken, None)
    rig.restart()
    assert rig.interrupts.restore() == 1
    assert rig.masks(0) == {"0-191"}


def test_an_agent_that_was_killed_before_it_wrote_new_cpus_is_still_undone(rig: IrqRig) -> None:
    rig.step(0)
    moved = {rig.node.npu(0): cpus("60-61")}
    rig.survey(moved)  # the journal is written; then kill -9
    rig.restart()
    assert rig.interrupts.restore() == EACH
    assert rig.masks(0) == {"0-191"}


def test_an_agent_that_was_killed_before_its_first_write_has_nothing_to_undo_and_calls_nothing_drift(
    rig: IrqRig,
) -> None:
    rig.survey(rig.wanted(0))
    rig.restart()
    outcome = rig.step(0)[0]
    assert (outcome.written, outcome.drift) == (EACH, 0)
    rig.restart()
    assert rig.interrupts.restore() == EACH
    assert rig.masks(0) == {"0-191"}


def test_a_mask_that_changes_before_the_first_write_succeeds_is_the_one_to_go_back_to(rig: IrqRig) -> None:
    (sq,) = rig.node.irqs_of(0, SQ)
    rig.node.kernel.irq_errors[sq] = errno.EIO
    rig.step(0)
    rig.node.set_irq(sq, cpus("50-51"))
    rig.node.kernel.irq_errors = {}
    rig.step(0, seconds=600)
    assert rig.mask(sq) == "0"
    rig.interrupts.restore()
    assert rig.mask(sq) == "50-51"


def test_the_journal_keeps_what_was_taken_and_reads_what_an_older_version_wrote(rig: IrqRig) -> None:
    rig.step(0)
    rig.survey({rig.node.npu(0): cpus("60-61")})
    journal = Journal(irqs=rig.interrupts.taken, bans=rig.interrupts.bans)
    text = dump(journal)
    assert parse(text) == journal
    assert '"earlier": "1"' in text
    older = text.replace('"earlier": "1"', '"x": ""').replace('"earlier": "0"', '"x": ""')
    assert {str(entry.earlier) for entry in parse(older).irqs} == {""}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> IrqRig:
    """One node for all examples: to make one takes longer than an example."""
    return IrqRig(tmp_path_factory.mktemp("irq") / "root")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.sets(st.integers(0, 191), min_size=1, max_size=5).map(CpuSet), min_size=EACH, max_size=EACH),
    passes=st.lists(st.sets(st.integers(0, 2), max_size=3), min_size=1, max_size=4),
    restarts=st.booleans(),
)
def test_whatever_came_and_went_restore_gives_the_masks_from_before(
    shared: IrqRig, before: list[CpuSet], passes: list[set[int]], restarts: bool
) -> None:
    rig = shared
    rig.journal = ((), None)
    rig.restart()
    for npu in range(3):
        for irq, mask in zip(rig.node.irqs_of(npu)[1:], before, strict=True):
            rig.node.set_irq(irq, mask)
    masks = rig.all_masks()
    for npus in passes:
        outcomes = rig.step(*npus)
        assert {outcome.state for outcome in outcomes.values()} <= {"Bound"}
        writes = rig.writes()
        rig.step(*npus)
        assert rig.writes() == writes
        if restarts:
            rig.restart()
    rig.interrupts.restore()
    assert rig.all_masks() == masks
    assert rig.interrupts.taken == ()
