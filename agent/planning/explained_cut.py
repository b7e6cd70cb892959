"""How a domain was cut for one NPU, in sentences: each step of the strategy's rule with its numbers.

The numbers come from the functions that cut, so that they are those of the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agent.model.cpuset import CpuSet, union
from agent.model.node import DeviceType, Topology
from agent.model.plan import DomainPlan, NpuPlan, Plan, PlanInput
from agent.model.spec import Strategy
from agent.planning.affinity import exclusive_affinity, extend, topo_affinity
from agent.planning.clusters import CORES_PER_CLUSTER
from agent.planning.plan import choose_strategy, device_type
from agent.planning.slices import Slice, global_slice, numa_slice


def strategy_lines(inp: PlanInput, plan: Plan) -> list[str]:
    """Which device and strategy are in force, and by what."""
    device, strategy = device_type(inp), choose_strategy(inp)
    by = "as spec.deviceType says" if inp.spec.device_type else "as npu-smi shows"
    if inp.spec.strategy is not None:
        why = "since spec.strategy asks for it"
    elif device is DeviceType.A3 or device is DeviceType.ASCEND_950:
        why = f"which {device} has"
    elif strategy is Strategy.GLOBAL_SLICE:
        why = f"since npu-smi shows no CPU affinity of any NPU; else {device} has TopoAffinity"
    else:
        why = f"which {device} has where npu-smi shows CPU affinities"
    return [f"The device type is {plan.device_type}, {by}. Strategy {strategy}, {why}."]


def cut_lines(inp: PlanInput, plan: Plan, domain: DomainPlan, npu: NpuPlan) -> list[str]:
    """The steps from the domain's CPUs to the NPU's share of them, and to its pool."""
    cpus, ids = domain.base, domain.npus
    if plan.device_type is DeviceType.ASCEND_950 and plan.strategy is Strategy.TOPO_AFFINITY:
        return _clusters(inp, plan, domain, npu)
    if domain.exclusive and len(ids) == 1:
        return ["It is the container's only NPU, so that it gets all of its CPUs.", *_kept(domain, npu, cpus)]
    match plan.strategy:
        case Strategy.GLOBAL_SLICE:
            share = global_slice(cpus, ids)[npu.id]
            lines = [*_divided(cpus, ids, npu.id), *_given(share)]
        case Strategy.NUMA_SLICE:
            share = numa_slice(inp.topology, cpus, ids)[npu.id]
            lines = [*_by_node(inp.topology, cpus, ids, npu.id), *_given(share)]
        case Strategy.TOPO_AFFINITY:
            lines, share = _affinity(inp, domain, npu)
    return lines + ([] if share.problem else _kept(domain, npu, share.cpus))


def straddles(inp: PlanInput, plan: Plan, npu: NpuPlan) -> list[int]:
    """The NUMA nodes of a pool that lies on several, by a strategy that does not look at them."""
    nodes = inp.topology.nodes_of(npu.allotment.pool)
    return nodes if plan.strategy is Strategy.GLOBAL_SLICE and len(nodes) > 1 else []


def _divided(cpus: CpuSet, ids: tuple[int, ...], npu: int) -> list[str]:
    base, extra = divmod(len(cpus), len(ids))
    more = f", the first {extra} one more" if extra else ""
    said = f"{len(cpus)} CPUs over {len(ids)} NPUs: {base} each{more}, one after the other in order of ids"
    return [f"{said}; it is number {ids.index(npu)}, counted from 0."]


def _by_node(topology: Topology, cpus: CpuSet, ids: tuple[int, ...], npu: int) -> list[str]:
    nodes = topology.nodes_of(cpus)
    if not nodes:
        return ["No NUMA node has CPUs that can be cut from."]

    def node_of(rank: int) -> int:
        return nodes[rank * len(nodes) // len(ids)]

    rank = ids.index(npu)
    node = node_of(rank)
    beside = [other for at, other in enumerate(ids) if node_of(at) == node]
    local = topology.cpus_of(node) & cpus
    ranked = f"number {rank}, counted from 0, is on node {node}"
    return [
        f"{len(ids)} NPUs over {len(nodes)} NUMA nodes with allowed CPUs: {ranked}.",
        f"Its {len(local)} allowed CPUs {local} are divided evenly over {npus(beside)}.",
    ]


def _affinity(inp: PlanInput, domain: DomainPlan, npu: NpuPlan) -> tuple[list[str], Slice]:
    cpus, inventory = domain.base, inp.inventory
    cut = exclusive_affinity if domain.exclusive else topo_affinity
    share = cut(inp.topology, inventory, cpus, domain.npus)[npu.id]
    found = inventory.get(npu.id)
    if found is None or found.affinity is None:
        return ["npu-smi info -t topo shows no CPU affinity for it.", *_given(share)], share
    home = found.affinity & cpus
    lines = [f"npu-smi says that CPUs {found.affinity} are near it; of these {home or 'none'} can be cut from."]
    if not home or (domain.exclusive and share.note):
        return [*lines, *_given(share)], share
    nodes = inp.topology.nodes_of(home)
    reach = extend(inp.topology, cpus, home)
    if len(nodes) > 1:
        lines.append(f"They lie on NUMA nodes {_list(nodes)}, so that no other node is added.")
    else:
        lines.append(f"They lie on NUMA node {nodes[0]}; the next node adds {reach - home or 'nothing'}.")
    homes = {other: near for other in domain.npus if (near := _home(inp, cpus, other))}
    reaches = {other: extend(inp.topology, cpus, near) for other, near in homes.items()}
    same = [other for other in homes if reaches[other] == reach]
    rivals = [other for other in homes if other not in same and not reaches[other].isdisjoint(reach)]
    if rivals:
        lines.append(
            f"{npus(rivals)} reach{_s(rivals)} for some of these, too: CPUs near an NPU go before those of a "
            "next node, and what several still claim is shared evenly in order of their ids."
        )
    elif len(same) > 1:
        each = len(reach) // len(same)
        lines.append(
            f"{npus(same)} reach for the same {len(reach)} CPUs: {each} each, what is left over to the last; it is "
            f"number {same.index(npu.id)}, counted from 0."
        )
    else:
        lines.append(f"No other NPU reaches for any of these {len(reach)} CPUs: all are its own.")
    if away := [other for other in domain.npus if other not in homes]:
        lines.append(
            f"{npus(away)} claim{_s(away)} nothing: none of these CPUs is near, or npu-smi says of none that it is."
        )
    if domain.exclusive:
        lines.append("CPUs of the container that none of its NPUs reaches for are dealt evenly: none is left unused.")
    return [*lines, *_given(share)], share


def _clusters(inp: PlanInput, plan: Plan, domain: DomainPlan, npu: NpuPlan) -> list[str]:
    topology = inp.topology
    cpus = domain.base if domain.exclusive else union(d.base for d in plan.domains if not d.exclusive)
    found = inp.inventory.get(npu.id)
    if found is None or found.affinity is None:
        return ["npu-smi info -t topo shows no CPU affinity for it."]
    home = found.affinity & cpus
    lines = [f"npu-smi says that CPUs {found.affinity} are near it; of these {home or 'none'} can be cut from."]
    nodes = topology.nodes_of(home)
    if len(nodes) != 1:
        return lines + ([f"They lie on NUMA nodes {_list(nodes)}; one is needed."] if nodes else [])
    local = topology.cpus_of(nodes[0])
    cores = [core for core in topology.cores if not core.isdisjoint(local)]
    whole = [core for core in cores if core <= cpus]
    beside = [other for other in domain.npus if (near := _home(inp, cpus, other)) and topology.nodes_of(near) == nodes]
    lines.append(
        f"They lie on NUMA node {nodes[0]}, which has {len(whole)} whole cores that can be cut from: "
        f"{len(whole) // CORES_PER_CLUSTER} clusters of {CORES_PER_CLUSTER}. {npus(beside)} take{_s(beside)} them in "
        f"order of ids, running or not; it is number {beside.index(npu.id)}, counted from 0."
    )
    if torn := union(core for core in cores if not core <= cpus and not core.isdisjoint(cpus)) & cpus:
        lines.append(f"CPUs {torn} are left out: another thread of their core may not be used.")
    return lines


def _home(inp: PlanInput, cpus: CpuSet, npu: int) -> CpuSet | None:
    found = inp.inventory.get(npu)
    return found.affinity & cpus if found and found.affinity is not None else None


def _given(share: Slice) -> list[str]:
    if share.problem:
        return [f"That fails: {share.problem.message}."]
    return [f"Its share is {share.cpus}." + (f" {_sentence(share.note.message)}" if share.note else "")]


def _kept(domain: DomainPlan, npu: NpuPlan, share: CpuSet) -> list[str]:
    """What became of a share."""
    lost, won = share - npu.allotment.pool, npu.allotment.pool - share
    lines = []
    if off := lost - domain.cpus:
        lines.append(f"Of its share {off} may not be used now, and wait: they are other containers' own, or offline.")
    if dealt := lost & domain.cpus:
        lines.append(f"Of its share {dealt} went to NPUs that claim them in other domains or were cut before.")
    if won:
        whence = "left over by the rule and dealt evenly" if domain.exclusive else "its share of another shared domain"
        lines.append(f"It also has {won}: {whence}.")
    return lines


def npus(ids: Iterable[int]) -> str:
    """``NPU 3``, ``NPUs 0-15``."""
    known = CpuSet(ids)
    return f"NPU{'s' if len(known) != 1 else ''} {known or 'none'}"


def _s(ids: Collection[int]) -> str:
    return "s" if len(ids) == 1 else ""


def _list(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
