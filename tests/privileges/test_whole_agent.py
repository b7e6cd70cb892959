"""The whole agent with just some capabilities, on two workers of another user, of which npu-smi lists one.

Its node has the CPUs of a profile; threads, memory, open devices, events and an interrupt are this kernel's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.standin import StandIn
from agent.model.node import ProcessRow
from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from agent.node.capabilities import Capability
from agent.node.irq import read_affinity
from agent.node.prerequisites import release, version
from tests.cli.running import Running, condition
from tests.host.irqbalance_daemon import alone
from tests.host.wider import make_root
from tests.privileges.agent import PROFILE
from tests.privileges.interrupt import spare_irq
from tests.privileges.rig import AGENT, FIVE, another_users_worker, just, need_root

need_root()

LISTED, UNLISTED = 0, 1
"""NPUs: of the worker that npu-smi lists, and of the one that only holds the device open."""

if version(release(Path("/"))) < (6, 6):
    pytest.skip("before Linux 6.6 events of processes want CAP_NET_ADMIN, too", allow_module_level=True)


@dataclass(frozen=True, slots=True)
class Node:
    """A node with two workers, and its interrupt."""

    folder: Path
    listed: StandIn
    unlisted: StandIn
    irq: int

    def run(self, held: Collection[Capability], **how: Any) -> Running:
        root = ("--host-root", str(self.folder))
        return Running(self.folder, *root, below=just(held, **how), program="tests.privileges.agent")


@pytest.fixture
def device() -> Iterator[Path]:
    """A device of NPU 1 that nobody opens but who is told to: a new terminal. /dev/full and the like are others', too,
    and the agent looks at every process of this machine."""
    controller, terminal = os.openpty()
    path = Path(os.ttyname(terminal))
    path.chmod(0o666)
    os.close(terminal)
    yield path
    os.close(controller)


@pytest.fixture
def node(tmp_path: Path, device: Path) -> Iterator[Node]:
    npu_smi = make_root(tmp_path, PROFILE)
    number = device.stat().st_rdev
    (tmp_path / "dev/davinci").write_text(f"0 236:0\n1 {os.major(number)}:{os.minor(number)}\n")
    tmp_path.chmod(0o777)
    bus = PROFILE.inventory.npus[LISTED].bus_id
    with (
        alone(),  # the interrupt is put back, and no irqbalance of another test is told of it
        another_users_worker("--threads", "3") as listed,
        another_users_worker("--threads", "3") as unlisted,
    ):
        irq = spare_irq()
        if irq:  # not where the agent is to put it, as whoever was here last may have left it
            Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(f"{max(os.sched_getaffinity(0))}\n")
        for path in (f"sys/bus/pci/devices/{bus.lower()}/msi_irqs/{irq}", f"sys/kernel/irq/{irq}/actions"):
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text("sq_send_trigger_irq\n")
        npu_smi.set_rows([ProcessRow(LISTED, listed.pid, 30_000, "python")])
        listed.map("private", 4)
        unlisted.open(device)
        yield Node(tmp_path, listed, unlisted, irq)


@pytest.fixture
def run(node: Node) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def begin(held: Collection[Capability], **how: Any) -> Running:
            agent = node.run(held, **how)
            stack.callback(agent.close)
            return agent

        yield begin


def npu(document: dict[str, Any], number: int) -> dict[str, Any]:
    entry: dict[str, Any] = next(entry for entry in document["status"]["npus"] if entry["id"] == number)
    return entry


def workers(document: dict[str, Any], number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = npu(document, number).get("workers", [])
    return found


def shown(document: dict[str, Any], *states: tuple[int, str]) -> bool:
    """Whether these NPUs are in these states, and all has been tried of their workers."""
    if not document["status"].get("npus"):
        return False
    tried = all(one.get("memory") != "Pending" for number, _ in states for one in workers(document, number))
    return tried and all(npu(document, number)["state"] == state for number, state in states)


def degraded(document: dict[str, Any]) -> str:
    found = condition(document, "Degraded")
    return f"{found['reason']}: {found['message']}" if found["status"] == "True" else ""


def end(agent: Running) -> str:
    """What its log says, once it has ended as it should."""
    status, log = agent.end()
    assert status == 0, log
    return "\n".join(f"{entry['level']} {entry['message']}" for entry in log)


BOTH_BOUND = ((LISTED, "Bound"), (UNLISTED, "Bound"))


def test_with_the_five_all_of_it_works(node: Node, run: Callable[..., Running]) -> None:
    agent = run(FIVE)
    document = agent.state(lambda d: shown(d, *BOTH_BOUND))
    entry = npu(document, LISTED)
    assert entry["roles"]["irq"] == "0-1"
    if node.irq:
        assert (entry["irq"], str(read_affinity(Path("/"), node.irq))) == ("Bound", "0")
    (worker,) = entry["workers"]
    assert (worker["pid"], worker["memory"]) == (node.listed.pid, "Moved")
    assert [one["pid"] for one in workers(document, UNLISTED)] == [node.unlisted.pid]
    assert condition(document, "Ready")["status"] == "True"
    assert "CAP_" not in degraded(document)
    log = end(agent)
    assert "EventsUnavailable" not in log
    assert "CAP_" not in log


def test_as_another_user_than_root_with_the_five_it_lacks_interrupts_alone(
    node: Node, run: Callable[..., Running]
) -> None:
    agent = run(FIVE, user=AGENT)
    document = agent.state(lambda d: shown(d, *BOTH_BOUND))
    if node.irq:
        entry = npu(document, LISTED)
        assert (entry["irqReason"], "Permission denied" in entry["irqMessage"]) == ("IrqRefused", True), entry
    assert workers(document, LISTED)[0]["memory"] == "Moved"
    assert "EventsUnavailable" not in end(agent)


def test_without_sys_nice_workers_of_other_users_fail_and_it_says_so(node: Node, run: Callable[..., Running]) -> None:
    agent = run(FIVE - {Capability.SYS_NICE})
    document = agent.state(lambda d: shown(d, (LISTED, "Failed"), (UNLISTED, "Failed")))
    assert {npu(document, number)["reason"] for number in (LISTED, UNLISTED)} == {"PermissionDenied"}
    ready = condition(document, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PermissionDenied")
    end(agent)


@pytest.mark.parametrize("missing", [Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH], ids=lambda one: one.name)
def test_without_the_right_to_look_a_worker_that_npu_smi_does_not_list_is_not_found(
    node: Node, run: Callable[..., Running], missing: Capability
) -> None:
    agent = run(FIVE - {missing})
    document = agent.state(lambda d: shown(d, (LISTED, "Bound")))
    assert (npu(document, UNLISTED)["state"], workers(document, UNLISTED)) == ("Idle", [])
    what = f"PermissionDenied: open files of other processes cannot be read: the agent lacks CAP_{missing.name}; "
    assert degraded(document).startswith(what + REMEDIES[Reason.PERMISSION_DENIED])
    (worker,) = workers(document, LISTED)
    if missing is Capability.SYS_PTRACE:
        assert (worker["memory"], worker["memoryReason"]) == ("Skipped", "PermissionDenied")
    else:
        assert worker["memory"] == "Moved"
    assert ("EventsUnavailable" in end(agent)) == (missing is Capability.SYS_PTRACE)


def test_without_sys_admin_there_are_no_events_and_all_else_works(node: Node, run: Callable[..., Running]) -> None:
    agent = run(FIVE - {Capability.SYS_ADMIN})
    document = agent.state(lambda d: shown(d, *BOTH_BOUND))
    assert condition(document, "Degraded")["status"] == "True"
    log = end(agent)
    assert "warning EventsUnavailable: this is not the host's network namespace" in log
    assert "CAP_SYS_ADMIN and CAP_SYS_PTRACE" in log


def test_without_net_admin_all_of_it_works(node: Node, run: Callable[..., Running]) -> None:
    agent = run(FIVE - {Capability.NET_ADMIN})
    document = agent.state(lambda d: shown(d, *BOTH_BOUND))
    assert "CAP_" not in degraded(document)
    assert "EventsUnavailable" not in end(agent)


def test_a_worker_of_root_without_any_capability_is_bound_where_npu_smi_lists_it(
    node: Node, run: Callable[..., Running]
) -> None:
    """Root's own threads it may always place. Containers run as root mostly, and are not found out by this."""
    rows = [ProcessRow(LISTED, node.listed.pid, 30_000, "python")]
    with StandIn("--threads", "1", below=just(())) as own:
        NpuSmiStandIn(node.folder, PROFILE).set_rows([*rows, ProcessRow(UNLISTED, own.pid, 30_000, "python")])
        agent = run(())
        document = agent.state(lambda d: shown(d, (LISTED, "Failed"), (UNLISTED, "Bound")))
        assert "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH" in degraded(document)
        end(agent)
