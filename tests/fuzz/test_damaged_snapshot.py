"""A snapshot of which any file is damaged: the commands that look at it say what they can, or why they can't."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.node.archive import unpack
from tests.cli.conftest import Result, cpubind, snapshot_of
from tests.fuzz.seeds import CGROUP, CPUS, JSON, PROC, TABLE
from tests.fuzz.targets import Target
from tests.fuzz.test_fuzzed import damaged

__all__ = ["cpubind"]  # a fixture

WORDS = (*CGROUP, *CPUS, *JSON, *PROC, *TABLE)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a node with two pods at work."""
    place = tmp_path_factory.mktemp("snapshot")
    node = VirtualNode(place / "node", "a2")
    for npu in (0, 1):
        Worker.start(node, npu=npu, pod=node.kubelet.add_pod(f"llm-{npu}"))
    (place / "s").mkdir()
    with snapshot_of(node, place / "s.tar.gz").open("rb") as file:
        unpack(file, place / "s")
    shutil.rmtree(place / "node")
    return next(path.parent for path in (place / "s").rglob("snapshot.json"))


@pytest.mark.parametrize("command", [["plan", "-o", "json"], ["plan"], ["explain", "npu:0"], ["verify"]])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_command_reads_it_or_says_why_not(
    snapshot: Path, cpubind: object, command: list[str], data: st.DataObject
) -> None:
    files = sorted(path for path in snapshot.rglob("*") if path.is_file())
    # Of the many files that are alike one is as good as another.
    kinds = sorted({path.name for path in files})
    kind = data.draw(st.sampled_from(kinds))
    path = data.draw(st.sampled_from([path for path in files if path.name == kind]))
    whole = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(Target(lambda _: None, (whole,), WORDS))))
        assert callable(cpubind)
        result: Result = cpubind(*command, "--snapshot", snapshot)
    finally:
        path.write_bytes(whole)
    assert result.status in (0, 1), result.err
    assert "Traceback" not in result.err
    assert all(line.isprintable() for line in result.err.splitlines())
    if command[-1] == "json" and result.out:
        json.loads(result.out)
