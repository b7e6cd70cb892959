"""The chart's values: their schema, and that it says the same as the resource and as the agent. No helm is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from agent import __version__
from agent.settings import Settings
from tests.chart.crd import schema
from tests.chart.helm import CHART

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALIDATOR = Draft7Validator(SCHEMA)

SPEC = set(schema("spec")["properties"])


def refused(**values: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors({**VALUES, **values})]


def test_the_values_as_they_come_are_valid() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert refused() == []


def test_the_schema_knows_every_value_and_none_besides() -> None:
    assert SCHEMA["properties"].keys() - {"global"} == VALUES.keys()

    def known(values: dict[str, Any], node: dict[str, Any], path: str) -> None:
        for name, value in values.items():
            if "properties" not in node:
                continue
            assert name in node["properties"], f"{path}{name}"
            if isinstance(value, dict):
                known(value, node["properties"][name], f"{path}{name}.")

    known(VALUES, SCHEMA, "")


def test_the_chart_is_of_the_agents_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert chart["kubeVersion"] == ">=1.20.0-0"


def test_every_field_of_a_plans_spec_has_a_value_that_is_unset() -> None:
    assert VALUES.keys() >= SPEC
    assert {name: VALUES[name] for name in SPEC} == dict.fromkeys(SPEC)


@pytest.mark.parametrize("field", sorted(SPEC))
def test_a_value_takes_what_the_plans_field_takes(field: str) -> None:
    value, own = schema("spec")["properties"][field], SCHEMA["properties"][field]
    if "$ref" in own:
        own = SCHEMA["definitions"][own["$ref"].rpartition("/")[2]]
    if "enum" in value:
        assert own == {"enum": [*value["enum"], None]}
    else:
        assert own["type"] == [value["type"], "null"]
        assert own.get("pattern") == value.get("pattern")
        assert own.get("maxItems") == value.get("maxItems")


def test_bounds_of_seconds_are_those_of_the_agent() -> None:
    for field, bounds in (
        ("sweep_interval", SCHEMA["properties"]["sweepInterval"]),
        ("npu_smi_timeout", SCHEMA["properties"]["npuSmi"]["properties"]["timeout"]),
    ):
        rules = {
            name: getattr(rule, name)
            for rule in Settings.model_fields[field].metadata
            for name in ("gt", "ge", "le")
            if hasattr(rule, name)
        }
        names = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum"}
        assert {names[name]: value for name, value in rules.items()} == {
            name: value for name, value in bounds.items() if name != "type"
        }


@pytest.mark.parametrize(
    "values",
    [
        {"deviceType": 950},
        {"reservedCpus": 3},
        {"reservedCpus": "0-"},
        {"mode": "enforce"},
        {"irqBinding": "true"},
        {"threadRules": [{"prefix": "ucm_", "role": "irq"}]},
        {"threadRules": [{"prefix": "a,b", "role": "main"}]},
        {"threadRules": ["ucm_=main"]},
        {"podSelection": "All"},
        {"namespaces": ["Prod"]},
        {"namespaces": ["a", "a"]},
        {"excludeNamespaces": ["kube-system,prod"]},
        {"sweepInterval": 0},
        {"sweepInterval": "5s"},
        {"log": {"level": "INFO"}},
        {"npuSmi": {"path": "npu-smi"}},
        {"npuSmi": {"path": "/npu-smi"}},
        {"npuSmi": {"path": "/usr/local/sbin/"}},
        {"npuSmi": {}},
        {"driver": {"path": "driver", "extraPaths": []}},
        {"driver": {"path": "/usr/local/Ascend/driver", "extraPaths": ["dcmi"]}},
        {"kubelet": {"rootDir": "var/lib/kubelet"}},
        {"image": {"repository": "cpubind:1.0", "pullPolicy": "Always"}},
        {"image": {"repository": "cpubind", "tag": "1.0@sha256", "pullPolicy": "Always"}},
        {"image": {"repository": "cpubind", "digest": "sha256:abc", "pullPolicy": "Always"}},
        {"image": {"repository": "cpubind", "pullPolicy": "Sometimes"}},
        {"health": {"port": 0}},
        {"metrics": {"enabled": True, "port": 70000}},
        {"metrics": {"port": 9486}},
        {"updateStrategy": {"type": "Recreate", "rollingUpdate": {"maxUnavailable": 1}}},
        {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10"}}},
        {"serviceAccount": {"create": True, "name": "No Name"}},
        {"extraEnv": {"A": "b"}},
        {"podLabels": {"a": 1}},
        {"reservedCPUs": "0-3"},
        {"hostPID": False},
    ],
    ids=str,
)
def test_a_value_that_is_not_of_its_form_is_refused(values: dict[str, Any]) -> None:
    assert refused(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"reservedCpus": "0-3,96"},
        {"deviceType": "Ascend950"},
        {"threadRules": [{"prefix": "hccl-watch dog_$=", "role": "acl"}]},
        {"image": {"repository": "registry.example:5000/npu/cpubind", "tag": "1.0", "pullPolicy": "Never"}},
        {"image": {"repository": "cpubind", "digest": f"sha256:{'0a' * 32}", "pullPolicy": "Never"}},
        {"driver": {"path": "", "extraPaths": []}},
        {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}},
        {"global": {"anything": 1}},
    ],
    ids=str,
)
def test_what_is_of_its_form_is_taken(values: dict[str, Any]) -> None:
    assert refused(**values) == []
