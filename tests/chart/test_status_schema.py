"""What agents on virtual nodes publish fits the schema, and shows every field that the schema has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from agent.control.observe import Candidate, Choice
from agent.control.report import MAX_WORKERS
from agent.demo.fake_files import put
from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.reason import Reason, Refused
from tests.chart.crd import complaints, fields, paths_of, schema
from tests.control.rig import Rig

PROFILES = ("a2", "a3", "atlas300i", "ascend950")

Story = Callable[[Rig], None]


def start(rig: Rig, npus: range | list[int], pod: str = "llm-0", **how: Any) -> list[Worker]:
    made = rig.node.kubelet.add_pod(pod)
    return [Worker.start(rig.node, npu, made, **how) for npu in npus]


def ask(rig: Rig, **spec: object) -> None:
    rig.state_file.write_text(yaml.safe_dump({"spec": spec}))


def idle(rig: Rig) -> None:
    """Nobody on any NPU."""


def busy(rig: Rig) -> None:
    start(rig, [npu.id for npu in rig.node.inventory.npus])


def in_a_dry_run(rig: Rig) -> None:
    busy(rig)
    ask(rig, mode="DryRun")


def switched_off(rig: Rig) -> None:
    busy(rig)
    ask(rig, mode="Disabled")


def with_cpus_taken_away(rig: Rig) -> None:
    """Too few are left for anybody, and some are isolated."""
    online = rig.node.topology.online
    put(rig.node.root / "sys/devices/system/cpu/isolated", "1-2\n")
    ask(rig, reservedCpus=str(online - CpuSet.span(0, 4)))
    busy(rig)


def with_a_cpu_offline(rig: Rig) -> None:
    """The last one of the node. Its NUMA node keeps the link to it."""
    folder = rig.node.root / "sys/devices/system"
    last = rig.node.topology.nodes[-1]
    gone = CpuSet([max(last.cpus)])
    put(folder / "cpu/online", f"{rig.node.topology.online - gone}\n")
    put(folder / f"node/node{last.id}/cpulist", f"{last.cpus - gone}\n")
    (folder / f"node/node{last.id}/cpu{gone}").mkdir(exist_ok=True)


def without_cpus_for_uvb_threads(rig: Rig) -> None:
    """All of NUMA node 0 that the NPUs of an Ascend 950 leave over; on other nodes just some CPUs."""
    ask(rig, reservedCpus=str(CpuSet.parse("32-63,160-191") & rig.node.topology.online))


def with_a_spec_that_does_not_fit(rig: Rig) -> None:
    ask(rig, reservedCpus="4000")


def without_npu_smi(rig: Rig) -> None:
    def query(*args: str) -> str:
        raise Refused(Reason.NPU_SMI_NOT_FOUND, "npu-smi: No such file or directory")

    rig.node.npu_smi.query = query  # type: ignore[method-assign]


def with_a_crowd_on_one_npu(rig: Rig) -> None:
    start(rig, [0] * (MAX_WORKERS + 3), memory_mib=900)


def with_exclusive_cpus(rig: Rig) -> None:
    """A Guaranteed pod on NPU 0 beside one in the shared domain, whose base then has fewer NPUs than the node."""
    pod = rig.node.kubelet.add_pod("own", own_cpus=CpuSet.span(16, 47))
    Worker.start(rig.node, 0, pod)
    start(rig, [1])


def with_a_process_on_two_npus(rig: Rig) -> None:
    (worker,) = start(rig, [0])
    rig.node.hold(worker.pid, [(0, 9000), (1, 8000)], "python3")


def in_a_container_of_docker(rig: Rig) -> None:
    """Cpusets that differ make domains of their own; one NPU is used in two of them."""
    online = rig.node.topology.online
    for name, cpus in (("a", online), ("b", CpuSet(cpu for cpu in online if cpu % 4))):
        path = f"/docker/{name * 64}"
        rig.node.kernel.cgroups.create(path, cpus)
        worker = start(rig, [1], pod=f"docker-{name}", memory_mib=900)[0]
        rig.node.kernel.move(worker.pid, path)


def with_a_stranger(rig: Rig) -> None:
    """A process that nobody asked to bind."""

    def nobody(candidate: Candidate) -> Choice:
        return Choice.LEAVE

    rig.restart(chooses=nobody)
    busy(rig)


def without_interrupts_and_room_for_memory(rig: Rig) -> None:
    """The driver asked for no interrupts, and all memory is taken."""
    for folder in rig.node.root.glob("sys/bus/pci/devices/*/msi_irqs"):
        shutil.rmtree(folder)
    for node in rig.node.topology.nodes:
        rig.node.set_free_memory(node.id, 0)
    busy(rig)


STORIES: tuple[Story, ...] = (
    idle,
    busy,
    in_a_dry_run,
    switched_off,
    with_cpus_taken_away,
    with_a_cpu_offline,
    without_cpus_for_uvb_threads,
    with_a_spec_that_does_not_fit,
    without_npu_smi,
    with_a_crowd_on_one_npu,
    with_exclusive_cpus,
    with_a_process_on_two_npus,
    in_a_container_of_docker,
    with_a_stranger,
    without_interrupts_and_room_for_memory,
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The status of every story, on a node with interrupts and on one with UVB threads; of some on the others."""
    documents: dict[str, Any] = {}
    for profile in PROFILES:
        for story in STORIES if profile in ("a2", "ascend950") else (idle, busy):
            folder = tmp_path_factory.mktemp(f"{profile}-{story.__name__}")
            rig = Rig(folder, profile, interrupts=profile == "a2")
            story(rig)
            rig.settle()
            rig.settle()
            documents[f"{profile}, {story.__name__.replace('_', ' ')}"] = rig.agent.plan_object()["status"]
    return documents


def test_every_status_that_an_agent_publishes_fits_the_schema(published: dict[str, Any]) -> None:
    wrong = {story: found for story, status in published.items() if (found := complaints("status", status))}
    assert wrong == {}


def test_every_field_of_the_schema_is_published_by_some_agent(published: dict[str, Any]) -> None:
    """So that the test above is about all of them, and nothing is declared that nobody writes."""
    seen = {path for status in published.values() for path in paths_of(status, "status")}
    declared = {path for path, _ in fields(schema()) if path.startswith("status")}
    assert declared - seen == set()


@pytest.mark.parametrize(
    "status",
    [
        {"npus": [{"id": 0, "thread": 3}]},
        {"npus": [{"id": "0"}]},
        {"npus": [{"pool": "0-3"}]},
        {"npus": [{"id": 0, "pool": [0, 1]}]},
        {"npus": [{"id": 0, "workers": [{"pid": 0}]}]},
        {"conditions": [{"type": "Ready"}]},
        {"summary": {"npus": 1.5}},
    ],
    ids=str,
)
def test_the_check_would_notice(status: dict[str, Any]) -> None:
    assert complaints("status", status)
