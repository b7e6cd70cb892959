"""plan, explain, verify and capture, on snapshots and virtual hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from agent.demo.virtual import VirtualNode
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.node import ProcessRow
from agent.telemetry.svg import plan_svg
from tests.cli.conftest import Cpubind, snapshot_of


@pytest.fixture
def a3(tmp_path: Path) -> VirtualNode:
    return VirtualNode(tmp_path / "root", "a3", interrupts=False)


@pytest.fixture
def a2(tmp_path: Path) -> VirtualNode:
    return VirtualNode(tmp_path / "root", "a2", interrupts=False)


def host(node: VirtualNode) -> list[object]:
    """Flags that point at a virtual node."""
    node.kernel.sync()
    return ["--host-root", node.root, "--npu-smi", node.npu_smi.path, "--node-name", node.name]


@pytest.fixture(autouse=True)
def arm64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "aarch64")


def test_the_plan_of_an_idle_a3_node_is_the_worked_example(cpubind: Cpubind, a3: VirtualNode) -> None:
    result = cpubind("plan", "-o", "json", *host(a3))
    assert (result.status, result.err) == (0, "")
    assert result.document["kind"] == "CpuBindingPlan"
    assert result.document["metadata"] == {"name": "a3-0"}
    for npu in range(16):
        assert result.npu(npu)["pool"] == f"{npu * 40}-{npu * 40 + 39}"
        assert result.npu(npu)["state"] == "Idle"
    assert result.npu(0)["roles"] == {"irq": "0-1", "main": "2-37", "acl": "38", "release": "39"}


@pytest.mark.parametrize("suffix", ["", ".tar.gz"])
def test_a_captured_node_replays_to_the_same_plan(
    cpubind: Cpubind, a3: VirtualNode, tmp_path: Path, suffix: str
) -> None:
    pod = a3.kubelet.add_pod("llm-0")
    for npu in (0, 7):
        Worker.start(a3, npu, pod).add_role_threads()
    live = cpubind("plan", "-o", "json", *host(a3))
    taken = cpubind("capture", "-o", tmp_path / f"bundle{suffix}", *host(a3))
    assert taken.status == 0, taken.err
    replayed = cpubind("plan", "-o", "json", "--snapshot", tmp_path / f"bundle{suffix}")
    assert replayed.status == 0, replayed.err
    for volatile in ("conditions",):
        assert [c["reason"] for c in live.plan_status.pop(volatile)] == [
            c["reason"] for c in replayed.plan_status.pop(volatile)
        ]
    strip = {"conditions"}
    assert {k: v for k, v in live.plan_status.items() if k not in strip} == {
        k: v for k, v in replayed.plan_status.items() if k not in strip
    }


def test_yaml_and_json_are_the_same_object(cpubind: Cpubind, a2: VirtualNode) -> None:
    as_json = cpubind("plan", "-o", "json", *host(a2)).document
    as_yaml = yaml.safe_load(cpubind("plan", "-o", "yaml", *host(a2)).out)
    for document in (as_json, as_yaml):
        for condition in document["status"]["conditions"]:
            condition.pop("lastTransitionTime")
    assert as_yaml == as_json


def test_svg_is_a_picture_of_the_same_plan(cpubind: Cpubind, a2: VirtualNode) -> None:
    result = cpubind("plan", "-o", "svg", *host(a2))
    assert (result.status, result.err) == (0, "")
    picture = ElementTree.fromstring(result.out)
    names = {title.text or "" for title in picture.iter("{http://www.w3.org/2000/svg}title")}
    document = cpubind("plan", "-o", "json", *host(a2)).document
    assert plan_svg(document) == result.out
    assert sum(name.startswith("CPU ") for name in names) == 192
    assert "CPU 144, NPU 0, interrupts" in names


def test_svg_of_a_node_without_a_plan_says_why(cpubind: Cpubind, a2: VirtualNode) -> None:
    a2.npu_smi.path.unlink()
    result = cpubind("plan", "-o", "svg", *host(a2))
    assert result.status == 1
    assert "NpuSmiNotFound" in "".join(ElementTree.fromstring(result.out).itertext())


def test_the_table_has_a_row_for_every_npu_and_no_escapes_when_piped(cpubind: Cpubind, a2: VirtualNode) -> None:
    result = cpubind("plan", *host(a2))
    assert result.status == 0
    assert "\x1b" not in result.out
    for npu in range(8):
        assert re.search(rf"^{npu} +Idle", result.out, re.MULTILINE)


def test_only_pods_that_opted_in_are_planned_from_a_snapshot(cpubind: Cpubind, a2: VirtualNode, tmp_path: Path) -> None:
    ours = Worker.start(a2, 0, a2.kubelet.add_pod("ours"))
    Worker.start(a2, 1, a2.kubelet.add_pod("theirs", annotations={}))
    result = cpubind("plan", "-o", "json", "--snapshot", snapshot_of(a2, tmp_path / "s"))
    assert [w["pid"] for w in result.npu(0)["workers"]] == [ours.pid]
    assert result.npu(0)["workers"][0]["pod"] == "ours"
    assert (result.npu(1)["state"], result.npu(1)["reason"]) == ("Idle", "NotOptedIn")
    assert result.plan_status["summary"]["workers"] == 1


def test_a_snapshot_without_pods_plans_every_worker(cpubind: Cpubind, a2: VirtualNode, tmp_path: Path) -> None:
    Worker.start(a2, 0, a2.kubelet.add_pod("theirs", annotations={}))
    result = cpubind("plan", "-o", "json", "--snapshot", snapshot_of(a2, tmp_path / "s", with_pods=False))
    assert result.npu(0)["workers"][0]["state"] == "Planned"


def test_npus_with_shared_affinity_never_take_the_same_cpus(
    cpubind: Cpubind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-ascend #8600: NPUs 0 and 2 share affinity 144-167, cpuset 144-191: whichever came first."""
    pools = []
    for order in ((0, 2), (2, 0)):
        node = VirtualNode(tmp_path / f"root-{order[0]}", "a2", interrupts=False)
        topo = tmp_path / f"root-{order[0]}/var/lib/fake-npu-smi/info-t-topo.txt"
        topo.write_text((Path(__file__).parents[1] / "fixtures/topo/910b1_a2_kunpeng192.txt").read_text())
        for npu in order:
            pod = node.kubelet.add_pod(f"llm-{npu}")
            node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("144-191"))
            Worker.start(node, npu, pod)
        result = cpubind("plan", "-o", "json", *host(node))
        pools.append((result.npu(0)["pool"], result.npu(2)["pool"]))
    assert pools == [("144-167", "168-191")] * 2


def test_static_cpu_manager_containers_get_exactly_their_own_cpus(
    cpubind: Cpubind, a3: VirtualNode, tmp_path: Path
) -> None:
    first = a3.kubelet.add_pod("own-a", own_cpus=CpuSet.parse("2-17"))
    second = a3.kubelet.add_pod("own-b", own_cpus=CpuSet.parse("18-33"))
    shared = a3.kubelet.add_pod("shared")
    Worker.start(a3, 0, first)
    Worker.start(a3, 1, second)
    Worker.start(a3, 2, shared)
    result = cpubind("plan", "-o", "json", "--snapshot", snapshot_of(a3, tmp_path / "s"))
    assert (result.npu(0)["pool"], result.npu(1)["pool"]) == ("2-17", "18-33")
    assert CpuSet.parse(result.npu(2)["pool"]).isdisjoint(CpuSet.parse("2-33"))
    assert result.plan_status["summary"]["workers"] == 3


@pytest.mark.parametrize(
    ("own", "npus", "pools"),
    [
        ("2-17", (0,), ["2-17"]),
        ("140-155", (0,), ["140-155"]),
        ("0-31", (0, 1), ["0-15", "16-31"]),
    ],
)
def test_exclusive_cpus_off_the_npu_s_affinity_are_used_all_the_same(
    cpubind: Cpubind, a2: VirtualNode, tmp_path: Path, own: str, npus: tuple[int, ...], pools: list[str]
) -> None:
    pod = a2.kubelet.add_pod("own", own_cpus=CpuSet.parse(own))
    for npu in npus:
        Worker.start(a2, npu, pod)
    result = cpubind("plan", "-o", "json", "--snapshot", snapshot_of(a2, tmp_path / "s"))
    assert [result.npu(npu)["pool"] for npu in npus] == pools


def test_x86_is_skipped_unless_allowed(cpubind: Cpubind, a2: VirtualNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPUBIND_ARCHITECTURE", "x86_64")
    refused = cpubind("plan", "-o", "json", *host(a2))
    assert refused.status == 1
    assert "UnsupportedArchitecture" in refused.err
    assert (refused.npu(0)["state"], refused.npu(0)["reason"]) == ("Skipped", "UnsupportedArchitecture")
    allowed = cpubind("plan", "-o", "json", "--allow-any-architecture", *host(a2))
    assert (allowed.status, allowed.npu(0)["state"]) == (0, "Idle")


def test_fewer_npus_than_device_files_are_refused(cpubind: Cpubind, a2: VirtualNode) -> None:
    (a2.root / "dev/davinci").write_text("".join(f"{n} 236:{n}\n" for n in range(9)))
    result = cpubind("plan", "-o", "json", *host(a2))
    assert result.status == 1
    assert "InventoryIncomplete" in result.err
    assert result.plan_status["npus"] == []


def test_one_card_that_vanishes_from_the_mapping_is_refused(cpubind: Cpubind, a2: VirtualNode) -> None:
    mapping = a2.root / "var/lib/fake-npu-smi/info-m.txt"
    lines = mapping.read_text().splitlines(keepends=True)
    mapping.write_text("".join(line for line in lines if line.split()[:1] != ["7"]))
    result = cpubind("plan", "-o", "json", *host(a2))
    assert result.status == 1
    assert "Inventory" in result.err


def test_half_a_table_is_never_a_whole_plan(cpubind: Cpubind, a3: VirtualNode) -> None:
    info = a3.root / "var/lib/fake-npu-smi/info.txt"
    whole = info.read_bytes()
    for cut in range(1, len(whole) - 1, 997):
        info.write_bytes(whole[:cut])
        result = cpubind("plan", "-o", "json", *host(a3))
        status = result.plan_status
        whole_plan = len(status["npus"]) == 16
        assert whole_plan or (result.status == 1 and status["npus"] == []), cut
        assert "Traceback" not in result.err
        if whole_plan:
            degraded = next(c for c in status["conditions"] if c["type"] == "Degraded")
            assert degraded["status"] == "True", cut


@pytest.mark.parametrize(
    ("output", "status", "reason"),
    [
        ("dcmi module initialize failed. ret is -8005\n", 255, "DriverNotReady"),
        ("dcmi module initialize failed. ret is -8020\n", 255, "DriverBusy"),
        ("npu-smi: error while loading shared libraries: libc_sec.so: cannot open\n", 127, "NpuSmiLibraryMissing"),
        ("There is no NPU card on this server.\n", 0, "NoNpus"),
        ("\x00\x01\x02 garbage \x1b[31m", 0, "Table"),
        ("", 0, "Table"),
    ],
)
def test_what_npu_smi_says_is_one_line_on_stderr(
    cpubind: Cpubind, a2: VirtualNode, output: str, status: int, reason: str
) -> None:
    a2.npu_smi.fail(output, status)
    result = cpubind("plan", "-o", "json", *host(a2))
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert reason in result.err
    assert "\x1b" not in result.err
    conditions = {c["type"]: c for c in result.plan_status["conditions"]}
    assert conditions["Ready"]["status"] == "False"
    assert conditions["Ready"]["reason"].startswith(reason)


def test_npu_smi_that_hangs_is_given_up(cpubind: Cpubind, a2: VirtualNode) -> None:
    a2.npu_smi.hang()
    result = cpubind("plan", "-o", "json", "--npu-smi-timeout", "0.3", *host(a2))
    assert (result.status, "NpuSmiHung" in result.err) == (1, True)


def test_explain_names_the_rule_and_its_numbers(cpubind: Cpubind, a3: VirtualNode) -> None:
    worker = Worker.start(a3, 3, a3.kubelet.add_pod("llm-0"))
    by_npu = cpubind("explain", "npu:3", *host(a3))
    assert by_npu.status == 0
    assert "pool 120-159" in by_npu.out
    assert "GlobalSlice" in by_npu.out
    assert "640 CPUs over 16 NPUs: 40 each" in by_npu.out
    by_pid = cpubind("explain", worker.pid, *host(a3))
    assert f"Process {worker.pid}" in by_pid.out
    assert "effective cpuset is 0-639" in by_pid.out


def test_explain_of_an_npu_or_a_process_that_is_not_there_says_so_and_blames_nobody(
    cpubind: Cpubind, a2: VirtualNode
) -> None:
    missing = cpubind("explain", "npu:99", *host(a2))
    assert (missing.status, missing.out) == (1, "")
    assert missing.err == "cpubind: there is no NPU 99 on this node; there are 0, 1, 2, 3, 4, 5, 6, 7\n"
    for pid in ("77", "1" * 5000):
        nobody = cpubind("explain", pid, *host(a2))
        assert (nobody.status, nobody.out) == (1, "")
        assert nobody.err.startswith(f"cpubind: NoWorkers: {pid[:70]}")


def test_explain_finds_a_pod_by_name(cpubind: Cpubind, a2: VirtualNode, tmp_path: Path) -> None:
    worker = Worker.start(a2, 3, a2.kubelet.add_pod("llm-0"))
    snapshot = snapshot_of(a2, tmp_path / "s")
    for name in ("llm-0", "prod/llm-0"):
        result = cpubind("explain", name, "--snapshot", snapshot)
        assert (result.status, f"Process {worker.pid}" in result.out) == (0, True)
    nobody = cpubind("explain", "nope", "--snapshot", snapshot)
    assert (nobody.status, nobody.err.count("\n")) == (1, 1)


def test_explain_of_a_pod_that_is_not_bound_says_what_would_bind_it(
    cpubind: Cpubind, a2: VirtualNode, tmp_path: Path
) -> None:
    Worker.start(a2, 0, a2.kubelet.add_pod("plain", annotations={}))
    Worker.start(a2, 1, a2.kubelet.add_pod("typo", annotations={"cpubind.dev/enabled": "yes"}))
    Worker.start(a2, 2, a2.kubelet.add_pod("out", annotations={"cpubind.dev/enabled": "false"}))
    others = {"cpubind.dev/enabled": "true", "cpubind.dev/containers": "vlm"}
    Worker.start(a2, 3, a2.kubelet.add_pod("others", annotations=others))
    Worker.start(a2, 4, a2.kubelet.add_pod("asked"))
    a2.kubelet.add_pod("idle")
    snapshot = snapshot_of(a2, tmp_path / "s")
    for pod, said in {
        "plain": 'annotate the pod\'s template with cpubind.dev/enabled: "true"',
        "typo": "cpubind.dev/enabled: 'yes' is not true or false; the pod is left as it is; correct the annotation",
        "out": "annotation cpubind.dev/enabled is false; set it to true",
        "others": "annotation cpubind.dev/containers does not name container vllm; add it there",
        "idle": "no process of pod idle holds an NPU: npu-smi info",
        "nope": "cpubind plan lists them",
    }.items():
        result = cpubind("explain", pod, "--snapshot", snapshot)
        assert (result.status, said in result.err) == (1, True), result.err
    recorded = snapshot / "snapshot.json"
    document = json.loads(recorded.read_text())
    recorded.write_text(json.dumps(document | {"settings": {"selection": {"excludeNamespaces": ["prod"]}}}))
    left_out = "it asks for it, and its namespace or --select leaves it out; look at namespaces and excludeNamespaces"
    assert left_out in cpubind("explain", "asked", "--snapshot", snapshot).err
    plan = cpubind("plan", "-o", "json", "--snapshot", snapshot)
    assert left_out in plan.npu(4)["message"]
    assert "annotation cpubind.dev/enabled cannot be used; correct it" in plan.npu(1)["message"]
    assert plan.npu(0)["message"].endswith("not to be bound; annotate its pod with cpubind.dev/enabled=true")


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["plan", "--reserved-cpus", "5-3"], "--reserved-cpus"),
        (["plan", "--reserved-cpus", "0-"], "'0-'"),
        (["plan", "--reserved-cpus", "1,,2"], "1,,2"),
        (["plan", "--strategy", "Fastest"], "Fastest"),
        (["plan", "--device-type", "A9"], "A9"),
        (["plan", "--thread-rule", "ucm_"], "--thread-rule: 'ucm_' is not PREFIX=ROLE"),
        (["plan", "--select", "user=me"], "user=me"),
        (["plan", "--npu-smi-timeout", "-1"], "--npu-smi-timeout"),
        (["plan", "-o", "xml"], "xml"),
        (["explain", "npu:x"], "npu:x"),
        (["explain", f"npu:{'1' * 5000}"], "npu:1"),
        (["explain"], "POD|PID|npu:N"),
        (["run"], "--standalone"),
        (["run", "--standalone", "--namespaces", "prod"], "--namespaces: for a cluster's agent; with --standalone"),
        (["run", "--standalone", "--pod-selection", "Annotated", "--api-jitter", "1"], "--api-jitter, --pod-selection"),
        (["nonsense"], "nonsense"),
        (["demo", "--device", "a9"], "a9"),
    ],
)
def test_wrong_usage_is_one_line_that_names_it(cpubind: Cpubind, args: list[str], named: str) -> None:
    result = cpubind(*args)
    assert result.status == 2
    assert named in result.err
    assert result.err.strip().count("\n") == 0
    assert result.out == ""


def test_namespaces_of_the_environment_do_not_have_a_standalone_agent_bind_everybody(
    cpubind: Cpubind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUBIND_EXCLUDE_NAMESPACES", "prod")
    result = cpubind("run", "--standalone")
    assert (result.status, "CPUBIND_EXCLUDE_NAMESPACES: for a cluster's agent" in result.err) == (2, True)


def test_the_environment_sets_what_no_flag_does(
    cpubind: Cpubind, a3: VirtualNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPUBIND_RESERVED_CPUS", "0-7")
    assert cpubind("plan", "-o", "json", *host(a3)).npu(0)["pool"] == "8-47"
    assert cpubind("plan", "-o", "json", "--reserved-cpus", "", *host(a3)).npu(0)["pool"] == "0-39"
    monkeypatch.setenv("CPUBIND_RESERVED_CPUS", "7-0")
    wrong = cpubind("plan", *host(a3))
    assert (wrong.status, "CPUBIND_RESERVED_CPUS" in wrong.err) == (2, True)
    monkeypatch.setenv("CPUBIND_SWEEP_INTERVAL", "soon")
    result = cpubind("plan", "--reserved-cpus", "", *host(a3))
    assert (result.status, "CPUBIND_SWEEP_INTERVAL" in result.err) == (2, True)


def test_a_misspelt_variable_is_an_error_and_those_of_services_are_not(
    cpubind: Cpubind, a2: VirtualNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CPUBIND_PORT", "CPUBIND_SERVICE_HOST", "CPUBIND_METRICS_PORT_9100_TCP_ADDR"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:9100")
    assert cpubind("plan", *host(a2)).status == 0
    monkeypatch.setenv("CPUBIND_RESERVED_CPU", "0-7")
    result = cpubind("plan", *host(a2))
    assert (result.status, "CPUBIND_RESERVED_CPUS" in result.err) == (2, True)


def test_a_look_follows_the_spec_in_the_state_file_and_flags_ask_what_if(cpubind: Cpubind, a3: VirtualNode) -> None:
    state = a3.root / "var/lib/cpubind/plan.yaml"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(yaml.safe_dump({"kind": "CpuBindingPlan", "spec": {"reservedCpus": "0-7"}}))
    result = cpubind("plan", "-o", "json", *host(a3))
    assert result.npu(0)["pool"] == "8-47"
    assert result.document["spec"] == {"reservedCpus": "0-7"}
    assert cpubind("plan", "-o", "json", "--reserved-cpus", "0-3", *host(a3)).npu(0)["pool"] == "4-43"
    assert cpubind("explain", "npu:0", *host(a3)).out.count("reserved 0-7") == 1
    state.write_text("spec: [")
    unread = cpubind("plan", "-o", "json", *host(a3))
    assert (unread.status, unread.npu(0)["pool"], "StateUnreadable" in unread.err) == (0, "0-39", True)
    assert unread.err.count(str(state)) == 1


@pytest.mark.parametrize("mode", ["Enforce", "DryRun", "Disabled"])
def test_explain_says_that_nothing_is_done_where_the_mode_is_another(
    cpubind: Cpubind, a3: VirtualNode, tmp_path: Path, mode: str
) -> None:
    worker = Worker.start(a3, 0, a3.kubelet.add_pod("llm-0"))
    state = a3.root / "var/lib/cpubind/plan.yaml"
    state.parent.mkdir(parents=True)
    state.write_text(yaml.safe_dump({"spec": {"mode": mode}}))
    cpubind("capture", "-o", tmp_path / "s", *host(a3))
    asked = cpubind("explain", worker.pid, "--mode", mode, *host(a3)).out, cpubind("explain", worker.pid, *host(a3)).out
    for told in (*asked, cpubind("explain", worker.pid, "--snapshot", tmp_path / "s").out):
        assert (f"None of this is done: the mode is {mode}." in told) is (mode != "Enforce")


def test_verify_says_when_it_saw_nothing(cpubind: Cpubind, a2: VirtualNode) -> None:
    empty = cpubind("verify", *host(a2))
    assert (empty.status, "nothing to compare" in empty.out) == (0, True)
    a2.npu_smi.set_rows([ProcessRow(0, 99_999, 50_000, "python")])
    blind = cpubind("verify", *host(a2))
    assert (blind.status, "NotThisKernel" in blind.err) == (1, True)


def test_cpus_that_a_bystander_owns_are_in_no_pool(cpubind: Cpubind, a3: VirtualNode, tmp_path: Path) -> None:
    """By its QoS and cpuset alone: there are no files of kubelet."""
    Worker.start(a3, 0, a3.kubelet.add_pod("llm-0"))
    batch = a3.kubelet.add_pod("batch", own_cpus=CpuSet.parse("0-15"), annotations={})
    a3.kernel.start_process("etl", cgroup=batch.container().cgroup)
    (a3.root / "var/lib/kubelet/cpu_manager_state").unlink()
    a3.kernel.write_cpuset(a3.kubelet.pods[0].container().cgroup, CpuSet.parse("0-639"))
    result = cpubind("plan", "-o", "json", "--snapshot", snapshot_of(a3, tmp_path / "s"))
    assert all(CpuSet.parse(result.npu(n)["pool"]).isdisjoint(CpuSet.parse("0-15")) for n in range(16))


@pytest.mark.parametrize(
    ("annotations", "planned"),
    [
        ({"cpubind.dev/enabled": "true"}, True),
        ({"cpubind.dev/enabled": "True"}, False),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/irq-binding": "maybe"}, False),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/helpers.vllm": "Kill"}, False),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/helpers": "Confine"}, True),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/containers": "other"}, False),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/containers": "other, vllm"}, True),
        ({"cpubind.dev/enabled.vllm": "true"}, True),
        ({"cpubind.dev/enabled": "false", "cpubind.dev/enabled.vllm": "true"}, False),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/enabled.vllm": "false"}, False),
        ({"cpubind.dev/enabled": "true", "cpubind.dev/later": "whatever"}, True),
        ({"example.com/enabled": "true"}, False),
    ],
)
def test_annotations_decide_and_an_invalid_one_leaves_the_pod_alone(
    cpubind: Cpubind, a2: VirtualNode, tmp_path: Path, annotations: dict[str, str], planned: bool
) -> None:
    Worker.start(a2, 0, a2.kubelet.add_pod("llm-0", annotations=annotations))
    result = cpubind("plan", "-o", "json", "--snapshot", snapshot_of(a2, tmp_path / "s"))
    assert (result.plan_status["summary"]["workers"] == 1) == planned


def test_reserved_cpus_that_do_not_exist_are_reported(cpubind: Cpubind, a2: VirtualNode) -> None:
    result = cpubind("plan", "-o", "json", "--reserved-cpus", "190-200", *host(a2))
    assert (result.status, "InvalidSpec" in result.err, "192-200" in result.err) == (1, True, True)


def test_verify_lists_threads_that_are_not_in_place(cpubind: Cpubind, a2: VirtualNode, tmp_path: Path) -> None:
    worker = Worker.start(a2, 0, a2.kubelet.add_pod("llm-0"))
    worker.add_role_threads()
    plan = cpubind("plan", "-o", "json", *host(a2)).npu(0)["roles"]
    astray = cpubind("verify", "--snapshot", snapshot_of(a2, tmp_path / "s"))
    assert astray.status == 1
    assert f"planned {plan['acl']}" in astray.out
    for task in worker.threads:
        role = {"acl_thread": "acl", "release_thread": "release"}.get(task.comm, "main")
        a2.kernel.set_affinity(task.tid, CpuSet.parse(plan[role]))
    in_place = cpubind("verify", "--snapshot", snapshot_of(a2, tmp_path / "t"))
    assert (in_place.status, in_place.err) == (0, "")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "snapshot.json"),
        ("{", "snapshot.json"),
        ('{"version": 2}', "version 2"),
        ("[]", "snapshot.json"),
    ],
)
def test_a_snapshot_that_is_none_is_refused(cpubind: Cpubind, tmp_path: Path, content: str | None, named: str) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    if content is not None:
        (folder / "snapshot.json").write_text(content)
    result = cpubind("plan", "--snapshot", folder)
    assert (result.status, named in result.err, result.err.count("\n")) == (1, True, 1)


def test_a_snapshot_of_nothing_but_its_name_says_what_is_missing(cpubind: Cpubind, tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").write_text(json.dumps({"version": 1, "node": "n", "architecture": "aarch64"}))
    result = cpubind("plan", "-o", "json", "--snapshot", tmp_path)
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert result.document["metadata"]["name"] == "n"


def test_capture_does_not_overwrite(cpubind: Cpubind, a2: VirtualNode, tmp_path: Path) -> None:
    existing = tmp_path / "x.tar.gz"
    existing.write_text("mine")
    assert cpubind("capture", "-o", existing, *host(a2)).status == 2
    assert existing.read_text() == "mine"
