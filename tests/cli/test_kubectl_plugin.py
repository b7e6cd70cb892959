"""kubectl cpubind: what it says of plans that agents wrote, read with the user's kubeconfig and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from agent.cli.kubectl import kubectl_cli
from agent.kube import api
from agent.kube.bounds import MAX_ANSWER
from tests.chart.crd import complaints
from tests.cli.conftest import Plugin
from tests.cli.plan_server import PLANS, Object, Server, recorded


def pod(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "prod", "uid": "u", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "vllm"}], **spec},
        "status": {},
    }


@pytest.mark.parametrize("name", ["a3-0", "a2-0"])
def test_the_recorded_plans_are_such_as_the_schema_has(name: str) -> None:
    (plan,) = recorded(name)
    assert complaints("status", plan["status"]) == []


def test_status_has_a_row_for_each_node_and_says_what_is_open(plugin: Plugin, server: Server) -> None:
    result = plugin("status")
    assert result.status == 1
    lines = result.out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["NODE", "DEVICE", "STRATEGY", "MODE", "NPUS", "WORKERS", "BOUND", "FAILED", "READY", "REASON"],
        ["a2-0", "A2", "TopoAffinity", "Enforce", "8", "2", "1", "1", "False", "InsufficientCpus"],
        ["a3-0", "A3", "GlobalSlice", "Enforce", "16", "2", "2", "0", "True", "AsPlanned"],
    ]
    assert "a2-0: InsufficientCpus: an NPU needs 5 CPUs, only 4 (188-191)" in result.out
    assert lines[-1] == "2 nodes, 1 ready; 4 workers, 3 bound"
    assert {asked[1] for asked in server.asked} == {"Bearer token-of-prod"}
    assert [urlsplit(path).path for path, _ in server.asked] == [PLANS], "one request, of the one resource"


def test_status_is_0_where_every_node_is_ready_or_there_is_none(plugin: Plugin, server: Server) -> None:
    server.plans = recorded("a3-0")
    fine = plugin("status")
    assert (fine.status, "conditions.md" in fine.out) == (0, False)
    server.plans = []
    assert plugin("status").out.startswith("no node has a plan: ")


def test_the_plans_of_5000_nodes_are_listed_in_pages_and_hold_up_nobody(plugin: Plugin, server: Server) -> None:
    (one,) = recorded("a3-0")
    workers = next(npu["workers"] for npu in one["status"]["npus"] if npu.get("workers"))
    for npu in one["status"]["npus"]:
        npu["workers"] = 2 * workers[:1]
    server.plans = [{**one, "metadata": {**one["metadata"], "name": f"a3-{k:04}"}} for k in range(5000)]
    assert len(json.dumps(server.plans)) > MAX_ANSWER, "they do not fit into one answer"
    result = plugin("status")
    assert (result.status, result.err) == (0, "")
    rows = [line for line in result.out.splitlines() if line.startswith("a3-")]
    assert [row.split()[0] for row in rows] == [f"a3-{k:04}" for k in range(5000)]
    assert result.out.splitlines()[-1].startswith("5000 nodes, 5000 ready;")
    assert len(server.asked) == 5000 / api.PAGE
    server.plans = server.plans[:30]
    refused = plugin("plan", "nope").err
    assert "a3-0000, a3-0001" in refused
    assert refused.strip().endswith("a3-0019 and 10 more")


def test_a_node_whose_agent_stopped_or_never_wrote_and_one_that_goes_without_are_told(
    plugin: Plugin, server: Server
) -> None:
    stopped, young = recorded("a3-0", "a2-0")
    for condition in stopped["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition |= {"status": "Unknown", "reason": "AgentStopped", "message": "the agent was stopped"}
        if condition["type"] == "Degraded":
            condition |= {"status": "True", "reason": "IrqbalanceActive", "message": "put --banmod=x into its args"}
    del young["status"]
    server.plans = [stopped, young]
    result = plugin("status")
    assert result.status == 1
    assert "a3-0: AgentStopped: the agent was stopped" in result.out
    assert "a3-0: goes without something: IrqbalanceActive: put --banmod=x" in result.out
    assert "a2-0: no agent has written a status yet" in result.out


def test_a_plan_is_shown_as_the_agent_s_host_shows_it(plugin: Plugin, server: Server) -> None:
    shown = plugin("plan", "a3-0")
    assert shown.status == 0
    assert "NUMA node 0  CPUs 0-79" in shown.out
    assert "120-159" in shown.out
    assert json.loads(plugin("plan", "a3-0", "-o", "json").out) == recorded("a3-0")[0]
    assert yaml.safe_load(plugin("plan", "a3-0", "-o", "yaml").out) == recorded("a3-0")[0]
    unknown = plugin("plan", "a9-0")
    assert (unknown.status, "nodes that have one: a2-0, a3-0" in unknown.err) == (1, True)


def test_explain_tells_the_cpus_of_a_pod_and_what_came_of_each_step(plugin: Plugin) -> None:
    (plan,) = recorded("a3-0")
    first, second = (plan["status"]["npus"][npu]["workers"][0]["pid"] for npu in (0, 1))
    for args in (["llm-0"], ["llm-0", "-n", "prod"], ["prod/llm-0"]):
        result = plugin("explain", *args)
        assert result.status == 0
        assert f"Process {first} in container vllm works on NPU 0 of node a3-0: Bound." in result.out
        assert "Its pool is 0-39 = main 2-37, interrupts 0-1, acl 38, release 39. It lies on NUMA node 0." in result.out
        assert "Interrupts of NPU 0: Bound." in result.out
        assert f"Memory of process {second}: Moved (" in result.out
        assert result.out.count("Node a3-0: A3, strategy GlobalSlice, mode Enforce, CPUs 0-639.") == 1
        # No plan says in which namespace the agents are.
        assert result.out.endswith("kubectl exec -n NAMESPACE AGENT -- cpubind explain prod/llm-0\n")


def test_explain_of_a_pod_that_is_not_bound_says_why_and_what_would_change_it(plugin: Plugin) -> None:
    result = plugin("explain", "llm-2")
    assert "works on NPU 2 of node a2-0: Failed (InsufficientCpus: an NPU needs 5 CPUs, only 4" in result.out
    assert "Its pool would be 188-191, and is not divided into roles." in result.out
    assert "give the pod more" in result.out
    assert "Open on node a2-0: InsufficientCpus: " in result.out


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (pod("x", {"cpubind.dev/enabled": "true"}, nodeName="a3-0"), "No process of it holds an NPU of node a3-0"),
        (pod("x", nodeName="a3-0"), 'annotate its template with cpubind.dev/enabled: "true"'),
        (pod("x", {"cpubind.dev/enabled": "yes"}, nodeName="a3-0"), "cpubind.dev/enabled: 'yes' is not true or false"),
        (pod("x", {"cpubind.dev/enable": "true"}, nodeName="a3-0"), "annotation cpubind.dev/enable means nothing"),
        (
            pod("x", {"cpubind.dev/enabled": "false"}, nodeName="a3-0"),
            "It is not to be bound: annotation cpubind.dev/enabled is false; set it to true.",
        ),
        (
            pod("x", {"cpubind.dev/enabled": "true", "cpubind.dev/containers": "vlm"}, nodeName="a3-0"),
            "annotation cpubind.dev/containers does not name container vllm; add it there.",
        ),
        (pod("x", {"cpubind.dev/enabled": "true"}, nodeName="b-7"), "Node b-7 has no plan: no agent runs there"),
        (pod("x", {"cpubind.dev/enabled": "true"}), "It has no node yet"),
        (None, "there is no such pod that you may read"),
    ],
)
def test_explain_of_a_pod_that_is_in_no_plan_says_why(
    plugin: Plugin, server: Server, manifest: Object | None, said: str
) -> None:
    if manifest:
        server.pods["prod/pods/x"] = manifest
    result = plugin("explain", "x")
    assert (result.status, result.out) == (1, "")
    assert "No plan has a worker of pod prod/x" in result.err
    assert said in result.err


def test_explain_of_a_pod_that_did_not_ask_says_which_npu_it_uses_all_the_same(plugin: Plugin, server: Server) -> None:
    server.pods["prod/pods/x"] = pod("x", nodeName="a3-0")
    server.plans[0]["status"]["npus"][5] |= {
        "reason": "NotOptedIn",
        "message": "in use by pod prod/x and not to be bound",
    }
    told = plugin("explain", "x").err
    assert "NPU 5 of node a3-0 is Idle (NotOptedIn: in use by pod prod/x and not to be bound)." in told
    assert "No process of it" not in told
    assert told.endswith("kubectl exec -n NAMESPACE AGENT -- cpubind explain prod/x\n")
    assert "NPU 5" not in plugin("explain", "y").err
    server.pods["prod/pods/x"] = pod("x", {"cpubind.dev/enabled": "true"}, nodeName="a3-0")
    asked = plugin("explain", "x").err
    assert "No process of it" not in asked, "its namespace is left out by the chart, say"
    assert "NPU 5 of node a3-0 is Idle (NotOptedIn: " in asked


def test_a_context_has_its_own_user_and_namespace(plugin: Plugin, server: Server) -> None:
    assert "pod default/llm-0" in plugin("--context", "other", "explain", "llm-0").err
    assert {asked[1] for asked in server.asked} == {"Bearer token-of-other"}


def test_what_goes_wrong_is_one_line_that_names_it(
    plugin: Plugin, server: Server, kubeconfig: Path, tmp_path: Path
) -> None:
    server.refuses = 403
    refused = plugin("status")
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert "ApiRefused: list of cpubindingplans: 403 no such right; it takes the cluster role view" in refused.err
    server.refuses = 404
    gone = plugin("status").err
    assert "PlanResourceMissing: no resource cpubindingplans of cpubind.dev/v1alpha1; is cpubind installed" in gone
    for args, named in (
        (["--kubeconfig", tmp_path / "none", "status"], str(tmp_path / "none")),
        (["--kubeconfig", "~nobody-at-all/config", "status"], "~nobody-at-all"),
        (["--context", "nope", "status"], "nope"),
    ):
        result = plugin(*args)
        assert (result.status, result.err.count("\n"), named in result.err) == (1, 1, True)
    kubeconfig.write_text("{")
    assert "cannot be used" in plugin("status").err
    names = ("", "/", "prod/", "/llm-0", "prod/llm-0/log")  # of these the API server would be asked for something else
    for args in (["plan"], ["nonsense"], ["status", "-o", "xml"], *(["explain", name] for name in names)):
        result = plugin(*args)
        assert (result.status, result.err.count("\n")) == (2, 1)


def test_hostile_words_of_a_plan_reach_no_terminal(plugin: Plugin, server: Server) -> None:
    hostile = "\x1b[31mred\n"
    for npu in server.plans[0]["status"]["npus"]:
        npu |= {"message": hostile, "irqMessage": hostile, "pool": hostile}
    server.plans[0]["status"]["conditions"] = [{"type": "Ready", "status": hostile, "reason": hostile}]
    server.plans[1]["status"] = {"npus": 7, "summary": [], "conditions": "x"}
    for args in (["status"], ["explain", "llm-0"], ["plan", "a3-0"], ["plan", "a2-0"]):
        assert "\x1b" not in plugin(*args).out, args


@pytest.mark.parametrize("name", ["status", "plan", "explain"])
def test_its_help_has_examples(plugin: Plugin, name: str) -> None:
    text = plugin(name, "--help").out
    examples = [line.split()[2:] for line in text.splitlines() if line.strip().startswith(f"kubectl cpubind {name}")]
    assert examples
    with click.Context(kubectl_cli) as parent:
        for words in examples:
            command = kubectl_cli.get_command(parent, words[0])
            assert command is not None
            command.make_context(words[0], words[1 : words.index("|") if "|" in words else None], parent=parent)


def test_it_is_installed_under_the_name_by_which_kubectl_finds_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["kubectl-cpubind"].partition(":")
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function}; {function}()", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout.startswith("kubectl-cpubind, version ")
