"""The examples are what they say: API server, chart and agent would take them as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.model.pods import pod_from_manifest
from agent.model.spec import Mode
from agent.planning.optin import PREFIX, invalid_annotation, opted_in
from agent.planning.validation import parse_spec
from tests.chart.crd import complaints, definition
from tests.docs.pages import EXAMPLES
from tests.docs.values import complaints as complaints_of_chart

FILES = sorted(EXAMPLES.iterdir())


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


DEPLOYMENTS = [(path.name, d) for path in FILES for d in documents(path) if d.get("kind") == "Deployment"]
PLANS = [(path.name, d) for path in FILES for d in documents(path) if d.get("kind") == "CpuBindingPlan"]
VALUES_FILES = [path for path in FILES if path.name.startswith("values-")]


def named(value: object) -> str:
    return value if isinstance(value, str) else value.name if isinstance(value, Path) else ""


def test_every_example_is_of_a_kind_that_is_looked_at_here() -> None:
    looked_at = {name for name, _ in DEPLOYMENTS + PLANS} | {path.name for path in VALUES_FILES}
    assert looked_at == {path.name for path in FILES}


def pod_of(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The pod that a Deployment would make."""
    template: dict[str, Any] = deployment["spec"]["template"]
    return {"metadata": {"name": "pod", "namespace": "prod", "uid": "u", **template["metadata"]}, **template}


@pytest.mark.parametrize(("name", "deployment"), DEPLOYMENTS, ids=named)
def test_workers_of_an_example_are_bound_and_nobody_else_of_its_pod(name: str, deployment: dict[str, Any]) -> None:
    pod = pod_from_manifest(pod_of(deployment))
    assert invalid_annotation(pod) is None
    containers = deployment["spec"]["template"]["spec"]["containers"]
    with_npus = {c["name"] for c in containers if "huawei.com/Ascend910" in c["resources"]["limits"]}
    assert with_npus == {"vllm"}
    asked = {c["name"] for c in containers if opted_in(pod, c["name"])}
    assert asked == with_npus


@pytest.mark.parametrize(("name", "deployment"), DEPLOYMENTS, ids=named)
def test_an_example_is_annotated_where_it_counts(name: str, deployment: dict[str, Any]) -> None:
    assert not [key for key in deployment["metadata"].get("annotations", {}) if key.startswith(PREFIX)]
    spec = deployment["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(("name", "deployment"), DEPLOYMENTS, ids=named)
def test_vllm_ascend_does_not_bind_its_workers_itself(name: str, deployment: dict[str, Any]) -> None:
    vllm = next(c for c in deployment["spec"]["template"]["spec"]["containers"] if c["name"] == "vllm")
    args = vllm["args"]
    assert json.loads(args[args.index("--additional-config") + 1]) == {"enable_cpu_binding": False}
    assert not [arg for arg in args if arg.startswith("--numa-bind")]
    text = (EXAMPLES / name).read_text()
    assert "wo binders" in text, "it says why"
    parallel = next(arg.partition("=")[2] for arg in args if arg.startswith("--tensor-parallel-size="))
    assert vllm["resources"]["limits"]["huawei.com/Ascend910"] == parallel


def test_the_exclusive_example_owns_its_cpus_and_the_other_does_not() -> None:
    """As kubelet's static CPU manager has it: Guaranteed, and a limit of whole CPUs."""
    found = {name: pod_from_manifest(pod_of(deployment)) for name, deployment in DEPLOYMENTS}
    limits = {
        name: (pod.qos, next(c.cpu_limit_milli for c in pod.containers if c.name == "vllm"))
        for name, pod in found.items()
    }
    assert limits == {"vllm-ascend-exclusive.yaml": ("Guaranteed", 32000), "vllm-ascend.yaml": ("Burstable", None)}


@pytest.mark.parametrize(("name", "plan"), PLANS, ids=named)
def test_a_plan_of_the_examples_is_taken_by_api_server_and_agent(name: str, plan: dict[str, Any]) -> None:
    spec = definition()["spec"]
    assert plan["apiVersion"] == f"{spec['group']}/{spec['versions'][0]['name']}"
    assert plan.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert complaints("spec", plan["spec"]) == []
    parse_spec(plan["spec"])


def test_the_examples_have_a_plan_that_keeps_a_node_off_and_one_with_reserved_cpus() -> None:
    specs = [parse_spec(plan["spec"]) for _, plan in PLANS]
    assert [spec.mode for spec in specs] == [Mode.DISABLED, Mode.ENFORCE]
    assert [str(spec.reserved_cpus) for spec in specs] == ["", "0-7"]
    assert not any("ownerReferences" in plan["metadata"] for _, plan in PLANS), "a person's, not the Node's"


@pytest.mark.parametrize("path", VALUES_FILES, ids=named)
def test_values_of_the_examples_are_values_of_the_chart(path: Path) -> None:
    (given,) = documents(path)
    assert complaints_of_chart(given) == []
