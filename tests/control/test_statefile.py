"""The state file: what people wrote stays in it, and a file that is none is left alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.control.statefile import StateFile
from agent.model.reason import Reason, Refused


def plan(spec: Any = None, **status: Any) -> dict[str, Any]:
    """What the loop hands over."""
    return {
        "apiVersion": "cpubind.dev/v1alpha1",
        "kind": "CpuBindingPlan",
        "metadata": {"name": "node-1"},
        "spec": {} if spec is None else spec,
        "status": {"mode": "Enforce", **status},
    }


def spec_of(state: StateFile) -> object:
    """What `spec` gives: the value or the reason of its refusal."""
    try:
        return state.spec()
    except Refused as refused:
        return refused.reason if "\n" not in refused.message else refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "plan.yaml"


def test_it_is_made_where_there_is_none_and_written_when_it_says_something_new(path: Path) -> None:
    state = StateFile(path)
    assert (state.spec(), state.generation) == (None, 1)
    assert state.write(plan())
    assert yaml.safe_load(path.read_text()) == plan()
    assert not state.write(plan())
    assert state.write(plan(observed=1))
    assert state.write(plan(observed=True))
    assert (state.spec(), state.generation) == ({}, 1)
    again = StateFile(path)
    assert again.spec() == {}
    assert not again.write(plan(observed=True))


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod\napiVersion: v1\n",
        "kind: CpuBindingPlan\napiVersion: apps/v1\n",
        "apiVersion: cpubind.development/v1\n",
        "apiVersion: 1\n",
        "kind: [CpuBindingPlan]\n",
        "- spec\n",
        "root:x:0:0\n",
        "17",
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"{x}: &{x} [{', '.join([f'*{y}'] * 10)}]\n" for y, x in zip("abcdefgh", "bcdefghi", strict=True)),
        "spec: &s [*s]\n",
        "spec: {\n",
        "a: !!python/object:os.system x\n",
    ],
)
def test_a_file_of_another_kind_is_refused_and_never_overwritten(path: Path, text: str) -> None:
    path.write_text(text)
    state = StateFile(path)
    with pytest.raises(Refused) as refused:
        state.read()
    assert refused.value.reason is Reason.STATE_UNREADABLE
    for turn in range(2):
        assert spec_of(state) is Reason.STATE_UNREADABLE
        assert not state.write(plan(turn=turn))
    assert path.read_text() == text


def test_a_file_that_turns_into_another_kind_is_left_alone_too(path: Path) -> None:
    state = StateFile(path)
    state.spec()
    state.write(plan())
    path.write_text("kind: Pod\n")
    assert spec_of(state) is Reason.STATE_UNREADABLE
    assert not state.write(plan(more=1))
    assert path.read_text() == "kind: Pod\n"


@pytest.mark.parametrize("text", ["", "# spec:\n", "---\n", "kind:\napiVersion:\nspec:\n"])
def test_a_file_that_says_nothing_is_an_empty_one(path: Path, text: str) -> None:
    path.write_text(text)
    state = StateFile(path)
    assert state.spec() == {}
    assert state.write(plan())
    assert yaml.safe_load(path.read_text()) == plan()


def test_what_people_wrote_beside_spec_is_kept(path: Path) -> None:
    path.write_text(
        "metadata:\n  name: mine\n  labels: {team: serving}\n  annotations: {a: 2024-01-01}\n"
        "spec: {mode: DryRun}\nowner: me\nstatus: {old: 1}\nx-list: [1, true]\n"
    )
    before = yaml.safe_load(path.read_text())
    state = StateFile(path)
    for turn in range(2):
        assert state.spec() == {"mode": "DryRun"}
        assert state.write(plan({"mode": "DryRun"}, turn=turn))
        after = yaml.safe_load(path.read_text())
        assert after["metadata"] == before["metadata"] | {"name": "node-1"}
        assert (after["owner"], after["x-list"], after["spec"]) == ("me", [1, True], {"mode": "DryRun"})
        assert after["status"] == {"mode": "Enforce", "turn": turn}
    path.write_text(path.read_text().replace("serving", "training"))
    assert state.spec() == {"mode": "DryRun"}
    assert not state.write(plan({"mode": "DryRun"}, turn=1))
    assert state.write(plan({"mode": "DryRun"}, turn=2))
    assert yaml.safe_load(path.read_text())["metadata"]["labels"] == {"team": "training"}
    assert state.generation == 1


@pytest.mark.parametrize("spec", [[], "foo", 7, False, ["mode"]])
def test_a_spec_that_is_no_mapping_is_refused_each_time_and_kept_while_status_is_written(path: Path, spec: Any) -> None:
    path.write_text(yaml.safe_dump({"spec": spec}))
    state = StateFile(path)
    for turn in range(3):
        assert spec_of(state) is Reason.INVALID_SPEC
        assert state.write(plan({"mode": "DryRun"}, turn=turn))
        written = yaml.safe_load(path.read_text())
        assert (written["spec"], written["status"]["turn"]) == (spec, turn)
    assert state.generation == 1
    path.write_text("spec: {mode: DryRun}\n")
    assert (state.spec(), state.generation) == ({"mode": "DryRun"}, 2)


def test_a_number_that_becomes_true_is_a_change(path: Path) -> None:
    path.write_text("spec: {irqBinding: 1}\n")
    state = StateFile(path)
    state.spec()
    path.write_text("spec: {irqBinding: true}\n")
    assert state.spec() == {"irqBinding": True}
    assert state.generation == 2


def test_somebody_who_saved_it_meanwhile_is_not_overwritten(path: Path) -> None:
    state = StateFile(path)
    state.spec()
    path.write_text("spec: {mode: DryRun}\n")
    assert not state.write(plan())
    assert path.read_text() == "spec: {mode: DryRun}\n"


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_path_that_names_no_file_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="not the name of a file"):
        StateFile(Path(name))


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_regular_file_is_not_replaced(path: Path, kind: str) -> None:
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("elsewhere")
    state = StateFile(path)
    assert spec_of(state) == (None if kind == "link" else Reason.STATE_UNREADABLE)
    with pytest.raises(Refused, match="not a regular file"):
        state.write(plan())
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.yaml"]
    assert path.is_symlink() == (kind == "link")


def test_text_that_utf_8_has_not_is_said_in_one_line(path: Path) -> None:
    path.write_text('spec: {}\nnote: "\\ud800"\n')
    state = StateFile(path)
    state.generation = 1  # as if the loader had let it pass
    state._text, state._document = path.read_text(), {"note": "\ud800"}
    with pytest.raises(Refused, match="cannot be encoded") as refused:
        state.write(plan())
    assert refused.value.reason is Reason.STATE_NOT_WRITTEN
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.yaml"]


def test_a_file_that_is_deleted_asks_for_nothing_and_comes_back_with_its_spec(tmp_path: Path) -> None:
    """Design section 7: absence never acts. Otherwise to delete a Disabled plan would bind the host."""
    path = tmp_path / "plan.yaml"
    path.write_text("metadata: {labels: {team: llm}}\nspec: {mode: Disabled}\n")
    state = StateFile(path)
    assert state.spec() == {"mode": "Disabled"}
    path.unlink()
    assert state.spec() == {"mode": "Disabled"}
    assert state.generation == 1
    plan = {"apiVersion": "cpubind.dev/v1alpha1", "kind": "CpuBindingPlan", "metadata": {"name": "n"}, "status": {}}
    assert state.write(plan | {"spec": {"mode": "Disabled"}})
    document = yaml.safe_load(path.read_text())
    assert document["spec"] == {"mode": "Disabled"}
    assert document["metadata"] == {"name": "n", "labels": {"team": "llm"}}
    path.write_text("spec: {}\n")
    assert state.spec() == {}
