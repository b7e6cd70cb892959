"""What `capture` writes replays to the same plan anywhere, and holds no secrets."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.demo.profiles import PROFILES
from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.spec import Helpers, Mode, Rebalance, Role, Spec, Strategy, ThreadRule
from agent.planning.validation import parse_spec, spec_fields
from tests.cli.conftest import Cpubind, Result

SECRET = "hf_TopSecretToken"


@pytest.fixture(autouse=True)
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "aarch64")


def host(node: VirtualNode) -> list[object]:
    node.kernel.sync()
    return ["--host-root", node.root, "--npu-smi", node.npu_smi.path, "--node-name", node.name]


def essence(result: Result) -> dict[str, Any]:
    """The whole status; of conditions all but the time."""
    status = dict(result.plan_status)
    for condition in status["conditions"]:
        condition.pop("lastTransitionTime")
    return status


def busy(root: Path, profile: str) -> VirtualNode:
    """A node with two workers in a pod of the shared domain, and one with CPUs of its own."""
    node = VirtualNode(root, profile)
    shared = node.kubelet.add_pod("llm-0")
    for npu in (0, 1):
        Worker.start(node, npu, shared).add_role_threads()
    own = node.kubelet.add_pod("llm-1", own_cpus=CpuSet.span(8, 31))
    Worker.start(node, 3, own).add_role_threads()
    return node


def written(folder: Path) -> bytes:
    """Names and contents of all files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return b"\n".join(str(path).encode() + b"\n" + path.read_bytes() for path in files)


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_node_of_each_kind_replays_to_the_same_plan(cpubind: Cpubind, tmp_path: Path, profile: str) -> None:
    node = busy(tmp_path / "root", profile)
    live = cpubind("plan", "-o", "json", *host(node))
    taken = cpubind("capture", "-o", tmp_path / "node.tar.gz", *host(node))
    assert (live.status, taken.status) == (0, 0), live.err + taken.err
    replayed = cpubind("plan", "-o", "json", "--snapshot", tmp_path / "node.tar.gz")
    assert replayed.status == 0, replayed.err
    assert live.plan_status["summary"]["workers"] == 3
    assert essence(replayed) == essence(live)
    there = cpubind("explain", "npu:3", *host(node)).out
    assert cpubind("explain", "npu:3", "--snapshot", tmp_path / "node.tar.gz").out == there


def test_what_spec_asked_for_there_is_in_force_in_the_replay_and_flags_ask_what_if(
    cpubind: Cpubind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = VirtualNode(tmp_path / "root", "a3")
    state = node.root / "var/lib/cpubind/plan.yaml"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(yaml.safe_dump({"spec": {"reservedCpus": "0-7", "strategy": "NumaSlice"}}))
    monkeypatch.setenv("CPUBIND_THREAD_RULE", "ucm_=acl")
    live = cpubind("plan", "-o", "json", *host(node))
    assert cpubind("capture", "-o", tmp_path / "b", *host(node)).status == 0
    monkeypatch.delenv("CPUBIND_THREAD_RULE")
    state.unlink()
    replayed = cpubind("plan", "-o", "json", "--snapshot", tmp_path / "b")
    assert replayed.npu(0)["pool"] == live.npu(0)["pool"] == "8-43"
    assert replayed.plan_status["strategy"] == "NumaSlice"
    assert cpubind("plan", "-o", "json", "--snapshot", tmp_path / "b", "--reserved-cpus", "").npu(0)["pool"] == "0-39"
    about = json.loads((tmp_path / "b/snapshot.json").read_text())
    assert about["settings"]["spec"]["threadRules"] == [{"prefix": "ucm_", "role": "acl"}]


def test_settings_of_a_snapshot_that_cannot_be_used_are_left_out_and_said(cpubind: Cpubind, tmp_path: Path) -> None:
    node = VirtualNode(tmp_path / "root", "a3", interrupts=False)
    cpubind("capture", "-o", tmp_path / "b", *host(node))
    path = tmp_path / "b/snapshot.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"settings": {"spec": {"strategy": "Later"}}}))
    odd = cpubind("plan", "-o", "json", "--snapshot", tmp_path / "b")
    assert (odd.status, odd.npu(0)["pool"]) == (0, "0-39")
    assert "settings in snapshot.json are left out: spec.strategy: 'Later'" in odd.err
    path.write_text(json.dumps(about | {"settings": 7}))
    refused = cpubind("plan", "--snapshot", tmp_path / "b")
    assert (refused.status, "settings in snapshot.json is not an object" in refused.err) == (1, True)


def test_a_bundle_has_kubelet_s_records_the_journal_and_interrupts(cpubind: Cpubind, tmp_path: Path) -> None:
    node = busy(tmp_path / "root", "a3")
    assert cpubind("capture", "-o", tmp_path / "b", *host(node)).status == 0
    state = json.loads((tmp_path / "b/root/var/lib/kubelet/cpu_manager_state").read_text())
    assert state["policyName"] == "static"
    irq = node.irqs[0].number
    for file in (f"proc/irq/{irq}/smp_affinity_list", f"sys/kernel/irq/{irq}/actions", "proc/interrupts"):
        assert (tmp_path / "b/root" / file).is_file()
    assert (tmp_path / "b/journal.json").is_file()
    assert (tmp_path / "b/npu-smi/info-t-board-i-0-c-0.txt").is_file()


def private(node: VirtualNode, pid: int) -> None:
    """As any process: a token in its environment, a password on its command line."""
    node.kernel.sync()
    folder = node.root / f"proc/{pid}"
    (folder / "environ").write_bytes(f"HF_TOKEN={SECRET}\0PATH=/bin\0".encode())
    (folder / "cmdline").write_bytes(f"vllm\0serve\0--api-key={SECRET}\0".encode())


def test_environments_and_command_lines_are_in_it_only_where_they_were_asked_for(
    cpubind: Cpubind, tmp_path: Path
) -> None:
    node = VirtualNode(tmp_path / "root", "a2", interrupts=False)
    worker = Worker.start(node, 0, node.kubelet.add_pod("llm-0", annotations={"token": SECRET}))
    private(node, worker.pid)
    plain = cpubind("capture", "-o", tmp_path / "plain", *host(node))
    assert (plain.status, "warning" in plain.err) == (0, False)
    assert SECRET.encode() not in written(tmp_path / "plain")
    asked = cpubind("capture", "-o", tmp_path / "asked", "--with-environment", *host(node))
    assert "warning: environments of the processes on NPUs go into" in asked.err
    assert (tmp_path / f"asked/root/proc/{worker.pid}/environ").read_bytes().startswith(b"HF_TOKEN=")
    assert not (tmp_path / f"asked/root/proc/{worker.pid}/cmdline").exists()
    both = cpubind("capture", "-o", tmp_path / "both", "--with-environment", "--with-command-lines", *host(node))
    assert "environments and command lines" in both.err
    assert (tmp_path / f"both/root/proc/{worker.pid}/cmdline").is_file()
    assert cpubind("plan", "--snapshot", tmp_path / "both").status == 0


def test_progress_is_told_on_stderr_and_the_result_on_stdout(cpubind: Cpubind, tmp_path: Path) -> None:
    node = VirtualNode(tmp_path / "root", "a2", interrupts=False)
    taken = cpubind("capture", "-o", tmp_path / "node.tar.gz", *host(node))
    assert "npu-smi info -t board -i 7 -c 0 (11 of 11)\n" in taken.err
    assert "processes and their threads (1)\n" in taken.err
    assert taken.out.startswith(f"{tmp_path / 'node.tar.gz'}: ")
    assert taken.out.count("\n") == 1


def test_an_archive_on_standard_output_is_the_one_that_a_file_would_be(tmp_path: Path) -> None:
    """As out of a container, where nothing else is to be on standard output, and nothing to be left behind."""
    node = VirtualNode(tmp_path / "root", "a2", interrupts=False)
    node.kernel.sync()
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    command = [sys.executable, "-m", "agent", "capture", "-o", "-", *map(str, host(node))]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "TMPDIR": str(scratch)})
    (tmp_path / "piped.tar.gz").write_bytes(done.stdout)
    assert b"\n-: " in done.stderr
    assert list(scratch.iterdir()) == []
    with tarfile.open(tmp_path / "piped.tar.gz") as archive:
        assert archive.next() is not None


def test_a_terminal_gets_no_archive_which_it_would_damage(tmp_path: Path) -> None:
    """``kubectl exec -it … -- cpubind capture -o - >node.tar.gz``."""
    node = VirtualNode(tmp_path / "root", "a2", interrupts=False)
    terminal, theirs = pty.openpty()
    command = [sys.executable, "-m", "agent", "capture", "-o", "-", *map(str, host(node))]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    os.close(terminal)
    assert done.returncode == 2
    assert b"standard output is a terminal: send it to a file, and leave out -t of kubectl exec" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_what_could_not_be_read_is_said_and_left_out(cpubind: Cpubind, tmp_path: Path) -> None:
    node = VirtualNode(tmp_path / "root", "a2", interrupts=False)
    journal = node.root / "var/lib/cpubind/journal.json"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("{")
    taken = cpubind("capture", "-o", tmp_path / "b", *host(node))
    assert taken.status == 0
    assert "StateUnreadable" in taken.err
    assert "what it would have told is left out" in taken.err
    assert cpubind("plan", "--snapshot", tmp_path / "b").status == 0


def test_a_spec_that_is_kept_in_a_snapshot_is_read_as_the_same() -> None:
    spec = Spec(
        mode=Mode.DRY_RUN,
        strategy=Strategy.NUMA_SLICE,
        reserved_cpus=CpuSet.parse("0-3,9"),
        rebalance=Rebalance.ON_GROW,
        helpers=Helpers.CONFINE,
        irq_binding=False,
        thread_rules=(ThreadRule("ucm_", Role.ACL),),
    )
    for one in (spec, Spec()):
        assert parse_spec(json.loads(json.dumps(spec_fields(one)))) == one
