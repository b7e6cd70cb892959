"""Hosts to plan for: builders, the machines that people have, and strategies for the machines they might have."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node import DeviceType, Inventory, Npu, NumaNode, Topology
from agent.model.plan import Base, PlanInput
from agent.model.spec import Rebalance, Spec, Strategy
from agent.model.workload import Container, ProcessId, Worker

_Item = TypeVar("_Item")

# --- builders ---------------------------------------------------------------------------------------------------------


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def topology(
    nodes: Mapping[int, CpuSet],
    cores: Iterable[CpuSet] | None = None,
    *,
    unlisted: CpuSet = EMPTY,
    root: CpuSet | None = None,
    isolated: CpuSet = EMPTY,
    architecture: str = "aarch64",
) -> Topology:
    """These NUMA nodes, all of whose CPUs are online, and `unlisted` CPUs of no node. One thread a core unless said."""
    online = union(nodes.values()) | unlisted
    return Topology(
        online=online,
        root=online if root is None else root,
        nodes=tuple(NumaNode(id=node, cpus=nodes[node]) for node in sorted(nodes)),
        cores=tuple(sorted((CpuSet([cpu]) for cpu in online) if cores is None else cores, key=lambda core: core.first)),
        isolated=isolated,
        possible=online,
        architecture=architecture,
    )


def even_nodes(count: int, size: int) -> dict[int, CpuSet]:
    """Nodes 0, 1, … of that many consecutive CPUs each."""
    return {node: CpuSet.span(node * size, node * size + size - 1) for node in range(count)}


def npus(affinities: Iterable[str | CpuSet | None]) -> tuple[Npu, ...]:
    """NPUs 0, 1, … with these affinities."""
    return tuple(
        Npu(id=npu, card=npu, affinity=cpus(affinity) if isinstance(affinity, str) else affinity)
        for npu, affinity in enumerate(affinities)
    )


def shared(key: str, allowed: str | CpuSet, npus: Iterable[int] | None = None) -> Container:
    """A pod's container in the shared domain."""
    return Container(
        key=key,
        pod_uid=f"uid-of-{key}",
        cpus=cpus(allowed) if isinstance(allowed, str) else allowed,
        npus=None if npus is None else frozenset(npus),
    )


def exclusive(
    key: str, owned: str | CpuSet, npus: Iterable[int] | None = None, effective: str | CpuSet | None = None
) -> Container:
    """A container that owns its CPUs; its cpuset is just these unless said."""
    own = cpus(owned) if isinstance(owned, str) else owned
    wide = cpus(effective) if isinstance(effective, str) else effective
    return Container(
        key=key,
        cpus=own if wide is None else wide,
        owned=own,
        evidence="cpu_manager_state",
        npus=None if npus is None else frozenset(npus),
    )


def worker(pid: int, npu: int | Iterable[int], container: str) -> Worker:
    return Worker(
        process=ProcessId(pid, 1000 + pid),
        npus=(npu,) if isinstance(npu, int) else tuple(sorted(npu)),
        container=container,
        name="python",
    )


def workers_on(npu_ids: Iterable[int], container: str) -> tuple[Worker, ...]:
    """One worker on each of these NPUs."""
    return tuple(worker(100 + npu, npu, container) for npu in npu_ids)


@dataclass(frozen=True)
class Machine:
    """A host without anything running on it."""

    topology: Topology
    inventory: Inventory

    def running(
        self,
        containers: Iterable[Container] = (),
        workers: Iterable[Worker] = (),
        bases: Iterable[Base] = (),
        spec: Spec | None = None,
    ) -> PlanInput:
        return PlanInput(
            topology=self.topology,
            inventory=self.inventory,
            containers=tuple(containers),
            workers=tuple(workers),
            bases=tuple(bases),
            spec=spec or Spec(),
        )

    def serving(self, npu_ids: Iterable[int] | None = None, allowed: str | CpuSet | None = None) -> PlanInput:
        """One shared container `llm` with a worker on each of these NPUs (all)."""
        return self.running(
            [shared("llm", self.topology.online if allowed is None else allowed)],
            workers_on(self.inventory.ids if npu_ids is None else npu_ids, "llm"),
        )


def machine(
    nodes: Mapping[int, CpuSet],
    affinities: Sequence[str | CpuSet | None],
    device_type: DeviceType,
    cores: Iterable[CpuSet] | None = None,
) -> Machine:
    return Machine(topology(nodes, cores), Inventory(npus(affinities), device_type))


# --- the machines that people have ------------------------------------------------------------------------------------


def a3(total: int = 640, count: int = 16, nodes: int = 8) -> Machine:
    """An A3 node: dies without an affinity row (npu-smi shows none on ARM), NUMA nodes of equal size."""
    return machine(even_nodes(nodes, total // nodes), [None] * count, DeviceType.A3)


def a2_far_pairs() -> Machine:
    """910B1, Kunpeng 920, 192 CPUs on 8 nodes: NPUs 0/2, 1/3, 4/6 and 5/7 share a node; every other node has none."""
    rows = ["144-167", "0-23", "144-167", "0-23", "96-119", "48-71", "96-119", "48-71"]
    return machine(even_nodes(8, 24), rows, DeviceType.A2)


def a2_adjacent_pairs() -> Machine:
    """910B3 on the same board: NPUs 0/1, 2/3, 4/5 and 6/7 share a node."""
    rows = ["144-167", "144-167", "96-119", "96-119", "0-23", "0-23", "48-71", "48-71"]
    return machine(even_nodes(8, 24), rows, DeviceType.A2)


def smt_pairs(first: CpuSet, distance: int) -> list[CpuSet]:
    """Cores whose second thread is `distance` CPUs up."""
    return [CpuSet([cpu, cpu + distance]) for cpu in first]


def ascend_950_smt(total: int = 384) -> Machine:
    """An Ascend 950 host with two sockets and two threads a core, siblings c and c + total/2; four NPUs a socket."""
    half, quarter = total // 2, total // 4
    socket = {
        node: CpuSet.span(node * quarter, node * quarter + quarter - 1)
        | CpuSet.span(half + node * quarter, half + node * quarter + quarter - 1)
        for node in (0, 1)
    }
    cores = smt_pairs(CpuSet.span(0, half - 1), half)
    return machine(socket, [socket[0]] * 4 + [socket[1]] * 4, DeviceType.ASCEND_950, cores)


def ascend_950_single(nodes: int = 4, size: int = 48, each: int = 2) -> Machine:
    """An Ascend 950 host with one thread a core."""
    layout = even_nodes(nodes, size)
    return machine(layout, [layout[node] for node in layout for _ in range(each)], DeviceType.ASCEND_950)


def without(made: Machine, gone: CpuSet) -> Machine:
    """The same host with some CPUs offline: their nodes keep a link to each, lists name them no more."""
    host = made.topology
    return replace(
        made,
        topology=replace(
            host,
            online=host.online - gone,
            root=host.root - gone,
            nodes=tuple(replace(node, cpus=node.cpus - gone, present=node.members) for node in host.nodes),
            cores=tuple(core - gone for core in host.cores if core - gone),
        ),
    )


# --- the machines that people might have --------------------------------------------------------------------------

# An example is a whole host, a few dozen draws, and a plan of hundreds of CPUs; that is slow by Hypothesis's measure.
host_sized = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def parts(draw: st.DrawFn, whole: CpuSet, most: int = 3) -> CpuSet:
    """Some of a set of CPUs: a few runs of it, as people and kernels choose them."""
    listed = list(whole)
    chosen: set[int] = set()
    if listed:
        for _ in range(draw(st.integers(0, most))):
            first = draw(st.integers(0, len(listed) - 1))
            chosen.update(listed[first : first + draw(st.integers(1, max(1, len(listed) // 2)))])
    return CpuSet(chosen)


@st.composite
def mostly(draw: st.DrawFn, whole: CpuSet) -> CpuSet:
    """All of a set of CPUs as a rule, else all but some."""
    return whole if draw(st.booleans()) else whole - draw(parts(whole, 2))


@st.composite
def topologies(draw: st.DrawFn, threads: int | None = None, *, holes: bool = True, most_cores: int = 24) -> Topology:
    """One to eight NUMA nodes with ids that may have holes, without CPUs here and there; siblings adjacent or half
    a host apart; CPUs dealt to nodes in blocks or in turn; with `holes`, CPUs offline, on no node, isolated."""
    count = draw(st.integers(1, 8))
    sparse = st.sets(st.integers(0, 15), min_size=count, max_size=count)
    ids = sorted(draw(sparse)) if draw(st.booleans()) else list(range(count))
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, most_cores))] * count
    else:
        sizes = [draw(st.integers(0, most_cores)) for _ in ids]
    siblings = draw(st.sampled_from([1, 1, 2])) if threads is None else threads
    total = sum(sizes)
    in_turn = draw(st.integers(0, 4)) == 0
    adjacent = draw(st.booleans())

    owner = [node for node, size in zip(ids, sizes, strict=True) for _ in range(size)]
    if in_turn:
        owner = [node for index in range(max(sizes)) for node, size in zip(ids, sizes, strict=True) if index < size]
    cores = [
        CpuSet(range(index * siblings, index * siblings + siblings))
        if adjacent
        else CpuSet(index + thread * total for thread in range(siblings))
        for index in range(total)
    ]
    possible = union(cores)
    online = possible
    unlisted = isolated = EMPTY
    if holes:
        if draw(st.integers(0, 2)) == 0:
            online -= draw(parts(possible))
        if draw(st.integers(0, 5)) == 0:
            some = draw(parts(CpuSet(range(total)), 1))
            unlisted = union(core for index, core in enumerate(cores) if index in some) & online
        if draw(st.integers(0, 3)) == 0:
            isolated = draw(parts(possible, 1))
    nodes = dict.fromkeys(ids, EMPTY)
    for node, core in zip(owner, cores, strict=True):
        nodes[node] |= core & online - unlisted
    made = topology(
        nodes,
        [core & online for core in cores if not core.isdisjoint(online)],
        unlisted=unlisted,
        root=draw(mostly(online)) if holes and draw(st.booleans()) else online,
        isolated=isolated,
    )
    if draw(st.booleans()):  # nodes say which of their CPUs are offline
        present = dict.fromkeys(ids, EMPTY)
        for node, core in zip(owner, cores, strict=True):
            present[node] |= core - unlisted
        made = replace(made, nodes=tuple(replace(node, present=present[node.id]) for node in made.nodes))
    return replace(made, possible=possible)


@st.composite
def inventories(draw: st.DrawFn, host: Topology, device_type: DeviceType | None = None) -> Inventory:
    """One to 16 NPUs, ids sparse or not; affinities whole nodes, parts of one, several, none, or anything at all."""
    count = draw(st.integers(1, 16))
    sparse = st.sets(st.integers(0, 40), min_size=count, max_size=count)
    ids = sorted(draw(sparse)) if draw(st.integers(0, 3)) == 0 else list(range(count))
    listed = [node.cpus for node in host.nodes if node.cpus] or [host.online]
    whole = st.sampled_from(listed)
    kinds = {
        "whole": whole,
        "part": whole.flatmap(parts),
        "several": st.lists(whole, min_size=2, max_size=3).map(union),
        "none": st.none(),
        "any": parts(host.possible),
    }
    style = draw(st.sampled_from(["whole", "whole", "none", "mixed", "mixed"]))
    names = ["whole", "whole", "whole", "part", "part", "several", "none", "any"]
    return Inventory(
        tuple(
            Npu(id=npu, card=npu, affinity=draw(kinds[draw(st.sampled_from(names)) if style == "mixed" else style]))
            for npu in ids
        ),
        draw(st.sampled_from(DeviceType)) if device_type is None else device_type,
    )


@st.composite
def specs(draw: st.DrawFn, host: Topology) -> Spec:
    """Mostly the default; sometimes a strategy, reserved CPUs, isolated CPUs included."""
    if draw(st.booleans()):
        return Spec()
    return Spec(
        strategy=draw(st.sampled_from([None, None, *Strategy])),
        reserved_cpus=draw(parts(host.online, 1)) if draw(st.booleans()) else EMPTY,
        include_isolated_cpus=draw(st.booleans()),
        rebalance=draw(st.sampled_from(Rebalance)),
    )


@st.composite
def plain(draw: st.DrawFn, device_type: DeviceType | None = None, threads: int | None = None) -> PlanInput:
    """A host with one shared container: no exclusive ones, nothing reserved, no base. Any of the NPUs runs."""
    host = draw(topologies(threads))
    found = draw(inventories(host, device_type))
    running = draw(st.sets(st.sampled_from(found.ids)))
    return Machine(host, found).running([shared("llm", draw(mostly(host.online)))], workers_on(sorted(running), "llm"))


@st.composite
def nodes_apart(draw: st.DrawFn, device_type: DeviceType = DeviceType.A2) -> PlanInput:
    """A host like `plain`'s whose NPUs live on every other node with CPUs, as on A2 boards: where the upstream rule
    gives pools that do not overlap."""
    host = draw(topologies(1, most_cores=40))
    listed = [node.cpus for node in host.nodes if node.cpus] or [host.online]
    homes = listed[:: 2 if len(listed) > 3 else 3] or listed[:1]
    rows = draw(st.lists(st.sampled_from(homes), min_size=1, max_size=2 * len(homes)))
    found = Inventory(npus(rows), device_type)
    running = draw(st.sets(st.sampled_from(found.ids)))
    return Machine(host, found).running([shared("llm", draw(mostly(host.online)))], workers_on(sorted(running), "llm"))


@st.composite
def whole_cores(draw: st.DrawFn) -> PlanInput:
    """A 950 host with all CPUs online, siblings with adjacent numbers, every core allowed whole or not at all."""
    threads = draw(st.sampled_from([1, 2]))
    count, size = draw(st.integers(1, 4)), draw(st.integers(8, 48))
    layout = even_nodes(count, size * threads)
    cores = [CpuSet(range(core * threads, core * threads + threads)) for core in range(count * size)]
    homes = [node for node in layout for _ in range(draw(st.integers(0, size // 8)))] or [0]
    affinities = [layout[node] for node in draw(st.permutations(homes))]
    left_out = draw(parts(CpuSet(range(count * size)), 1)) if draw(st.booleans()) else EMPTY
    allowed = CpuSet(cpu for index, core in enumerate(cores) if index not in left_out for cpu in core)
    assume(allowed)
    return machine(layout, affinities, DeviceType.ASCEND_950, cores).serving(allowed=allowed)


@st.composite
def busy(draw: st.DrawFn, domains: int | None = None, device_type: DeviceType | None = None) -> PlanInput:
    """A host at work: exclusive containers with and without NPUs or workers, shared ones with one cpuset or several,
    workers on some NPUs (on several at once, too), a missing card now and then, a spec."""
    host = draw(topologies())
    found = draw(inventories(host, device_type))
    if draw(st.integers(0, 4)) == 0:
        gone = draw(st.sampled_from(found.ids))
        found = replace(found, npus=tuple(replace(npu, missing=npu.id == gone) for npu in found.npus))
    free_cpus, free_npus = host.root, list(found.ids)
    containers: list[Container] = []
    workers: list[Worker] = []
    for index in range(draw(st.sampled_from([0, 0, 1, 2, 3]))):
        key = f"own-{index}"
        owned = draw(parts(free_cpus, 1))
        free_cpus -= owned
        taken = sorted(draw(st.sets(st.sampled_from(free_npus), max_size=4))) if free_npus else []
        free_npus = [npu for npu in free_npus if npu not in taken]
        at_work = [npu for npu in taken if draw(st.booleans())]
        known = draw(st.integers(0, 3)) != 0
        wide = host.root if draw(st.integers(0, 3)) == 0 else None
        containers.append(exclusive(key, owned, taken if known else None, wide))
        workers += [worker(1000 + 100 * index + npu, npu, key) for npu in at_work]
        if not known:
            free_npus += [npu for npu in taken if npu not in at_work]

    count = draw(st.sampled_from([1, 1, 2, 3])) if domains is None else domains
    # On a kubelet node the shared cpuset is what the exclusive containers leave; elsewhere it is anything.
    for index in range(count):
        allowed = free_cpus if index == 0 and draw(st.booleans()) else draw(mostly(host.online))
        if index and draw(st.booleans()):
            allowed = draw(parts(host.online, 2))
        containers.append(shared(f"pod-{index}", allowed))
        if draw(st.booleans()):
            containers.append(shared(f"twin-{index}", allowed))
    keys = [container.key for container in containers if container.owned is None]
    for npu in sorted(free_npus):
        for copy in range(draw(st.sampled_from([0, 1, 1, 1, 2])) if keys else 0):
            workers.append(worker(2000 + 10 * npu + copy, npu, draw(st.sampled_from(keys))))
    if keys and len(free_npus) > 1 and draw(st.integers(0, 3)) == 0:
        several = draw(st.sets(st.sampled_from(free_npus), min_size=2, max_size=4))
        workers.append(worker(9000, several, draw(st.sampled_from(keys))))
    return Machine(host, found).running(containers, workers, spec=draw(specs(host)))


@st.composite
def weird(draw: st.DrawFn) -> PlanInput:
    """What no host should be: workers of unknown containers on unknown NPUs, empty cpusets, cores of several nodes,
    owners of each other's CPUs, bases of nobody, everything reserved."""
    inp = draw(busy())
    host, found = inp.topology, inp.inventory
    anything = parts(CpuSet.span(0, 400))
    anywhere = st.one_of(st.just(EMPTY), anything)
    containers = list(inp.containers)
    for index in range(draw(st.integers(0, 3))):
        owned = draw(st.one_of(st.none(), anywhere))
        some = draw(st.one_of(st.none(), st.frozensets(st.integers(0, 45), max_size=4)))
        containers.append(
            Container(key=f"odd-{index}", cpus=draw(anywhere), owned=owned, npus=some, settled=draw(st.booleans()))
        )
    keys = [container.key for container in containers] + ["nobody"]
    workers = list(inp.workers)
    for index in range(draw(st.integers(0, 3))):
        some = draw(st.frozensets(st.integers(0, 45), max_size=3))
        workers.append(worker(5000 + index, some, draw(st.sampled_from(keys))))
    bases = tuple(
        Base(
            domain=draw(st.sampled_from(["default", "pod-0", "", "odd"])) + ("" if index == 0 else f"-{index}"),
            cpus=draw(anywhere),
            npus=tuple(sorted(draw(st.frozensets(st.integers(0, 45), max_size=16)))),
        )
        for index in range(draw(st.integers(0, 3)))
    )
    if draw(st.integers(0, 3)) == 0:
        host = replace(host, cores=tuple(draw(st.lists(anything.filter(bool), max_size=5))))
    if draw(st.integers(0, 3)) == 0:
        host = replace(host, nodes=())
    if draw(st.integers(0, 3)) == 0:
        host = replace(host, root=draw(anywhere))
    if draw(st.integers(0, 5)) == 0:
        found = replace(found, npus=())
    spec = inp.spec
    if draw(st.integers(0, 3)) == 0:
        spec = replace(spec, reserved_cpus=draw(st.one_of(st.just(host.online), anywhere)))
    if draw(st.integers(0, 3)) == 0:
        spec = replace(spec, device_type=draw(st.sampled_from(DeviceType)))
    return replace(
        inp,
        topology=host,
        inventory=found,
        containers=tuple(containers),
        workers=tuple(workers),
        bases=bases,
        spec=spec,
    )


def shuffled(inp: PlanInput, order: random.Random) -> PlanInput:
    """The same input with everything in another order that has none."""

    def some(items: tuple[_Item, ...]) -> tuple[_Item, ...]:
        return tuple(order.sample(items, len(items)))

    return replace(
        inp,
        inventory=replace(inp.inventory, npus=some(inp.inventory.npus)),
        containers=some(inp.containers),
        workers=some(inp.workers),
        bases=some(inp.bases),
    )
