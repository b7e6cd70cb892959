"""What is missing for one step skips that step alone, by its own reason; the threads are bound all the same."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.demo.fake_files import put
from agent.demo.fake_irqbalance import FakeIrqbalance
from agent.demo.fake_sysfs import DRIVER
from agent.demo.workload import Worker
from agent.model.reason import Reason, Refused
from tests.control.rig import Rig
from tests.control.steps import effects, irqs, journal, moved

NPU = 1


def read_only(rig: Rig) -> Callable[[], None]:
    rig.node.kernel.irq_errors = {irq.number: errno.EROFS for irq in rig.node.irqs}
    return rig.node.kernel.irq_errors.clear


def refused(rig: Rig) -> Callable[[], None]:
    rig.node.kernel.irq_errors = {irq.number: errno.EIO for irq in rig.node.irqs}
    return rig.node.kernel.irq_errors.clear


def without_msi_irqs(rig: Rig) -> Callable[[], None]:
    folder = rig.node.root / f"sys/bus/pci/devices/{rig.node.npu(NPU).bus_id}/msi_irqs"
    folder.rename(folder.with_name("aside"))

    def heal() -> None:
        folder.with_name("aside").rename(folder)

    return heal


def without_names(rig: Rig) -> Callable[[], None]:
    """The driver calls its handlers otherwise, until the NPU is reset."""
    for irq in rig.node.irqs_of(NPU):
        put(rig.node.root / f"sys/kernel/irq/{irq}/actions", "hisi_something\n")
    return lambda: rig.node.reset_npu(NPU, first=9000)


def without_address(rig: Rig) -> Callable[[], None]:
    """npu-smi prints no Bus-Id, and knows no boards."""
    query, known = rig.node.npu_smi.query, False

    def answer(*args: str) -> str:
        if "board" in args and not known:
            raise Refused(Reason.NOT_SUPPORTED, "npu-smi does not know the query")
        text = query(*args)
        return text if args != ("info",) else text.replace("0000:", "NA  :")

    rig.node.npu_smi.query = answer  # type: ignore[method-assign]

    def heal() -> None:
        nonlocal known
        known = True

    return heal


MISSING = {
    "IrqReadOnly": read_only,
    "IrqRefused": refused,
    "MsiIrqsMissing": without_msi_irqs,
    "IrqNamesUnknown": without_names,
    "PciAddressUnknown": without_address,
}


@pytest.mark.parametrize("reason", MISSING)
def test_without_it_interrupts_stay_and_everything_else_is_done(tmp_path: Path, reason: str) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    heal = MISSING[reason](rig)
    Worker.start(rig.node, NPU, rig.node.kubelet.add_pod("llm-0"), threads=4)
    rig.settle()
    board_answers(rig)
    entry = rig.npu(NPU)
    assert (entry["state"], entry["irq"] in ("Skipped", "Failed"), entry["irqReason"]) == ("Bound", True, reason)
    assert f"NPU {NPU}" in entry["irqMessage"]
    assert entry["workers"][0]["memory"] == "Moved"
    assert rig.condition("Ready")["status"] == "True"
    degraded = rig.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", reason)
    assert [event for event in rig.events() if not event[1]] == [(reason, "")]
    assert moved(rig) == set()
    tries = effects(rig)["smp_affinity_list"]
    for _ in range(5):
        rig.sweep(1)
    assert effects(rig)["smp_affinity_list"] == tries, "it is not tried for ever"
    assert rig.events() == []

    heal()
    for _ in range(3):
        rig.sweep(700)
        board_answers(rig)
    first, second = entry["roles"]["irq"].split("-")
    assert irqs(rig, NPU) == (first, second)
    assert (rig.npu(NPU)["irq"], "irqReason" in rig.npu(NPU)) == ("Bound", False)
    assert rig.condition("Degraded")["status"] == "False"
    assert rig.events() == []


def test_a_board_that_npu_smi_is_still_asked_for_is_nothing_that_is_missing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    without_address(rig)()
    query, answered = rig.node.npu_smi.query, threading.Event()

    def slow(*args: str) -> str:
        if "board" in args:
            answered.wait(10)
        return query(*args)

    rig.node.npu_smi.query = slow  # type: ignore[method-assign]
    Worker.start(rig.node, NPU, rig.node.kubelet.add_pod("llm-0"), threads=4)
    rig.settle()
    assert (rig.npu(NPU)["irqReason"], rig.condition("Degraded")["status"]) == ("Pending", "False")
    answered.set()
    board_answers(rig)
    assert (rig.npu(NPU)["irq"], moved(rig)) == ("Bound", {NPU})
    assert [event for event in rig.events() if not event[1]] == []


def board_answers(rig: Rig) -> None:
    """npu-smi is asked for boards in a thread of its own, and the loop is woken when it answers."""
    for _ in range(2):
        for thread in threading.enumerate():
            if thread.name.startswith("board"):
                thread.join(10)
        rig.sweep(0)


def test_one_npu_s_interrupts_are_nobody_else_s_trouble(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    without_msi_irqs(rig)
    pod = rig.node.kubelet.add_pod("llm-0")
    for npu in (NPU, 4):
        Worker.start(rig.node, npu, pod, threads=4)
    rig.settle()
    assert (rig.npu(NPU)["irq"], rig.npu(4)["irq"]) == ("Skipped", "Bound")
    assert moved(rig) == {4}


def test_an_irqbalance_that_cannot_be_told_is_said_with_what_to_configure(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    with FakeIrqbalance(rig.node, listens=False):
        Worker.start(rig.node, NPU, rig.node.kubelet.add_pod("llm-0"), threads=4)
        rig.settle()
        assert rig.npu(NPU)["irq"] == "Bound"
        assert rig.condition("Ready")["status"] == "True"
        degraded = rig.condition("Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "IrqbalanceActive")
        assert f"--banmod={DRIVER}" in degraded["message"]
        (event,) = {(h.reason, h.warning, h.pod, h.standing, h.message) for h in rig.told if not h.pod}
        assert event == (Reason.IRQBALANCE_ACTIVE, True, "", True, degraded["message"])
    rig.sweep()
    assert rig.condition("Degraded")["status"] == "False"


def test_what_has_to_be_configured_is_told_though_something_graver_is_missing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    with FakeIrqbalance(rig.node, listens=False):
        Worker.start(rig.node, NPU, rig.node.kubelet.add_pod("llm-0"), threads=4)
        rig.settle()
        rig.events()
        rig.node.npu_smi.fail()
        rig.settle()
        assert rig.condition("Degraded")["reason"] == "DriverNotReady"
        assert ("IrqbalanceActive", "") in rig.events()


def test_an_irqbalance_that_listens_is_told_and_told_again_when_it_is_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    with FakeIrqbalance(rig.node, banned=(7,)) as daemon:
        Worker.start(rig.node, NPU, rig.node.kubelet.add_pod("llm-0"), threads=4)
        rig.settle()
        ours = {irq for irq in rig.node.irqs_of(NPU) if irq != rig.node.irqs_of(NPU)[0]}
        assert set(daemon.banned) == {7} | ours
        assert rig.condition("Degraded")["status"] == "False"
        bans = effects(rig)["ban irqs"]
        rig.restart()
        rig.settle()
        rig.sweep()
        assert effects(rig)["ban irqs"] == bans
        rig.ask(mode="Disabled")
        rig.sweep()
        assert daemon.banned == [7]
        assert rig.condition("Restored")["status"] == "True"
        assert journal(rig).bans is None


def test_an_irqbalance_is_left_alone_in_a_dry_run(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", interrupts=True)
    rig.ask(mode="DryRun")
    with FakeIrqbalance(rig.node, banned=(7,)) as daemon:
        Worker.start(rig.node, NPU, rig.node.kubelet.add_pod("llm-0"), threads=4)
        rig.settle()
        rig.sweep(61)
        assert daemon.messages == []
        assert rig.npu(NPU)["irq"] == "Planned"
