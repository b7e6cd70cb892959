"""doctor: what is missing is named, with what goes away and what to do; exit 1 where nobody would be bound."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.cli.checks import Check
from agent.demo.virtual import VirtualNode
from agent.node import prerequisites
from agent.node.capabilities import Capability, capabilities
from agent.node.pages import PageCalls
from agent.node.storage import HostLock
from tests.cli.conftest import Cpubind


@pytest.fixture(autouse=True)
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "aarch64")


@pytest.fixture
def node(tmp_path: Path) -> VirtualNode:
    return VirtualNode(tmp_path / "root", "a3")


def checks(cpubind: Cpubind, node: VirtualNode, *flags: object) -> dict[str, Check]:
    node.kernel.sync()
    result = cpubind("doctor", "-o", "json", "--host-root", node.root, "--npu-smi", node.npu_smi.path, *flags)
    found = [Check(**entry) for entry in json.loads(result.out)]
    assert result.status == int(any(check.result == "fail" for check in found))
    for check in found:
        assert check.message
        assert (check.result == "ok") == (not check.without) == (not check.fix), check.name
    return {check.name: check for check in found}


def test_a_whole_node_is_fine_but_for_its_kernel_which_is_a_recorded_one(cpubind: Cpubind, node: VirtualNode) -> None:
    found = checks(cpubind, node)
    own = {"kernel", "pod-resources", "taskstats", "pid namespace", "user namespace", "network namespace"}
    about_node = {name: check.result for name, check in found.items() if name not in own and "CAP_" not in name}
    assert set(about_node.values()) == {"ok"}
    assert "NotThisKernel" in found["kernel"].message
    assert "hostPID" in found["kernel"].fix
    assert found["topology"].message == "640 CPUs in 8 NUMA nodes"
    assert found["npu-smi"].message.startswith("16 NPUs, A3")
    assert found["kubelet"].message.startswith("CPU manager policy static")
    assert found["pod-resources"].result == "warn", "there is no socket"


def test_what_is_missing_on_the_host_is_named_with_what_goes_away(
    cpubind: Cpubind, node: VirtualNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.npu_smi.fail("dcmi module initialize failed. ret is -8005\n", 255)
    (node.root / "var/lib/kubelet/cpu_manager_state").write_text("{")
    node.kernel.cgroups.create("/system.slice/irqbalance.service", cpuset=False)
    node.kernel.start_process("irqbalance", cgroup="/system.slice/irqbalance.service")
    (node.root / "proc/sys/kernel/osrelease").write_text("6.1.0-arm64\n")
    (node.root / "proc/sys/kernel/numa_balancing").write_text("1\n")
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "x86_64")
    found = checks(cpubind, node)
    assert [found[name].result for name in ("npu-smi", "architecture")] == ["fail", "fail"]
    assert "is the driver loaded?" in found["npu-smi"].fix
    assert "allowAnyArchitecture" in found["architecture"].fix
    assert [found[name].result for name in ("kubelet", "irqbalance", "memory")] == ["warn"] * 3
    assert "--banmod" in found["irqbalance"].fix
    assert "numa_balancing=0" in found["memory"].fix

    for folder in ("sys/fs/cgroup", "proc/irq", "dev"):
        shutil.rmtree(node.root / folder)
    found = checks(cpubind, node)
    assert [found[name].result for name in ("mounts", "cgroups", "interrupts")] == ["fail", "fail", "warn"]
    assert "/dev (No such file or directory)" in found["mounts"].message
    assert "IrqReadOnly" in found["interrupts"].without


def test_an_agent_that_acts_is_named_and_its_lock_is_left_alone(
    cpubind: Cpubind, node: VirtualNode, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    shutil.copy("/proc/locks", node.root / "proc/locks")
    assert "nobody holds" in checks(cpubind, node, "--lock-file", path)["lock"].message
    assert not path.exists(), "it only looks"
    lock = HostLock(path)
    lock.acquire("cpubind 9.9, pid 4711")
    shutil.copy("/proc/locks", node.root / "proc/locks")
    assert (
        "an agent acts on this host: cpubind 9.9, pid 4711"
        in checks(cpubind, node, "--lock-file", path)["lock"].message
    )
    lock.release()
    lock.acquire("another")
    assert prerequisites.lock_holder(Path("/"), path).startswith("process ")
    lock.release()
    assert prerequisites.lock_holder(Path("/"), path) == ""


def test_a_journal_that_cannot_be_written_or_read_is_said(cpubind: Cpubind, node: VirtualNode, tmp_path: Path) -> None:
    damaged = tmp_path / "journal.json"
    damaged.write_text("{")
    journal = checks(cpubind, node, "--journal-file", damaged)["journal"]
    assert (journal.result, "StateUnreadable" in journal.message) == ("warn", True)
    assert damaged.read_text() == "{"
    found = checks(cpubind, node, "--journal-file", "/proc/cpubind/journal.json", "--lock-file", damaged / "lock")
    assert found["journal"].result == "warn"
    assert (found["lock"].result, "is no folder" in found["lock"].message) == ("fail", True)


def test_a_read_only_mount_is_told_from_one_that_can_be_written(tmp_path: Path) -> None:
    irq = tmp_path / "proc/irq/7/smp_affinity_list"
    program = (
        "from pathlib import Path; from agent.node import prerequisites as p; "
        f'root = Path("{tmp_path}"); print(p.interrupts_unwritable(root)); print(p.unwritable(root / "var/lib/a.json"))'
    )
    mounted = (
        f"mount -t tmpfs none {tmp_path} && mkdir -p {irq.parent} && touch {irq} && mount -o remount,ro {tmp_path}"
    )
    script = f"{mounted} && exec {sys.executable} -c {shlex.quote(program)}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount namespace to be had: {done.stderr.strip()[-100:]}")
    first, second = done.stdout.splitlines()
    assert first == f"{irq} is mounted read-only"
    assert second == f"{tmp_path} is mounted read-only"
    assert prerequisites.unwritable(tmp_path / "a/b") == ""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_each_capability_that_is_missing_is_named() -> None:
    names = [one.name.lower() for one in Capability]
    below = ["setpriv", "--bounding-set", ",".join(f"-{name}" for name in names)]
    done = subprocess.run(
        [*below, sys.executable, "-m", "agent", "doctor", "-o", "json"], capture_output=True, text=True, check=False
    )
    found = {entry["name"]: Check(**entry) for entry in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["CAP_SYS_NICE"].result == "fail"
    assert {found[f"CAP_{one.name}"].result for one in Capability if one is not Capability.SYS_NICE} == {"warn"}
    assert found["taskstats"].message == "CAP_NET_ADMIN is missing"
    assert capabilities() == frozenset(Capability)


def test_memory_that_cannot_be_moved_is_said(
    cpubind: Cpubind, node: VirtualNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks(cpubind, node)["memory"].message == "the kernel moves pages between NUMA nodes"
    monkeypatch.setattr(PageCalls, "_call", lambda *_: (_ for _ in ()).throw(OSError(38, "Function not implemented")))
    found = checks(cpubind, node)["memory"]
    assert (found.result, found.message) == ("warn", "move_pages: Function not implemented")
    monkeypatch.setenv("CPUBIND_MEMORY_MIGRATION", "false")
    assert checks(cpubind, node)["memory"].result == "ok"


def test_another_pid_namespace_is_not_the_initial_one() -> None:
    program = "from agent.node.prerequisites import in_initial; print(in_initial('pid'), in_initial('user'))"
    done = subprocess.run(
        ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no PID namespace to be had: {done.stderr.strip()[-100:]}")
    assert done.stdout.split()[0] == "False"


@pytest.mark.parametrize(
    ("release", "numbers"), [("6.6.0-72.0.0.76.oe2403sp1.aarch64", (6, 6)), ("5.10.0", (5, 10)), ("", (0, 0))]
)
def test_a_release_begins_with_two_numbers(release: str, numbers: tuple[int, int]) -> None:
    assert prerequisites.version(release) == numbers


def test_for_people_each_check_is_a_line_and_the_last_one_counts_them(cpubind: Cpubind, node: VirtualNode) -> None:
    node.kernel.sync()
    result = cpubind("doctor", "--host-root", node.root, "--npu-smi", node.npu_smi.path)
    lines = result.out.splitlines()
    assert result.status == 1
    assert "ok    npu-smi: 16 NPUs, A3" in result.out
    at = next(n for n, line in enumerate(lines) if line.startswith("fail  kernel: "))
    assert lines[at + 1] == "      without it: nobody is bound on this node"
    assert lines[at + 2].startswith("      to do: ")
    assert lines[-1].endswith("1 fail")


def test_what_spec_says_in_the_state_file_counts_as_it_does_for_the_agent(
    cpubind: Cpubind, node: VirtualNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "x86_64")
    file = node.root / "var/lib/cpubind/plan.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("spec: {allowAnyArchitecture: true, irqBinding: false, memoryMigration: false}\n")
    found = checks(cpubind, node)
    assert found["architecture"].result == "ok"
    assert "irqBinding is false" in found["interrupts"].message
    assert "memoryMigration is false" in found["memory"].message
    file.write_text("spec: {reservedCpus: 5-3}\n")
    found = checks(cpubind, node)
    assert (found["spec"].result, found["architecture"].result) == ("warn", "fail")
    assert "InvalidSpec" in found["spec"].message
