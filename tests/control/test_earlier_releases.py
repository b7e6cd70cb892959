"""An agent that takes over from an earlier release, whose journal and plan lie in tests/fixtures/journals as that
release wrote them, moves nothing and tells nothing; and it can give back what that one took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.control.pods import is_free
from tests.control.recorded import SPEC, record, replay
from tests.control.rig import Rig

FOLDER = Path(__file__).parents[1] / "fixtures/journals"
FORMATS = sorted(path.stem for path in FOLDER.glob("*.json"))


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def touched(rig: Rig) -> dict[str, int]:
    """How often each call that changes the host was made."""
    changing = ("sched_setaffinity", "move_pages", "smp_affinity_list", "ban irqs")
    return {call: rig.node.kernel.calls[call] for call in changing}


@pytest.mark.parametrize("name", FORMATS)
def test_an_upgrade_moves_no_thread_tells_nothing_and_keeps_plan_and_spec(tmp_path: Path, name: str) -> None:
    rig = Rig(tmp_path, "a2")
    former = recorded(name)
    workers = replay(rig, former)
    before, status = touched(rig), yaml.safe_load(former["plan"])["status"]
    rig.restart()
    for _ in range(3):
        rig.settle()
    assert touched(rig) == before
    assert rig.events() == []
    assert not list(rig.folder.glob("journal.json.damaged*"))
    assert rig.pools() == {npu["id"]: npu.get("pool", "") for npu in status["npus"]}
    assert {entry["id"] for entry in rig.status["npus"] if entry["state"] == "Bound"} == {0, 1, 4}
    assert rig.status["planHash"] == status["planHash"]
    assert rig.condition("Ready")["status"] == "True"
    assert rig.condition("Degraded")["status"] == "False"
    assert yaml.safe_load(rig.state_file.read_text())["spec"] == SPEC
    assert all(worker.threads for worker in workers)


@pytest.mark.parametrize("name", FORMATS)
def test_what_an_earlier_release_took_is_given_back(tmp_path: Path, name: str) -> None:
    rig = Rig(tmp_path, "a2")
    workers = replay(rig, recorded(name))
    rig.restart()
    rig.settle()
    rig.ask(mode="Disabled")
    rig.settle()
    assert rig.condition("Restored")["status"] == "True"
    assert all(is_free(worker) for worker in workers)
    assert json.loads(rig.journal_file.read_text())["workers"] == []


@pytest.mark.parametrize("name", FORMATS)
def test_what_people_ask_of_the_new_one_is_done(tmp_path: Path, name: str) -> None:
    """It has taken over, and does not merely stand still."""
    rig = Rig(tmp_path, "a2")
    replay(rig, recorded(name))
    rig.restart()
    rig.settle()
    before = rig.writes()
    rig.ask(**SPEC, strategy="GlobalSlice")
    for _ in range(3):
        rig.settle()
    assert rig.writes() > before
    assert rig.status["strategy"] == "GlobalSlice"


def test_the_last_of_these_is_the_format_that_is_written_now() -> None:
    """Else record one more: `python -m tests.control.recorded FILE`."""
    written = record()["journal"]
    formats = [recorded(name)["journal"] for name in FORMATS]
    same = [known for known in formats if known.keys() == written.keys()]
    assert any(known["workers"][0].keys() == written["workers"][0].keys() for known in same)
    assert {known["version"] for known in formats} == {1}
