"""Why an NPU or a process has these CPUs, in sentences: the rule's steps with its numbers, in the order in which it
decides; what is left undone, and what would change the outcome."""

from __future__ import annotations

from agent.model.plan import Allotment, DomainPlan, NpuPlan, Plan, PlanInput, WorkerPlan
from agent.model.remedies import remedy_of
from agent.model.spec import Helpers, Mode, Rebalance, Steps
from agent.model.workload import Container
from agent.planning.explained_cut import cut_lines, npus, straddles, strategy_lines
from agent.planning.memory import objection, target_node


def explain_npu(inp: PlanInput, plan: Plan, npu: NpuPlan) -> list[str]:
    """Sentences on one NPU."""
    lines = [f"NPU {npu.id}: {_outcome(npu.allotment)}", *_node(inp, plan)]
    domain = next((d for d in plan.domains if d.name == npu.domain and npu.id in d.npus), None)
    if domain is None:
        return _told([*lines, remedy_of(npu.allotment.problem or plan.problem)])
    lines += [*_domain(inp, plan, domain), *strategy_lines(inp, plan), *cut_lines(inp, plan, domain, npu)]
    lines += _roles(plan, npu.allotment)
    workers = [w for w in plan.workers if npu.id in w.worker.npus]
    if not workers:
        lines.append("No process that is to be bound runs on it: its CPUs wait for one.")
    lines += [f"Process {w.worker.process.pid} ({w.worker.name}) is its worker." for w in workers]
    return _told([*lines, *_changes(inp, plan, domain, npu)])


def explain_worker(inp: PlanInput, plan: Plan, entry: WorkerPlan, steps: Steps | None = None) -> list[str]:
    """Sentences on one process: whose it is, its NPU, and what is done for it besides placing its threads.

    `steps` is what its pod's annotations leave of `spec`; without them what `spec` says.
    """
    worker = entry.worker
    container = next((c for c in inp.containers if c.key == worker.container), None)
    lines = [f"Process {worker.process.pid} ({worker.name}) works on {npus(worker.npus)}: {_outcome(entry.allotment)}"]
    if worker.residual:
        lines.append(f"It also keeps a leftover context on {npus(worker.residual)}, which counts for nothing.")
    if container is not None:
        lines += _container(container)
    if entry.own:
        lines.append("Its pool is not that of the NPU's entry: it lives in another domain, or works on several NPUs.")
        lines.append(remedy_of(entry.allotment.problem or entry.allotment.note))
    lines += _steps(inp, plan, entry, steps)
    for npu in worker.npus:
        if found := plan.npu(npu):
            alone = entry.own and len(worker.npus) == 1 and found.domain != entry.domain
            lines += explain_npu(inp, plan, NpuPlan(npu, entry.domain, entry.allotment) if alone else found)
    return _told(lines)


def _told(lines: list[str]) -> list[str]:
    """Each line that says something, once."""
    return [line for line in dict.fromkeys(lines) if line]


def _outcome(allotment: Allotment) -> str:
    roles = allotment.roles
    if roles is None:
        return f"no CPUs. {allotment.problem}." if allotment.problem else "no CPUs."
    parts = [f"main {roles.main}"]
    parts += [f"interrupts {roles.irq}", f"acl {roles.acl}", f"release {roles.release}"] if roles.irq else []
    extra = "".join(f" ({p})" for p in (allotment.problem, allotment.note) if p)
    return f"pool {allotment.pool} = {', '.join(parts)}.{extra}"


def _container(container: Container) -> list[str]:
    lines = [f"It runs in {container.title}, whose effective cpuset is {container.cpus}."]
    if container.owned is not None:
        lines.append(f"These CPUs are its container's own: {container.owned}, by {container.evidence}.")
    else:
        lines.append("Nothing says that its container owns its CPUs: it is in a shared domain.")
    if container.npus is not None:
        lines.append(f"Allocated to it: {npus(container.npus)}.")
    return lines


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
    ids = npus(domain.npus)
    if domain.exclusive:
        owner = next((c for c in inp.containers if c.key in domain.containers), None)
        evidence = f", by {owner.evidence}" if owner and owner.evidence else ""
        return [f"Its container {domain.name} owns CPUs {domain.cpus}{evidence}; they are for its {ids} alone."]
    lines = [f"It belongs to the shared domain {domain.name} with {ids}, running or not."]
    if elsewhere := [npu.id for npu in plan.npus if npu.id not in domain.npus]:
        lines.append(f"Left out are {npus(elsewhere)}: of another domain, or seen after this one was cut.")
    if plan.exclusive_cpus:
        lines.append(f"CPUs {plan.exclusive_cpus} belong to containers of their own and are left out.")
    if domain.base != domain.cpus:
        lines.append(
            f"The domain was cut from CPUs {domain.base}; of these {domain.base & domain.cpus} can be used now."
        )
    return lines


def _roles(plan: Plan, allotment: Allotment) -> list[str]:
    roles, pool = allotment.roles, allotment.pool
    if roles is None:
        return []
    if not roles.irq:
        return [f"All {len(pool)} CPUs are main: on {plan.device_type} no CPU is set apart for a role."]
    first, second = roles.irq.take(1), roles.irq - roles.irq.take(1)
    ends = f"the first two take interrupts (SQ on {first}, CQ on {second}), the last two the ACL thread ({roles.acl})"
    middle = f"the {len(roles.main)} between are main"
    return [f"Of its {len(pool)} CPUs {ends} and the release thread ({roles.release}); {middle}."]


def _steps(inp: PlanInput, plan: Plan, entry: WorkerPlan, steps: Steps | None) -> list[str]:
    """What is done besides placing threads, and what is skipped and why."""
    spec, roles = inp.spec, entry.allotment.roles
    if roles is None:
        return []
    own = steps or Steps(spec.irq_binding, spec.memory_migration, spec.helpers)
    lines = []
    if not plan.device_type.binds_irqs:
        lines.append(f"Interrupts are skipped: those of {plan.device_type} stay where they are.")
    elif not own.irq_binding:
        lines.append(f"Interrupts are skipped: {_switched('irqBinding', 'irq-binding', asked=spec.irq_binding)}.")
    elif len(entry.worker.npus) > 1:
        lines.append("Interrupts of each of its NPUs go to the interrupt CPUs of that NPU's pool.")
    else:
        lines.append(f"Interrupts of its NPU go to CPUs {roles.irq}.")
    found = inp.inventory.get(entry.worker.npus[0])
    home = found.affinity if found and found.affinity is not None else roles.main
    node = target_node(inp.topology, roles.main, entry.allotment.pool, home)
    against = objection(inp.topology, node, enabled=own.memory_migration, npus=len(entry.worker.npus))
    if against is None:
        lines.append(f"Its private memory is moved to NUMA node {node} once, when it is first bound.")
    elif not own.memory_migration:
        why = _switched("memoryMigration", "memory-migration", asked=spec.memory_migration)
        lines.append(f"Memory is skipped: {why}.")
    else:
        lines.append(f"Memory is skipped: {against.message} ({against.reason}).")
    if own.helpers is Helpers.CONFINE:
        lines.append("Other processes of its container are kept off the CPUs that are set apart (helpers: Confine).")
    else:
        lines.append("Other processes of its container are left alone (helpers: Leave).")
    if spec.mode is not Mode.ENFORCE:
        lines.append(f"None of this is done: the mode is {spec.mode}.")
    return lines


def _switched(field: str, annotation: str, *, asked: bool) -> str:
    return f"the pod's annotation cpubind.dev/{annotation} says false" if asked else f"spec.{field} is false"


def _changes(inp: PlanInput, plan: Plan, domain: DomainPlan, npu: NpuPlan) -> list[str]:
    """What would give it other CPUs."""
    lines = [remedy_of(npu.allotment.problem or npu.allotment.note)]
    if nodes := straddles(inp, plan, npu):
        lines.append(
            f"Its pool lies on NUMA nodes {', '.join(map(str, nodes))}; with spec.strategy NumaSlice it would be cut "
            "from one."
        )
    if domain.exclusive:
        return [*lines, "Its CPUs change when kubelet gives the container others, and with nothing else."]
    if domain.base != domain.cpus:
        when = (
            "CPUs that come back stay unused (spec.rebalance OnGrow would cut anew then)"
            if inp.spec.rebalance is Rebalance.NEVER
            else "it is cut anew when CPUs come back (spec.rebalance OnGrow)"
        )
        lines.append(f"The domain stays cut as it is while a worker is bound in it: {when}.")
    lines.append(
        "Its share changes with spec (strategy, deviceType, reservedCpus, includeIsolatedCpus), and with pods that own "
        "CPUs; not with workers that come or go."
    )
    return lines
