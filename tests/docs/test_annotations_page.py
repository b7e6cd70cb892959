"""docs/annotations.md says what agent/planning/optin.py does."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping

import pytest

from agent.control import observe
from agent.kube import pods
from agent.model.workload import Pod, PodContainer
from agent.planning import optin
from agent.planning.optin import PREFIX, invalid_annotation, left_alone, opted_in, unknown_annotations
from tests.docs.pages import ROOT, code, sections, table

PAGE = ROOT / "docs/annotations.md"
SECTIONS = sections(PAGE)
KEY_LENGTH = 63
"""Of the part of a key after the slash; qualifiedNameMaxLength of Kubernetes."""

KNOWN = {code(row[0])[0].removeprefix(PREFIX): row for row in table(SECTIONS["Annotations"])}


def pod(annotations: Mapping[str, str]) -> Pod:
    containers = tuple(PodContainer(name, name, None) for name in ("vllm", "proxy"))
    return Pod("uid", "prod", "llm-0", "Burstable", {PREFIX + k: v for k, v in annotations.items()}, containers)


def test_every_annotation_is_on_the_page_and_none_besides() -> None:
    assert list(KNOWN) == ["enabled", "containers", "memory-migration", "irq-binding", "helpers"]
    assert KNOWN.keys() == optin._VALUES.keys()


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_values_on_the_page_can_be_used_and_others_cannot(name: str) -> None:
    for value in code(KNOWN[name][1]) or ["vllm", "vllm,proxy", "vllm, proxy"]:
        assert invalid_annotation(pod({name: value})) is None, value
    for value in ("", "True", "yes", "1", "leave", "a,,b"):
        fits = name == "containers" and value not in ("", "True", "a,,b")
        assert (invalid_annotation(pod({name: value})) is None) is fits, value


def test_the_page_says_which_annotations_there_are() -> None:
    """Whatever decides with annotations is in optin.py, with a constant for each."""
    constants = {value for value in vars(optin).values() if isinstance(value, str) and value.startswith(PREFIX)}
    assert {PREFIX + name for name in KNOWN} == constants - {PREFIX}
    for module in (observe, pods):
        words = {
            node.value for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Constant)
        }
        assert not [word for word in words if isinstance(word, str) and word.startswith(PREFIX)]


def test_the_page_says_which_annotations_are_for_one_container() -> None:
    for name, row in KNOWN.items():
        assert row[2] == "yes"
        assert code(row[3]) == ([] if name == "containers" else [f"{PREFIX}{name}.CONTAINER"])


def test_a_key_that_is_not_in_the_table_is_ignored_and_told() -> None:
    """`containers` is for the pod alone."""
    for key in ("enable", "containers.vllm", "Enabled", "helper.vllm"):
        for value in ("vllm", "A B", ""):
            assert invalid_annotation(pod({key: value})) is None
            assert unknown_annotations(pod({key: value})) == (PREFIX + key,)
    assert unknown_annotations(pod({"enabled": "true", "containers": "vllm", "helpers.vllm": "Leave"})) == ()


@pytest.mark.parametrize(
    ("annotations", "container", "why", "remedy"),
    [
        ({}, "vllm", "", "annotate its pod with cpubind.dev/enabled=true"),
        ({"enabled": "yes"}, "vllm", "annotation cpubind.dev/enabled cannot be used", "correct it"),
        ({"enabled": "false"}, "vllm", "annotation cpubind.dev/enabled is false", "set it to true"),
        ({"enabled": "true", "containers": "vllm"}, "proxy", "does not name container proxy", "add it there"),
        ({"enabled": "true", "containers": "vllm"}, "", "the name of its container is not known yet", "wait"),
        ({"enabled": "true", "enabled.vllm": "false"}, "vllm", "cpubind.dev/enabled.vllm is false", "set it to"),
        ({"enabled": "true"}, "vllm", "its namespace or --select leaves it out", "excludeNamespaces"),
    ],
)
def test_each_line_of_the_page_that_leaves_a_container_out_is_told_as_such(
    annotations: Mapping[str, str], container: str, why: str, remedy: str
) -> None:
    told = left_alone(pod(annotations), container)
    assert (why in told[0], remedy in told[1]) == (True, True), told


EXAMPLES = [row for row in table(SECTIONS["Who is bound"]) if len(row) == 5]
ANSWERS = {True: "yes", False: "no", None: "as it is"}


@pytest.mark.parametrize("row", EXAMPLES, ids=lambda row: row[0])
def test_the_page_says_which_containers_are_bound(row: list[str]) -> None:
    said = dict(re.fullmatch(r'([\w.-]+)="(.*)"', text).groups() for text in code(row[0]))  # type: ignore[union-attr,misc]
    asked = [
        ANSWERS[opted_in(pod(said), container, unless_said=everybody)]
        for everybody in (False, True)
        for container in ("vllm", "proxy")
    ]
    assert row[1:] == asked


def test_there_are_examples_of_every_answer() -> None:
    assert {answer for row in EXAMPLES for answer in row[1:]} == set(ANSWERS.values())
    assert len(EXAMPLES) == 10


def test_the_page_says_how_long_the_name_of_a_container_may_be() -> None:
    said = {code(row[0])[0].removeprefix(PREFIX): int(row[1]) for row in table(SECTIONS["Names that are too long"])}
    assert said == {f"{name}.CONTAINER": KEY_LENGTH - len(f"{name}.") for name in sorted(KNOWN.keys() - {"containers"})}
    longest = "a" * said["enabled.CONTAINER"]
    assert opted_in(pod({f"enabled.{longest}": "true"}), longest)


def test_containers_takes_a_name_of_any_length() -> None:
    name = "a" * 63
    assert opted_in(pod({"enabled": "true", "containers": f"vllm,{name}"}), name)
