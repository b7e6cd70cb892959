"""The resource definition: what it promises to people, and what an old API server takes."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from agent.control.report import API_VERSION, KIND, MAX_WORKERS
from agent.model.cpuset import MAX_CPUS, CpuSet
from agent.model.node import DeviceType
from agent.model.reason import MAX_MESSAGE_BYTES, Reason, Refused
from agent.model.spec import Helpers, Mode, Rebalance, Role, Strategy
from agent.planning.validation import AUTO, parse_spec
from tests.chart.crd import COPY, SOURCE, complaints, definition, fields, schema, version


def test_the_chart_carries_the_same_bytes() -> None:
    assert COPY.read_bytes() == SOURCE.read_bytes(), f"cp {SOURCE.name} into {COPY.parent}"


def test_it_is_the_resource_that_the_agent_writes() -> None:
    spec = definition()["spec"]
    assert f"{spec['group']}/{version()['name']}" == API_VERSION
    assert spec["names"]["kind"] == KIND
    assert spec["names"]["shortNames"] == ["cbp"]
    assert spec["scope"] == "Cluster"
    assert definition()["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert version()["subresources"] == {"status": {}}


def test_kubectl_get_shows_the_columns_of_the_design() -> None:
    columns = version()["additionalPrinterColumns"]
    plain = [column["name"].upper() for column in columns if not column.get("priority")]
    wide = [column["name"].upper() for column in columns if column.get("priority") == 1]
    assert plain == ["DEVICE", "STRATEGY", "MODE", "NPUS", "WORKERS", "BOUND", "FAILED", "READY", "REASON", "AGE"]
    assert wide == ["HASH", "MESSAGE"]


def test_every_column_shows_one_field_that_the_schema_has() -> None:
    declared = {f".{path}": node for path, node in fields(schema())}
    for column in version()["additionalPrinterColumns"]:
        path = re.sub(r'\[\?\(@\.type=="Ready"\)\]', "[]", column["jsonPath"])
        if path == ".metadata.creationTimestamp":
            continue
        assert declared[path]["type"] == column["type"], path
        assert "[]" not in path or ".conditions[]." in path, "a column over an array would print its first element"


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("x-kubernetes-validations", "cannot be installed on 1.20"),
        ("default", "an absent field of spec means the agent's setting"),
        ("x-kubernetes-preserve-unknown-fields", "misspelt fields would stay"),
        ("nullable", "null would be neither absent nor a value"),
        ("additionalProperties", "excludes properties in a structural schema"),
        ("oneOf", "is no part of what kubectl explains"),
        ("anyOf", "is no part of what kubectl explains"),
        ("$ref", "cannot be in a CRD"),
    ],
)
def test_the_schema_does_without(word: str, why: str) -> None:
    assert not [path for path, node in fields(schema()) if word in node], why
    assert word not in schema()


def test_every_field_has_a_type_and_a_description_that_is_a_sentence() -> None:
    for path, node in [("", schema()), *fields(schema())]:
        assert node["type"] in {"object", "array", "string", "integer", "boolean"}, path
        assert re.fullmatch(r"\S.*\S", node["description"]), path
        assert node["description"].endswith("."), path
        assert "  " not in node["description"], path


def test_every_list_says_how_it_is_merged_and_how_long_it_may_be() -> None:
    lists = {path: node for path, node in fields(schema()) if node["type"] == "array"}
    atomic = {path for path, node in lists.items() if node["x-kubernetes-list-type"] == "atomic"}
    assert atomic == {
        "spec.threadRules",
        "status.topology.numaNodes",
        "status.bases",
        "status.npus",
        "status.npus[].numaNodes",
        "status.npus[].workers",
    }
    assert lists.keys() - atomic == {"status.conditions"}
    assert lists["status.conditions"]["x-kubernetes-list-type"] == "map"
    assert lists["status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert all(node["maxItems"] > 0 for node in lists.values())
    assert lists["status.npus[].workers"]["maxItems"] >= MAX_WORKERS


def test_every_text_is_bounded_and_no_number_is_negative() -> None:
    for path, node in fields(schema()):
        if node["type"] == "string":
            assert {"maxLength", "enum", "format"} & node.keys(), path
        if node["type"] == "integer":
            assert node["minimum"] >= 0, path
            assert node["format"] in {"int32", "int64"}, path


def test_enums_stand_in_spec_alone() -> None:
    """A newer agent's words must not make an older server refuse its status."""
    assert [path for path, node in fields(schema()) if "enum" in node and not path.startswith("spec.")] == []


def test_nothing_is_required_of_a_plan() -> None:
    assert "required" not in schema()
    for part in ("spec", "status"):
        assert "required" not in schema(part)
        assert complaints(part, {}) == []


def test_reasons_and_messages_fit() -> None:
    for path, node in fields(schema("status")):
        if path.endswith(".reason"):
            assert max(map(len, Reason)) <= node["maxLength"], path
        if path.endswith(".message"):
            assert node["maxLength"] >= MAX_MESSAGE_BYTES, path
    pattern = next(node["pattern"] for path, node in fields(schema("status")) if path == "conditions[].reason")
    assert all(re.fullmatch(pattern, reason.value) for reason in Reason)


def test_every_cpu_list_has_the_same_pattern_and_bound() -> None:
    texts = {path: node for path, node in fields(schema()) if node["type"] == "string"}
    lists = {path for path in texts if path.endswith(("Cpus", ".cpus", ".pool")) or ".roles." in path}
    forms = {(texts[path].get("pattern"), texts[path]["maxLength"]) for path in lists}
    assert forms == {(texts["spec.reservedCpus"]["pattern"], texts["spec.reservedCpus"]["maxLength"])}
    assert len(lists) == 18


@pytest.mark.parametrize(
    "cpus",
    [
        CpuSet(),
        CpuSet([7]),
        CpuSet.span(0, MAX_CPUS - 1),
        CpuSet(range(0, MAX_CPUS, 2)),
        CpuSet(cpu for cpu in range(MAX_CPUS) if cpu % 3),
    ],
    ids=["none", "one", "all", "every other", "pairs"],
)
def test_whatever_cpus_there_are_their_list_is_of_the_form(cpus: CpuSet) -> None:
    assert complaints("spec", {"reservedCpus": str(cpus)}) == []


@pytest.mark.parametrize("text", ["0-", "-3", "0-3,", "a", "0 - 3", "0x10", "0-3-5", "0-3\n", "99999", " 1"])
def test_what_is_no_cpu_list_is_refused(text: str) -> None:
    # RE2, which the API server has, takes `$` for the end of the text; Python's also stops before a last newline.
    text = text.replace("\n", "\n\n")
    assert complaints("spec", {"reservedCpus": text})


ENUMS: dict[str, tuple[type[StrEnum], bool]] = {
    "mode": (Mode, False),
    "strategy": (Strategy, True),
    "deviceType": (DeviceType, True),
    "rebalance": (Rebalance, False),
    "helpers": (Helpers, False),
}


@pytest.mark.parametrize("field", ENUMS)
def test_the_schema_knows_the_words_that_the_agent_knows(field: str) -> None:
    kind, auto = ENUMS[field]
    words = [AUTO] * auto + [member.value for member in kind]
    taken = []
    for word in words:
        try:
            parse_spec({field: word})
        except Refused:
            continue
        taken.append(word)
    assert schema("spec")["properties"][field]["enum"] == taken


def test_the_schema_has_the_fields_of_spec_that_the_agent_has() -> None:
    with pytest.raises(Refused) as refused:
        parse_spec({"no such field": 1})
    known = refused.value.message.partition("known are ")[2].split(", ")
    assert list(schema("spec")["properties"]) == known
    assert {path for path, node in fields(schema("spec")) if "enum" in node} == {*ENUMS, "threadRules[].role"}


def test_a_thread_rule_may_have_every_role_but_that_of_interrupts() -> None:
    rule = schema("spec")["properties"]["threadRules"]["items"]["properties"]
    assert rule["role"]["enum"] == [role.value for role in Role if role is not Role.IRQ]


WHOLE = {
    "mode": "Enforce",
    "strategy": "NumaSlice",
    "deviceType": "Ascend950",
    "reservedCpus": "0-3,96",
    "includeIsolatedCpus": True,
    "rebalance": "OnGrow",
    "irqBinding": False,
    "memoryMigration": False,
    "uvbBinding": False,
    "helpers": "Confine",
    "threadRules": [{"prefix": "ucm_", "role": "main"}],
    "allowAnyArchitecture": True,
}


def test_a_spec_with_every_field_is_taken_by_both() -> None:
    assert WHOLE.keys() == schema("spec")["properties"].keys()
    assert complaints("spec", WHOLE) == []
    parse_spec(WHOLE)


@pytest.mark.parametrize(
    "spec",
    [
        {"deviceType": 950},
        {"deviceType": "950"},
        {"strategy": "globalslice"},
        {"mode": None},
        {"irqBinding": "true"},
        {"threadRules": [{"prefix": "", "role": "main"}]},
        {"threadRules": [{"prefix": "ucm_", "role": "irq"}]},
        {"threadRules": [{"prefix": "ucm_"}]},
        {"threadRules": {"ucm_": "main"}},
        {"reservedCPUs": "0"},
    ],
    ids=str,
)
def test_what_the_schema_refuses_the_agent_refuses_too(spec: dict[str, object]) -> None:
    assert complaints("spec", spec)
    with pytest.raises(Refused):
        parse_spec(spec)
