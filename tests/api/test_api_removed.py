"""Removal: the host is as it was before, byte by byte, where people follow docs/upgrade.md; without `mode: Disabled`
first, what is bound stays so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from tests.api.rig import KubeRig
from tests.api.scene import is_free
from tests.cluster.cluster import Cluster

Host = Mapping[str, bytes]
OWN = CpuSet.parse("150-151")
"""A mask that a library gave one thread, before anybody bound its worker."""


@pytest.fixture
def host(cluster: Cluster, tmp_path: Path) -> Iterator[KubeRig]:
    """An A2 node whose NPUs have interrupts, without an agent as yet."""
    with KubeRig(cluster, tmp_path, "a2", interrupts=True, irq_binding=True, status_interval=0.3) as made:
        made.register()
        yield made


def contents(rig: KubeRig) -> Host:
    """Every file below the root of the host, masks of threads and of interrupts among them."""
    rig.node.kernel.sync()
    files = (path for path in rig.node.root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(rig.node.root)): path.read_bytes() for path in files}


def changed(before: Host, after: Host) -> set[str]:
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def serve(rig: KubeRig) -> list[Worker]:
    """Two pods whose workers run, with a thread that has a mask of its own."""
    _, first = rig.run_pod("llm-0", [0, 1])
    _, second = rig.run_pod("llm-1", [4])
    for worker in (*first, *second):
        worker.add_role_threads()
    rig.node.kernel.set_by_other(first[0].threads[3].tid, OWN)
    return [*first, *second]


def masks_and_irqs(paths: set[str]) -> tuple[set[str], set[str]]:
    return {p for p in paths if p.endswith("/status")}, {p for p in paths if p.startswith("proc/irq/")}


def test_after_the_documented_removal_every_file_of_the_host_is_as_it_was(host: KubeRig) -> None:
    workers = serve(host)
    before = contents(host)
    host.start()
    host.until_bound(workers)
    host.until(lambda: all(host.npu(npu).get("irq") == "Bound" for npu in (0, 1, 4)), "their interrupts are bound")
    threads, irqs = masks_and_irqs(changed(before, contents(host)))
    assert len(threads) >= sum(len(worker.threads) for worker in workers)
    assert irqs

    host.edit({"mode": "Disabled"})
    host.until(lambda: host.condition("Restored").get("status") == "True", "everything is given back")
    host.stop()
    host.cluster.remove_crd()
    # Memory that was moved is as good on its new node, and stays there: docs/host.md.
    assert {path for path in changed(before, contents(host)) if not path.endswith("/memory.numa_stat")} == set()
    assert workers[0].threads[3].mask == OWN


def test_without_disabling_it_first_what_is_bound_stays(host: KubeRig) -> None:
    workers = serve(host)
    host.start()
    host.until_bound(workers)
    host.until(lambda: host.npu(4).get("irq") == "Bound", "interrupts are bound")
    bound = contents(host)
    host.stop()
    host.cluster.remove_crd()
    assert changed(bound, contents(host)) == set()
    assert not any(is_free(worker) for worker in workers)

    # A new installation finds them in the journal, and can give them back.
    host.cluster.install_crd()
    host.start()
    host.until(lambda: host.condition("Ready").get("status") == "True", "it is at work again")
    host.edit({"mode": "Disabled"})
    host.until(lambda: host.condition("Restored").get("status") == "True", "everything is given back")
    assert all(is_free(worker) for worker in workers[1:])
