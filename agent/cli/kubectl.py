"""``kubectl cpubind``: what plans say, with the user's kubeconfig. Reads resources, and nothing of any host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agent import __version__
from agent.cli.commands import Group, ended_in_order
from agent.cli.fleet import (
    AGENTS,
    brief,
    fleet_lines,
    name_of,
    node_of,
    pod_lines,
    ready,
    some_of,
    stranger_lines,
)
from agent.cli.options import paths
from agent.control.statefile import as_yaml
from agent.model.reason import Reason, Refused, printable
from agent.telemetry.picture import numa_map, plan_table
from agent.telemetry.text import make_console, mapping

if TYPE_CHECKING:
    from agent.kube.kubeconfig import UserAccess


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kubectl-cpubind")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    shell_complete=paths("file"),
    help="Default: $KUBECONFIG, else ~/.kube/config.",
)
@click.option("--context", metavar="NAME", help="Context of the kubeconfig. Default: its current one.")
@click.pass_context
def kubectl_cli(ctx: click.Context, kubeconfig: str | None, context: str | None) -> None:
    """Shows CPU placement for Ascend NPU inference in a cluster, from its CpuBindingPlan resources alone.

    \b
    kubectl cpubind status                    the fleet: nodes, workers, what is open and why
    kubectl cpubind plan NODE                 which CPUs each NPU of a node has, as a table and a map
    kubectl cpubind explain POD -n prod       why the workers of a pod are where they are

    Needed are the rights of the cluster role `view`. Exit status: 0 done, 1 a problem was found, 2 wrong usage.
    """
    ctx.obj = (kubeconfig, context)
    ctx.with_resource(ended_in_order())  # the client keeps the user's key in a file of its own meanwhile


@kubectl_cli.command(short_help="The fleet: nodes, workers, what is open and why.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.pass_obj
def status(access: tuple[str | None, str | None], output: str) -> int:
    """Show every node that has a plan, and what is open on it. Exit 1 when a node is not ready.

    \b
    kubectl cpubind status
    kubectl cpubind status -o json | jq '.items[].status.summary'
    """
    with _api(access) as api:
        plans = list(api.plans() if output != "table" else map(brief, api.plans()))
    if output != "table":
        _print({"apiVersion": "v1", "kind": "List", "items": plans}, output)
    elif not plans:
        click.echo("no node has a plan: kubectl get daemonset -A -l app.kubernetes.io/name=cpubind")
    else:
        for line in fleet_lines(plans):
            click.echo(line)
    return 0 if all(map(ready, plans)) else 1


@kubectl_cli.command(short_help="Which CPUs each NPU of a node has.")
@click.argument("node", metavar="NODE")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
@click.pass_obj
def plan(access: tuple[str | None, str | None], node: str, output: str) -> int:
    """Show the plan of a node: pools, roles and workers of its NPUs, and a map of its NUMA nodes.

    \b
    kubectl cpubind plan NODE
    kubectl cpubind plan NODE -o yaml
    """
    with _api(access) as api:
        found = list(api.plans(node))
        if not found:
            known = some_of(sorted(map(name_of, api.plans()))) or "none has"
            raise Refused(
                Reason.NODE_NOT_FOUND, f"node {printable(node, 80)} has no plan; nodes that have one: {known}"
            )
    document = found[0]
    if output != "table":
        _print(document, output)
        return 0
    console = make_console()
    console.print(plan_table(document))
    if mapping(document.get("status")).get("npus"):
        console.print(numa_map(document))
    return 0


@kubectl_cli.command(short_help="Why the workers of a pod are where they are.")
@click.argument("pod", metavar="POD")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the pod. Default: that of the context.")
@click.pass_obj
def explain(access: tuple[str | None, str | None], pod: str, namespace: str | None) -> int:
    """Say which CPUs the workers of a pod have, what came of each step, and why; or why it is in no plan. The steps of
    the rule with their numbers are told by `cpubind explain` in the agent's pod of that node.

    \b
    kubectl cpubind explain llm-0 -n prod
    kubectl cpubind explain prod/llm-0
    """
    from agent.kube.api import ApiError  # noqa: PLC0415 - the client takes a second to import

    first, slash, rest = pod.partition("/")
    if not all(pod.split("/")) or "/" in rest:
        raise click.UsageError(f"{printable(repr(pod), 80)} is neither POD nor NAMESPACE/POD")
    with _api(access) as api:
        where, name = (first, rest) if slash else (namespace or api.namespace, pod)
        lines = pod_lines(api.plans(), where, name)
        if not lines:
            manifest: dict[str, Any] | None = None
            try:
                manifest = api.pod(where, name)
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
            node = node_of(manifest)
            plans = list(api.plans(node)) if node else []
            for line in stranger_lines(plans, manifest, printable(where, 80), printable(name, 80)):
                click.echo(line, err=True)
            if manifest is not None:
                click.echo(_AGENT, err=True)
                click.echo(f"What it sees: {_inside(where, name)}", err=True)
            return 1
    for line in lines:
        click.echo(line)
    click.echo(_AGENT)
    click.echo(f"Each step of the rule: {_inside(where, name)}")
    return 0


_AGENT = f"AGENT is the agent's pod on that node, NAMESPACE its namespace: {AGENTS}"


def _inside(namespace: str, pod: str) -> str:
    """What to type for the agent's own view. In which namespace the release is no plan says."""
    return f"kubectl exec -n NAMESPACE AGENT -- cpubind explain {namespace}/{pod}"


def _print(document: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(as_yaml(document), nl=False)


@contextmanager
def _api(access: tuple[str | None, str | None]) -> Iterator[UserAccess]:
    """The API server; what it refuses is one line."""
    from agent.kube.api import ApiError  # noqa: PLC0415 - the client takes a second to import
    from agent.kube.kubeconfig import UserAccess  # noqa: PLC0415

    api = UserAccess(*access)
    try:
        yield api
    except ApiError as error:
        remedy = _REMEDIES.get(error.problem.reason)
        raise Refused(error.problem.reason, "; ".join(filter(None, (error.problem.message, remedy)))) from None
    finally:
        api.close()


_REMEDIES = {
    Reason.API_REFUSED: "it takes the cluster role view, for the whole cluster",
    Reason.API_UNREACHABLE: "does kubectl get nodes answer?",
    Reason.PLAN_RESOURCE_MISSING: "is cpubind installed in this cluster?",
}
"""For people with a kubeconfig, who need other rights than the agent, and sit elsewhere."""
