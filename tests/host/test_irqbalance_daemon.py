"""The real irqbalance: its list is read, extended and given back, and an interrupt that is on it stays where it was put
(irqbalance #246, #297)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.control.interrupts import Interrupts
from agent.model.cpuset import CpuSet
from agent.model.node import Npu
from agent.model.reason import Reason, Refused
from agent.node.host import LinuxHost
from agent.node.irqbalance import Irqbalance
from tests.host.irqbalance_daemon import alone, daemon, governed, listens, masks, needs, place_anew
from tests.host.support import identity

ROOT = Path("/")
ADDRESS = "0000:c1:00.0"


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    needs()
    with alone():
        yield


def test_it_is_found_asked_and_told_and_keeps_what_others_had_banned() -> None:
    with daemon("--banirq=1001", "--banmod=nvme") as process:
        balancer = Irqbalance(ROOT)
        found = balancer.find()
        assert found == identity(process.pid)
        assert balancer.bans(found) == {1001}
        assert balancer.banned_modules(found) == ("nvme",)
        assert LinuxHost().ban_irqs(found, {1001}, [43, 44]) == {1001, 43, 44}
        assert balancer.bans(found) == {1001, 43, 44}
        assert balancer.ban(found, {1001}, []) == {1001}
        assert balancer.ban(found, (), []) == frozenset()
    assert balancer.find() is None
    assert not balancer.lives(found)


def test_it_never_gets_a_number_that_is_cut_however_long_the_list_is() -> None:
    with daemon() as process:
        balancer, found = Irqbalance(ROOT), identity(process.pid)
        asked = list(range(2753, 2753 + 272))
        held = balancer.ban(found, {43}, asked)
        assert held == {43, *asked[: len(held) - 1]}
        assert len(held) >= 50
        assert process.poll() is None


def test_it_lives_on_when_it_comes_to_answer_after_nobody_waits_any_more() -> None:
    """It does not ignore SIGPIPE, which it would get for an answer to a socket that was closed."""
    with daemon() as process:
        balancer, found = Irqbalance(ROOT), identity(process.pid)
        process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(Refused):
                balancer.bans(found)
        process.send_signal(signal.SIGCONT)
        time.sleep(2)
        assert process.poll() is None
        assert balancer.bans(found) == frozenset()
        assert balancer.ban(found, (), [43]) == {43}


def test_it_lives_on_when_the_process_that_asked_would_have_ended_by_then() -> None:
    command = [sys.executable, "-m", "agent", "doctor"]
    with daemon() as process, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        process.send_signal(signal.SIGSTOP)
        assert asking.stdout is not None
        said: list[str] = []
        while not said or " checks: " not in said[-1]:
            said.append(asking.stdout.readline())
            assert said[-1], said
        assert [line for line in said if "irqbalance" in line and "timed out" in line]
        time.sleep(1)
        process.send_signal(signal.SIGCONT)
        asking.wait(60)
        time.sleep(2)
        assert process.poll() is None


def test_it_is_reached_in_its_own_mount_namespace_where_run_is_another() -> None:
    """As in a container to which the host's /run/irqbalance is not mounted, or was before the folder was made anew."""
    script = 'mount -t tmpfs none /run && mkdir /run/irqbalance && exec "$0" "$@"'
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a mount namespace")
    with daemon(prefix=("unshare", "--mount", "sh", "-c", script)) as process:
        assert not Path(f"/run/irqbalance/irqbalance{process.pid}.sock").exists()
        balancer = Irqbalance(ROOT)
        found = balancer.find()
        assert found is not None
        assert balancer.ban(found, (), [43]) == {43}


def test_it_is_reached_by_its_abstract_address_in_its_own_network_namespace() -> None:
    """It has one where /run/irqbalance is missing."""
    script = 'mount -t tmpfs none /run && exec "$0" "$@"'
    if subprocess.run(["unshare", "--mount", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make namespaces")
    with daemon(prefix=("unshare", "--mount", "--net", "sh", "-c", script)) as process:
        own = os.stat("/proc/self/ns/net").st_ino
        balancer, found = Irqbalance(ROOT), identity(process.pid)
        assert balancer.ban(found, (), [43, 44]) == {43, 44}
        assert os.stat("/proc/thread-self/ns/net").st_ino == own


def test_one_that_does_not_answer_holds_nobody_up() -> None:
    with daemon() as process:
        balancer, found = Irqbalance(ROOT), identity(process.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            for patience in (6.0, 1.0):  # and is not waited for again until it has answered
                started = time.monotonic()
                with pytest.raises(Refused) as refused:
                    balancer.bans(found)
                assert refused.value.reason is Reason.IRQBALANCE_ACTIVE
                assert time.monotonic() - started < patience
        finally:
            process.send_signal(signal.SIGCONT)


def overlay(folder: Path, irq: int) -> Path:
    """This machine as a host root on which that interrupt is the submission interrupt of an NPU."""
    for name in ("proc", "run"):
        (folder / name).symlink_to(f"/{name}")
    for path, text in (
        (f"sys/bus/pci/devices/{ADDRESS}/msi_irqs/{irq}", "msix\n"),
        (f"sys/kernel/irq/{irq}/actions", "sq_send_trigger_irq\n"),
    ):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    return folder


def test_an_npus_interrupt_stays_where_it_was_put_while_irqbalance_runs_and_both_are_as_before_after_restore(
    tmp_path: Path,
) -> None:
    with daemon() as process:
        irq = governed(process)
        if irq is None:
            pytest.skip("irqbalance moves none of this machine's interrupts back")
        root = overlay(tmp_path, irq)
        before = masks()[irq]
        (other,) = CpuSet(sorted(os.sched_getaffinity(0))[:2]) - CpuSet.parse(before)
        wanted = {Npu(0, bus_id=ADDRESS): CpuSet([other])}
        interrupts = Interrupts(root, LinuxHost(root=root), lambda npu: "")

        def step() -> None:
            interrupts.survey(wanted)
            interrupts.act(wanted)

        step()
        assert [entry.irq for entry in interrupts.taken] == [irq]
        assert interrupts.bans is not None
        assert interrupts.bans.irqs == {irq}
        place_anew(process)
        assert masks()[irq] == str(other)
    # A service that is restarted knows nothing of it.
    with daemon() as process:
        assert listens(process.pid)
        step()
        balancer, found = Irqbalance(ROOT), identity(process.pid)
        assert balancer.bans(found) == {irq}
        time.sleep(2.2)
        step()
        place_anew(process)
        assert masks()[irq] == str(other)
        assert interrupts.problems == []
        interrupts.restore()
        left: tuple[object, object] = (interrupts.taken, interrupts.bans)
        assert left == ((), None)
        assert balancer.bans(found) == frozenset()
        assert masks()[irq] == before
