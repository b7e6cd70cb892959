"""The worked examples of docs/choosing.md, computed: ``python -m tests.docs.choosing`` writes them into the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.model.plan import NpuPlan, Plan, PlanInput
from agent.model.spec import Spec, Strategy
from agent.telemetry.picture import numa_map
from tests.docs.pages import ROOT
from tests.planning import hosts, reference_upstream
from tests.planning.hosts import Machine, cpus, exclusive, machine, shared, workers_on
from tests.planning.reading import planned, readable

PAGE = ROOT / "docs/choosing.md"

_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def drawn(inp: PlanInput, plan: Plan) -> str:
    """The map of a plan, as ``cpubind plan`` draws it."""
    host = inp.topology
    status: dict[str, Any] = {
        "topology": {
            "cpus": str(host.online),
            "reservedCpus": str(inp.spec.reserved_cpus),
            "isolatedCpus": str(host.isolated),
            "numaNodes": [{"id": node.id, "cpus": str(node.cpus)} for node in host.nodes],
        },
        "npus": [{"id": npu.id, "pool": str(npu.allotment.pool), "roles": _roles(npu)} for npu in plan.npus],
        "uvb": {"cpus": str(plan.uvb)},
    }
    console = Console(file=io.StringIO(), width=100, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(numa_map({"status": status}))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _roles(npu: NpuPlan) -> dict[str, str]:
    roles = npu.allotment.roles
    return {name: str(getattr(roles, name)) for name in ("irq", "main", "acl", "release")} if roles else {}


def a3(strategy: Strategy | None = None, reserved: str = "") -> PlanInput:
    """Four NPUs on two NUMA nodes of 24 CPUs, two of the CPUs reserved."""
    spec = Spec(strategy=strategy, reserved_cpus=cpus(reserved))
    return replace(hosts.a3(48, 4, 2).serving(), spec=spec)


def far_pairs() -> Machine:
    """Two pairs of NPUs, each pair at home on one NUMA node and followed by a node that is nobody's home."""
    return machine(hosts.even_nodes(4, 12), ["0-11", "0-11", "24-35", "24-35"], DeviceType.A2)


def neighbours() -> Machine:
    """NPU 0 reaches for node 1, where NPU 1 is at home; NPU 1 for node 2, which is nobody's home."""
    return machine(hosts.even_nodes(4, 12), ["0-11", "12-23"], DeviceType.A2)


def ascend_950() -> Machine:
    """Two NPUs on NUMA node 0 and one on node 1, each of 20 cores with two threads, c and c + 40."""
    nodes = {
        node: CpuSet.span(20 * node, 20 * node + 19) | CpuSet.span(40 + 20 * node, 59 + 20 * node) for node in (0, 1)
    }
    cores = hosts.smt_pairs(CpuSet.span(0, 39), 40)
    return machine(nodes, [nodes[0], nodes[0], nodes[1]], DeviceType.ASCEND_950, cores)


def owner(owned: str, *, bases: bool = True) -> PlanInput:
    """The A3 of above: NPU 0 to 2 serve in a shared domain, then a pod without an NPU gets CPUs of its own."""
    host = hosts.a3(48, 4, 2)
    shared_cpus = host.topology.online - cpus(owned)
    after = [shared("llm", shared_cpus), exclusive("own", owned, [])]
    before = planned(host.running([shared("llm", host.topology.online)], workers_on([0, 1, 2], "llm")))
    return host.running(after, workers_on([0, 1, 2], "llm"), before.bases if bases else ())


def guaranteed() -> PlanInput:
    """A Guaranteed pod owns 16 CPUs and two of the NPUs; another pod is in the shared domain."""
    host = hosts.a3(48, 4, 2)
    own, rest = cpus("8-23"), host.topology.online - cpus("8-23")
    containers = [exclusive("own", own, [0, 1]), shared("llm", rest)]
    return host.running(containers, [*workers_on([0, 1], "own"), *workers_on([2, 3], "llm")])


def mapped(inp: PlanInput) -> str:
    return drawn(inp, planned(inp))


def pools(inp: PlanInput) -> dict[int, str]:
    """The pool of each NPU, or the reason why it has none."""
    plan = planned(inp)
    return {
        npu.id: str(npu.allotment.pool) if npu.allotment.problem is None else npu.allotment.problem.reason.value
        for npu in plan.npus
    }


def beside(columns: Mapping[str, Mapping[int, str]]) -> str:
    """A table of pools: a row for each NPU, a column for each of these."""
    ids = sorted({npu for column in columns.values() for npu in column})
    rows = [["NPU", *columns], *([str(npu), *(column[npu] for column in columns.values())] for npu in ids)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def upstream_affinity(host: Machine) -> dict[int, str]:
    """What the rule gives inside each worker."""
    node_of = {cpu: node.id for node in host.topology.nodes for cpu in node.cpus}
    rows = {npu.id: list(npu.affinity or ()) for npu in host.inventory.npus}
    return readable(reference_upstream.topo_affinity(node_of, list(host.topology.online), rows))


def upstream_clusters(host: Machine) -> dict[int, str]:
    node_of = {cpu: node.id for node in host.topology.nodes for cpu in node.cpus}
    siblings = {cpu: list(core) for core in host.topology.cores for cpu in core}
    rows = {npu.id: list(npu.affinity or ()) for npu in host.inventory.npus}
    found = reference_upstream.clusters(node_of, siblings, list(host.topology.online), rows)
    return readable(found or {})


EXAMPLES: Mapping[str, Callable[[], str]] = {
    "owned": lambda: mapped(guaranteed()),
    "GlobalSlice": lambda: mapped(a3(reserved="0-1")),
    "NumaSlice": lambda: mapped(a3(Strategy.NUMA_SLICE, reserved="0-1")),
    "pairs": lambda: mapped(far_pairs().serving()),
    "neighbours": lambda: mapped(neighbours().serving()),
    "Ascend 950": lambda: mapped(ascend_950().serving()),
    "roles": lambda: mapped(hosts.a3(12, 1, 1).serving()),
    "base": lambda: beside(
        {
            "before": pools(a3()),
            "cut from the base": pools(owner("4-7")),
            "were it cut anew": pools(owner("4-7", bases=False)),
        }
    ),
    "starved": lambda: beside({"before": pools(a3()), "cut anew": pools(owner("2-9"))}),
    "neighbours by both": lambda: beside(
        {"vLLM-Ascend": upstream_affinity(neighbours()), "cpubind": pools(neighbours().serving())}
    ),
    "Ascend 950 by both": lambda: beside(
        {"vLLM-Ascend": upstream_clusters(ascend_950()), "cpubind": pools(ascend_950().serving())}
    ),
}
"""In the order in which the page has them."""


def written(text: str) -> list[str]:
    """The examples that a page has."""
    return _BLOCK.findall(text)


def renewed(text: str) -> str:
    """A page with its examples as they are today."""
    made = iter(example() for example in EXAMPLES.values())
    return _BLOCK.sub(lambda _: f"```text\n{next(made)}```", text)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
