"""What plans say, in words: of a fleet of nodes, and of one pod. Made from CpuBindingPlan objects alone; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.cli.reported import said
from agent.model.pods import pod_from_manifest
from agent.model.reason import Reason, printable
from agent.model.remedies import sentence, with_remedy
from agent.planning.optin import ENABLED, invalid_annotation, left_alone, opted_in, unknown_annotations
from agent.telemetry.text import entries, mapping, number, word

Object = Mapping[str, Any]

_HEAD = ("NODE", "DEVICE", "STRATEGY", "MODE", "NPUS", "WORKERS", "BOUND", "FAILED", "READY", "REASON")
_TOLD = ("deviceType", "strategy", "mode", "summary", "conditions")
_ROLES = {"main": "main", "irq": "interrupts", "acl": "acl", "release": "release"}
AGENTS = "kubectl get pods -A -o wide -l app.kubernetes.io/name=cpubind"
_MOST_NAMES = 20
GUIDE = "docs/conditions.md says what to do about each reason"


def name_of(plan: Object) -> str:
    return word(mapping(plan.get("metadata")).get("name"), 80)


def some_of(names: Sequence[str]) -> str:
    """Names for one line of an error; not thousands of them."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def brief(plan: Object) -> Object:
    """What `fleet_lines` tell of a plan is told of this as well, which is a hundredth of it: it has no NPUs."""
    status = mapping(plan.get("status"))
    kept = {field: status[field] for field in _TOLD if field in status}
    return {"metadata": {"name": name_of(plan)}, "status": kept}


def condition(plan: Object, kind: str) -> Object:
    """A condition of a plan by its type; empty where it has none."""
    found = entries(mapping(plan.get("status")).get("conditions"))
    return next((one for one in found if one.get("type") == kind), {})


def ready(plan: Object) -> bool:
    return condition(plan, "Ready").get("status") == "True"


def fleet_lines(plans: Sequence[Object]) -> list[str]:
    """A table with a row for each node, then what is open on each, then the sums."""
    rows = [_HEAD, *(_row(plan) for plan in sorted(plans, key=name_of))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    told = [line for plan in sorted(plans, key=name_of) for line in _open(plan)]
    if told:
        lines += ["", *told, GUIDE]
    workers, bound = (sum(_counted(plan, field) for plan in plans) for field in ("workers", "bound"))
    fine = sum(map(ready, plans))
    return [*lines, "", f"{len(plans)} nodes, {fine} ready; {workers} workers, {bound} bound"]


def _row(plan: Object) -> tuple[str, ...]:
    status, state = mapping(plan.get("status")), condition(plan, "Ready")
    facts = [word(status.get(field), 20) or "-" for field in ("deviceType", "strategy", "mode")]
    counts = [str(_counted(plan, field)) for field in ("npus", "workers", "bound", "failed")]
    return (name_of(plan), *facts, *counts, word(state.get("status"), 10) or "-", word(state.get("reason"), 40) or "-")


def _counted(plan: Object, field: str) -> int:
    return number(mapping(mapping(plan.get("status")).get("summary")).get(field), 0)


def _open(plan: Object) -> Iterator[str]:
    """What is wrong with a node, and what it goes without."""
    name = name_of(plan)
    state, degraded = condition(plan, "Ready"), condition(plan, "Degraded")
    if not state:
        yield f"{name}: no agent has written a status yet: does one run there? {AGENTS}"
    elif not ready(plan):
        yield f"{name}: {_told(state)}"
    told = state.get("reason") if state and not ready(plan) else None
    if degraded.get("status") == "True" and degraded.get("reason") != told:
        yield f"{name}: goes without something: {_told(degraded)}"


def _told(entry: Object) -> str:
    return ": ".join(part for part in (word(entry.get("reason"), 64), word(entry.get("message"), 300)) if part)


def pod_lines(plans: Iterable[Object], namespace: str, pod: str) -> list[str]:
    """Each worker of a pod in sentences: its CPUs, what came of each step, and its node; empty where none has one."""
    lines: list[str] = []
    for plan in plans:
        for npu in entries(mapping(plan.get("status")).get("npus")):
            for worker in entries(npu.get("workers")):
                if (worker.get("namespace"), worker.get("pod")) == (namespace, pod):
                    lines += _worker(plan, npu, worker)
    return list(dict.fromkeys(lines))


def _worker(plan: Object, npu: Object, worker: Object) -> Iterator[str]:
    status = mapping(plan.get("status"))
    own = worker if worker.get("pool") else npu
    process = f"Process {number(worker.get('pid'))}"
    where = f" in container {word(worker.get('container'), 80)}" if worker.get("container") else ""
    yield f"{process}{where} works on NPU {number(npu.get('id'))} of node {name_of(plan)}: {said(worker)}."
    roles = mapping(own.get("roles"))
    parts = ", ".join(f"{title} {word(roles.get(role))}" for role, title in _ROLES.items() if roles.get(role))
    if own.get("pool") and not parts:
        yield f"Its pool would be {word(own.get('pool'))}, and is not divided into roles."
    elif own.get("pool"):
        nodes = entry_list(npu.get("numaNodes")) if own is npu else ""
        yield f"Its pool is {word(own.get('pool'))} = {parts}." + (f" It lies on NUMA node {nodes}." if nodes else "")
    else:
        yield "It has no CPUs of a plan: it runs on all that its cpuset gives."
    if "irq" in npu:
        yield f"Interrupts of NPU {number(npu.get('id'))}: {said(npu, 'irq')}."
    if "memory" in worker:
        yield f"Memory of process {number(worker.get('pid'))}: {said(worker, 'memory')}."
    if npu.get("message") and own is npu:
        yield f"NPU {number(npu.get('id'))}: {said(npu)}."
    yield from _node(plan, status)


def entry_list(value: object) -> str:
    """A list of numbers for people."""
    return ", ".join(word(one, 10) for one in value) if isinstance(value, list) else ""


def _node(plan: Object, status: Object) -> Iterator[str]:
    topology = mapping(status.get("topology"))
    less = ", ".join(
        f"{what} {word(topology.get(field))}"
        for field, what in (("reservedCpus", "reserved"), ("isolatedCpus", "isolated"))
        if topology.get(field)
    )
    yield (
        f"Node {name_of(plan)}: {word(status.get('deviceType'))}, strategy {word(status.get('strategy'))}, mode "
        f"{word(status.get('mode'))}, CPUs {word(topology.get('cpus'))}{f' less {less}' if less else ''}."
    )
    for base in entries(status.get("bases")):
        yield f"Its shared domain {word(base.get('domain'))} was cut from CPUs {word(base.get('cpus'))}."
    yield from (sentence(f"Open on node {line}") for line in _open(plan))


def node_of(manifest: Object | None) -> str:
    """The node of a pod, "" where it has none."""
    node = mapping(mapping(manifest).get("spec")).get("nodeName")
    return node if isinstance(node, str) else ""


def stranger_lines(plans: Sequence[Object], manifest: Object | None, namespace: str, name: str) -> list[str]:
    """Why a pod is in no plan. `plans` are those of its node. `manifest` is the pod as the API server has it; None
    where it can't be read."""
    if manifest is None:
        return [f"No plan has a worker of pod {namespace}/{name}, and there is no such pod that you may read."]
    pod, node = pod_from_manifest(manifest), word(mapping(manifest.get("spec")).get("nodeName"), 80)
    lines = [f"No plan has a worker of pod {namespace}/{name}."]
    if not node:
        return [*lines, f"It has no node yet: kubectl describe pod -n {namespace} {name}."]
    if problem := invalid_annotation(pod):
        return [*lines, f"{with_remedy(problem).message} (docs/annotations.md)."]
    asked = any(opted_in(pod, container.name) for container in pod.containers)
    if not asked:
        whys = dict.fromkeys(left_alone(pod, container.name) for container in pod.containers)
        lines += [f"It is not to be bound: {why}; {remedy}." for why, remedy in whys if why]
        if not any(why for why, _ in whys):
            lines.append(f'It did not ask to be bound: annotate its template with {ENABLED}: "true".')
        lines += [f"Its annotation {printable(key, 80)} means nothing." for key in unknown_annotations(pod)]
    plan = next((plan for plan in plans if name_of(plan) == node), None)
    if plan is None:
        return [*lines, f"Node {node} has no plan: no agent runs there, or it has no NPU (docs/kubernetes.md)."]
    used = [f"NPU {number(npu.get('id'))} of node {node} is {said(npu)}." for npu in _used_by(plan, namespace, name)]
    if asked and not used:
        lines.append(f"No process of it holds an NPU of node {node}, as far as the agent there has seen.")
    lines += used
    return [*lines, *_open(plan)]


def _used_by(plan: Object, namespace: str, pod: str) -> Iterator[Object]:
    """NPUs that a pod uses without having asked to be bound, as far as a plan names who does."""
    for npu in entries(mapping(plan.get("status")).get("npus")):
        owner = f"{namespace}/{pod}"
        if npu.get("reason") == Reason.NOT_OPTED_IN.value and owner in word(npu.get("message"), 600).split(" "):
            yield npu
