"""The whole loop on virtual nodes: what is observed, planned, done and reported, and what changes it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from agent.control.observe import Candidate, Choice
from agent.demo.fake_npu_smi import NpuSmiStandIn
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.node import Inventory
from agent.model.spec import Spec
from tests.control.rig import Rig, masks, narrow


def plan_of(worker: Worker, rig: Rig) -> dict[str, set[str]]:
    """The masks that the published plan asks for."""
    roles = rig.npu(worker.npu)["roles"]
    return {"main": {roles["main"]}, "acl_thread": {roles["acl"]}, "release_thread": {roles["release"]}}


def start_workers(rig: Rig, npus: range, **how: object) -> list[Worker]:
    pod = rig.node.kubelet.add_pod("llm-0")
    workers = [Worker.start(rig.node, npu, pod, **how) for npu in npus]  # type: ignore[arg-type]
    for worker in workers:
        worker.add_role_threads()
    return workers


def test_sixteen_workers_of_an_a3_node_run_where_the_plan_says(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    workers = start_workers(rig, range(16))
    rig.settle()
    assert rig.status["summary"] == {"npus": 16, "workers": 16, "bound": 16, "failed": 0, "skipped": 0}
    assert rig.npu(3)["pool"] == "120-159"
    assert rig.npu(3)["roles"] == {"irq": "120-121", "main": "122-157", "acl": "158", "release": "159"}
    for worker in workers:
        assert masks(worker) == plan_of(worker, rig)
    assert rig.condition("Ready")["status"] == "True"


def test_a_second_pass_writes_no_mask_and_no_state_file(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(4))
    rig.settle()
    writes, stamp = rig.writes(), rig.state_file.stat()
    rig.sweep()
    rig.settle()
    assert rig.writes() == writes
    assert rig.state_file.stat().st_ino == stamp.st_ino, "the state file was replaced"


def test_threads_that_appear_later_are_placed_by_their_names(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    worker = Worker.start(rig.node, 5, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    assert masks(worker) == {"main": {"202-237"}}
    worker.add_role_threads()
    rig.sweep()
    assert masks(worker) == plan_of(worker, rig)


def test_each_rank_of_tensor_parallelism_belongs_to_its_own_npu(tmp_path: Path) -> None:
    """vllm-ascend #7107: ranks 1 to 3 keep 107 MB on NPU 0."""
    rig = Rig(tmp_path, "a2")
    workers = start_workers(rig, range(4), residual=(0,))
    rig.settle()
    for worker in workers:
        assert [w["pid"] for w in rig.npu(worker.npu)["workers"]] == [worker.pid]
        assert masks(worker) == plan_of(worker, rig)


def test_a_rank_whose_own_row_is_lost_stays_on_its_npu(tmp_path: Path) -> None:
    """npu-smi prints eight rows a chip and loses others; the leftover on NPU 0 is no work."""
    rig = Rig(tmp_path, "a2")
    workers = start_workers(rig, range(4), residual=(0,))
    rig.settle()
    rows = rig.node.npu_smi.rows
    rig.node.npu_smi.set_rows(row for row in rows if row.npu == 0)
    writes = rig.writes()
    rig.settle()
    assert [w["pid"] for w in rig.npu(3)["workers"]] == [workers[3].pid]
    assert rig.writes() == writes


def test_workers_beside_a_foreign_tenant_get_the_npus_of_their_own_rows(tmp_path: Path) -> None:
    """vllm-ascend #15517: another tenant on 0..3 shifted a binder that went by rank."""

    def ours(candidate: Candidate) -> Choice:
        return Choice.BIND if candidate.pod and candidate.pod.name == "ours" else Choice.LEAVE

    rig = Rig(tmp_path, "a2", chooses=ours)
    theirs = [Worker.start(rig.node, npu, rig.node.kubelet.add_pod(f"theirs-{npu}")) for npu in range(4)]
    pod = rig.node.kubelet.add_pod("ours")
    workers = [Worker.start(rig.node, npu, pod) for npu in range(4, 8)]
    rig.settle()
    assert rig.status["summary"]["workers"] == 4
    for worker in workers:
        assert masks(worker) == {"main": {rig.npu(worker.npu)["roles"]["main"]}}
    for worker in theirs:
        assert masks(worker) == {"main": {"0-191"}}
    assert (rig.npu(0)["state"], rig.npu(0)["reason"]) == ("Idle", "NotOptedIn")
    assert "theirs-0" in rig.npu(0)["message"]


def test_a_worker_that_openmp_pinned_to_cpu_0_gets_its_whole_pool(tmp_path: Path) -> None:
    """vllm-ascend #11307: OMP_PROC_BIND=TRUE had narrowed the mask before binding looked at it."""
    rig = Rig(tmp_path, "a2")
    worker = Worker.start(rig.node, 6, rig.node.kubelet.add_pod("llm-0"))
    narrow(worker, "0")
    rig.settle()
    assert masks(worker) == {"main": {rig.npu(6)["roles"]["main"]}}


def test_a_main_thread_that_narrows_itself_later_is_left_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    rig.node.kernel.set_by_other(worker.threads[3].tid, CpuSet.parse("7"))
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes


def test_drift_is_put_back_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    worker.drift(CpuSet.parse("300-303"), 5)
    with caplog.at_level(logging.INFO, logger="agent"):
        rig.sweep()
    assert masks(worker) == plan_of(worker, rig)
    assert f"repaired 5 threads of process {worker.pid}" in caplog.text


@pytest.mark.parametrize("remembers_masks", [True, False])
def test_what_a_rewritten_cpuset_moved_is_repaired_and_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, remembers_masks: bool
) -> None:
    """Kernels before 6.2 give a thread all of a cpuset that is written, later ones what it was told, if they meet."""
    rig = Rig(tmp_path)
    rig.node.kernel.remembers_masks = remembers_masks
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    threads = len(worker.threads)
    container = worker.threads[0].cgroup
    with caplog.at_level(logging.INFO, logger="agent"):
        rig.node.kernel.write_cpuset(container, CpuSet.parse("0-299"))
        rig.sweep()
        assert masks(worker) == plan_of(worker, rig)
        rig.node.kernel.write_cpuset(container, CpuSet.parse("0-639"))
        rig.sweep()
    assert masks(worker) == plan_of(worker, rig)
    told = f"repaired {threads} threads of process {worker.pid}, {threads} of them moved with their cpuset"
    assert caplog.text.count(told) == (0 if remembers_masks else 2)
    assert "CpuBindingFailed" not in [reason for reason, _ in rig.events()]


def test_a_cpuset_that_shrinks_gives_a_new_plan_inside_it_at_once(tmp_path: Path) -> None:
    """kubernetes #138731: a container starts with a wide cpuset and gets its own up to 10 s later."""
    rig = Rig(tmp_path)
    pod = rig.node.kubelet.add_pod("llm-0")
    worker = Worker.start(rig.node, 0, pod)
    worker.add_role_threads()
    rig.settle()
    rig.node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("100-299"))
    rig.sweep()
    pool = CpuSet.parse(rig.npu(0)["pool"])
    assert pool <= CpuSet.parse("100-299")
    assert masks(worker) == plan_of(worker, rig)


def test_masks_that_kubelet_reset_are_back_after_one_sweep(tmp_path: Path) -> None:
    """openebs mayastor #2003: kubelet rewrote cpusets when another pod came."""
    rig = Rig(tmp_path)
    rig.node.kernel.remembers_masks = False
    workers = start_workers(rig, range(8))
    rig.settle()
    before = rig.pools()
    rig.node.kubelet.add_pod("batch", own_cpus=CpuSet.parse("600-615"), annotations={})
    rig.sweep()
    for worker in workers:
        assert masks(worker) == plan_of(worker, rig)
    assert {npu: pool for npu, pool in rig.pools().items() if npu < 8} == {n: p for n, p in before.items() if n < 8}


def test_a_guaranteed_pod_that_takes_cpus_of_a_bound_pool_takes_just_those(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(16))
    rig.settle()
    before = rig.pools()
    rig.node.kubelet.add_pod("batch", own_cpus=CpuSet.parse("0-15"), annotations={})
    rig.settle()
    after = rig.pools()
    assert after.pop(0) == "16-39"
    before.pop(0)
    assert after == before
    assert rig.status["summary"]["bound"] == 16


def test_a_pod_with_exclusive_cpus_keeps_to_them_and_others_keep_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    own = rig.node.kubelet.add_pod("llm-own", own_cpus=CpuSet.parse("2-17"))
    shared = rig.node.kubelet.add_pod("llm-shared")
    mine = Worker.start(rig.node, 0, own)
    theirs = Worker.start(rig.node, 1, shared)
    rig.settle()
    rig.settle()  # running NPUs stand in for allocated ones once they were still for 10 s
    assert rig.npu(0)["pool"] == "2-17"
    assert masks(mine) == {"main": {"4-15"}}
    assert CpuSet.parse(rig.npu(1)["pool"]).isdisjoint(CpuSet.parse("2-17"))
    assert CpuSet.parse(next(iter(masks(theirs)["main"]))).isdisjoint(CpuSet.parse("2-17"))


def test_a_worker_that_starts_again_in_its_pod_is_bound_anew(tmp_path: Path) -> None:
    """CPU-Pooler #73: restarted containers lost their pinning."""
    rig = Rig(tmp_path)
    pod = rig.node.kubelet.add_pod("llm-0")
    first = Worker.start(rig.node, 2, pod)
    rig.settle()
    first.end()
    second = Worker.start(rig.node, 2, pod)
    second.add_role_threads()
    rig.settle()
    assert masks(second) == plan_of(second, rig)
    assert [w["pid"] for w in rig.npu(2)["workers"]] == [second.pid]


def test_two_containers_of_one_pod_have_a_plan_each(tmp_path: Path) -> None:
    """CPU-Pooler #29: several containers of a pod got the union."""
    rig = Rig(tmp_path)
    pod = rig.node.kubelet.add_pod("llm-0", containers=("prefill", "decode"))
    one = Worker.start(rig.node, 0, pod, container="prefill")
    two = Worker.start(rig.node, 1, pod, container="decode")
    rig.settle()
    assert masks(one) == {"main": {"2-37"}}
    assert masks(two) == {"main": {"42-77"}}
    assert rig.npu(1)["workers"][0]["container"] == "decode"


def test_a_child_of_the_acl_thread_goes_back_to_main(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    acl = next(task for task in worker.threads if task.comm == "acl_thread")
    child = worker.fork(creator=acl.tid)
    assert str(child.mask) == "38"
    rig.sweep()
    assert str(child.mask) == "2-37"


def test_a_process_on_an_npu_without_a_row_is_told_by_its_open_device(tmp_path: Path) -> None:
    """HAMi #1064: memory in use on a chip, and no process row."""
    rig = Rig(tmp_path)
    worker = Worker.start(rig.node, 9, rig.node.kubelet.add_pod("llm-0"), memory_mib=None)
    rig.settle()
    assert masks(worker) == {"main": {rig.npu(9)["roles"]["main"]}}


def test_a_starting_worker_that_holds_several_npus_open_waits_for_its_row(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.settle()
    worker = Worker.start(rig.node, 3, rig.node.kubelet.add_pod("llm-0"), residual=(0,))
    rig.sweep(1.0)
    assert masks(worker) == {"main": {"0-639"}}
    rig.settle()
    assert masks(worker) == {"main": {"122-157"}}


def test_a_process_that_works_on_several_npus_gets_the_main_cpus_of_all(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    worker.add_role_threads()
    rig.node.hold(worker.pid, [(0, 30_000), (1, 30_000)], "python")
    rig.settle()
    main = "2-37,42-77"
    assert masks(worker) == {"main": {main}, "acl_thread": {main}, "release_thread": {main}}
    assert rig.npu(1)["workers"][0]["reason"] == "MultipleNpus"
    assert rig.status["summary"]["workers"] == 1


@pytest.mark.parametrize("fault", ["hang", "fail"])
def test_npu_smi_that_fails_later_changes_no_binding_and_heals(tmp_path: Path, fault: str) -> None:
    rig = Rig(tmp_path)
    workers = start_workers(rig, range(4))
    rig.settle()
    writes = rig.writes()
    getattr(rig.node.npu_smi, fault)()
    rig.settle()
    assert rig.writes() == writes
    assert rig.status["summary"]["bound"] == 4
    assert rig.condition("Degraded")["reason"] == {"hang": "NpuSmiHung", "fail": "DriverNotReady"}[fault]
    rig.node.npu_smi.recover()
    rig.settle()
    assert rig.condition("Degraded")["status"] == "False"
    assert masks(workers[0]) == plan_of(workers[0], rig)


def test_npu_smi_that_never_answered_is_the_reason_that_nothing_is_planned(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.node.npu_smi.fail()
    rig.settle()
    assert rig.status["npus"] == []
    assert rig.condition("Ready")["reason"] == "DriverNotReady"
    assert rig.condition("TopologyDiscovered")["status"] == "False"


def test_a_restarted_agent_writes_no_mask_and_keeps_transition_times(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    workers = start_workers(rig, range(4))
    rig.settle()
    # OpenMP's own choice within main must survive the restart, too.
    rig.node.kernel.set_by_other(workers[0].threads[2].tid, CpuSet.parse("9"))
    writes, conditions = rig.writes(), rig.status["conditions"]
    rig.now += 1000
    rig.restart()
    rig.settle()
    assert rig.writes() == writes
    assert rig.status["conditions"] == conditions


def test_a_restart_keeps_the_base_though_cpus_were_taken_meanwhile(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(16))
    rig.settle()
    rig.node.kubelet.add_pod("batch", own_cpus=CpuSet.parse("0-15"), annotations={})
    rig.restart()
    rig.settle()
    assert rig.pools()[1] == "40-79"
    assert rig.status["bases"] == [{"domain": "default", "cpus": "0-639"}]


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_damaged_journal_is_set_aside_and_the_agent_starts(tmp_path: Path, cut: int) -> None:
    rig = Rig(tmp_path)
    workers = start_workers(rig, range(4))
    rig.settle()
    text = rig.journal_file.read_text()
    rig.journal_file.write_text(text[:cut] if cut != -1 else text.replace('"version": 1', '"version": 99'))
    rig.restart()
    rig.settle()
    assert masks(workers[0]) == plan_of(workers[0], rig)
    if cut != 0:
        assert rig.condition("Degraded")["reason"] == "StateUnreadable"
        assert rig.journal_file.with_name("journal.json.damaged").exists()


def lose_card(rig: Rig, npu: int, *, device_file_too: bool) -> None:
    """npu-smi shows one NPU fewer from now on."""
    profile = rig.node.profile
    left = Inventory(tuple(n for n in profile.inventory.npus if n.id != npu), profile.device_type)
    stand_in = NpuSmiStandIn(rig.folder / "less", replace(profile, inventory=left))
    stand_in.set_rows(row for row in rig.node.npu_smi.rows if row.npu != npu)
    rig.node.npu_smi.query = stand_in.query  # type: ignore[method-assign]
    if device_file_too:
        devices = rig.node.root / "dev/davinci"
        devices.write_text("".join(f"{n.device_number} 236:{n.device_number}\n" for n in left.npus))


def test_a_card_that_is_gone_is_failed_keeps_its_cpus_and_moves_nobody(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    start_workers(rig, range(8))
    rig.settle()
    before, writes = rig.pools(), rig.writes()
    lose_card(rig, 5, device_file_too=True)
    rig.settle()
    assert (rig.npu(5)["state"], rig.npu(5)["reason"]) == ("Failed", "NpuMissing")
    assert (rig.pools(), rig.writes()) == (before, writes)
    assert rig.condition("Degraded")["reason"] == "NpuMissing"
    rig.restart()
    rig.settle()
    assert (rig.pools(), rig.writes()) == (before, writes), "the journal forgot the card"


def test_an_inventory_smaller_than_the_device_files_is_refused_and_the_last_one_stands(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    start_workers(rig, range(8))
    rig.settle()
    before, writes = rig.pools(), rig.writes()
    lose_card(rig, 5, device_file_too=False)
    rig.settle()
    assert rig.npu(5)["state"] == "Bound"
    assert (rig.pools(), rig.writes()) == (before, writes)
    assert rig.condition("Degraded")["reason"] == "InventoryIncomplete"


def test_an_edit_of_spec_in_the_state_file_is_followed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.settle()
    document = yaml.safe_load(rig.state_file.read_text())
    document["spec"] = {"reservedCpus": "0-7"}
    rig.state_file.write_text(yaml.safe_dump(document))
    rig.sweep()
    assert rig.status["topology"]["reservedCpus"] == "0-7"
    assert rig.npu(0)["pool"].startswith("8-")
    assert yaml.safe_load(rig.state_file.read_text())["spec"] == {"reservedCpus": "0-7"}
    assert rig.status["observedGeneration"] == 2


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"reservedCpus": "5-3"}, "5-3"),
        ({"reservedCpus": "0-1000"}, "640-1000"),
        ({"reservedCpus": "0-639"}, "leaves no CPU"),
        ({"strategy": "Fastest"}, "Fastest"),
        ({"deviceType": 950}, "950"),
        ({"reservdCpus": "0"}, "reservdCpus"),
        ({"threadRules": [{"prefix": "x", "role": "irq"}]}, "threadRules[0].role"),
    ],
)
def test_a_bad_spec_is_named_and_the_last_valid_plan_stays(tmp_path: Path, spec: dict[str, object], named: str) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(2))
    rig.settle()
    before, writes = rig.pools(), rig.writes()
    document = yaml.safe_load(rig.state_file.read_text())
    document["spec"] = spec
    rig.state_file.write_text(yaml.safe_dump(document))
    rig.sweep()
    assert (rig.pools(), rig.writes()) == (before, writes)
    condition = rig.condition("PlanValid")
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert named in condition["message"]
    assert yaml.safe_load(rig.state_file.read_text())["spec"] == spec


@pytest.mark.parametrize(
    "text",
    [
        "spec: {mode: Disabled",
        "spec: {mode: disabled}",
        "spec: {mode: Disabled, x: 1}",
        "spec: {reservedCpus: 0-1000}",
        "spec: {reservedCpus: 0-639}",
        f"spec: {{reservedCpus: 0x{'f' * 5000}}}",
        f"spec: {{mode: 0x{'f' * 5000}}}",
    ],
)
def test_before_a_valid_spec_was_read_nothing_is_bound(tmp_path: Path, text: str) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.state_file.write_text(text)
    rig.settle()
    assert rig.writes() == 0
    assert rig.agent.plan_object()["status"]["mode"] == "DryRun"
    rig.state_file.write_text("spec: {mode: Enforce}")
    rig.sweep()
    assert masks(worker) == plan_of(worker, rig)


def test_a_dry_run_logs_no_repairs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path, force_dry_run=True)
    (worker,) = start_workers(rig, range(1))
    with caplog.at_level(logging.INFO, logger="agent"):
        rig.settle()
        worker.drift(CpuSet.parse("300"), 3)
        rig.sweep()
        rig.sweep()
    assert "repaired" not in caplog.text
    assert caplog.text.count(f"threads of process {worker.pid} would be moved") == 1


def test_the_end_of_the_last_worker_is_no_sign_of_another_pid_namespace(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    rows = rig.node.npu_smi.rows
    worker.end()
    rig.sweep()
    assert rig.condition("Degraded")["status"] == "False"
    rig.node.npu_smi.set_rows(rows)  # npu-smi goes on listing a process that nobody can see
    rig.settle()
    rig.settle()
    assert rig.condition("Degraded")["reason"] == "NotThisKernel"


def test_a_pid_that_comes_again_while_the_table_is_old_is_no_worker(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    rig.node.kernel.end(worker.pid)
    sshd = rig.node.kernel.start_process("sshd", cgroup="/system.slice", pid=worker.pid)
    rig.sweep()
    assert rig.status["summary"]["workers"] == 0
    assert str(sshd.mask) == "0-639"


def test_a_worker_on_two_npus_of_which_one_has_no_cpus_for_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2")
    pod = rig.node.kubelet.add_pod("llm-0")
    rig.node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("96-191"))
    worker = Worker.start(rig.node, 0, pod)
    rig.node.hold(worker.pid, [(0, 30_000), (4, 30_000)], "python")
    rig.settle()
    assert (rig.npu(4)["state"], rig.npu(4)["reason"]) == ("Partial", "AffinityOutsideCpuset")
    assert rig.condition("Ready")["reason"] == "AffinityOutsideCpuset"


def test_a_state_file_that_is_no_yaml_is_left_as_it_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(1))
    rig.settle()
    rig.state_file.write_text("spec: {reservedCpus: [")
    rig.sweep()
    assert rig.state_file.read_text() == "spec: {reservedCpus: ["
    assert rig.agent.plan_object()["status"]["summary"]["bound"] == 1


def test_thread_rules_give_more_names_to_a_role(tmp_path: Path) -> None:
    """unified-cache-management #1074."""
    rig = Rig(tmp_path)
    document = {"spec": {"threadRules": [{"prefix": "ucm_", "role": "release"}]}}
    rig.state_file.write_text(yaml.safe_dump(document))
    worker = Worker.start(rig.node, 0, rig.node.kubelet.add_pod("llm-0"))
    rig.settle()
    ucm = [str(task.mask) for task in worker.threads if task.comm.startswith("ucm_")]
    assert ucm == ["39"]


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, force_dry_run=True)
    start_workers(rig, range(2))
    rig.settle()
    assert rig.writes() == 0
    assert rig.status["mode"] == "DryRun"
    assert rig.npu(0)["state"] == "Planned"
    assert rig.agent.last_act.withheld > 0
    assert rig.condition("Bound")["reason"] == "NotEnforced"


def test_a_dry_run_freezes_what_is_bound(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    worker.drift(CpuSet.parse("300"), 1)
    rig.state_file.write_text(yaml.safe_dump({"spec": {"mode": "DryRun"}}))
    writes = rig.writes()
    rig.sweep()
    assert rig.writes() == writes
    rig.state_file.write_text(yaml.safe_dump({"spec": {"mode": "Enforce"}}))
    rig.sweep()
    assert masks(worker) == plan_of(worker, rig)


def test_x86_is_skipped_unless_any_architecture_is_allowed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, architecture="x86_64")
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    assert rig.writes() == 0
    assert (rig.npu(0)["state"], rig.npu(0)["reason"]) == ("Skipped", "UnsupportedArchitecture")
    assert rig.condition("Ready")["reason"] == "UnsupportedArchitecture"
    rig.restart(spec=Spec(allow_any_architecture=True))
    rig.settle()
    assert masks(worker) == plan_of(worker, rig)


def test_a_bound_worker_whose_plan_fails_is_given_back_to_its_cpuset(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    pod = rig.node.kubelet.add_pod("llm-0")
    worker = Worker.start(rig.node, 0, pod)
    rig.settle()
    assert masks(worker) == {"main": {"2-37"}}
    # Twelve CPUs are too few for sixteen NPUs, however they are cut.
    rig.node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("200-211"))
    rig.sweep()
    assert (rig.npu(0)["state"], rig.npu(0)["reason"]) == ("Failed", "InsufficientCpus")
    assert masks(worker) == {"main": {"200-211"}}
    rig.node.kernel.write_cpuset(pod.container().cgroup, CpuSet.parse("0-639"))
    rig.settle()
    assert masks(worker) == {"main": {rig.npu(0)["roles"]["main"]}}


def test_threads_that_cannot_be_moved_leave_the_worker_partial(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    (worker,) = start_workers(rig, range(1))
    rig.node.kernel.denied = {worker.threads[2].tid}
    rig.settle()
    assert rig.npu(0)["workers"][0]["state"] in ("Partial", "Failed")
    assert rig.npu(0)["workers"][0]["reason"] == "PermissionDenied"
    assert rig.condition("Ready")["reason"] == "PermissionDenied"


def test_the_plan_is_logged_once_in_upstream_s_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(2))
    with caplog.at_level(logging.INFO, logger="agent"):
        rig.settle()
        rig.settle()
        rig.sweep()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("NPU0:")]
    assert lines == ["NPU0: main=[2-37] acl=[38] release=[39] irq=[0-1]"]


def test_ascend_950_workers_get_their_cluster_and_no_role_threads(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "ascend950")
    (worker,) = start_workers(rig, range(1))
    rig.settle()
    assert rig.npu(0)["roles"] == {"main": rig.npu(0)["pool"]}
    assert set().union(*masks(worker).values()) == {rig.npu(0)["pool"]}
    assert rig.status["uvb"]["cpus"]


def test_deleting_the_state_file_of_a_disabled_host_binds_nobody(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    start_workers(rig, range(1))
    rig.state_file.write_text("spec: {mode: Disabled}")
    rig.settle()
    rig.state_file.unlink()
    rig.sweep()
    assert rig.writes() == 0
    assert rig.status["mode"] == "Disabled"
