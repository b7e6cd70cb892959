"""A process whose name holds a whole row of npu-smi's table, with another's pid in it: nobody is taken for a worker.

npu-smi prints names as they are. One of fifteen bytes is too short for that (the tests of the tables have those), but
nobody has promised that no build prints longer ones, such as paths.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.workload import Worker
from agent.node.npu_smi.info import parse_info
from tests.control.rig import Rig, masks

VICTIM, FORGER = 0, 3


def forge(rig: Rig, forger: Worker, pid: int) -> None:
    """From now on the name of a worker is such that npu-smi lists that process on its NPU, too."""
    rig.node.npu_smi.set_rows(rig.node.npu_smi.rows)
    line = next(line for line in table(rig.node.npu_smi).split("\n") if f" {forger.pid} " in line)
    name = "VLLM::Worker_TP"
    head, tail = line.split(name)
    rows = [row for row in rig.node.npu_smi.rows if row.pid != forger.pid]
    own = next(row for row in rig.node.npu_smi.rows if row.pid == forger.pid)
    forged = name + tail + "\n" + head.replace(str(forger.pid), str(pid)) + "x"
    rig.node.npu_smi.set_rows([*rows, type(own)(own.npu, own.pid, own.memory_mib, forged)])
    assert [(row.pid, row.memory_mib) for row in parse_info(table(rig.node.npu_smi)).processes if row.pid == pid][
        -1
    ] == (pid, own.memory_mib), "no row was forged"


def table(npu_smi: NpuSmiStandIn) -> str:
    return npu_smi.query("info")


@pytest.mark.parametrize("profile", ["a2", "a3", "ascend950"])
@pytest.mark.parametrize("bound", [True, False], ids=["bound before", "both at once"])
def test_a_worker_stays_on_its_own_npu_when_a_name_puts_it_on_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, profile: str, bound: bool
) -> None:
    rig = Rig(tmp_path, profile)
    victim = Worker.start(rig.node, VICTIM)
    forger = Worker.start(rig.node, FORGER)
    if bound:
        rig.settle()
        before = masks(victim)
    forge(rig, forger, victim.pid)
    rig.settle()
    assert [worker["pid"] for worker in rig.npu(VICTIM)["workers"]] == [victim.pid]
    assert [worker["pid"] for worker in rig.npu(FORGER)["workers"]] == [forger.pid]
    assert masks(victim)["main"] == {rig.npu(VICTIM)["roles"]["main"]}
    if bound:
        assert masks(victim) == before
    assert f"process {victim.pid} on NPU {FORGER}, which it does not hold open" in caplog.text
    assert caplog.text.count("does not hold open") == 1


def test_a_process_of_the_host_that_a_name_puts_on_an_npu_is_not_moved(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    forger = Worker.start(rig.node, FORGER)
    daemon = next(task for task in rig.node.kernel.tasks.values() if task.comm == "sshd")
    before = daemon.mask
    forge(rig, forger, daemon.tid)
    rig.settle()
    assert [worker["pid"] for worker in rig.npu(FORGER)["workers"]] == [forger.pid]
    assert daemon.mask == before


def test_where_no_open_npu_can_be_seen_the_table_is_believed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    workers = [Worker.start(rig.node, npu) for npu in range(2)]
    for worker in workers:
        rig.node.kernel.proc.set_fds(worker.pid, [(0, 1, 3)])
    rig.settle()
    assert [[worker["pid"] for worker in rig.npu(npu)["workers"]] for npu in range(2)] == [[w.pid] for w in workers]


def test_a_worker_that_closes_its_npu_later_stays_its_worker(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    workers = [Worker.start(rig.node, npu) for npu in range(2)]
    rig.settle()
    rig.node.kernel.proc.set_fds(workers[0].pid, [(0, 1, 3)])
    rig.restart()
    rig.settle()
    rig.settle()
    assert [worker["state"] for npu in range(2) for worker in rig.npu(npu)["workers"]] == ["Bound"] * 2
