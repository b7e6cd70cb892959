"""Reading interrupts: numbers of a PCI function, names of handlers, masks; whatever the size of the machine."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.demo.fake_sysfs import DRIVER
from agent.demo.virtual import VirtualNode
from agent.model.cpuset import MAX_CPUS, CpuSet
from agent.model.reason import Reason, Refused
from agent.node.interrupts_file import parse_interrupts
from agent.node.irq import (
    ActionNames,
    check_irq_write,
    driver_module,
    msi_irqs,
    read_affinity,
    sysfs_address,
    write_affinity,
)
from agent.node.npu_smi.board import parse_board

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> VirtualNode:
    return VirtualNode(tmp_path_factory.mktemp("node") / "root", "a2")


def test_the_interrupts_of_a_function_are_ascending(node: VirtualNode) -> None:
    for npu in node.inventory.npus:
        assert list(msi_irqs(node.root, npu.bus_id)) == node.irqs_of(npu.id)
    assert msi_irqs(node.root, "0000:ff:1f.7") == ()
    assert msi_irqs(node.root, "../../../../proc") == ()


def test_the_driver_of_a_function_is_known_by_its_module(node: VirtualNode) -> None:
    assert driver_module(node.root, node.npu(0).bus_id) == DRIVER
    assert driver_module(node.root, "0000:ff:1f.7") == driver_module(node.root, "") == ""


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:61:00.0", "0000:61:00.0"),
        ("00010000:61:00.0", "10000:61:00.0"),
        (" 0001:61:00.1\n", "0001:61:00.1"),
        ("NA", ""),
        ("", ""),
        ("0000:c1:00.0/../..", ""),
        ("0000:c1:00.8", ""),
    ],
)
def test_addresses_are_spelled_as_sysfs_does(said: str, address: str) -> None:
    assert sysfs_address(said) == address


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("910a_card0", "0000:61:00.0"),
        ("910a_card0_chip0", "0000:61:00.0"),
        ("950_doc", "0000:f1:00.0"),
        ("910b4_chip_no_pci_excerpt", ""),
        ("a3_9392_chip_excerpt", ""),
    ],
)
def test_boards_as_they_were_captured_show_an_address_or_none(name: str, address: str) -> None:
    assert sysfs_address(parse_board((FIXTURES / f"board/{name}.txt").read_text()).bus_id) == address


# Names


def test_names_are_those_of_the_captured_layout() -> None:
    listed = parse_interrupts((FIXTURES / "interrupts/a2_two_npus_format_derived.txt").read_bytes())
    evidence = (FIXTURES / "interrupts/log_evidence_a2_irq_numbers.txt").read_text()
    assert "sq_send_trigger_irq IRQ_ID=2753" in evidence
    assert "cq_update_irq IRQ_ID=3010" in evidence
    assert listed == {
        first + k: name
        for first in (2752, 3008)
        for k, name in enumerate(["trs-mbox-0-0", "sq_send_trigger_irq", *["cq_update_irq"] * 16])
    }


def test_lines_that_are_no_interrupts_shared_ones_and_those_without_a_handler_are_told_apart() -> None:
    text = (
        b"           CPU0       CPU1       \n"
        b"  9:          0          0   GICv3  25 Level     arch_timer, other dev\n"
        b" 77:          0          0   ITS-MSI 524288 Edge      \n"
        b" 78:          0          0   ITS-MSI 524289 Edge      cq_update_irq\n"
        b"NMI:          0          0   Non-maskable interrupts\n"
        b"Err:          0\n"
        b"99999999999999999999999999: 1\n"
        b"\xff\xfe:\x00\n\n:"
    )
    listed = parse_interrupts(text)
    assert listed[9] == "arch_timer, other dev"
    assert listed[78] == "cq_update_irq"
    assert "cq_update_irq" not in listed[77]
    assert set(listed) == {9, 77, 78}
    assert parse_interrupts(b"") == {}


@given(st.binary(max_size=400))
def test_no_content_is_an_exception(content: bytes) -> None:
    parse_interrupts(content)


def test_a_table_of_640_columns_and_4096_interrupts_is_read_in_no_time_and_once(tmp_path: Path) -> None:
    counts = b"%11d" % 4_000_000_000 * 640
    with (path := tmp_path / "interrupts").open("wb") as file:
        file.write(b"     " + b"".join(b"%11s" % (b"CPU%d" % cpu) for cpu in range(640)) + b"\n")
        for irq in range(2000, 6096):
            file.write(b"%4d:%s   ITS-MSI %d Edge      cq_update_irq\n" % (irq, counts, 101187584 + irq))
    assert path.stat().st_size > 28_000_000
    (tmp_path / "proc").mkdir()
    path.rename(tmp_path / "proc/interrupts")
    names = ActionNames(tmp_path)
    started = time.process_time()
    assert names.of(range(2000, 6096)) == dict.fromkeys(range(2000, 6096), ("cq_update_irq",))
    first = time.process_time() - started
    started = time.process_time()
    names.of(range(2000, 2018))
    assert time.process_time() - started < max(first / 5, 0.01)
    # Per column it would be 2.6 million numbers, and seconds.
    assert first < 1.0


def test_a_table_beyond_all_bounds_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    with (tmp_path / "proc/interrupts").open("wb") as file:
        file.truncate(1 << 32)
    monkeypatch.setattr("agent.node.irq.INTERRUPTS_LIMIT", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refused:
            ActionNames(tmp_path).of([1])
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.reason is Reason.IRQ_NAMES_UNKNOWN


def test_where_sys_kernel_irq_is_there_proc_interrupts_is_not_read(node: VirtualNode) -> None:
    irqs = node.irqs_of(0)
    (node.root / "proc/interrupts").chmod(0)
    (node.root / "proc/interrupts").rename(node.root / "proc/away")
    (node.root / "proc/interrupts").mkdir()  # reading it would be refused
    try:
        found = ActionNames(node.root).of([*irqs, 999_999])
    finally:
        (node.root / "proc/interrupts").rmdir()
        (node.root / "proc/away").rename(node.root / "proc/interrupts")
        (node.root / "proc/interrupts").chmod(0o644)
    assert found[irqs[1]] == ("sq_send_trigger_irq",)
    assert found[999_999] == ()


def test_an_interrupt_that_several_handlers_share_has_all_their_names(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/irq/5").mkdir(parents=True)
    (tmp_path / "sys/kernel/irq/5/actions").write_text("a,cq_update_irq\n")
    assert ActionNames(tmp_path).of([5]) == {5: ("a", "cq_update_irq")}


# Masks (cri-o #9613, #9405, #6145)

_sets = st.integers(1, MAX_CPUS).flatmap(lambda n: st.sets(st.integers(0, n - 1), min_size=1)).map(CpuSet)


@pytest.fixture(scope="module")
def irq_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("irq")
    (root / "proc/irq/7").mkdir(parents=True)
    return root


@given(_sets)
def test_lists_round_trip_for_1_to_4096_cpus(irq_root: Path, cpus: CpuSet) -> None:
    path = irq_root / "proc/irq/7/smp_affinity_list"
    path.write_text("")
    write_affinity(irq_root, 7, cpus)
    assert path.read_text() == f"{cpus}\n"
    assert read_affinity(irq_root, 7) == cpus


@pytest.mark.parametrize("size", [1, 31, 32, 33, 63, 64, 65, 640, 4095, 4096])
def test_whole_machines_round_trip(irq_root: Path, size: int) -> None:
    (irq_root / "proc/irq/7/smp_affinity_list").write_text("")
    write_affinity(irq_root, 7, CpuSet.span(0, size - 1))
    assert read_affinity(irq_root, 7) == CpuSet.span(0, size - 1)


def test_a_mask_that_cannot_be_read_is_refused_and_one_that_is_gone_is_none(irq_root: Path) -> None:
    assert read_affinity(irq_root, 8) is None
    assert read_affinity(irq_root, 7, effective=True) is None
    (irq_root / "proc/irq/7/smp_affinity_list").write_text("0-f\n")
    with pytest.raises(Refused) as refused:
        read_affinity(irq_root, 7)
    assert refused.value.reason is Reason.IRQ_REFUSED


def test_what_must_never_reach_the_kernel_is_refused_before() -> None:
    with pytest.raises(ValueError, match="empty"):
        check_irq_write(7, CpuSet())
    with pytest.raises(ValueError, match="no interrupt"):
        check_irq_write(-1, CpuSet([0]))
