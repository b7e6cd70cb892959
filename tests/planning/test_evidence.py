"""Which containers own their CPUs: positive evidence only, and nobody else's presence or absence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, Npu
from agent.model.workload import (
    CgroupIdentity,
    Container,
    ExclusiveGrant,
    KubeletState,
    Pod,
    PodContainer,
    PodResources,
)
from agent.planning.evidence import SeenContainer, gather, with_devices

ID = "ab" * 32
ONLINE = CpuSet.span(0, 319)
INVENTORY = Inventory(tuple(Npu(n) for n in range(16)), DeviceType.A3)
POD = Pod("uid-1", "prod", "llm-0", "Guaranteed", containers=(PodContainer("vllm", ID, 16000),))


def seen(cpus: str, pod_uid: str = "uid-1", container_id: str = ID, qos: str = "Guaranteed") -> SeenContainer:
    return SeenContainer(
        CgroupIdentity(f"/kubepods/{container_id}", pod_uid, container_id, qos, True), CpuSet.parse(cpus)
    )


def resources(cpus: str, *devices: str, name: str = "vllm") -> PodResources:
    return PodResources("prod", "llm-0", name, CpuSet.parse(cpus), devices)


def one(
    container: SeenContainer,
    pods: tuple[Pod, ...] = (POD,),
    kubelet: KubeletState = KubeletState(),  # noqa: B008
) -> Container:
    return gather([container], pods, kubelet, INVENTORY, ONLINE)[0]


def grant(cpus: str, container: str = "vllm", uid: str = "uid-1") -> KubeletState:
    return KubeletState("static", (ExclusiveGrant(uid, container, CpuSet.parse(cpus)),))


def test_an_entry_of_the_static_policy_counts_at_once_though_the_cgroup_is_still_wide() -> None:
    found = one(seen("0-319"), kubelet=grant("2-17"))
    assert (str(found.owned), found.evidence) == ("2-17", "cpu_manager_state")


def test_an_entry_under_another_policy_counts_for_nothing() -> None:
    assert one(seen("0-319"), kubelet=replace(grant("2-17"), policy="none")).owned is None


def test_an_entry_of_another_container_of_the_pod_counts_for_nothing() -> None:
    assert one(seen("0-319"), kubelet=grant("2-17", container="sidecar")).owned is None


def test_without_pods_an_entry_is_told_by_its_cpus() -> None:
    assert str(one(seen("2-17"), pods=(), kubelet=grant("2-17")).owned) == "2-17"
    assert one(seen("0-319"), pods=(), kubelet=grant("2-17")).owned is None


def test_an_entry_of_a_static_pod_is_found_by_its_config_hash() -> None:
    hashed = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    pod = replace(POD, config_hash=hashed)
    found = one(seen("2-17", pod_uid=hashed), pods=(pod,), kubelet=grant("2-17", uid=hashed))
    assert str(found.owned) == "2-17"


def test_pod_resources_count_when_the_limit_is_as_many_cpus() -> None:
    found = one(seen("0-319"), kubelet=KubeletState(resources=(resources("2-17"),)))
    assert (str(found.owned), found.evidence) == ("2-17", "pod-resources")
    assert one(seen("0-319"), kubelet=KubeletState(resources=(resources("2-16"),))).owned is None


def test_a_shared_pool_that_old_kubelets_report_for_several_containers_is_nobody_s() -> None:
    both = KubeletState(resources=(resources("2-17"), resources("2-17", name="sidecar")))
    assert one(seen("0-319"), kubelet=both).owned is None


@pytest.mark.parametrize(
    ("pod", "cpus", "owned"),
    [
        (POD, "2-17", "2-17"),  # as many CPUs as the limit
        (POD, "2-16", None),
        (POD, "0-319", None),
        (replace(POD, qos="Burstable"), "2-17", None),
        (replace(POD, containers=(PodContainer("vllm", ID, 15500),)), "2-17", None),  # no integer limit
        (replace(POD, containers=(PodContainer("vllm", ID, 320_000),)), "0-319", None),  # the whole node is no pool
    ],
)
def test_a_guaranteed_container_with_a_cpuset_as_large_as_its_limit_owns_it(
    pod: Pod, cpus: str, owned: str | None
) -> None:
    found = one(seen(cpus), pods=(pod,))
    assert found.owned == (None if owned is None else CpuSet.parse(owned))


def test_a_container_with_the_whole_node_makes_nobody_exclusive_or_not() -> None:
    other = replace(POD, uid="uid-2", name="b", qos="Burstable", containers=(PodContainer("c", "cd" * 32),))
    beside = seen("0-319", "uid-2", "cd" * 32, "Burstable")
    alone = gather([seen("2-17")], [POD], KubeletState(), INVENTORY, ONLINE)
    together = gather([seen("2-17"), beside], [POD, other], KubeletState(), INVENTORY, ONLINE)
    assert together[0] == alone[0]
    assert together[1].owned is None


def test_npus_are_those_of_pod_resources_then_those_in_its_dev() -> None:
    kubelet = KubeletState(resources=(resources("2-17", "Ascend910-3", "Ascend910-4"),))
    assert one(seen("2-17"), kubelet=kubelet).npus == frozenset({3, 4})
    silent = one(seen("2-17"))
    assert silent.npus is None
    assert with_devices(silent, frozenset({5, 6}), INVENTORY).npus == frozenset({5, 6})
    for nothing in (None, frozenset[int](), frozenset({99})):
        assert with_devices(silent, nothing, INVENTORY).npus is None


def test_owners_without_a_process_on_an_npu_come_along() -> None:
    """A Guaranteed pod that uses no NPU takes its CPUs out of the shared domain all the same."""
    batch = Pod("uid-9", "batch", "etl", "Guaranteed", containers=(PodContainer("etl", "ef" * 32, 8000),))
    by_grant = gather([], [batch], grant("8-15", "etl", "uid-9"), INVENTORY, ONLINE)
    assert [(c.title, str(c.owned), c.npus) for c in by_grant] == [("batch/etl/etl", "8-15", frozenset())]
    listed = PodResources("batch", "etl", "etl", CpuSet.parse("8-15"))
    by_resources = gather([], [batch], KubeletState(resources=(listed,)), INVENTORY, ONLINE)
    assert [str(c.owned) for c in by_resources] == ["8-15"]
    assert len(
        gather(
            [],
            [batch],
            KubeletState("static", by := grant("8-15", "etl", "uid-9").grants, (listed,)),
            INVENTORY,
            ONLINE,
        )
    ) == len(by)


def test_an_owner_is_counted_once() -> None:
    both = KubeletState("static", grant("2-17").grants, (resources("2-17"),))
    assert len(gather([seen("2-17")], [POD], both, INVENTORY, ONLINE)) == 1
