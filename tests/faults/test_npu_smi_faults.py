"""npu-smi with all that can go wrong, while all are bound and from the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.model.reason import Refused
from agent.node.npu_smi.recognise import recognise
from tests.faults.npu_smi_rows import ANY, ROWS, Bend, NpuSmiRow
from tests.faults.scene import Scene, bound, scene

NPU_SMI_ROWS = [row for row in ROWS if isinstance(row, NpuSmiRow)]
AT_START = [row for row in NPU_SMI_ROWS if row.at_start]


@contextmanager
def bent(node: Scene, row: NpuSmiRow, bend: Bend) -> Iterator[None]:
    """npu-smi prints something else."""
    stand_in = node.node.npu_smi
    right = type(stand_in).query

    def query(*args: str) -> str:
        answer = right(stand_in, *args)
        if row.place not in (ANY, " ".join(("npu-smi", *args))):
            return answer
        printed = bend(answer)
        if problem := recognise(printed, 0):
            raise Refused(problem.reason, problem.message)
        return printed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_in, "query", query)
        yield


def bends(node: Scene, row: NpuSmiRow) -> list[Bend]:
    args = ["info"] if row.place == ANY else row.place.split()[1:]
    return row.bends(node.node.npu_smi.query(*args))


def tried(row: NpuSmiRow, folder: Path, *, at_start: bool) -> None:
    with scene(folder) as node:
        if not at_start:
            node.settle()
            assert node.reasons() == set()
        before, right = node.masks(), bound("a2")
        told: set[str] = set()
        for bend in bends(node, row):
            with bent(node, row, bend):
                if at_start and node.rig.agent.passes == 0:
                    node.rig.agent.watch.close()
                    node.rig.restart()
                for seconds in (700.0, 70.0):
                    node.rig.settle(seconds)
                    assert before.moved(node.masks(), but_to=right) == {}
                reasons = node.reasons()
            # A cut that takes nothing that is needed is none.
            assert len(reasons) <= 1, reasons
            assert reasons <= {reason.value for reason in row.expected}
            told |= reasons
        assert told or not row.expected
        node.another_worker()
        node.rig.settle(700)
        node.settle()
        assert node.reasons() == set()
        assert right.moved(node.masks()) == {}


@pytest.mark.parametrize("row", NPU_SMI_ROWS, ids=[row.key for row in NPU_SMI_ROWS])
def test_a_fault_of_npu_smi_unbinds_nobody_is_told_and_heals(row: NpuSmiRow, tmp_path: Path) -> None:
    tried(row, tmp_path, at_start=False)


@pytest.mark.parametrize("row", AT_START, ids=[row.key for row in AT_START])
def test_a_fault_of_npu_smi_at_the_start_binds_nothing_wrong_and_heals(row: NpuSmiRow, tmp_path: Path) -> None:
    tried(row, tmp_path, at_start=True)
