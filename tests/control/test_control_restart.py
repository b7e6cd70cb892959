"""What an agent that starts anew takes up: the spec in force, what was bound, what was told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.demo.workload import Worker
from agent.model.cpuset import CpuSet
from agent.model.spec import Mode, Spec
from tests.control.pods import OUT, annotate, by_annotation, is_free, pods_not_listed
from tests.control.rig import Rig, masks
from tests.control.shelf import Shelf

BAD_FORM = {"strategy": "Fastest"}
UNFIT = {"reservedCpus": "0-1000"}


def start(rig: Rig, npu: int, name: str = "llm-0", **pod: Any) -> Worker:
    worker = Worker.start(rig.node, npu, rig.node.kubelet.add_pod(name, **pod), threads=4)
    worker.add_role_threads()
    return worker


def spec_in_force(rig: Rig) -> tuple[str, str]:
    return rig.status["mode"], rig.status["topology"].get("reservedCpus", "")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, "a2", chooses=by_annotation)


# The spec in force


def test_a_state_file_that_is_deleted_while_no_agent_runs_comes_back_with_its_accepted_spec(rig: Rig) -> None:
    start(rig, 0)
    rig.ask(mode="DryRun", reservedCpus="0-3")
    rig.settle()
    rig.state_file.unlink()
    rig.restart()
    rig.settle()
    assert spec_in_force(rig) == ("DryRun", "0-3")
    assert yaml.safe_load(rig.state_file.read_text())["spec"] == {"mode": "DryRun", "reservedCpus": "0-3"}
    assert rig.writes() == 0


@pytest.mark.parametrize("bad", [BAD_FORM, UNFIT, {"reservedCpus": "0-191"}, ["mode"]])
def test_a_spec_that_turned_invalid_while_no_agent_ran_leaves_the_last_accepted_one_in_force(
    rig: Rig, bad: object
) -> None:
    worker = start(rig, 0)
    rig.ask(reservedCpus="0-3")
    rig.settle()
    writes, pools, before = rig.writes(), rig.pools(), masks(worker)
    rig.state_file.write_text(yaml.safe_dump({"spec": bad}))
    for _ in range(2):  # what the first of them notes must not be what the second one takes for accepted
        rig.restart()
        rig.settle()
        assert spec_in_force(rig) == ("Enforce", "0-3")
        assert (rig.condition("PlanValid")["status"], rig.condition("PlanValid")["reason"]) == ("False", "InvalidSpec")
        assert (rig.writes(), rig.pools(), masks(worker)) == (writes, pools, before)
        assert yaml.safe_load(rig.state_file.read_text())["spec"] == bad
    rig.ask(mode="Disabled")
    rig.sweep()
    assert is_free(worker)


def test_an_unfit_spec_is_not_accepted_in_a_pass_that_plans_twice(rig: Rig) -> None:
    worker = start(rig, 0)
    rig.settle()
    assert worker.pod
    group = worker.pod.container().cgroup
    rig.ask(**UNFIT)
    look = rig.agent.parts.observer.look
    looks: list[int] = []

    def before_it_shrinks(*args: Any, **more: Any) -> Any:
        seen = look(*args, **more)
        if not looks:
            rig.node.kernel.write_cpuset(group, CpuSet.parse("100-150"))
        looks.append(1)
        return seen

    rig.agent.parts.observer.look = before_it_shrinks  # type: ignore[method-assign]
    worker.drift(CpuSet.parse("50"), 1)
    rig.sweep()
    assert len(looks) == 2
    assert rig.condition("PlanValid")["reason"] == "InvalidSpec"
    assert rig.agent.planner.journal.spec == {}


def test_an_unfit_spec_is_told_while_npu_smi_does_not_answer(rig: Rig) -> None:
    rig.ask(**UNFIT)
    rig.node.npu_smi.fail()
    rig.settle()
    assert rig.condition("PlanValid")["reason"] == "InvalidSpec"
    assert rig.agent.planner.journal.spec is None


def test_before_any_spec_was_accepted_an_invalid_one_is_a_dry_run(rig: Rig) -> None:
    start(rig, 0)
    rig.state_file.write_text(yaml.safe_dump({"spec": BAD_FORM}))
    for _ in range(2):
        rig.settle()
        assert spec_in_force(rig)[0] == "DryRun"
        rig.restart()
    assert rig.writes() == 0


def test_an_accepted_spec_means_what_absent_fields_mean_now(rig: Rig) -> None:
    """A fleet is set by Helm: what the chart says counts for every field that the plan leaves out."""
    worker = start(rig, 0)
    rig.settle()
    rig.state_file.write_text(yaml.safe_dump({"spec": BAD_FORM}))
    rig.restart(spec=Spec(mode=Mode.DISABLED))
    rig.settle()
    assert rig.status["mode"] == "Disabled"
    assert is_free(worker)


@pytest.mark.parametrize("reserved", ["0-191", "100-1000"])
def test_settings_that_do_not_fit_the_node_leave_what_is_bound_as_it_is(rig: Rig, reserved: str) -> None:
    """The last accepted spec leaves them out, so that it does not fit either."""
    worker = start(rig, 0)
    rig.settle()
    before, pools, bases = masks(worker), rig.pools(), rig.agent.planner.journal.bases
    rig.restart(spec=Spec(reserved_cpus=CpuSet.parse(reserved)))
    start(rig, 4, "llm-1")
    writes = rig.writes()
    rig.settle()
    rig.sweep(11)
    assert (masks(worker), rig.pools(), spec_in_force(rig)) == (before, pools, ("DryRun", ""))
    assert (rig.agent.planner.journal.bases, rig.writes()) == (bases, writes)
    assert rig.condition("PlanValid")["reason"] == "InvalidSpec"
    rig.restart(spec=Spec())
    rig.settle()
    assert (masks(worker), rig.pools(), spec_in_force(rig)) == (before, pools, ("Enforce", ""))
    assert rig.writes() > writes


def test_settings_that_do_not_fit_the_node_leave_it_disabled_where_it_was(rig: Rig) -> None:
    rig.ask(mode="Disabled")
    rig.settle()
    rig.restart(spec=Spec(reserved_cpus=CpuSet.span(0, 191)))
    rig.settle()
    assert spec_in_force(rig) == ("Disabled", "")


@pytest.mark.parametrize("bad", [None, UNFIT])
def test_a_forced_dry_run_writes_nothing_whatever_was_accepted_before(rig: Rig, bad: dict[str, str] | None) -> None:
    worker = start(rig, 0)
    rig.settle()
    if bad:
        rig.ask(**bad)
    worker.drift(CpuSet.parse("100"), 2)
    writes = rig.writes()
    rig.restart(force_dry_run=True)
    rig.settle()
    assert rig.writes() == writes
    assert rig.status["mode"] == "DryRun"


# A plan that is kept elsewhere


def test_without_journal_and_plan_nothing_is_bound_until_it_is_known_that_there_is_none(tmp_path: Path) -> None:
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", state=shelf)
    worker = start(rig, 0)
    rig.settle()
    assert rig.writes() == 0
    assert rig.agent.plan_object()["status"]["mode"] == "DryRun"
    assert shelf.writes == []
    shelf.learn()
    rig.sweep()
    assert not is_free(worker)
    assert shelf.object["status"]["mode"] == "Enforce"
    assert rig.events() == [("CpuBound", "llm-0")]


def test_while_the_plan_is_not_known_the_accepted_spec_is_kept_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "a2", state=Shelf())
    worker = start(rig, 0)
    shelf: Shelf = rig.parts["state"]
    shelf.learn({"reservedCpus": "0-3"})
    rig.settle()
    writes, plan = rig.writes(), shelf.object
    anew = shelf.forget()
    rig.restart(state=anew)
    rig.events()
    rig.settle()
    assert rig.writes() == writes
    worker.drift(CpuSet.parse("100"), 2)
    rig.sweep()
    assert rig.writes() == writes + 2
    assert (rig.events(), anew.writes) == ([], [])
    rig.agent.publication.leave()
    assert anew.writes == [], "it knows less than what is written there"
    anew.learn()
    rig.sweep()
    assert rig.events() == []
    assert anew.object == plan
    assert rig.writes() == writes + 2


def test_a_plan_of_the_agents_comes_back_with_its_spec_and_one_of_a_person_does_not(tmp_path: Path) -> None:
    for own in (True, False):
        shelf = Shelf()
        rig = Rig(tmp_path / str(own), "a2", state=shelf)
        worker = start(rig, 0)
        shelf.learn({"mode": "DryRun"}, own=own)
        rig.settle()
        shelf.delete()
        anew = shelf.forget()
        rig.restart(state=anew)
        rig.settle()
        assert is_free(worker) or worker.threads[0].asked is None
        anew.learn()
        rig.sweep()
        assert anew.object["spec"] == ({"mode": "DryRun"} if own else {})
        # What was in force holds until the new plan is there: a CRD that goes takes people's plans along.
        assert anew.object["status"]["mode"] == "DryRun"
        rig.sweep()
        assert anew.object["status"]["mode"] == ("DryRun" if own else "Enforce")


def test_people_who_kept_a_node_off_still_do_while_their_plan_cannot_be_made_anew(tmp_path: Path) -> None:
    """A CRD that is deleted takes every plan along, and no new one can be posted."""
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", state=shelf)
    start(rig, 0)
    shelf.learn({"mode": "Disabled"}, own=False)
    rig.settle()
    shelf.full = True
    shelf.delete()
    for _ in range(5):
        rig.sweep()
    assert rig.writes() == 0


def test_a_plan_that_is_deleted_while_bound_comes_back_without_a_write_to_the_host(tmp_path: Path) -> None:
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", state=shelf)
    start(rig, 0)
    shelf.learn({"reservedCpus": "0-3"}, own=True)
    rig.settle()
    rig.events()
    writes, plan = rig.writes(), shelf.object
    for edit in (shelf.delete, shelf.learn, shelf.delete):
        edit()
        rig.sweep()
        assert shelf.object == plan
    assert (rig.writes(), rig.events()) == (writes, [])


def test_disabled_while_npu_smi_hangs_is_what_a_plan_comes_back_with(tmp_path: Path) -> None:
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", state=shelf)
    worker = start(rig, 0)
    shelf.learn({}, own=True)
    rig.settle()
    rig.node.npu_smi.hang()
    anew = shelf.forget()
    rig.restart(state=anew)
    anew.learn({"mode": "Disabled"}, own=True)
    rig.settle()
    anew.delete()
    rig.node.npu_smi.recover()
    rig.settle()
    assert anew.object["spec"] == {"mode": "Disabled"}
    assert is_free(worker)


# Owners of CPUs


def owners(rig: Rig) -> list[Worker]:
    """Pods with CPUs of their own, whose NPUs only what runs tells; the second has too few CPUs to be bound."""
    workers = [
        start(rig, 0, "own", own_cpus=CpuSet.parse("2-17")),
        start(rig, 1, "small", own_cpus=CpuSet.parse("20-22")),
        start(rig, 2, "shared"),
    ]
    rig.settle()
    rig.sweep(11)
    return workers


@pytest.mark.parametrize("mode", ["Enforce", "DryRun"])
def test_a_restart_under_owners_of_cpus_changes_nothing_and_waits_for_nothing(rig: Rig, mode: str) -> None:
    rig.ask(mode=mode)
    owners(rig)
    before = rig.status
    assert [npu.get("reason", "") for npu in before["npus"][:3]] == ["", "InsufficientCpus", ""]
    writes = rig.writes()
    rig.events()
    rig.restart()
    rig.settle()
    for _ in range(2):
        assert (rig.status, rig.writes(), rig.events()) == (before, writes, [])
        rig.sweep()


def test_an_owner_that_got_another_npu_while_no_agent_ran_is_waited_for(rig: Rig) -> None:
    first = owners(rig)[0]
    assert first.pod
    second = Worker.start(rig.node, 3, first.pod, threads=3)
    rig.restart()
    rig.settle()
    assert rig.npu(3)["workers"][0]["reason"] == "NpusChanging"
    assert is_free(second) or second.threads[0].asked is None
    rig.sweep(11)
    assert rig.npu(3)["state"] == "Bound"


def test_a_restart_before_the_pods_are_listed_moves_nobody(tmp_path: Path) -> None:
    """Without them, and without kubelet's cpu_manager_state, nobody knows who owns CPUs."""
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", chooses=by_annotation, state=shelf)
    shelf.learn({})
    (rig.node.root / "var/lib/kubelet/cpu_manager_state").unlink()
    workers = owners(rig)
    (rig.node.root / "var/lib/kubelet/cpu_manager_state").unlink()
    rig.sweep()
    before = shelf.object
    writes, bases = rig.writes(), rig.agent.planner.journal.bases
    assert before["status"]["npus"][0]["pool"] == "2-17"
    anew = shelf.forget()
    anew.known = True
    rig.restart(state=anew)
    rig.events()
    with pods_not_listed(rig):
        rig.settle()
        assert rig.writes() == writes
        assert rig.agent.planner.journal.bases == bases
        workers[0].drift(CpuSet.parse("16"), 3)
        workers[2].drift(CpuSet.parse("50"), 3)
        rig.sweep()
        assert rig.writes() == writes + 6
    anew.learn()
    rig.sweep()
    rig.sweep()
    assert (anew.object, rig.events()) == (before, [])
    assert rig.agent.planner.journal.bases == bases


def test_where_the_pods_are_never_listed_the_plan_says_what_is_in_force(tmp_path: Path) -> None:
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", chooses=by_annotation, state=shelf)
    shelf.learn({})
    owners(rig)
    (rig.node.root / "var/lib/kubelet/cpu_manager_state").unlink()
    rig.restart(state=shelf)
    writes = rig.writes()
    with pods_not_listed(rig):
        rig.settle()
        rig.sweep()
    worker = shelf.object["status"]["npus"][0]["workers"][0]
    assert (worker["state"], worker["pool"]) == ("Bound", "2-17")
    assert rig.writes() == writes


def test_a_driver_that_is_slow_after_a_restart_gives_no_new_events(rig: Rig) -> None:
    start(rig, 0)
    rig.settle()
    rig.events()
    rig.node.npu_smi.fail()
    rig.restart()
    rig.settle()
    assert rig.events() == [("DriverNotReady", "")]
    rig.node.npu_smi.recover()
    rig.settle()
    assert rig.npu(0)["state"] == "Bound"
    assert rig.events() == []


def test_what_was_seen_before_it_was_known_that_there_is_no_plan_is_told(tmp_path: Path) -> None:
    shelf = Shelf()
    rig = Rig(tmp_path, "a2", chooses=by_annotation, state=shelf)
    rig.node.npu_smi.fail()
    rig.settle()
    assert (shelf.writes, rig.events()) == ([], [])
    shelf.learn()
    rig.sweep()
    assert rig.events() == [("DriverNotReady", "")]
    rig.sweep()
    assert rig.events() == []


def test_who_was_given_back_before_the_plan_was_known_is_told_when_it_is(tmp_path: Path) -> None:
    """The pods are listed a moment before the plan is, and one of them had opted out while no agent ran."""
    shelf = Shelf()
    shelf.learn({})
    rig = Rig(tmp_path, "a2", chooses=by_annotation, state=shelf)
    worker = start(rig, 0)
    rig.settle()
    annotate(rig, rig.node.kubelet.pods[0], OUT)
    anew = shelf.forget()
    rig.restart(state=anew)
    rig.events()
    rig.settle()
    assert is_free(worker)
    assert rig.events() == []
    anew.learn()
    rig.sweep()
    assert rig.events() == [("CpuReleased", "llm-0")]
    rig.sweep()
    assert rig.events() == []
