"""The interrupts of this machine's own PCI devices, read and left as they are; and sockets in other namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from agent.model.cpuset import EMPTY, CpuSet
from agent.node.host import LinuxHost
from agent.node.interrupts_file import parse_interrupts
from agent.node.irq import ActionNames, msi_irqs, read_affinity
from agent.node.netns import unix_socket

ROOT = Path("/")
DEVICES = sorted(path.parent.name for path in Path("/sys/bus/pci/devices").glob("*/msi_irqs"))

has_msi = pytest.mark.skipif(not DEVICES, reason="no PCI device of this machine has MSI interrupts")


@has_msi
def test_every_interrupt_of_every_device_has_a_name_and_a_mask() -> None:
    for address in DEVICES:
        irqs = msi_irqs(ROOT, address)
        assert irqs == tuple(sorted(irqs)) != ()
        assert msi_irqs(ROOT, address.upper()) == irqs
        names = ActionNames(ROOT).of(irqs)
        assert names.keys() == set(irqs)
        for irq in irqs:
            if not Path(f"/proc/irq/{irq}").exists():
                continue
            listed = read_affinity(ROOT, irq)
            assert listed is not None
            effective = read_affinity(ROOT, irq, effective=True)
            assert listed
            assert effective is None or effective <= CpuSet.parse(Path("/sys/devices/system/cpu/possible").read_text())


@has_msi
def test_both_places_that_name_handlers_agree() -> None:
    irqs = [irq for address in DEVICES for irq in msi_irqs(ROOT, address)]
    names = {irq: said for irq, said in ActionNames(ROOT).of(irqs).items() if said}
    listed = parse_interrupts(Path("/proc/interrupts").read_bytes())
    assert names
    for irq, said in names.items():
        assert tuple(part.strip() for part in listed[irq].split(",")) == said


@has_msi
def test_writing_the_mask_that_an_interrupt_has_changes_nothing() -> None:
    irq = next(irq for address in DEVICES for irq in msi_irqs(ROOT, address) if Path(f"/proc/irq/{irq}").exists())
    if not os.access(f"/proc/irq/{irq}/smp_affinity_list", os.W_OK):
        pytest.skip("/proc/irq cannot be written here")
    before = read_affinity(ROOT, irq)
    assert before is not None
    LinuxHost().set_irq_affinity(irq, before)
    assert read_affinity(ROOT, irq) == before


def test_the_kernels_answers_are_plain_errors() -> None:
    host = LinuxHost()
    with pytest.raises(FileNotFoundError):
        host.set_irq_affinity(999_999, CpuSet([0]))
    with pytest.raises(ValueError, match="empty"):
        host.set_irq_affinity(1, EMPTY)
    with pytest.raises(ValueError, match="no interrupt"):
        host.set_irq_affinity(-1, CpuSet([0]))
    assert read_affinity(ROOT, 999_999) is None


def test_a_socket_is_made_in_another_network_namespace_and_this_process_stays_in_its_own() -> None:
    held = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo in; exec sleep 60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert held.stdout is not None
    try:
        if held.stdout.readline() != b"in\n":
            pytest.skip("needs the right to make a network namespace")
        own = os.stat("/proc/self/ns/net").st_ino
        with unix_socket(f"/proc/{held.pid}/ns/net") as there, unix_socket("/proc/self/ns/net") as here:
            address = f"\0cpubind-test-{os.getpid()}"
            there.bind(address)
            there.listen(1)
            with pytest.raises(ConnectionRefusedError):
                here.connect(address)
            with unix_socket(f"/proc/{held.pid}/ns/net") as client:
                client.connect(address)
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                assert int.from_bytes(credentials[:4], "little") == os.getpid()
        assert os.stat("/proc/thread-self/ns/net").st_ino == own
    finally:
        held.kill()
        held.wait()
        held.stdout.close()


def test_a_namespace_that_is_gone_is_a_plain_error() -> None:
    with pytest.raises(FileNotFoundError):
        unix_socket("/proc/999999999/ns/net")
