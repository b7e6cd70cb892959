"""``cpubind doctor``: is everything there that the agent needs?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import click

from agent.cli.options import host_options, npu_smi_of, settings_from
from agent.cli.run import check_kernel
from agent.model.reason import Problem, Refused, printable
from agent.node.devices import has_npu, read_davinci
from agent.node.npu_smi.inventory import read_inventory
from agent.node.proc_events import ProcEvents
from agent.node.sysfs import read_topology
from agent.planning.plan import needs_affinity
from agent.settings import Settings

RIGHTS = (
    ("list", "", "pods", ""),
    ("watch", "", "pods", ""),
    ("get", "", "nodes", ""),
    ("create", "", "events", ""),
    ("patch", "", "events", ""),
    ("list", "cpubind.dev", "cpubindingplans", ""),
    ("watch", "cpubind.dev", "cpubindingplans", ""),
    ("create", "cpubind.dev", "cpubindingplans", ""),
    ("patch", "cpubind.dev", "cpubindingplans", "status"),
)
"""Verb, API group, resource, subresource: all rights of the agent (design section 7)."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and what came of it."""

    name: str
    result: Literal["ok", "warn", "fail"]
    message: str
    fix: str = ""


@click.command(short_help="Check what the agent needs; exit 1 when something is missing.")
@click.option(
    "--cluster",
    is_flag=True,
    envvar="CPUBIND_CLUSTER",
    help="Only what it needs of the API server; needs no access to the host.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--service-account-dir", metavar="DIR", help="Folder with token and ca.crt.")
@host_options
def doctor(cluster: bool, output: str, **flags: Any) -> int:
    """Check what the agent needs, and say how to get what is missing. Changes nothing.

    \b
    kubectl exec -n cpubind ds/cpubind -- cpubind doctor      on a node of the cluster
    cpubind doctor --cluster                                  what `helm test` runs
    """
    settings = settings_from(flags)
    checks = [] if cluster else list(_host(settings))
    if cluster or _in_pod():
        checks += _api(settings)
    if output == "json":
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            click.echo(f"{check.result:4}  {check.name}: {check.message}")
            if check.fix:
                click.echo(f"      {check.fix}")
    return 1 if any(check.result == "fail" for check in checks) else 0


def _host(settings: Settings) -> Iterator[Check]:
    root = settings.host_root
    try:
        check_kernel(root)
        yield Check("kernel", "ok", "the host's /proc is this kernel's, in this PID namespace")
        yield _events(root)
    except Refused as refused:
        yield _failed("kernel", refused.problem, "run on the host, or in a pod with hostPID and the host's /proc")
    try:
        topology = read_topology(root, architecture=settings.architecture)
        yield Check("topology", "ok", f"{len(topology.online)} CPUs in {len(topology.nodes)} NUMA nodes")
    except Refused as refused:
        yield _failed("topology", refused.problem, "mount the host's /sys below the host root")
    if has_npu(root):
        yield Check("NPUs", "ok", f"{len(read_davinci(root))} device files")
    else:
        yield Check("NPUs", "warn", "no /dev/davinciN and no PCI function 19e5 of class 1200")
    npu_smi = npu_smi_of(settings)
    try:
        spec = settings.spec()
        reading = read_inventory(
            npu_smi,
            read_davinci(root),
            override=spec.device_type,
            needs_affinity=lambda device: needs_affinity(spec, device),
        )
        yield Check("npu-smi", "ok", f"{len(reading.inventory.npus)} NPUs, {reading.inventory.device_type.value}")
    except Refused as refused:
        yield _failed("npu-smi", refused.problem, "set --npu-smi; in a container mount the driver and let it use /dev")
    finally:
        npu_smi.close()


def _events(root: Path) -> Check:
    try:
        ProcEvents.of_host(root).close()
    except Refused as refused:
        fix = "the agent works without them: new threads are put in place by the next sweep"
        return Check("events", "warn", printable(refused.message, 300), fix)
    return Check("events", "ok", "the kernel tells of new threads")


def _api(settings: Settings) -> Iterator[Check]:
    from agent.kube.access import Access  # noqa: PLC0415 - the client takes a second to import
    from agent.kube.api import Api, ApiError  # noqa: PLC0415

    try:
        api = Api(Access.in_cluster(settings.service_account_dir))
        lacking = [right for right in RIGHTS if not api.may(*right)]
    except Refused as refused:
        yield _failed("API server", refused.problem, "run this in a pod with a service account")
        return
    except ApiError as error:
        yield _failed("API server", error.problem, "check the network, and that the service account's token is valid")
        return
    yield Check("API server", "ok", "it answers, and takes the service account's token")
    names = [f"{verb} {resource}{'/' if sub else ''}{sub}" for verb, _, resource, sub in lacking]
    if names:
        yield Check("rights", "fail", f"missing: {', '.join(names)}", "install the chart's ClusterRole (rbac.create)")
    else:
        yield Check("rights", "ok", f"all {len(RIGHTS)} that the agent needs")
    try:
        plans = api.plans()
        yield Check("CpuBindingPlan", "ok", f"served; {len(plans)} plans")
    except ApiError as error:
        yield _failed("CpuBindingPlan", error.problem, "install the CRD (crds.install)")


def _in_pod() -> bool:
    from agent.kube.access import in_pod  # noqa: PLC0415

    return in_pod()


def _failed(name: str, problem: Problem, fix: str) -> Check:
    return Check(name, "fail", printable(str(problem), 300), fix)
