"""From one release to the next, with bound pods: the agent of an earlier release, taken from the history of this
repository, binds them; this one takes over. Its writes to host and API server are counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from tests.api.crds import crd_of
from tests.api.rig import KubeRig
from tests.api.scene import writes_to_plans
from tests.cluster.cluster import Cluster

REPOSITORY = Path(__file__).parents[2]
PODS = {"llm-0": [0, 1], "llm-1": [4]}
EARLIER = ("00f33628fd3642b911a3c0975f75fa06e9c17d46", "bd64deaef8ad4007003f7a318b96dd7f158ff6f2")
"""Releases, as there are no tags yet."""


@pytest.fixture(scope="module", params=EARLIER)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of an earlier release."""
    folder = tmp_path_factory.mktemp(f"release-{request.param}")
    git = ("git", "-C", str(REPOSITORY), "archive", "--output", str(folder / "source.tar"))
    done = subprocess.run([*git, request.param, "agent", "crds"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NO UPGRADE WAS TESTED: this checkout has no history: {done.stderr.strip()[-200:]}")
    # tarfile's own wants an argument from Python 3.12 on that 3.11.2 does not know.
    subprocess.run(["tar", "-xf", folder / "source.tar", "-C", folder], check=True)
    return folder


class Former:
    """The earlier release's agent, at work."""

    def __init__(self, source: Path, rig: KubeRig, uids: Mapping[str, str]) -> None:
        """`uids` of the pods by name."""
        self.folder = rig.folder / "former"
        self.folder.mkdir()
        pods = json.dumps([[name, uid, PODS[name]] for name, uid in uids.items()])
        script = Path(__file__).with_name("earlier_release.py")
        server = "{}:{}".format(*rig.address)
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, (sys.executable, "-P", script, self.folder, server, rig.service_account, pods))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(source)},
            )

    def end(self, how: str) -> dict[str, Any]:
        """What it leaves."""
        out, _ = self.process.communicate(f"{how}\n", timeout=60)
        assert self.process.returncode == 0, (self.folder / "log").read_text()[-3000:]
        left: dict[str, Any] = json.loads(out.splitlines()[-1])
        return left


def take_over(rig: KubeRig, workers: Sequence[Worker], left: dict[str, Any]) -> None:
    """This node becomes the one that the earlier release worked on: the same processes, with the masks they have."""
    tasks = [task for worker in workers for task in worker.threads]
    assert [[task.tid, task.start_time, task.comm] for task in tasks] == [thread[:3] for thread in left["threads"]]
    for task, (*_, mask) in zip(tasks, left["threads"], strict=True):
        rig.node.kernel.set_by_other(task.tid, CpuSet.parse(mask))
    boot = (rig.node.root / "proc/sys/kernel/random/boot_id").read_text().strip()
    (rig.folder / "journal.json").write_text(json.dumps(left["journal"] | {"bootId": boot}))


def told(rig: KubeRig) -> list[tuple[str, str, str]]:
    return sorted((e["reason"], e["metadata"]["name"], e["metadata"]["resourceVersion"]) for e in rig.events())


@pytest.mark.parametrize(
    ("how", "writes", "crd"), [("kill", 0, "not upgraded"), ("stop", 1, "upgraded first")], ids=["killed", "stopped"]
)
def test_an_upgrade_changes_no_mask_writes_no_more_than_that_it_is_at_work_and_raises_no_event(
    cluster: Cluster, tmp_path: Path, earlier: Path, how: str, writes: int, crd: str
) -> None:
    """With `stop` the earlier one has said that it stops, and so the new one says that it is there."""
    cluster.install_crd(None if crd == "upgraded first" else crd_of(earlier))
    with KubeRig(cluster, tmp_path, "a2", status_interval=0.3) as rig:
        rig.register()
        pods = {name: rig.run_pod(name)[0] for name in PODS}
        workers = [rig.start_worker(npu, pods[name], threads=6) for name, npus in PODS.items() for npu in npus]
        former = Former(earlier, rig, {name: pod.uid for name, pod in pods.items()})
        try:
            rig.until(lambda: len(rig.bound()) == len(workers), "the earlier release has bound them", 60)
            rig.until(lambda: len(rig.events("CpuBound")) == len(PODS), "and told of it", 30)
            rig.settle(1.0)
        finally:
            left = former.end(how)
        before, events, hash_before = rig.settle(0.3), told(rig), rig.status["planHash"]
        take_over(rig, workers, left)
        masks = [[str(task.mask) for task in worker.threads] for worker in workers]
        begun = time.time()
        rig.start()
        rig.until(lambda: rig.agent is not None and rig.agent.agent.passes > 5, "the new one is at work")
        rig.until(lambda: rig.condition("Ready").get("status") == "True", "and says so")
        rig.settle(1.0)
        assert rig.writes() == 0
        assert [[str(task.mask) for task in worker.threads] for worker in workers] == masks
        assert told(rig) == events
        assert [one.code for one in writes_to_plans(rig, begun)] == [200] * writes
        assert (rig.version == before) is (writes == 0)
        assert rig.status["planHash"] == hash_before
        assert rig.bound() == {worker.pid for worker in workers}
    cluster.install_crd()
