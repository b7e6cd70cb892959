"""irqbalance is told which interrupts to leave alone, and forgets that on restore (irqbalance #246, #297)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent.control.journal import IrqBans
from agent.demo.fake_irqbalance import FakeIrqbalance
from agent.demo.fake_sysfs import CQ_IRQS, DRIVER
from agent.model.reason import Problem, Reason
from agent.node.host import BanWrite, DryRunHost
from tests.control.irq_rig import CQ, SQ, IrqRig

EACH = 1 + CQ_IRQS


@pytest.fixture
def rig(tmp_path: Path) -> IrqRig:
    return IrqRig(tmp_path / "root")


def ours(rig: IrqRig, *npus: int) -> set[int]:
    return {irq for npu in npus for action in (SQ, CQ) for irq in rig.node.irqs_of(npu, action)}


def left(rig: IrqRig) -> tuple[IrqBans | None, list[Problem]]:
    """What is noted of irqbalance, and what is wrong."""
    return rig.interrupts.bans, rig.interrupts.problems


def test_the_interrupts_of_bound_npus_are_added_to_its_list_and_taken_off_it_again(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node, banned=(43, 44)) as daemon:
        rig.step(0, 1)
        assert set(daemon.banned) == {43, 44} | ours(rig, 0, 1)
        daemon.balance()
        assert rig.masks(0, SQ) == {"0"}
        assert rig.interrupts.problems == []
        rig.step(1)
        assert set(daemon.banned) == {43, 44} | ours(rig, 1)
        rig.restart()
        rig.interrupts.restore()
        assert daemon.banned == [43, 44]
        assert rig.interrupts.bans is None


def test_a_next_agent_knows_them_at_once_where_one_of_the_device_has_no_handler(rig: IrqRig) -> None:
    """A driver may ask for more than it uses; names that are missing are waited for otherwise."""
    (rig.node.root / f"sys/kernel/irq/{rig.node.irqs_of(0)[0]}/actions").write_text("\n")
    with FakeIrqbalance(rig.node) as daemon:
        for _ in range(4):
            before = rig.step(0, seconds=30)
        writes, bans = rig.writes(), rig.bans()
        rig.restart()
        for _ in range(12):
            assert rig.step(0) == before
        assert (rig.writes(), rig.bans()) == (writes, bans)
        assert set(daemon.banned) == ours(rig, 0)


def test_of_a_device_of_which_little_is_known_the_rest_is_found_by_name(rig: IrqRig) -> None:
    (rig.node.root / f"sys/kernel/irq/{rig.node.irqs_of(0)[0]}/actions").write_text("\n")
    stuck = rig.node.irqs_of(0, SQ)[0]
    for _ in range(4):
        rig.step(0, seconds=30)
    rig.node.kernel.irq_errors = {stuck: errno.EIO}
    rig.step()
    rig.node.kernel.irq_errors = {}
    assert [entry.irq for entry in rig.interrupts.taken] == [stuck]
    rig.restart()
    for _ in range(5):
        rig.step(0, seconds=30)
    assert (rig.masks(0, SQ), rig.masks(0, CQ)) == ({"0"}, {"1"})


def test_the_list_is_noted_before_it_is_sent_and_not_sent_twice(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node) as daemon:
        rig.survey(rig.wanted(0))
        assert daemon.messages == []
        assert rig.interrupts.bans is not None
        assert rig.interrupts.bans.irqs == ours(rig, 0)
        assert rig.interrupts.bans.balancer == daemon.process
        for _ in range(30):
            rig.step(0)
        rig.restart()
        for _ in range(30):
            rig.step(0)
        assert len(daemon.messages) == rig.bans() == 1
        rig.interrupts.restore()
        assert daemon.messages[-1] == b"settings ban irqs NONE"


def test_another_irqbalance_is_told_anew_in_the_next_pass(rig: IrqRig) -> None:
    daemon = FakeIrqbalance(rig.node)
    rig.step(0)
    daemon.stop()
    rig.step(0)
    assert rig.interrupts.bans is None
    with FakeIrqbalance(rig.node, banned=(7,)) as another:
        rig.step(0)
        assert set(another.banned) == {7} | ours(rig, 0)
        rig.interrupts.restore()
        assert another.banned == [7]


def test_a_list_that_somebody_replaced_is_completed_within_a_minute_or_when_an_interrupt_moves(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node) as daemon:
        rig.step(0)
        daemon.banned = [9]
        rig.step(0, seconds=61)
        assert set(daemon.banned) == {9} | ours(rig, 0)
        daemon.banned = []
        daemon.balance()
        rig.step(0)
        assert set(daemon.banned) == ours(rig, 0)
        assert rig.masks(0, SQ) == {"0"}


def test_new_numbers_after_a_reset_take_the_place_of_the_old(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node, banned=(43,)) as daemon:
        rig.step(0)
        rig.node.reset_npu(0, first=6000)
        rig.step(0)
        assert set(daemon.banned) == {43} | ours(rig, 0)


@pytest.mark.parametrize("list_bytes", [None, 255], ids=["1.9", "newer"])
def test_a_node_with_more_interrupts_than_its_message_holds_bans_the_most_important_ones_and_says_what_to_configure(
    tmp_path: Path, list_bytes: int | None
) -> None:
    rig = IrqRig(tmp_path / "root")
    npus = tuple(range(8))
    with FakeIrqbalance(rig.node, banned=(43,), list_bytes=list_bytes) as daemon:
        rig.step(*npus)
        assert set(daemon.banned) <= {43} | ours(rig, *npus)  # no number is cut
        assert {irq for npu in npus for irq in rig.node.irqs_of(npu, SQ)} <= set(daemon.banned)
        held = len(daemon.banned) - 1
        assert held == (96 if list_bytes is None else 50)
        assert rig.interrupts.bans is not None
        assert len(rig.interrupts.bans.irqs) == held
        (problem,) = rig.interrupts.problems
        assert problem.reason is Reason.IRQBALANCE_ACTIVE
        assert f"{held} of {8 * EACH}" in problem.message
        assert f"--banmod={DRIVER}" in problem.message
        messages = len(daemon.messages)
        for _ in range(30):
            rig.step(*npus)
        assert len(daemon.messages) == messages
        rig.interrupts.restore()
        assert daemon.banned == [43]


def test_one_that_is_configured_to_leave_the_driver_alone_is_told_nothing(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node, arguments=("--banmod=drv_pcie",)) as daemon:
        rig.step(*range(8))
        assert (daemon.messages, rig.interrupts.problems, rig.interrupts.bans) == ([], [], None)


def test_one_without_a_socket_is_a_problem_that_names_the_option_and_everything_else_is_done(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node, listens=False):
        assert rig.step(0)[0].state == "Bound"
        (problem,) = rig.interrupts.problems
        assert problem.reason is Reason.IRQBALANCE_ACTIVE
        assert f"--banmod={DRIVER}" in problem.message
        rig.interrupts.restore()
        assert rig.interrupts.problems == []  # nothing is left to be undone
        rig.step(0)
        assert len(rig.interrupts.problems) == 1
    rig.step(0)
    assert rig.interrupts.problems == []


def test_where_the_driver_is_not_known_the_numbers_are_named(rig: IrqRig) -> None:
    (rig.node.root / "sys/bus/pci/devices" / rig.node.npu(0).bus_id / "driver/module").unlink()
    with FakeIrqbalance(rig.node, listens=False):
        rig.step(0)
        (problem,) = rig.interrupts.problems
        assert f"--banirq={min(ours(rig, 0))} " in problem.message


@pytest.mark.parametrize(
    "raw", [b"\xff\x00garbage", b"SLEEP", b"SLEEP 10 IRQ x BANNED 0", b"SLEEP 10 IRQ", b"1" * 99999]
)
def test_an_answer_that_is_none_is_a_problem_and_nothing_is_sent(rig: IrqRig, raw: bytes) -> None:
    with FakeIrqbalance(rig.node, raw=raw) as daemon:
        assert rig.step(0)[0].state == "Bound"
        assert [problem.reason for problem in rig.interrupts.problems] == [Reason.IRQBALANCE_ACTIVE]
        assert (daemon.messages, rig.interrupts.bans) == ([], None)
        daemon.raw = None
        rig.step(0, seconds=61)
        assert rig.interrupts.problems == []
        assert set(daemon.banned) == ours(rig, 0)


def test_a_list_of_its_own_that_may_not_fit_is_never_sent_again(rig: IrqRig) -> None:
    banned = tuple(range(10_000, 10_080))
    with FakeIrqbalance(rig.node, banned=banned) as daemon:
        rig.step(0)
        assert tuple(daemon.banned) == banned
        assert [problem.reason for problem in rig.interrupts.problems] == [Reason.IRQBALANCE_ACTIVE]


def test_one_that_was_told_everything_on_its_command_line_is_told_nothing_however_long_that_is(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node, banned=tuple(sorted(ours(rig, *range(8))))) as daemon:
        rig.step(*range(8))
        assert (daemon.messages, rig.interrupts.bans, rig.interrupts.problems) == ([], None, [])


def test_on_a_node_without_workers_nobody_looks_for_it(rig: IrqRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.interrupts._balance._balancer, "find", lambda: pytest.fail("looked"))
    rig.step()


def test_bans_that_cannot_be_taken_back_stay_noted_until_the_process_has_ended(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node) as daemon:
        rig.step(0)
        daemon.raw = b"?"
        rig.interrupts.restore()
        assert rig.interrupts.bans is not None
        assert [problem.reason for problem in rig.interrupts.problems] == [Reason.IRQBALANCE_ACTIVE]
        assert rig.interrupts.taken == ()
        daemon.heard = 0
        for _ in range(10):
            rig.interrupts.restore()
        assert daemon.heard == 0  # each try may take a second, and this is called in every pass
        daemon.raw = None
        rig.now += 60
        rig.interrupts.restore()
        assert (daemon.banned, left(rig)) == ([], (None, []))
        rig.step(0)
        daemon.raw = b"?"
        rig.interrupts.restore()
        assert rig.interrupts.bans is not None
    rig.interrupts.restore()
    assert left(rig) == (None, [])


@pytest.mark.parametrize("own_uid", [True, False])
def test_a_process_of_a_pod_that_calls_itself_so_is_not_talked_to(rig: IrqRig, own_uid: bool) -> None:
    pod = rig.node.kubelet.add_pod("hostile")
    cgroup = pod.container().cgroup if own_uid else "/user.slice"
    with FakeIrqbalance(rig.node, cgroup=cgroup) as daemon:
        if not own_uid:
            status = rig.node.root / f"proc/{daemon.process.pid}/status"
            status.write_text(status.read_text().replace("Uid:\t0\t0", "Uid:\t1000\t1000"))
        rig.step(0)
        assert daemon.heard == 0
        assert left(rig) == (None, [])


def test_a_socket_that_another_process_listens_on_is_not_talked_to(rig: IrqRig) -> None:
    with FakeIrqbalance(rig.node) as daemon:
        rig.restart()
        rig.interrupts._balance._balancer._stand_in = os.getppid()
        rig.step(0)
        assert (daemon.messages, daemon.heard) == ([], 0)
        (problem,) = rig.interrupts.problems
        assert str(os.getpid()) in problem.message


def test_a_dry_run_tells_it_nothing(rig: IrqRig) -> None:
    host = DryRunHost(rig.node.kernel)
    rig.restart(host)
    with FakeIrqbalance(rig.node, banned=(43,)) as daemon:
        rig.step(0)
        assert daemon.messages == []
        (ban,) = [write for write in host.others if isinstance(write, BanWrite)]
        assert set(ban.irqs) == {43} | ours(rig, 0)
