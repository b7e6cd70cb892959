"""Why an NPU or a process has these CPUs, in sentences: the rule's steps with its numbers."""

from __future__ import annotations

from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType
from agent.model.plan import Allotment, DomainPlan, NpuPlan, Plan, PlanInput, WorkerPlan
from agent.model.spec import Strategy
from agent.planning.affinity import extend
from agent.planning.clusters import CORES_PER_CLUSTER
from agent.planning.plan import choose_strategy


def explain_npu(inp: PlanInput, plan: Plan, npu: NpuPlan) -> list[str]:
    """Sentences on one NPU, in the order in which the rule decides."""
    lines = [f"NPU {npu.id}: {_outcome(npu.allotment)}", *_node(inp, plan)]
    domain = next((d for d in plan.domains if d.name == npu.domain and npu.id in d.npus), None)
    if domain is None:
        return lines
    lines += [*_domain(inp, plan, domain), *_strategy(inp, plan, domain, npu)]
    workers = [w for w in plan.workers if npu.id in w.worker.npus]
    if not workers:
        lines.append("No process that is to be bound runs on it: its CPUs wait for one.")
    lines += [f"Process {w.worker.process.pid} ({w.worker.name}) is its worker." for w in workers]
    return lines


def explain_worker(inp: PlanInput, plan: Plan, entry: WorkerPlan) -> list[str]:
    """Sentences on one process: whose it is, then its NPU."""
    worker = entry.worker
    container = next((c for c in inp.containers if c.key == worker.container), None)
    npus = ", ".join(f"NPU {npu}" for npu in worker.npus)
    lines = [f"Process {worker.process.pid} ({worker.name}) works on {npus}: {_outcome(entry.allotment)}"]
    if worker.residual:
        left = ", ".join(f"NPU {npu}" for npu in worker.residual)
        lines.append(f"It also keeps a leftover context on {left}, which counts for nothing.")
    if container is not None:
        lines.append(f"It runs in {container.title}, whose effective cpuset is {container.cpus}.")
        if container.owned is not None:
            lines.append(f"These CPUs are its container's own: {container.owned}, by {container.evidence}.")
    if entry.own:
        lines.append("Its pool is not that of the NPU's entry: it lives in another domain, or works on several NPUs.")
    for npu in worker.npus:
        if found := plan.npu(npu):
            lines += explain_npu(inp, plan, found)
    return list(dict.fromkeys(lines))


def _outcome(allotment: Allotment) -> str:
    roles = allotment.roles
    if roles is None:
        return f"no CPUs. {allotment.problem}" if allotment.problem else "no CPUs."
    parts = [f"main {roles.main}"]
    parts += [f"interrupts {roles.irq}", f"acl {roles.acl}", f"release {roles.release}"] if roles.irq else []
    extra = "".join(f" ({p})" for p in (allotment.problem, allotment.note) if p)
    return f"pool {allotment.pool} = {', '.join(parts)}.{extra}"


def _node(inp: PlanInput, plan: Plan) -> list[str]:
    if plan.problem is not None:
        return [f"Nothing can be planned on this node: {plan.problem}."]
    topology, spec = inp.topology, inp.spec
    off = [
        f"reserved {spec.reserved_cpus}" if spec.reserved_cpus else "",
        f"isolated {topology.isolated}" if topology.isolated and not spec.include_isolated_cpus else "",
        f"outside the root cpuset {topology.online - topology.root}" if topology.online - topology.root else "",
    ]
    less = ", ".join(part for part in off if part)
    return [
        f"The node plans with CPUs {plan.node_cpus}" + (f" (online {topology.online}, less {less})." if less else ".")
    ]


def _domain(inp: PlanInput, plan: Plan, domain: DomainPlan) -> list[str]:
    ids = ", ".join(map(str, domain.npus))
    if domain.exclusive:
        owner = next((c for c in inp.containers if c.key in domain.containers), None)
        evidence = f", by {owner.evidence}" if owner and owner.evidence else ""
        return [f"Its container {domain.name} owns CPUs {domain.cpus}{evidence}; they are for its NPUs {ids} alone."]
    lines = [f"It belongs to the shared domain {domain.name} with NPUs {ids}, running or not."]
    if plan.exclusive_cpus:
        lines.append(f"CPUs {plan.exclusive_cpus} belong to containers of their own and are left out.")
    if domain.base != domain.cpus:
        lines.append(
            f"The domain was cut from CPUs {domain.base}; of these {domain.base & domain.cpus} can be used now."
        )
    return lines


def _strategy(inp: PlanInput, plan: Plan, domain: DomainPlan, npu: NpuPlan) -> list[str]:
    asked = "spec.strategy" if inp.spec.strategy else f"device type {plan.device_type}"
    lines = [f"Strategy {choose_strategy(inp)}, by {asked}."]
    cpus, count = domain.base, len(domain.npus)
    if domain.exclusive and count == 1 and plan.device_type is not DeviceType.ASCEND_950:
        return [*lines, "It is the container's only NPU, so that it gets all of its CPUs."]
    if plan.strategy is Strategy.GLOBAL_SLICE:
        base, extra = divmod(len(cpus), count)
        more = f", the first {extra} one more" if extra else ""
        rank = domain.npus.index(npu.id)
        return [*lines, f"{len(cpus)} CPUs over {count} NPUs: {base} each{more}; it is number {rank} of them."]
    if plan.strategy is Strategy.NUMA_SLICE:
        nodes = inp.topology.nodes_of(cpus)
        rank = domain.npus.index(npu.id)
        node = nodes[rank * len(nodes) // count] if nodes else "none"
        return [*lines, f"{count} NPUs over {len(nodes)} NUMA nodes with allowed CPUs: it goes to node {node}."]
    return lines + _affinity(inp, plan, cpus, npu)


def _affinity(inp: PlanInput, plan: Plan, cpus: CpuSet, npu: NpuPlan) -> list[str]:
    found = inp.inventory.get(npu.id)
    if found is None or found.affinity is None:
        return ["npu-smi info -t topo shows no CPU affinity for it."]
    home = found.affinity & cpus
    lines = [f"npu-smi says that CPUs {found.affinity} are near it; of these {home or 'none'} can be cut from."]
    if not home:
        return lines
    nodes = inp.topology.nodes_of(home)
    if plan.device_type is DeviceType.ASCEND_950:
        return [
            *lines,
            f"They lie on NUMA node {nodes[0]}, whose whole cores are dealt in clusters of {CORES_PER_CLUSTER}.",
        ]
    extended = extend(inp.topology, cpus, home)
    if len(nodes) > 1:
        return [*lines, f"They lie on NUMA nodes {', '.join(map(str, nodes))}, so that no other node is added."]
    added = extended - home
    lines.append(f"They lie on NUMA node {nodes[0]}; the next node adds {added or 'nothing'}.")
    rivals = [
        other.id
        for other in inp.inventory.npus
        if other.id != npu.id
        and other.affinity is not None
        and (near := other.affinity & cpus)
        and not extend(inp.topology, cpus, near).isdisjoint(extended)
    ]
    if rivals:
        lines.append(f"NPUs {', '.join(map(str, rivals))} reach for some of these, too; each got a share of its own.")
    return lines
