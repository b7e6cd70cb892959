"""Commands beside the agent, as in `kubectl exec ds/cpubind -- cpubind …`: they see what it sees, and agree with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.kube import api
from agent.kube.access import Access
from tests.api.rig import KubeRig
from tests.api.scene import ENABLED, delete_by_force, is_repaired, masks, meddle, wait_until_unknown
from tests.cli.conftest import Cpubind, cpubind
from tests.cluster.background import free_port
from tests.cluster.cluster import AGENT_RULES

__all__ = ["cpubind"]

Beside = Callable[..., None]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Beside:
    """Puts this process into the agent's pod, as far as its environment goes."""

    def enter(rig: KubeRig, **settings: Any) -> None:
        host, port = rig.address
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
        own = {
            "node_name": rig.name,
            "host_root": rig.node.root,
            "npu_smi": rig.node.npu_smi.path,
            "architecture": "aarch64",
            "service_account_dir": rig.service_account,
            "journal_file": rig.folder / "journal.json",
        }
        for name, value in {**own, **settings}.items():
            monkeypatch.setenv(f"CPUBIND_{name.upper()}", str(value))

    return enter


def essence(status: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What plan and reality have in common: CPUs, and who is on them."""
    return [
        (npu["id"], npu["pool"], npu["roles"], [(w["pid"], w.get("pod")) for w in npu.get("workers", ())])
        for npu in status["npus"]
    ]


def test_plan_and_verify_agree_with_the_agent_about_who_opted_in_and_follow_spec(
    a2: KubeRig, beside: Beside, cpubind: Cpubind
) -> None:
    a2.start(exclude_namespaces=("dev",))
    _, (bound,) = a2.run_pod("llm-0", [0])
    _, (orphan,) = a2.run_pod("llm-1", [1])
    a2.run_pod("out", [2], annotations={ENABLED: "false"})
    a2.run_pod("typo", [3], annotations={ENABLED: "yes"})
    a2.run_pod("llm-0", [4], namespace="dev")
    a2.until_bound([bound, orphan])
    delete_by_force(a2, "llm-1")
    wait_until_unknown(a2, "llm-1")
    a2.edit({"reservedCpus": "144-147"})
    a2.until(lambda: a2.status["observedGeneration"] == 2 and a2.bound() == {bound.pid, orphan.pid}, "followed")
    a2.settle(0.6)

    beside(a2, exclude_namespaces="dev")
    found = cpubind("plan", "-o", "json")
    assert found.status == 0
    assert found.document["spec"] == a2.plan()["spec"]
    live = essence(a2.status)
    assert [npu[:3] for npu in essence(found.plan_status)] == [npu[:3] for npu in live]
    assert {pid for npu in essence(found.plan_status) for pid, _ in npu[3]} == a2.bound()
    assert found.plan_status["planHash"] == a2.status["planHash"]
    assert cpubind("plan", "-o", "json", "--reserved-cpus", "").npu(0)["pool"] == "144-167", "what if"

    a2.node.kernel.sync()
    verified = cpubind("verify")
    assert (verified.status, verified.out) == (0, "every thread of 2 workers is in place\n")
    a2.stop()
    meddle(bound)
    a2.node.kernel.sync()
    verified = cpubind("verify")
    assert verified.status == 1
    assert f"process {bound.pid} thread {bound.pid} " in verified.out
    assert "3 threads not in place, 0 of 2 workers not planned" in verified.err
    assert not is_repaired(bound), "it only looks"


def test_commands_go_by_what_is_in_force_while_the_plan_cannot_be_used(
    a2: KubeRig, beside: Beside, cpubind: Cpubind
) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [4])
    worker.add_role_threads()
    a2.until_bound([worker])
    a2.edit({"reservedCpus": "0-3"})
    a2.until(lambda: a2.npu(4)["pool"] == "4-23" and a2.bound() == {worker.pid}, "the edit is followed")
    a2.node.kernel.sync()
    beside(a2)
    for reserved in ("5-3", "0-4,1000"):
        a2.edit({"reservedCpus": reserved})
        a2.until(lambda text=reserved: text in a2.condition("PlanValid")["message"], "it cannot be used")  # type: ignore[misc]
        found = cpubind("plan", "-o", "json")
        assert found.npu(4)["pool"] == "4-23"
        assert "InvalidSpec" in found.err
        verified = cpubind("verify")
        assert verified.out == "every thread of 1 workers is in place\n"

    a2.address = (a2.address[0], free_port())
    beside(a2)
    found = cpubind("plan", "-o", "json")
    assert found.npu(4)["pool"] == "4-23"
    assert "ApiUnreachable" in found.err
    assert cpubind("verify").out == "every thread of 1 workers is in place\n"


def test_explain_knows_pods_by_name_and_says_who_did_not_opt_in(a2: KubeRig, beside: Beside, cpubind: Cpubind) -> None:
    _, (worker,) = a2.run_pod("llm-0", [0])
    a2.run_pod("batch", [1], annotations={})
    a2.run_pod("idle")
    beside(a2)
    for subject in ("llm-0", "prod/llm-0", worker.pid):
        explained = cpubind("explain", subject)
        assert explained.status == 0
        assert "144-167" in explained.out
    for subject, answer in {
        "batch": "batch uses an NPU and is not to be bound: its pod did not opt in",
        "idle": "no process of pod idle holds an NPU",
        "nobody": "nobody is neither an NPU (npu:0), nor a process on an NPU, nor a pod with one",
    }.items():
        explained = cpubind("explain", subject)
        assert explained.status == 1
        assert answer in explained.err
    assert masks(worker) == a2.node.kernel.online, "it only looks"


def test_explain_ends_with_what_the_agent_reported(a2: KubeRig, beside: Beside, cpubind: Cpubind) -> None:
    a2.start()
    _, (worker,) = a2.run_pod("llm-0", [0], annotations={ENABLED: "true", "cpubind.dev/memory-migration": "false"})
    a2.until_bound([worker])
    a2.until(lambda: a2.npu(0)["workers"][0].get("memory") == "Skipped", "its memory is left alone")
    beside(a2)
    told = cpubind("explain", "llm-0").out
    assert "Memory is skipped: the pod's annotation cpubind.dev/memory-migration says false." in told
    assert "The agent last reported NPU 0 as Bound" in told
    assert f"The agent last reported process {worker.pid} as Bound." in told
    assert f"The agent last reported the memory of process {worker.pid} as Skipped (SwitchedOff: " in told


def test_a_capture_replays_to_the_same_plan_with_the_pods_that_had_opted_in(
    a2: KubeRig, beside: Beside, cpubind: Cpubind, tmp_path: Path
) -> None:
    a2.start(exclude_namespaces=("dev",))
    _, (shared,) = a2.run_pod("llm-0", [0])
    a2.run_pod("out", [2], annotations={ENABLED: "false"})
    a2.run_pod("llm-0", [4], namespace="dev")
    a2.until_bound([shared])
    a2.edit({"reservedCpus": "0-3"})
    a2.until(lambda: a2.status["observedGeneration"] == 2, "followed")
    a2.settle(0.6)
    beside(a2, exclude_namespaces="dev")
    a2.node.kernel.sync()
    live = cpubind("plan", "-o", "json")
    explained = cpubind("explain", "llm-0").out
    taken = cpubind("capture", "-o", tmp_path / "node.tar.gz")
    assert taken.status == 0, taken.err

    a2.stop()
    beside(a2)
    replayed = cpubind("plan", "-o", "json", "--snapshot", tmp_path / "node.tar.gz")
    assert replayed.status == 0, replayed.err
    assert essence(replayed.plan_status) == essence(live.plan_status)
    assert replayed.plan_status["planHash"] == live.plan_status["planHash"]
    assert {pid for npu in essence(replayed.plan_status) for pid, _ in npu[3]} == {shared.pid}
    assert replayed.plan_status["npus"][4]["reason"] == "NotOptedIn"
    assert cpubind("explain", "llm-0", "--snapshot", tmp_path / "node.tar.gz").out == explained


def test_a_plan_without_an_api_server_says_that_nobody_is_known(a2: KubeRig, beside: Beside, cpubind: Cpubind) -> None:
    a2.run_pod("llm-0", [0])
    a2.address = (a2.address[0], free_port())
    beside(a2)
    found = cpubind("plan", "-o", "json")
    assert "ApiUnreachable" in found.err
    assert found.plan_status["summary"]["workers"] == 0
    assert found.plan_status["npus"][0]["pool"] == "144-167", "the node itself is as it is"


def test_doctor_names_what_is_missing_in_the_cluster(a2: KubeRig, beside: Beside, cpubind: Cpubind) -> None:
    beside(a2)
    fine = cpubind("doctor", "--cluster")
    assert fine.status == 0
    assert "rights: all 9 that the agent needs" in fine.out
    assert "CpuBindingPlan: served; 0 plans" in fine.out

    a2.cluster.set_rules([*AGENT_RULES[:2], *AGENT_RULES[3:4]])
    lacking = cpubind("doctor", "--cluster")
    assert lacking.status == 1
    assert "rights: missing: create events, patch events, patch cpubindingplans/status" in lacking.out
    assert "without it: pods and plans have no events; events are not counted up; status is not written" in lacking.out

    a2.cluster.set_rules()
    a2.cluster.remove_crd()
    gone = cpubind("doctor", "--cluster")
    assert gone.status == 1
    assert "fail  CpuBindingPlan: " in gone.out
    assert "install the CRD (crds.install)" in gone.out

    (a2.service_account / "token").unlink()
    (a2.service_account / "token").write_text("nonsense")
    refused = cpubind("doctor", "--cluster")
    assert refused.status == 1
    assert "fail  API server: " in refused.out
    assert "401" in refused.out


def test_plans_of_many_nodes_are_listed_page_by_page_and_counted_by_the_api_server(
    a2: KubeRig, beside: Beside, cpubind: Cpubind, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"node-{k}" for k in range(5)]
    for name in names:
        a2.cluster.plans.named(name)
    beside(a2)
    assert "CpuBindingPlan: served; 5 plans" in cpubind("doctor", "--cluster").out
    monkeypatch.setattr(api, "PAGE", 2)
    host, port = a2.address
    client = api.Api(Access(f"https://{host}:{port}", a2.service_account))
    assert [plan["metadata"]["name"] for plan in client.plans()] == names
    assert [plan["metadata"]["name"] for plan in client.plans("node-3")] == ["node-3"]
    client.close()
