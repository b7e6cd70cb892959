"""Commands that look and change nothing: ``plan``, ``explain``, ``verify``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from agent.cli.cluster import cluster_view
from agent.cli.options import (
    Source,
    host_options,
    select_option,
    settings_from,
    snapshot_option,
    source,
    spec_in_force,
    spec_options,
)
from agent.cli.progress import told_when_slow
from agent.cli.reported import at_large, irqs_left, is_open, pids_of, reported
from agent.cli.select import chooser
from agent.control.conditions import no_plan_at_all
from agent.control.irq_check import misplaced_irqs, planned_irqs
from agent.control.report import npu_entries, plan_hash
from agent.control.statefile import as_yaml
from agent.control.survey import Survey, survey
from agent.model.plan import Plan, WorkerPlan
from agent.model.reason import Problem, Reason, Refused, printable
from agent.model.remedies import sentence, with_remedy
from agent.model.spec import Mode, Spec, Steps
from agent.node.recorded import ProcStatusHost
from agent.node.threads import ThreadBinder
from agent.planning.explanation import explain_npu, explain_worker
from agent.planning.optin import ENABLED, left_alone, steps_of, unknown_annotations
from agent.settings import SPEC_SETTINGS
from agent.telemetry.picture import numa_map, plan_table
from agent.telemetry.svg import plan_svg
from agent.telemetry.text import entries, make_console


@click.command(short_help="Print the plan of this node, or of a snapshot.")
@click.option(
    "-o",
    "--output",
    envvar="CPUBIND_OUTPUT",
    type=click.Choice(["table", "json", "yaml", "svg"]),
    default="table",
    show_default=True,
)
@snapshot_option
@select_option
@host_options
@spec_options
def plan(output: str, snapshot: Path | None, selects: tuple[str, ...], **flags: Any) -> int:
    """Print the plan: which CPUs each NPU's worker, ACL and release thread and interrupts should run on.

    Nothing is written to the host. JSON and YAML are the CpuBindingPlan object. When no plan can be made the reason
    is on stderr and in the object's conditions, and the exit status is 1. SVG is the map as a picture for a browser.

    \b
    cpubind plan                                  this node, as a table and a map of its NUMA nodes
    cpubind plan -o svg >node.svg                 the map as a picture
    cpubind plan --reserved-cpus 0-3 -o yaml      what it would be with CPUs 0-3 kept free
    cpubind plan --strategy NumaSlice             what it would be with another strategy
    cpubind plan --select npu=0-3                 only the processes on these NPUs
    cpubind plan --snapshot node.tar.gz -o json   a node that somebody captured
    """
    settings = settings_from(flags)
    view = None if snapshot else cluster_view(settings)
    spec, raw, unread = spec_in_force(settings, live=snapshot is None, view=view)
    with source(settings, snapshot, chooser(selects), view) as origin:
        found = _look(origin, spec, unread)
    document = found.document(now=_now(), spec=raw)
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    elif output == "yaml":
        click.echo(as_yaml(document), nl=False)
    elif output == "svg":
        click.echo(plan_svg(document), nl=False)
    else:
        console = make_console()
        console.print(plan_table(document))
        if found.decision is not None and found.decision.plan.problem is None:
            console.print(numa_map(document))
    _say_notes(found)
    return _verdict(found, origin)


@click.command(short_help="Say why an NPU, a process or a pod has its CPUs.")
@click.argument("subject", metavar="POD|PID|npu:N")
@snapshot_option
@select_option
@host_options
@spec_options
def explain(subject: str, snapshot: Path | None, selects: tuple[str, ...], **flags: Any) -> int:
    """Say why an NPU (npu:3), a process (its pid) or a pod (name or namespace/name) has the CPUs that it has: its
    domain, the NPUs that share it, the strategy, each step of the rule with its numbers, what is skipped and why, and
    what would change it. At the end stands what the agent last reported of it.

    Nothing is written to the host. Pods are known in the agent's pod, and in a snapshot that was taken there; a bare
    host has none. A spec flag asks "what if".

    \b
    cpubind explain npu:3                           an NPU, whether or not somebody is on it
    cpubind explain 4711                            a process on an NPU
    cpubind explain prod/llm-0                      a pod, in the agent's pod
    cpubind explain npu:3 --strategy NumaSlice      why it would have others
    cpubind explain prod/llm-0 --snapshot node.tar.gz
    """
    kind, _, number = subject.partition(":")
    if kind == "npu" and not _is_number(number):
        raise click.UsageError(f"{printable(subject, 60)!r} is no NPU: npu:0, npu:1, …")
    settings = settings_from(flags)
    view = None if snapshot else cluster_view(settings)
    spec, _, unread = spec_in_force(settings, live=snapshot is None, view=view)
    with source(settings, snapshot, chooser(selects), view) as origin:
        found = _look(origin, spec, unread)
    decision = found.decision
    if decision is None:
        for line in _last_reported(origin, subject):
            click.echo(line)
        return _verdict(found, origin)
    if kind == "npu":
        npu = decision.plan.npu(int(number))
        if npu is None:
            known = ", ".join(str(n.id) for n in decision.plan.npus)
            # No reason of the list: with each goes a remedy, and nothing is wrong with the node.
            raise click.ClickException(f"there is no NPU {number} on this node; there are {known}")
        lines = explain_npu(decision.inp, decision.plan, npu)
        short = next(listed for listed in npu_entries(found.report) if listed["id"] == npu.id)
        if "message" in short:
            lines.append(f"In short, as status.npus[].message has it: {short['reason']}: {short['message']}.")
        lines += reported(origin.status, npu=npu.id)
    else:
        workers = _workers(found, subject, origin)
        if not workers:
            _say_notes(found)  # that pods can't be listed, say
            raise Refused(Reason.NO_WORKERS, _nobody(found, origin, subject))
        # A look is a dry run whatever the mode; what is told of is what the agent does.
        inp = replace(decision.inp, spec=replace(decision.inp.spec, mode=(origin.spec or spec).mode))
        lines = []
        for entry in workers:
            lines += explain_worker(inp, decision.plan, entry, _steps(found, entry))
            lines += reported(origin.status, pid=entry.worker.process.pid)
    if is_open(origin.status):
        lines.append(sentence(f"The node: {at_large(origin.status)}"))
    for line in dict.fromkeys(lines):
        click.echo(line)
    _say_notes(found)
    _verdict(found, origin)
    return 0


@click.command(short_help="Compare where threads may run with the plan; exit 1 on drift.")
@snapshot_option
@select_option
@host_options
@spec_options
def verify(snapshot: Path | None, selects: tuple[str, ...], **flags: Any) -> int:
    """Compare the masks of all threads of workers, and of the interrupts of their NPUs, with the plan. Exit 0: all in
    place; 1: some are not, and the list of them; or there is no plan.

    Nothing is written to the host. Masks are read from /proc below the host root, so that this works on a snapshot,
    too. Main threads that narrowed themselves to a part of the main CPUs count as in place. Interrupts that the agent
    reports as skipped or failed are not compared.

    \b
    cpubind verify                              this host, or in the agent's pod its node
    cpubind verify || cpubind plan              what is astray, then what was planned
    cpubind verify --select npu=0-3             only the processes on these NPUs
    cpubind verify --snapshot node.tar.gz       a node that somebody captured

    A thread that is not in place is put there by the agent, within a sweep (5 s). If none runs, nobody does: see
    `cpubind run`. If one runs and the thread is listed again, somebody else moves it: `kubectl describe` its pod.
    """
    settings = settings_from(flags)
    view = None if snapshot else cluster_view(settings)
    spec, _, unread = spec_in_force(settings, live=snapshot is None, view=view)
    with source(settings, snapshot, chooser(selects), view) as origin:
        found = _look(origin, spec, unread)
        if found.decision is None or found.seen is None:
            return _verdict(found, origin)
        unplanned, moved = 0, list[int]()
        proc = origin.observer.root / "proc"
        for entry in found.decision.plan.workers:
            process, roles = entry.worker.process, entry.allotment.roles
            if roles is None:
                click.echo(f"process {process.pid} ({entry.worker.name}): not planned: {entry.allotment.problem}")
                unplanned += 1
                continue
            binder = ThreadBinder(proc, ProcStatusHost(proc, process.pid))
            for thread in binder.check(
                process,
                roles,
                cpuset=found.seen.cpusets.get(process, entry.allotment.pool),
                online=found.seen.topology.online,
                rules=found.decision.inp.spec.thread_rules,
            ):
                where = f"on {thread.mask}, planned {thread.target}"
                click.echo(f"process {process.pid} thread {thread.tid} ({thread.comm}, {thread.role}): {where}")
                moved.append(process.pid)
        irqs = _misplaced_irqs(found, origin)
    _say_notes(found)
    _verdict(found, origin)
    workers, astray = len(found.decision.plan.workers), len(moved)
    blind = any(note.reason in _BLIND for note in found.report.notes)
    if astray or unplanned or irqs:
        counts = f"{astray} threads not in place, {unplanned} of {workers} workers not planned"
        counts += f", {irqs} interrupts not in place" if irqs else ""
        click.echo(f"cpubind: {Problem(Reason.DRIFT if astray or irqs else Reason.PENDING, counts)}", err=True)
        what_if = bool(settings.flags & SPEC_SETTINGS)
        advice = _put_back(origin, found.decision.plan, moved, what_if=what_if) if astray or irqs else _CHANGE
        click.echo(f"cpubind: {advice}", err=True)
    elif not workers:
        click.echo("no process that is to be bound was seen on an NPU: nothing to compare")
    else:
        click.echo(f"every thread of {workers} workers is in place")
    return 1 if astray or unplanned or irqs or blind or no_plan_at_all(found.report) else 0


def _misplaced_irqs(found: Survey, origin: Source) -> int:
    """Prints the interrupts that are not in place, and counts them. Those that the agent says it can't place are told
    and not counted: they are no drift."""
    assert found.decision is not None
    assert found.seen is not None
    count = 0
    wanted = planned_irqs(found.decision.inp, found.decision.plan, found.seen)
    for npu, cpus in sorted(wanted.items(), key=lambda item: item[0].id):
        if why := irqs_left(origin.status, npu.id):
            click.echo(f"cpubind: interrupts of NPU {npu.id} are not compared: the agent reports {why}", err=True)
            continue
        try:
            for irq in misplaced_irqs(origin.observer.root, npu, cpus, found.seen.topology.online):
                where = f"on {irq.mask}, planned {irq.target}"
                click.echo(f"interrupt {irq.irq} ({irq.action} of NPU {irq.npu}): {where}")
                count += 1
        except Refused as refused:
            click.echo(f"cpubind: interrupts of NPU {npu.id} are not compared: {refused.problem}", err=True)
    return count


_CHANGE = "what would change it: cpubind explain PID"


def _put_back(origin: Source, plan: Plan, moved: Sequence[int], *, what_if: bool) -> str:
    """Who puts threads back, or why nobody does. `moved` are their processes. What an agent was told by flags is in no
    file: it shows in what it reports alone."""
    ours, theirs = plan_hash(plan), origin.status.get("planHash")
    another = isinstance(theirs, str) and theirs != ours
    if what_if and another:
        return "planned here is what the flags of this command ask for, and not what the agent last reported"
    if not origin.live:
        return "the masks are those of the time of the capture; whether an agent ran then is in the node's log"
    if (mode := origin.status.get("mode")) in (Mode.DRY_RUN, Mode.DISABLED):
        return f"nobody puts them back: the agent last reported mode {mode}"
    if another:
        other = f"the agent last reported another plan ({printable(str(theirs), 20)}, here it is {ours})"
        return f"{other}: was it started with flags that were not given here? Else it plans anew within seconds"
    told = entries(origin.status.get("npus"))
    pids = [worker.get("pid") for npu in told for worker in entries(npu.get("workers"))]
    unknown = [pid for pid in moved if pid not in pids]
    if unknown and told and not any("workersOmitted" in npu for npu in told):
        other = f"the agent last reported no process {unknown[0]}: does it run (cpubind doctor says so)?"
        return f"{other} With --select? Then give the same here"
    return "an agent puts them back within a sweep: does one run (cpubind doctor says so), is its mode Enforce?"


_BLIND = frozenset({Reason.NOT_THIS_KERNEL, Reason.PROCESS_UNREADABLE, Reason.CPUSET_UNREADABLE})
"""Notes with which it can't be said that all is well."""


def _say_notes(found: Survey) -> None:
    """What is missing, on stderr."""
    for note in found.report.notes:
        click.echo(f"cpubind: {with_remedy(note)}", err=True)


def _verdict(found: Survey, origin: Source) -> int:
    """0 where there is a plan; else the reason on stderr, and 1. Where the node can't be read now, what the agent last
    reported is all that there is to say of it."""
    problem = no_plan_at_all(found.report)
    invalid = next((fault for fault in found.report.faults if fault != problem), None)
    for fault in (problem, invalid):
        if fault is not None:
            click.echo(f"cpubind: {with_remedy(fault)}", err=True)
    if found.decision is None and (last := at_large(origin.status)):
        click.echo(f"cpubind: {last}", err=True)
    return 1 if problem or invalid else 0


def _last_reported(origin: Source, subject: str) -> list[str]:
    """What the agent has written of an NPU, a process or a pod."""
    kind, _, number = subject.partition(":")
    if kind == "npu":
        return reported(origin.status, npu=int(number))
    pids = [int(subject)] if _is_number(subject) else pids_of(origin.status, subject)
    return list(dict.fromkeys(line for pid in pids for line in reported(origin.status, pid=pid)))


def _is_number(text: str) -> bool:
    """Of an NPU or a process; int() refuses thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= 10


def _workers(found: Survey, subject: str, origin: Source) -> list[WorkerPlan]:
    """Of a process by its pid, of a pod by its name. A host that does not know the names of pods takes the agent's word
    for whose a process is."""
    assert found.decision is not None
    entries = found.decision.plan.workers
    if _is_number(subject):
        return [entry for entry in entries if entry.worker.process.pid == int(subject)]
    keys = {
        c.key for c in found.decision.inp.containers if c.pod and subject in (c.pod, f"{c.namespace}/{c.pod}", c.key)
    }
    named = [entry for entry in entries if entry.worker.container in keys]
    pids = () if named else pids_of(origin.status, subject)
    return named or [entry for entry in entries if entry.worker.process.pid in pids]


def _steps(found: Survey, entry: WorkerPlan) -> Steps | None:
    """What is done for a worker, by the annotations of its pod."""
    seen, process = found.seen, entry.worker.process
    if seen is None or found.decision is None or process not in seen.pods:
        return None
    return steps_of(seen.pods[process], seen.places[process][2], found.decision.inp.spec)


def _nobody(found: Survey, origin: Source, subject: str) -> str:
    """Why nothing of that name is planned."""
    name = printable(subject, 80)
    for (namespace, short), problem in (found.seen.misannotated if found.seen else {}).items():
        if name in (short, f"{namespace}/{short}"):
            return with_remedy(problem).message
    strangers = [c for group in (found.seen.strangers.values() if found.seen else ()) for c in group]
    for stranger in strangers:
        pod = stranger.pod
        if name in (str(stranger.process.pid), *((pod.name, f"{pod.namespace}/{pod.name}") if pod else ())):
            why, remedy = left_alone(pod, stranger.container_name)
            if not why:
                why, remedy = "its pod did not opt in", f'annotate the pod\'s template with {ENABLED}: "true"'
            strange = ", ".join(unknown_annotations(pod)) if pod else ""
            hint = f" (its annotation {printable(strange, 80)} means nothing)" if strange else ""
            return f"{name} uses an NPU and is not to be bound: {why}; {remedy}{hint}"
    if any(name in (pod.name, f"{pod.namespace}/{pod.name}") for pod in origin.pods):
        return f"no process of pod {name} holds an NPU: npu-smi info and /proc/PID/fd on the node show who does"
    return f"{name} is neither an NPU (npu:0), nor a process on an NPU, nor a pod with one: cpubind plan lists them"


def _look(origin: Source, spec: Spec, unread: Sequence[Problem]) -> Survey:
    """A survey that writes nothing, whatever mode is set."""
    dry = replace(origin.spec or spec, mode=Mode.DRY_RUN)
    accepted = origin.accepted
    with told_when_slow(f"reading {origin.node}: npu-smi may take its time"):
        return survey(
            origin.observer,
            origin.npu_smi,
            dry,
            node=origin.node,
            journal=origin.journal,
            problems=(*unread, *origin.problems),
            accepted=replace(accepted, mode=Mode.DRY_RUN) if accepted else None,
        )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
