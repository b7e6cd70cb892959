"""``cpubind restore``: what it prints and leaves, with a virtual node behind it; once as a process on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agent.control import journal_file
from agent.control.journal import BoundWorker, Journal
from agent.demo.standin import StandIn
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.plan import Roles
from agent.model.reason import Reason
from agent.model.remedies import REMEDIES
from agent.model.workload import ProcessId
from agent.node.host import LinuxHost
from agent.node.procfs import boot_id
from agent.node.storage import HostLock
from agent.node.threads import ThreadBinder
from tests.cli.conftest import Cpubind, Result
from tests.control.pods import free, is_free
from tests.control.rig import Rig


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A virtual node that the command takes for this machine; its agent was stopped."""
    rig = Rig(tmp_path, "a2", interrupts=True)
    monkeypatch.setattr("agent.cli.restore.LinuxHost", lambda root: rig.node.kernel)
    monkeypatch.setattr("agent.cli.restore.check_kernel", lambda root: None)
    return rig


@pytest.fixture
def restore(rig: Rig, cpubind: Cpubind) -> Callable[..., Result]:
    def run(*args: str) -> Result:
        files = ("--journal-file", rig.journal_file, "--lock-file", rig.folder / "lock")
        return cpubind("restore", "--host-root", rig.node.root, *files, *args)

    return run


Restore = Callable[..., Result]


def start(rig: Rig, npu: int) -> Worker:
    """A worker in a pod of its own, bound."""
    worker = Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"llm-{npu}"), threads=4)
    rig.settle()
    return worker


def test_it_gives_back_what_was_bound_and_has_nothing_to_do_the_second_time(rig: Rig, restore: Restore) -> None:
    first, second = start(rig, 0), start(rig, 1)
    child = second.fork()
    pools = rig.pools()
    before = journal_file.load(rig.journal_file, boot_id(rig.node.root))[0]
    done = restore()
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"process {first.pid} (CPUs {pools[0]}): 4 threads given back to their cpuset",
        f"process {second.pid} (CPUs {pools[1]}): 5 threads given back to their cpuset",
        "34 interrupts given back",
    ]
    assert is_free(first)
    assert is_free(second)
    assert free(child)
    # What is no binding outlasts it: the spec, the NPUs that there are, from which CPUs the plan was cut.
    assert journal_file.load(rig.journal_file, boot_id(rig.node.root)) == (
        replace(before, workers=(), irqs=()),
        None,
    )
    writes = rig.writes()
    again = restore()
    assert (again.status, again.err, rig.writes()) == (0, "", writes)
    assert again.out.startswith("nothing to restore: ")


def test_without_a_journal_there_is_nothing_to_restore_and_none_is_made(rig: Rig, restore: Restore) -> None:
    done = restore()
    assert (done.status, done.out) == (0, f"nothing to restore: there is no journal {rig.journal_file}\n")
    assert not rig.journal_file.exists()
    assert not (rig.folder / "lock").exists()


def test_a_journal_of_another_boot_is_left_as_it_is(rig: Rig, restore: Restore) -> None:
    worker = start(rig, 0)
    journal_file.save(rig.journal_file, replace(rig.agent.planner.journal, boot_id="another"))
    content, writes = rig.journal_file.read_text(), rig.writes()
    done = restore()
    assert (done.status, done.err) == (0, "")
    assert "of another boot" in done.out
    assert (rig.journal_file.read_text(), rig.writes()) == (content, writes)
    assert not is_free(worker)


@pytest.mark.parametrize("content", ["", "{", '{"version": 2}'])
def test_a_damaged_journal_is_a_problem_and_stays_where_it_is(rig: Rig, restore: Restore, content: str) -> None:
    rig.journal_file.write_text(content)
    for args in ((), ("--dry-run",)):
        done = restore(*args)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("cpubind: StateUnreadable: ")
        assert done.err.count(str(rig.journal_file)) == 1
    assert rig.journal_file.read_text() == content


def test_nobody_is_told_to_delete_a_journal_that_can_not_be_read(rig: Rig, restore: Restore) -> None:
    """It has what there was before anything was bound; whoever is not root may not read it, mostly."""
    rig.journal_file.mkdir()
    done = restore("--dry-run")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"cpubind: StateUnreadable: {rig.journal_file}: ")
    assert done.err.count(str(rig.journal_file)) == 1
    assert "as root" in done.err
    assert "delete that" not in done.err


def test_what_an_earlier_journal_told_of_is_said_to_be_left(rig: Rig, restore: Restore) -> None:
    start(rig, 0)
    rig.journal_file.write_text("{")
    rig.restart()
    rig.settle()
    for args in (("--dry-run",), (), ()):
        done = restore(*args)
        assert done.status == 0
        assert done.err.startswith("cpubind: StateUnreadable: an earlier journal of this boot could not be used: ")
        assert done.err.endswith("; let an agent bind once more, and set mode: Disabled then\n")


def test_who_is_not_root_is_asked_for_it(rig: Rig, restore: Restore) -> None:
    """Its lock can't be made, for whatever cause; the first is that somebody forgot sudo."""
    rig.journal_file.write_text("{}")
    (rig.folder / "lock").mkdir()
    done = restore()
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"cpubind: StateNotWritten: lock {rig.folder}/lock: ")
    assert "is this root?" in done.err


def test_beside_a_running_agent_it_says_in_one_line_what_to_do(rig: Rig, restore: Restore) -> None:
    worker = start(rig, 0)
    lock = HostLock(rig.folder / "lock")
    lock.acquire("cpubind 1, pid 7, node a2-0")
    writes = rig.writes()
    done = restore()
    assert (done.status, done.out, done.err.count("\n")) == (3, "", 1)
    assert "pid 7" in done.err
    assert done.err.endswith(f"; {REMEDIES[Reason.LOCKED]}\n")
    assert rig.writes() == writes
    assert not is_free(worker)
    # A look needs no lock.
    assert restore("--dry-run").status == 0
    lock.release()


def test_a_dry_run_says_what_would_be_given_back_and_writes_nothing(rig: Rig, restore: Restore) -> None:
    worker = start(rig, 0)
    content, writes = rig.journal_file.read_bytes(), rig.writes()
    done = restore("--dry-run")
    assert (done.status, done.err) == (0, "")
    threads = f"process {worker.pid} (CPUs {rig.pools()[0]}): 4 threads would be given back to their cpuset"
    assert done.out == f"{threads}\n17 interrupts would be given back\n"
    assert (rig.journal_file.read_bytes(), rig.writes()) == (content, writes)
    assert not (rig.folder / "lock").exists()


def test_what_is_stuck_stays_in_the_journal_and_is_told_with_its_reason(rig: Rig, restore: Restore) -> None:
    first, second = start(rig, 0), start(rig, 1)
    rig.node.kernel.denied = {second.threads[2].tid}
    for _ in range(2):
        done = restore()
        assert done.status == 1
        assert f"process {second.pid}: PermissionDenied" in done.err
        assert "not given back: 1 worker" in done.err
    assert is_free(first)
    journal = journal_file.load(rig.journal_file, boot_id(rig.node.root))[0]
    assert [worker.process for worker in journal.workers] == [second.identity]
    rig.node.kernel.denied = set()
    assert restore().status == 0
    assert is_free(second)


def test_a_worker_that_ended_needs_nothing(rig: Rig, restore: Restore) -> None:
    worker = start(rig, 0)
    worker.end()
    done = restore()
    assert (done.status, done.err) == (0, "")
    threads = f"process {worker.pid} (CPUs {rig.pools()[0]}): no thread is on its CPUs any more"
    assert done.out == f"{threads}\n17 interrupts given back\n"


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_it_is_told_to_programs_as_well(
    rig: Rig, restore: Restore, output: str, read: Callable[[str], dict[str, object]]
) -> None:
    first, second = start(rig, 0), start(rig, 1)
    rig.node.kernel.denied = {second.threads[2].tid}
    found = read(restore("-o", output).out)
    assert found["dryRun"] is False
    assert found["left"] == "1 worker"
    workers = found["workers"]
    assert isinstance(workers, list)
    assert [(entry["pid"], entry["threads"], entry.get("reason")) for entry in workers] == [
        (first.pid, 4, None),
        (second.pid, 3, "PermissionDenied"),
    ]
    rig.node.kernel.denied = set()
    restore()
    assert str(read(restore("-o", output).out)["message"]).startswith("nothing to restore: ")


def test_a_journal_that_cannot_be_written_is_said_after_all_was_given_back(
    rig: Rig, restore: Restore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(rig, 0)

    def full(path: Path, text: str, *, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.control.journal_file.write_atomic", full)
    done = restore()
    assert (done.status, "No space left on device" in done.err) == (1, True)
    assert "4 threads given back" in done.out
    assert is_free(worker)


def test_an_agent_that_starts_after_a_restore_binds_anew(rig: Rig, restore: Restore) -> None:
    worker = start(rig, 0)
    assert restore().status == 0
    rig.restart()
    rig.settle()
    assert rig.npu(0)["state"] == "Bound"
    assert not is_free(worker)
    assert restore().status == 0
    assert is_free(worker)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_on_this_machine(tmp_path: Path) -> None:
    every = CpuSet(os.sched_getaffinity(0))
    one, other = CpuSet({min(every)}), CpuSet({max(every)})
    with StandIn("--threads", "3", "--acl") as worker:
        stat = Path(f"/proc/{worker.pid}/stat").read_bytes().rpartition(b")")[2].split()
        process = ProcessId(worker.pid, int(stat[19]))
        own = worker.threads["worker"][0]
        os.sched_setaffinity(own, {max(every)})
        binder = ThreadBinder(Path("/proc"), LinuxHost())
        masks = binder.masks(process, cpuset=every, online=every)
        bound = BoundWorker(process, every, Roles(one, acl=other), complete=False, masks=masks)
        journal_file.save(tmp_path / "journal.json", Journal(boot_id=boot_id(Path("/")), workers=(bound,)))
        binder.bind(process, bound.roles, cpuset=every, online=every, first=True)
        assert os.sched_getaffinity(own) == {min(every)}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "agent", "restore"),
                *("--journal-file", str(tmp_path / "journal.json"), "--lock-file", str(tmp_path / "lock")),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        found = {tid: os.sched_getaffinity(tid) for tid in map(int, os.listdir(f"/proc/{worker.pid}/task"))}
        assert found == {tid: {max(every)} if tid == own else set(every) for tid in found}
