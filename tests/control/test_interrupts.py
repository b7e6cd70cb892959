"""The interrupts of NPUs with a bound worker: where they go, what is written, and what is said where that fails."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.control.vectors import targets, vectors
from agent.demo.fake_sysfs import CQ_IRQS
from agent.model.cpuset import MAX_CPUS, CpuSet
from agent.model.node import Npu
from agent.model.reason import Reason, Refused
from agent.node.host import DryRunHost, IrqWrite
from tests.control.irq_rig import CQ, MAILBOX, SQ, IrqRig, cpus

EACH = 1 + CQ_IRQS


@pytest.fixture
def rig(tmp_path: Path) -> IrqRig:
    return IrqRig(tmp_path / "root")


def test_submission_goes_to_the_first_cpu_every_completion_to_the_second_and_nothing_else_moves(rig: IrqRig) -> None:
    before = rig.all_masks()
    outcomes = rig.step(0, 3)
    for npu in (0, 3):
        assert rig.masks(npu, SQ) == {str(24 * npu)}
        assert rig.masks(npu, CQ) == {str(24 * npu + 1)}
        outcome = outcomes[npu]
        assert (outcome.state, outcome.irqs, outcome.written, outcome.drift) == ("Bound", EACH, EACH, 0)
    mailboxes = rig.node.irqs_of(0, MAILBOX)
    others = [*mailboxes, *(irq for npu in (1, 2, 4, 5, 6, 7) for irq in rig.node.irqs_of(npu))]
    assert {irq: rig.mask(irq) for irq in others} == {irq: before[irq] for irq in others}


def test_a_second_pass_writes_nothing_and_the_journal_stays(rig: IrqRig) -> None:
    rig.step(0, 1)
    writes, saves = rig.writes(), rig.saves
    for _ in range(3):
        assert all(outcome.written == 0 for outcome in rig.step(0, 1).values())
    assert (rig.writes(), rig.saves) == (writes, saves) == (2 * EACH, 1)


def test_a_restart_of_the_agent_writes_nothing(rig: IrqRig) -> None:
    rig.step(0)
    writes, saves = rig.writes(), rig.saves
    rig.restart()
    outcome = rig.step(0)[0]
    assert (outcome.state, outcome.written, outcome.drift) == ("Bound", 0, 0)
    assert (rig.writes(), rig.saves) == (writes, saves)


def test_every_mask_is_noted_before_the_first_is_written(rig: IrqRig) -> None:
    before = rig.all_masks()
    rig.survey(rig.wanted(0))
    assert rig.writes() == 0
    taken = rig.interrupts.taken
    assert {entry.irq: str(entry.before) for entry in taken} == {
        irq: before[irq] for action in (SQ, CQ) for irq in rig.node.irqs_of(0, action)
    }
    assert {(entry.action, entry.ordinal, str(entry.given)) for entry in taken} == {
        (SQ, 0, "0"),
        *((CQ, k, "1") for k in range(CQ_IRQS)),
    }


def test_an_interrupt_that_somebody_moves_is_put_back_and_counted_and_its_old_mask_stays_what_it_was(
    rig: IrqRig,
) -> None:
    rig.step(0)
    taken = rig.interrupts.taken
    moved = rig.node.irqs_of(0, CQ)[4]
    rig.node.set_irq(moved, cpus("90-95"))
    outcome = rig.step(0)[0]
    assert (outcome.state, outcome.written, outcome.drift) == ("Bound", 1, 1)
    assert rig.mask(moved) == "1"
    assert rig.interrupts.taken == taken


def test_a_sweep_over_a_whole_node_reads_listings_and_masks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = IrqRig(tmp_path / "root", "a3")
    npus = range(16)
    wanted = {rig.node.npu(npu): CpuSet([40 * npu, 40 * npu + 1]) for npu in npus}
    rig.survey(wanted)
    rig.interrupts.act(wanted)
    read: list[str] = []
    listed: list[str] = []
    open_file, list_folder = os.open, os.listdir

    def opened(path: str, *arguments: Any, **options: Any) -> int:
        read.append(str(path))
        return open_file(path, *arguments, **options)

    def names(path: str) -> list[str]:
        listed.append(str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "listdir", names)
    rig.now += 5
    rig.survey(wanted)
    rig.interrupts.act(wanted)
    assert len(listed) == 16
    assert all(path.endswith("/msi_irqs") for path in listed)
    assert len(read) == 16 * EACH
    assert all(path.endswith("/smp_affinity_list") for path in read)
    assert rig.writes() == 16 * EACH


def test_new_cpus_move_the_interrupts_and_the_masks_from_before_stay_noted(rig: IrqRig) -> None:
    rig.step(0)
    npu = rig.node.npu(0)
    drift = 0
    for _ in range(2):
        rig.survey({npu: cpus("60-61")})
        drift += rig.interrupts.act({npu: cpus("60-61")})[0].drift
    assert (rig.masks(0, SQ), rig.masks(0, CQ)) == ({"60"}, {"61"})
    assert drift == 0
    assert {str(entry.before) for entry in rig.interrupts.taken} == {"0-191"}


# What is missing, each by its own reason (vllm-ascend #12877)


def test_a_read_only_proc_irq_no_msi_irqs_and_no_names_are_three_reasons(rig: IrqRig) -> None:
    for irq in rig.node.irqs_of(1):
        (rig.node.root / f"sys/kernel/irq/{irq}/actions").write_text("davinci\n")
    shutil.rmtree(rig.node.root / f"sys/bus/pci/devices/{rig.node.npu(2).bus_id}/msi_irqs")
    for irq in rig.node.irqs_of(0):
        rig.node.kernel.irq_errors[irq] = errno.EROFS
    outcomes = rig.step(0, 1, 2)
    assert {npu: (o.state, o.problem.reason if o.problem else None) for npu, o in outcomes.items()} == {
        0: ("Failed", Reason.IRQ_READ_ONLY),
        1: ("Skipped", Reason.IRQ_NAMES_UNKNOWN),
        2: ("Skipped", Reason.MSI_IRQS_MISSING),
    }
    assert rig.writes() == 1  # one refusal tells of the whole tree


def test_completions_move_where_no_submission_interrupt_has_its_name_and_that_is_said(rig: IrqRig) -> None:
    (irq,) = rig.node.irqs_of(0, SQ)
    (rig.node.root / f"sys/kernel/irq/{irq}/actions").write_text("other\n")
    outcome = rig.step(0)[0]
    assert (outcome.state, outcome.problem and outcome.problem.reason) == ("Partial", Reason.IRQ_NAMES_UNKNOWN)
    assert rig.masks(0, CQ) == {"1"}
    assert rig.mask(irq) == "0-191"


def test_a_read_only_tree_is_tried_again_seldom_and_then_written(rig: IrqRig) -> None:
    rig.node.kernel.irq_errors = dict.fromkeys(rig.node.irqs_of(0), errno.EROFS)
    for _ in range(100):
        rig.step(0, seconds=20)
    # 2000 s at 10, 20, 40, ... 600 s
    assert 6 <= rig.writes() <= 10
    rig.node.kernel.irq_errors = {}
    assert rig.step(0, seconds=600)[0].state == "Bound"


def test_a_tree_that_is_seen_to_be_writable_again_is_written_in_the_next_pass(
    rig: IrqRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.node.kernel.irq_errors = dict.fromkeys(rig.node.irqs_of(0), errno.EROFS)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/proc/irq"))
    for _ in range(20):
        rig.step(0)
    rig.node.kernel.irq_errors = {}
    monkeypatch.undo()
    assert rig.step(0, seconds=0.1)[0].state == "Bound"


@pytest.mark.parametrize("number", [errno.EIO, errno.EPERM, errno.EINVAL])
def test_an_interrupt_that_the_kernel_refuses_is_left_alone_the_others_move(rig: IrqRig, number: int) -> None:
    stuck = rig.node.irqs_of(0, CQ)[2]
    rig.node.kernel.irq_errors[stuck] = number
    outcome = rig.step(0)[0]
    assert outcome.problem is not None
    assert (outcome.state, outcome.problem.reason, outcome.written) == ("Partial", Reason.IRQ_REFUSED, EACH - 1)
    assert str(stuck) in outcome.problem.message
    tried = rig.writes()
    outcomes = [rig.step(0, seconds=30)[0] for _ in range(120)]  # an hour
    assert {outcome.state for outcome in outcomes} == {"Partial"}
    assert rig.writes() - tried <= 12
    rig.node.kernel.irq_errors = {}
    assert rig.step(0, seconds=600)[0].state == "Bound"


def test_one_npu_that_fails_leaves_the_others_as_they_are(rig: IrqRig) -> None:
    rig.node.kernel.irq_errors = dict.fromkeys(rig.node.irqs_of(1), errno.EIO)
    outcomes = rig.step(0, 1, 2)
    assert [outcomes[npu].state for npu in (0, 1, 2)] == ["Bound", "Failed", "Bound"]


# Numbers


def test_an_npu_that_is_reset_is_resolved_again_and_keeps_the_masks_from_before_its_first_binding(rig: IrqRig) -> None:
    first = rig.node.irqs_of(0, CQ)[0]
    rig.node.set_irq(first, cpus("7"))
    rig.step(0)
    rig.node.reset_npu(0, first=6000)
    outcome = rig.step(0)[0]
    assert (outcome.state, outcome.written, outcome.drift) == ("Bound", EACH, 0)
    assert (rig.masks(0, SQ), rig.masks(0, CQ)) == ({"0"}, {"1"})
    taken = {(entry.action, entry.ordinal): entry for entry in rig.interrupts.taken}
    assert len(taken) == EACH
    assert (taken[CQ, 0].irq, str(taken[CQ, 0].before)) == (6002, "7")
    assert (taken[CQ, 1].irq, str(taken[CQ, 1].before)) == (6003, "0-191")


def test_a_reset_makes_the_agent_try_again_what_was_refused(rig: IrqRig) -> None:
    rig.node.kernel.irq_errors = dict.fromkeys(rig.node.irqs_of(0), errno.EIO)
    rig.step(0)
    rig.node.reset_npu(0, first=6000)
    assert rig.step(0)[0].state == "Bound"


def test_a_number_that_is_another_handlers_when_it_is_to_be_written_is_not_written(rig: IrqRig) -> None:
    rig.step(0)
    irq = rig.node.irqs_of(0, CQ)[3]
    rig.node.set_irq(irq, cpus("100"))
    (rig.node.root / f"sys/kernel/irq/{irq}/actions").write_text("nvme0q1\n")
    writes = rig.writes()
    outcome = rig.step(0)[0]
    assert (outcome.state, outcome.problem and outcome.problem.reason) == ("Partial", Reason.PENDING)
    # Resolved again, it is none of the NPU's: those behind it have other ordinals now, and all are in place.
    assert rig.step(0)[0].state == "Bound"
    assert (rig.mask(irq), rig.writes()) == ("100", writes)


def test_an_interrupt_that_ends_between_listing_and_reading_is_found_again(rig: IrqRig) -> None:
    rig.step(0)
    irq = rig.node.irqs_of(0, CQ)[3]
    folder = rig.node.root / f"proc/irq/{irq}"
    folder.rename(folder.with_name("gone"))
    assert rig.step(0)[0].state == "Partial"
    folder.with_name("gone").rename(folder)
    assert rig.step(0)[0].state == "Bound"


def test_names_come_from_proc_interrupts_where_sys_kernel_irq_is_missing(rig: IrqRig) -> None:
    shutil.rmtree(rig.node.root / "sys/kernel/irq")
    assert rig.step(0)[0].state == "Bound"
    assert (rig.masks(0, SQ), rig.masks(0, CQ)) == ({"0"}, {"1"})


# Addresses


def without_bus(rig: IrqRig, *npus: int) -> dict[Npu, CpuSet]:
    """NPUs as on a driver that prints NA for Bus-Id; card and chip are no logical ids."""
    return {Npu(npu, card=10 + npu, chip=3, phy_id=npu, bus_id=""): CpuSet([24 * npu, 24 * npu + 1]) for npu in npus}


def test_the_board_is_asked_with_card_and_chip_once(rig: IrqRig) -> None:
    asked = []

    def board(npu: Npu) -> str:
        asked.append((npu.card, npu.chip))
        return rig.node.npu(npu.id).bus_id.upper()

    rig.board = board
    wanted = without_bus(rig, 2)
    for _ in range(3):
        rig.survey(wanted)
        assert rig.interrupts.act(wanted)[2].state == "Bound"
    assert asked == [(12, 3)]
    assert rig.masks(2, SQ) == {"48"}


def test_a_board_that_cannot_be_had_is_a_reason_and_is_not_asked_in_every_pass(rig: IrqRig) -> None:
    wanted = without_bus(rig, 2)
    for _ in range(20):
        rig.now += 25
        rig.survey(wanted)
        outcome = rig.interrupts.act(wanted)[2]
    assert outcome.problem is not None
    assert (outcome.state, outcome.problem.reason) == ("Skipped", Reason.PCI_ADDRESS_UNKNOWN)
    assert rig.boards <= 7


def test_a_board_that_is_being_read_is_asked_again_in_the_next_pass(rig: IrqRig) -> None:
    answers: list[str] = []

    def board(npu: Npu) -> str:
        if not answers:
            raise Refused(Reason.PENDING, "being read")
        return answers[0]

    rig.board = board
    wanted = without_bus(rig, 2)
    rig.survey(wanted)
    outcome = rig.interrupts.act(wanted)[2]
    assert (outcome.state, outcome.problem and outcome.problem.reason) == ("Skipped", Reason.PENDING)
    answers.append(rig.node.npu(2).bus_id)
    rig.survey(wanted)
    assert rig.interrupts.act(wanted)[2].state == "Bound"


def test_nothing_is_put_back_while_the_address_of_a_wanted_npu_is_not_known_after_a_restart(rig: IrqRig) -> None:
    rig.board = lambda npu: rig.node.npu(npu.id).bus_id
    wanted = without_bus(rig, 2)
    rig.survey(wanted)
    rig.interrupts.act(wanted)

    def pending(npu: Npu) -> str:
        raise Refused(Reason.PENDING, "being read")

    rig.board = pending
    rig.restart()
    rig.survey(wanted)
    rig.interrupts.act(wanted)
    assert rig.masks(2, SQ) == {"48"}
    assert len(rig.interrupts.taken) == EACH


def test_two_npus_with_one_address_are_both_left_alone(rig: IrqRig) -> None:
    address = rig.node.npu(0).bus_id
    wanted = {Npu(npu, card=npu, bus_id=address): CpuSet([npu, 2 + npu]) for npu in (0, 1)}
    rig.survey(wanted)
    outcomes = rig.interrupts.act(wanted)
    assert {o.problem.reason for o in outcomes.values() if o.problem} == {Reason.PCI_ADDRESS_UNKNOWN}
    assert rig.writes() == 0


# Dry runs


def test_a_dry_run_records_the_writes_and_makes_none(rig: IrqRig) -> None:
    host = DryRunHost(rig.node.kernel)
    before = rig.all_masks()
    rig.restart(host)
    for _ in range(2):
        outcome = rig.step(0)[0]
        assert (outcome.written, outcome.drift) == (EACH, 0)
        (sq,) = rig.node.irqs_of(0, SQ)
        assert host.others[0] == IrqWrite(sq, cpus("0"))
        assert len(host.others) == EACH
        assert host.writes == []
        host.others.clear()
    assert rig.all_masks() == before
    assert rig.writes() == 0


# Properties

_names = st.sampled_from([(SQ,), (CQ,), ("trs-mbox-0-0",), (), ("other", CQ), ("xsq_send_trigger_irq",)])


@given(st.dictionaries(st.integers(0, 10_000), _names, max_size=40), st.randoms())
def test_targets_and_ordinals_depend_on_numbers_and_names_alone(names, random) -> None:  # type: ignore[no-untyped-def]
    found = vectors("0000:c1:00.0", names)
    order = list(names.items())
    random.shuffle(order)
    assert vectors("0000:c1:00.0", dict(order)) == found
    for action in (SQ, CQ):
        mine = [vector for vector in found if vector.action == action]
        assert [vector.ordinal for vector in mine] == list(range(len(mine)))
        assert [vector.irq for vector in mine] == sorted(irq for irq, said in names.items() if action in said)


@given(st.sets(st.integers(0, MAX_CPUS - 1), min_size=1, max_size=4).map(CpuSet))
def test_a_target_is_one_cpu_of_those_for_interrupts(given_cpus: CpuSet) -> None:
    sq, cq = targets(given_cpus)[SQ], targets(given_cpus)[CQ]
    assert (len(sq), len(cq)) == (1, 1)
    assert sq | cq <= given_cpus
    assert (sq == cq) == (len(given_cpus) == 1)
    assert sq.first == given_cpus.first
