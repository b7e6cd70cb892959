"""``cpubind run``: the agent, on a node of a cluster or on a host without one."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent import __version__
from agent.cli.heap import HeapKeeper
from agent.cli.options import (
    JOURNAL,
    LOCK,
    STATE,
    host_options,
    npu_smi_of,
    select_option,
    settings_from,
    spec_options,
)
from agent.cli.select import chooser
from agent.control.act import Actor
from agent.control.events import Events
from agent.control.loop import Agent, Parts
from agent.control.observe import Observer
from agent.control.statefile import StateFile
from agent.control.steps import HostSteps
from agent.model.address import parse_address
from agent.model.reason import Problem, Reason, Refused
from agent.model.spec import Spec
from agent.node.devices import has_npu
from agent.node.host import LinuxHost
from agent.node.npu_smi.command import NpuSmi
from agent.node.npu_smi.counted import CountedNpuSmi
from agent.node.procfs import boot_id
from agent.node.storage import HostLock
from agent.settings import Settings, name_of
from agent.telemetry.log import setup

if TYPE_CHECKING:
    from agent.cli.serving import Serving

log = logging.getLogger("agent.run")

LOOK_AGAIN_SECONDS = 600.0
"""How often a node without NPUs is looked at again."""
SWITCH_SECONDS = 0.001
"""How long an event may wait for Python to take the thread of the loop off the CPU; by default that is 5 ms."""
LOCK_SECONDS = 1.0
"""How often a cluster agent tries for the lock that another one has: it may be ending just now."""


@click.command(short_help="Run the agent: bind, watch, repair.")
@click.option(
    "--standalone",
    is_flag=True,
    envvar="CPUBIND_STANDALONE",
    help="Without Kubernetes: bind every NPU worker of this host, or --select.",
)
@click.option(
    "--dry-run", is_flag=True, envvar="CPUBIND_DRY_RUN", help="Compute and show everything, write nothing to the host."
)
@click.option(
    "--state-file", metavar="FILE", help="Standalone: the plan. Default: HOST_ROOT/var/lib/cpubind/plan.yaml."
)
@click.option("--journal-file", metavar="FILE", help="Default: HOST_ROOT/var/lib/cpubind/journal.json.")
@click.option("--lock-file", metavar="FILE", help="Default: HOST_ROOT/run/cpubind/lock.")
@click.option("--sweep-interval", type=float, metavar="SECONDS", help="Longest time until drift is found. Default: 5.")
@click.option(
    "--memory-timeout", type=float, metavar="SECONDS", help="What moving a worker's memory may take. Default: 10."
)
@click.option(
    "--status-interval", type=float, metavar="SECONDS", help="Cluster: shortest time between two writes. Default: 10."
)
@click.option(
    "--api-jitter",
    type=float,
    metavar="SECONDS",
    help="Cluster: after a start or a cut watch a random part of this passes before the API server is asked; none "
    "where a worker waits for that. Default: 10.",
)
@click.option("--pod-selection", metavar="NAME", help="Cluster: Annotated or AllNpuPods. Default: Annotated.")
@click.option("--namespaces", metavar="NAMES", help="Cluster: only pods in these, separated by commas. Default: all.")
@click.option("--exclude-namespaces", metavar="NAMES", help="Cluster: no pods in these.")
@click.option("--service-account-dir", metavar="DIR", help="Cluster: folder with token and ca.crt.")
@click.option("--health-address", metavar="ADDRESS", help="Cluster: HOST:PORT, :PORT or off. Default: :8086.")
@click.option(
    "--metrics-address",
    metavar="ADDRESS",
    help="HOST:PORT, :PORT or off. Default: :9486 in a cluster, off with --standalone.",
)
@click.option("--metrics-tls-cert", metavar="FILE", help="Serve metrics with TLS: the certificate, PEM.")
@click.option("--metrics-tls-key", metavar="FILE", help="Its key.")
@click.option("--metrics-tls-client-ca", metavar="FILE", help="Answer clients with a certificate of this CA alone.")
@click.option("--metrics-per-pod", is_flag=True, default=None, help="One metric more, whose labels are pods' names.")
@click.option("--log-format", metavar="FORMAT", help="text or json. Default: text.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: info.")
@select_option
@host_options
@spec_options
def run(standalone: bool, dry_run: bool, selects: tuple[str, ...], **flags: Any) -> int:
    """Run the agent on this host until SIGTERM or SIGINT; bindings stay when it ends.

    In a cluster it runs in a pod of the Helm chart's DaemonSet, binds the pods that opted in by annotation, and keeps
    its plan as the CpuBindingPlan of its node. Spec flags are what a field means that is absent there.

    With --standalone its state is a CpuBindingPlan in the state file. `spec` in there is yours to edit, the agent
    follows within one sweep; `status` is rewritten by the agent. In a dry run the state file is written only if you
    name one.

    \b
    cpubind run                                               in a pod of the Helm chart
    cpubind run --standalone --dry-run                        see what it would do
    cpubind run --standalone                                  bind every NPU worker of this host
    cpubind run --standalone --select 'cgroup=*/docker*'      only processes in docker containers
    """
    if selects and not standalone:
        raise click.UsageError("--select is for --standalone: in a cluster pods opt in by annotation")
    settings = settings_from(flags)
    # Who names namespaces, be it in the environment, must not have every worker of the host bound.
    narrowed = {name for name in ("namespaces", "exclude_namespaces") if getattr(settings, name)}
    if standalone and (unheard := sorted(settings.flags & _OF_A_CLUSTER | narrowed)):
        named = ", ".join(name_of(name, given=name in settings.flags) for name in unheard)
        raise click.UsageError(f"{named}: for a cluster's agent; with --standalone --select says whose workers")
    setup(settings.log_format, settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    if standalone:
        return serve(settings, settings.spec(), dry_run=dry_run, selects=selects)
    return serve_cluster(settings, settings.spec(), dry_run=dry_run)


_OF_A_CLUSTER = frozenset(
    {
        *("pod_selection", "namespaces", "exclude_namespaces"),
        *("service_account_dir", "status_interval", "api_jitter", "health_address"),
    }
)
"""Flags that a standalone agent has no use for."""


def serve(settings: Settings, spec: Spec, *, dry_run: bool, selects: tuple[str, ...]) -> int:
    """Builds the standalone agent from settings and runs it on this kernel."""
    root = settings.host_root
    check_kernel(root)
    acts = not dry_run
    lock = HostLock(settings.lock_file or root / LOCK)
    if acts:
        lock.acquire(_holder(settings))
    npu_smi = npu_smi_of(settings)
    serving = _serving(settings)
    try:
        agent = build(settings, spec, npu_smi, dry_run=dry_run, selects=selects, serving=serving)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        log.info("cpubind %s on %s, %s", __version__, settings.node_name, "dry run" if dry_run else "binding")
        if not has_npu(root):
            log.warning("no Ascend device on this host: no /dev/davinciN and no PCI function 19e5, class 1200")
        agent.run()
        log.info("stopped; bindings stay as they are")
    finally:
        npu_smi.close()
        lock.release()
        if serving is not None:
            serving.close()
    return 0


def _serving(settings: Settings) -> Serving | None:
    """Metrics of a standalone agent, where they are asked for."""
    if "metrics_address" not in settings.model_fields_set:
        return None
    from agent.cli.serving import Serving  # noqa: PLC0415 - takes memory, for those who serve any

    return Serving(settings)


def serve_cluster(settings: Settings, spec: Spec, *, dry_run: bool) -> int:
    """Runs the agent of a cluster's node: once there are NPUs, and once nobody else acts on this host."""
    from agent.cli.serving import Serving  # noqa: PLC0415
    from agent.kube.access import Access, in_pod  # noqa: PLC0415 - kopf and the client take a second, for one command
    from agent.kube.service import ClusterAgent, Ties  # noqa: PLC0415
    from agent.telemetry.health import Health, HealthServer  # noqa: PLC0415
    from agent.telemetry.page import NodePage  # noqa: PLC0415

    if not in_pod():
        raise click.UsageError(
            "this is no pod (KUBERNETES_SERVICE_HOST is not set); without a cluster use --standalone"
        )
    access = Access.in_cluster(settings.service_account_dir)
    check_kernel(settings.host_root)
    stop = threading.Event()
    agents: list[ClusterAgent] = []

    def end(*_: object) -> None:
        stop.set()
        for one in agents:
            one.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    health = Health(settings.sweep_interval)
    page = NodePage(lambda: health.readiness()[1])
    address = parse_address(settings.health_address)
    probes = HealthServer(address, health, page=page.response) if address is not None else None
    serving = Serving(settings)
    lock = HostLock(settings.lock_file or settings.host_root / LOCK)
    npu_smi = npu_smi_of(settings)
    log.info("cpubind %s on %s, %s", __version__, settings.node_name, "dry run" if dry_run else "binding")

    heap = HeapKeeper()

    def turned() -> None:
        heap.turned()
        health.turned()
        serving.turned()
        agent = agents[0].agent
        if not agent.failing:
            judge(agent.plan_object(), health.ready, health.not_ready)
            page.passed(agent.plan_object(), agent.moved())

    def waited() -> None:
        # Where there are no NPUs that is a pass: an alert says of an agent without any that it stands still.
        health.turned()
        serving.turned()

    def problems() -> list[Problem]:
        problem = probes.problem() if probes is not None else None
        return [*([problem] if problem is not None else []), *serving.problems()]

    try:
        if not _await_npus(settings, stop, waited, health.ready):
            return 0
        if not dry_run and not _await_lock(lock, settings, stop, health.turned, health.not_ready):
            return 0
        ties = Ties(
            access,
            npu_smi,
            host=LinuxHost(root=settings.host_root),
            journal=None if dry_run else settings.journal_file or settings.host_root / JOURNAL,
            dry_run=dry_run,
            events=not dry_run,
            count=serving.metrics.api_request,
            turned=turned,
            problems=problems,
        )
        agents.append(ClusterAgent(settings, spec, ties))
        serving.adopt(agents[0].agent, agents[0].watch_ages)
        if not stop.is_set():
            agents[0].run()
        log.info("stopped; bindings stay as they are")
    finally:
        npu_smi.close()
        lock.release()
        serving.close()
        if probes is not None:
            probes.close()
    return 0


def _await_npus(
    settings: Settings, stop: threading.Event, turned: Callable[[], None], ready: Callable[[str], None]
) -> bool:
    """Returns once the node has NPUs, or npu-smi; False when it was stopped. A node without is no fault."""
    told = False
    while not (has_npu(settings.host_root) or shutil.which(settings.npu_smi)):
        said = "no NPU on this node: no /dev/davinciN, no PCI function 19e5 of class 1200, no npu-smi; nothing to do"
        ready(said)
        if not told:
            log.info("%s; looking again every %d minutes", said, LOOK_AGAIN_SECONDS // 60)
            told = True
        again = time.monotonic() + LOOK_AGAIN_SECONDS
        while time.monotonic() < again:
            turned()
            if stop.wait(settings.sweep_interval):
                return False
    return True


def _await_lock(
    lock: HostLock,
    settings: Settings,
    stop: threading.Event,
    turned: Callable[[], None],
    not_ready: Callable[[str], None],
) -> bool:
    """Returns with the lock of this host; False when it was stopped. Its holder may be an agent that is just ending."""
    told = ""
    while True:
        try:
            lock.acquire(_holder(settings))
        except Refused as refused:
            if refused.reason is not Reason.LOCKED:
                raise
            not_ready(f"waiting: {refused.problem}")
            if told != refused.message:
                log.warning("waiting: %s", refused.problem)
                told = refused.message
        else:
            return True
        turned()
        if stop.wait(LOCK_SECONDS):
            return False


def judge(document: dict[str, Any], ready: Callable[[str], None], not_ready: Callable[[str], None]) -> None:
    """Ready is: topology read, and a plan computed or found not applicable. Whether it could be made is in the plan."""
    conditions = {entry["type"]: entry for entry in document.get("status", {}).get("conditions", [])}
    read = conditions.get("TopologyDiscovered")
    if read is None:
        not_ready("npu-smi has not answered yet")
    elif read["status"] != "True":
        not_ready(f"{read['reason']}: {read['message']}")
    else:
        plan = conditions.get("PlanValid", {})
        ready(f"plan computed: {plan.get('reason', '')}")


def _holder(settings: Settings) -> str:
    return f"cpubind {__version__}, pid {os.getpid()}, node {settings.node_name}"


def build(
    settings: Settings,
    spec: Spec,
    npu_smi: NpuSmi,
    *,
    dry_run: bool,
    selects: tuple[str, ...],
    serving: Serving | None = None,
) -> Agent:
    """The agent of a host, with the files that it keeps there."""
    root, npu_smi = settings.host_root, CountedNpuSmi(npu_smi)
    observer = Observer(root, architecture=settings.architecture, chooses=chooser(selects))
    host = LinuxHost(root=root)
    actor = Actor(root / "proc", host)
    events = None if dry_run else Events.of_host(root, host, actor.watched, actor.comms)
    state = settings.state_file or (None if dry_run else root / STATE)
    heap = HeapKeeper()

    def turned() -> None:
        heap.turned()
        if serving is not None:
            serving.turned()

    agent = Agent(
        Parts(
            node=settings.node_name,
            observer=observer,
            npu_smi=npu_smi,
            actor=actor,
            steps=HostSteps(root, host, observer.cgroups, npu_smi=npu_smi, memory_seconds=settings.memory_timeout),
            defaults=spec,
            state=StateFile(state) if state else None,
            journal=None if dry_run else settings.journal_file or root / JOURNAL,
            boot_id=boot_id(root),
            problems=serving.problems if serving is not None else tuple,
            turned=turned,
            sweep_seconds=settings.sweep_interval,
            force_dry_run=dry_run,
            news=events,
            beside=events or nullcontext(),
        )
    )
    if events is not None:
        events.wake, events.glance = agent.wake, agent.glance
    if serving is not None:
        serving.adopt(agent)
    return agent


def check_kernel(root: Path) -> None:
    """Refuses a host root whose /proc is not this kernel's, as seen from this PID namespace.

    Pids from a recorded tree, or read in another PID namespace, would name other processes of this kernel. A procfs
    shows the reader's own pid in its own namespace as ``self``.
    """
    try:
        same = (root / "proc/self").readlink() == Path(str(os.getpid()))
    except OSError:
        same = False
    if not same:
        message = f"{root}/proc is not the /proc of this kernel and PID namespace (a container needs hostPID)"
        raise Refused(Reason.NOT_THIS_KERNEL, message)
