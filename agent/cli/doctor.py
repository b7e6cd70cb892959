"""``cpubind doctor``: is everything there that the agent needs?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from agent.cli.checks import Check, failed, good, lacking
from agent.cli.cluster import cluster_view
from agent.cli.doctor_host import NOBODY, host_checks
from agent.cli.options import host_options, settings_from, spec_in_force
from agent.model.reason import Reason, Refused
from agent.model.remedies import REMEDIES
from agent.settings import Settings

RIGHTS = {
    ("list", "", "pods", ""): "who opted in is not known: nobody new is bound",
    ("watch", "", "pods", ""): "who opted in is not known: nobody new is bound",
    ("get", "", "nodes", ""): "the plan is not made: its owner's uid is not known",
    ("create", "", "events", ""): "pods and plans have no events",
    ("patch", "", "events", ""): "events are not counted up",
    ("list", "cpubind.dev", "cpubindingplans", ""): "spec is not followed",
    ("watch", "cpubind.dev", "cpubindingplans", ""): "spec is not followed",
    ("create", "cpubind.dev", "cpubindingplans", ""): "the plan is not made",
    ("patch", "cpubind.dev", "cpubindingplans", "status"): "status is not written: kubectl shows nothing",
}
"""Verb, API group, resource, subresource -> what goes away without: all rights of the agent (design section 7)."""


@click.command(short_help="Check what the agent needs; exit 1 when something is missing.")
@click.option(
    "--cluster",
    is_flag=True,
    envvar="CPUBIND_CLUSTER",
    help="Only what it needs of the API server; needs no access to the host.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--service-account-dir", metavar="DIR", help="Folder with token and ca.crt.")
@click.option("--journal-file", metavar="FILE", help="Default: HOST_ROOT/var/lib/cpubind/journal.json.")
@click.option("--lock-file", metavar="FILE", help="Default: HOST_ROOT/run/cpubind/lock.")
@host_options
def doctor(cluster: bool, output: str, **flags: Any) -> int:
    """Check what the agent needs, and say what goes away without it and how to get it. Changes nothing. What `spec` of
    the plan or the state file does without is not missing.

    Looked at are the kernel, its namespaces, the capabilities of this process, mounts, npu-smi and the driver, the
    journal and the lock, process events, taskstats, irqbalance and kubelet's records; in a pod also the API server, the
    rights of the service account and the CRD.

    \b
    cpubind doctor                                         on the host, as root
    cpubind doctor -o json                                 name, result, message, without, fix of each
    cpubind doctor --cluster                               what `helm test` runs
    kubectl exec -n NAMESPACE AGENT -- cpubind doctor      in the agent's pod, on its node

    ok: it is there. warn: workers are bound, and something else goes away. fail: nobody is bound. Exit 1 when anything
    failed.
    """
    settings = settings_from(flags)
    checks = []
    for check in _checks(settings, cluster=cluster):
        checks.append(check)
        if output == "text":
            for line in check.lines():
                click.echo(line)
    if output == "json":
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        counts = [f"{sum(check.result == result for check in checks)} {result}" for result in ("ok", "warn", "fail")]
        click.echo(f"{len(checks)} checks: {', '.join(counts)}")
    return 1 if any(check.result == "fail" for check in checks) else 0


def _checks(settings: Settings, *, cluster: bool) -> Iterator[Check]:
    if not cluster:
        spec, _, unread = spec_in_force(settings, live=True, view=cluster_view(settings))
        yield from host_checks(settings, spec)
        for problem in unread:
            fix = REMEDIES.get(problem.reason, "see its reason in docs/conditions.md")
            yield lacking("spec", str(problem), without="what it asks for is not done", fix=fix)
    if cluster or _in_pod():
        yield from _api(settings, node=not cluster)


def _api(settings: Settings, *, node: bool) -> Iterator[Check]:
    from agent.kube.access import Access  # noqa: PLC0415 - the client takes a second to import
    from agent.kube.api import Api, ApiError  # noqa: PLC0415

    try:
        api = Api(Access.in_cluster(settings.service_account_dir))
        lacking = [right for right in RIGHTS if not api.may(*right)]
    except Refused as refused:
        fix = "run this in a pod with a service account"
        yield failed("API server", refused.problem, without=_UNHEARD, fix=fix)
        return
    except ApiError as error:
        yield failed("API server", error.problem, without=_UNHEARD, fix=_REACHED)
        return
    yield good("API server", "it answers, and takes the service account's token")
    names = [f"{verb} {resource}{'/' if sub else ''}{sub}" for verb, _, resource, sub in lacking]
    if names:
        without = "; ".join(dict.fromkeys(RIGHTS[right] for right in lacking))
        fix = _FIXES[Reason.API_REFUSED]
        yield failed("rights", f"missing: {', '.join(names)}", without=without, fix=fix)
    else:
        yield good("rights", f"all {len(RIGHTS)} that the agent needs")
    try:
        yield good("CpuBindingPlan", f"served; {api.count_plans()} plans")
    except ApiError as error:
        without = "no plan is published, and no spec followed; pods are bound by the chart's settings"
        yield failed("CpuBindingPlan", error.problem, without=without, fix=_FIXES.get(error.problem.reason, ""))
    if not node:
        return
    try:
        api.node(settings.node_name)
        yield good("Node", f"{settings.node_name} is there")
    except ApiError as error:
        fix = _FIXES.get(error.problem.reason, "")
        missing = error.problem.reason is Reason.NODE_NOT_FOUND
        yield failed("Node", error.problem, without=NOBODY if missing else "the plan is not made", fix=fix)


_REACHED = "check the network, and that the service account's token is valid"
_FIXES = {
    Reason.API_REFUSED: "install the chart's ClusterRole and its binding (rbac.create)",
    Reason.API_UNREACHABLE: _REACHED,
    Reason.PLAN_RESOURCE_MISSING: "install the CRD (crds.install)",
    Reason.NODE_NOT_FOUND: "set --node-name to the name of this host's Node (the chart does, from spec.nodeName)",
}
_UNHEARD = "nobody new is bound, and nothing is published; what is bound stays"


def _in_pod() -> bool:
    from agent.kube.access import in_pod  # noqa: PLC0415

    return in_pod()
