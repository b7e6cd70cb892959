"""For whom npu-smi is asked again soon: who may be about to show up in its table."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agent.control.attribution import AWAIT_SECONDS, Expected
from agent.demo.workload import Worker
from agent.model.reason import Reason, Refused
from agent.model.workload import Pod, PodContainer
from agent.node.procfs import ProcFs
from tests.control.pods import IN, OUT, annotate, by_annotation
from tests.control.rig import Rig


def pod(*ids: str, annotations: dict[str, str] = IN) -> Pod:
    containers = tuple(PodContainer(name=f"c{k}", id=key) for k, key in enumerate(ids))
    return Pod(uid="u", namespace="prod", name="llm-0", annotations=annotations, containers=containers)


def test_a_container_that_asked_to_be_bound_is_expected_for_a_while() -> None:
    expected = Expected()
    assert expected.without_worker([pod("a", "b")], {"b"}, 100.0) == {"a"}
    assert expected.without_worker([pod("a", "b")], {"b"}, 99.0 + AWAIT_SECONDS) == {"a"}
    assert expected.without_worker([pod("a", "b")], {"b"}, 100.0 + AWAIT_SECONDS) == frozenset()


def test_a_container_whose_worker_ended_is_expected_anew() -> None:
    expected = Expected()
    assert expected.without_worker([pod("a")], {"a"}, 1000.0) == frozenset()
    assert expected.without_worker([pod("a")], set(), 1001.0) == {"a"}


def test_a_restarted_container_is_another_one() -> None:
    expected = Expected()
    expected.without_worker([pod("a")], set(), 0.0)
    assert expected.without_worker([pod("b")], set(), AWAIT_SECONDS) == {"b"}


@pytest.mark.parametrize(
    "annotations", [{}, OUT, {**IN, "cpubind.dev/helpers": "Perhaps"}, {**IN, "cpubind.dev/containers": "other"}]
)
def test_nobody_is_expected_where_nobody_asked(annotations: dict[str, str]) -> None:
    assert Expected().without_worker([pod("a", annotations=annotations)], set(), 0.0) == frozenset()


def test_a_container_that_was_not_made_yet_is_not_expected() -> None:
    assert Expected().without_worker([pod("")], set(), 0.0) == frozenset()


def questions(rig: Rig, seconds: int) -> int:
    """How often npu-smi is asked who is on its NPUs while so much time passes."""
    before = rig.node.npu_smi.calls.count(("info",))
    for _ in range(seconds):
        rig.sweep(1.0)
        while rig.agent.watch.poll(rig.now, awaiting=False).due is None:
            time.sleep(0.001)
    return rig.node.npu_smi.calls.count(("info",)) - before


def test_npu_smi_is_asked_soon_for_a_pod_that_opts_in_and_seldom_for_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", chooses=by_annotation)
    rig.settle()
    made = rig.node.kubelet.add_pod("llm-0", annotations=OUT)
    assert questions(rig, 20) <= 1
    annotate(rig, made, IN)
    assert questions(rig, 20) >= 6
    worker = Worker.start(rig.node, 0, rig.node.kubelet.pods[0])
    rig.settle()
    assert rig.npu(0)["workers"][0]["pid"] == worker.pid
    assert questions(rig, 20) <= 1


def test_processes_that_nobody_may_look_into_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, "a2")
    hidden = {Worker.start(rig.node, npu, listed=False).pid for npu in (0, 1)}
    open_devices = ProcFs.open_devices

    def some(proc: ProcFs, pid: int) -> frozenset[tuple[int, int]]:
        if pid in hidden:
            raise Refused(Reason.PERMISSION_DENIED, f"{pid}: Permission denied")
        return open_devices(proc, pid)

    monkeypatch.setattr(ProcFs, "open_devices", some)
    seen = Worker.start(rig.node, 2, listed=False)
    rig.settle()
    degraded = rig.condition("Degraded")
    assert degraded["reason"] == "PermissionDenied"
    # Said once, by the first. Which right is missing is said where one is.
    assert degraded["message"].startswith("open files of ")
    assert degraded["message"].count("open files of ") == 1
    rig.settle()
    assert [worker["pid"] for npu in rig.status["npus"] for worker in npu.get("workers", [])] == [seen.pid]
