"""Processes that may have opened an NPU: what is looked at, and how soon one is bound that has."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.demo.workload import Worker
from tests.control.pods import OUT, annotate
from tests.control.quiet import Quiet, opened, processes
from tests.control.rig import Rig


@pytest.fixture
def quiet(tmp_path: Path) -> Quiet:
    return Quiet(tmp_path)


def test_of_suspects_only_the_open_files_are_looked_at(quiet: Quiet) -> None:
    quiet.hearsay.tell(suspects=quiet.others[:3])
    with opened(quiet) as paths:
        quiet.sweep()
    assert quiet.cause is None
    of_suspects = [path for path in paths if processes([path]) & set(quiet.others)]
    assert set(of_suspects) == {f"/proc/{pid}/fd" for pid in quiet.others[:3]}


def test_suspects_that_are_workers_or_gone_are_no_cause(quiet: Quiet) -> None:
    quiet.hearsay.tell(suspects=[quiet.workers[0].pid, 4_000_000])
    quiet.sweep()
    assert quiet.cause is None


def test_a_suspect_whose_files_nobody_may_read_is_no_cause(quiet: Quiet) -> None:
    folder = quiet.node.root / "proc" / str(quiet.others[0]) / "fd"
    folder.unlink()
    folder.symlink_to(folder)  # ELOOP, as root may read everything here
    quiet.hearsay.tell(suspects=[quiet.others[0]])
    quiet.sweep()
    assert quiet.cause is None


def test_a_suspect_that_opens_an_npu_is_bound_within_a_second_and_a_half(quiet: Quiet) -> None:
    pod = quiet.node.kubelet.add_pod("llm-9")
    quiet.node.kernel.start_process("vllm", cgroup=pod.container().cgroup)
    quiet.sweep()
    quiet.sweep(130.0)  # too long ago for anybody to be awaited in there
    quiet.rest()
    opening = quiet.now
    worker = Worker.start(quiet.node, 5, pod, listed=False, threads=3)
    quiet.hearsay.tell(suspects=[worker.pid])
    passes = until_bound(quiet, worker)
    assert quiet.now - opening <= 1.5
    assert passes <= 6


def test_a_suspect_on_several_npus_is_bound_as_soon_as_npu_smi_tells_which(quiet: Quiet) -> None:
    pod = quiet.node.kubelet.add_pod("llm-9", annotations=OUT)
    quiet.rest()
    annotate(quiet, pod, {"cpubind.dev/enabled": "true"})
    quiet.sweep()
    quiet.sweep(130.0)
    quiet.rest()
    worker = Worker.start(quiet.node, 5, quiet.node.kubelet.pods[-1], listed=False, threads=3, residual=[0])
    opening = quiet.now
    quiet.hearsay.tell(suspects=[worker.pid])
    asked = quiet.node.npu_smi.calls.count(("info",))
    quiet.sweep(0.0)
    assert worker.pid not in quiet.bound()
    assert waits(quiet) == 0.0, "npu-smi is to be asked at once"
    quiet.sweep(0.0)
    settled(quiet)
    assert quiet.node.npu_smi.calls.count(("info",)) == asked + 1
    assert quiet.now - opening <= 0.5


def test_somebody_new_is_asked_for_at_once_while_others_have_been_awaited_for_long(quiet: Quiet) -> None:
    first = quiet.node.kubelet.add_pod("llm-8")
    for _ in range(60):
        quiet.sweep(1.0)
        settled(quiet)
    assert first in quiet.node.kubelet.pods
    assert waits(quiet) > 1.0
    quiet.node.kubelet.add_pod("llm-9")
    quiet.sweep(0.0)
    assert waits(quiet) == 0.0


def waits(rig: Rig) -> float:
    """For how long the loop would sleep now, unless it is woken."""
    return max(0.0, min(rig.agent.parts.sweep_seconds, rig.agent._next - rig.now))


def settled(rig: Rig) -> None:
    """Until npu-smi has answered."""
    while rig.agent.watch.poll(rig.now, awaiting=False).due is None:
        time.sleep(0.001)


def until_bound(rig: Quiet, worker: Worker) -> int:
    """Passes as the loop would make them; npu-smi answers 0.3 s after it is asked. How many it takes."""
    for count in range(1, 20):
        rig.agent.step()
        if worker.pid in rig.bound():
            return count
        rig.now += waits(rig)
    raise AssertionError("never bound")
