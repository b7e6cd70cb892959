"""A node with many workers: what is reported stays small, and says what it leaves out."""

from __future__ import annotations

import json

from tests.api.rig import KubeRig

NPUS, WORKERS = 16, 18


def test_a_node_with_hundreds_of_workers_is_bound_and_reported_in_a_status_of_bounded_size(rig: KubeRig) -> None:
    pods = [rig.run_pod(f"llm-{k}-with-a-name-as-long-as-deployments-make-them", namespace="prod")[0] for k in range(4)]
    workers = [rig.start_worker(npu, pods[npu // 4], threads=1) for npu in range(NPUS) for _ in range(WORKERS)]
    rig.start()
    rig.until(lambda: rig.status.get("summary", {}).get("bound") == NPUS * WORKERS, "all are bound", 60)
    status = rig.status
    for npu in status["npus"]:
        assert len(npu["workers"]) == 16
        assert npu["workersOmitted"] == WORKERS - 16
        assert npu["state"] == "Bound"
    assert rig.condition("Bound")["message"] == f"all of {NPUS * WORKERS} workers are bound"
    stored = len(json.dumps(rig.plan(), separators=(",", ":")))
    print(f"the plan has {stored} bytes")
    assert stored < 96 * 1024
    events = rig.until(lambda: rig.events("CpuBound"), "events")
    assert all(len(event["message"].encode()) <= 1024 for event in events)

    # Those that are not listed count all the same.
    last = workers.pop()
    last.end()
    rig.until(lambda: rig.status["summary"]["workers"] == NPUS * WORKERS - 1, "one has ended")
    assert rig.npu(last.npu)["workersOmitted"] == 1
