"""Whatever is wrong: its message says what to do, wherever people meet it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agent.control.conditions import GRAVITY
from agent.control.report import Report
from agent.demo.profiles import small
from agent.model.cpuset import CpuSet
from agent.model.outcome import WorkerOutcome
from agent.model.reason import MAX_MESSAGE_BYTES, Problem, Reason
from agent.model.remedies import IN_THE_MESSAGE, REMEDIES, with_remedy
from agent.model.spec import Mode, Spec
from agent.model.workload import ProcessId
from tests.control.rig import Rig
from tests.docs.reasons import NOTES, a_plan, conditions, every_condition

PLAIN = {
    Reason.AS_PLANNED,
    Reason.SWITCHED_OFF,
    # What happened, and is told at the worker or NPU with a reason of its own.
    Reason.CPU_BOUND,
    Reason.CPU_BINDING_FAILED,
    Reason.CPU_BINDING_SKIPPED,
    Reason.CPU_BINDING_REPAIRED,
    Reason.CPU_RELEASED,
    # Of memory that stays where it is: as it is to be, or for the figures beside it.
    Reason.ONE_NUMA_NODE,
    Reason.TARGET_HAS_NO_MEMORY,
    Reason.OUTSIDE_MEMS_ALLOWED,
    Reason.TARGET_NODE_FULL,
    Reason.BUDGET_SPENT,
    Reason.MIGRATION_INTERRUPTED,
    Reason.BOUND_BEFORE,
    Reason.NUMA_BALANCING,
}
"""Nothing is wrong."""

GOOD = {"Ready": "True", "TopologyDiscovered": "True", "PlanValid": "True", "Bound": "True", "Restored": "True"}


def test_every_reason_for_which_something_is_wrong_has_a_remedy() -> None:
    assert {*REMEDIES, *IN_THE_MESSAGE, *PLAIN} == set(Reason)
    assert not REMEDIES.keys() & IN_THE_MESSAGE
    assert not (REMEDIES.keys() | IN_THE_MESSAGE) & PLAIN
    assert set(GRAVITY) <= REMEDIES.keys()
    assert set(NOTES) <= REMEDIES.keys() | IN_THE_MESSAGE


def test_every_condition_that_is_not_as_it_should_be_says_what_to_do() -> None:
    bad = [entry for entry in every_condition() if entry["status"] != GOOD.get(entry["type"], "False")]
    assert {entry["type"] for entry in bad} == {*GOOD, "Degraded"}
    for entry in bad:
        (reason,) = (known for known in Reason if known.value == entry["reason"])
        assert reason in IN_THE_MESSAGE or entry["message"].endswith(f"; {REMEDIES[reason]}"), entry


def test_a_setting_that_does_not_fit_the_node_is_not_said_to_stand_in_the_plan_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, small(cpus=48), spec=Spec(reserved_cpus=CpuSet.parse("0-99")))
    rig.settle()
    assert not yaml.safe_load(rig.state_file.read_text()).get("spec"), "there is nothing to correct in it"
    said = rig.condition("PlanValid")["message"]
    assert said.startswith("spec.reservedCpus 0-99: CPUs 48-99 do not exist")
    assert said.endswith("kubectl edit cbp, the state file, chart values or flags")


def test_degraded_names_everything_else_that_is_missing() -> None:
    gone, outdated = Problem(Reason.NPU_SMI_HUNG, "npu-smi info: no answer"), Problem(Reason.SCHEMA_OUTDATED, "uvb")
    for notes in ((gone, outdated), (outdated, gone)):
        assert degraded(notes) == f"{gone.message}; {REMEDIES[gone.reason]} (also: SchemaOutdated)"
    long = Problem(Reason.NPU_SMI_HUNG, "x" * MAX_MESSAGE_BYTES)
    assert degraded((long, outdated)) == f"{'x' * (MAX_MESSAGE_BYTES - 23)} (also: SchemaOutdated)"
    assert degraded((gone, gone)) == f"{gone.message}; {REMEDIES[gone.reason]}"


def test_ready_says_of_a_plan_in_force_what_it_goes_without() -> None:
    problem = Problem(Reason.NPU_SMI_HUNG, "npu-smi info: no answer")
    bound = {ProcessId(1, 1): WorkerOutcome(ProcessId(1, 1), "Bound")}
    ready, *_ = conditions(Report("n", Spec(), a_plan(), outcomes=bound, notes=(problem,)))
    assert (ready["status"], ready["reason"]) == ("True", "AsPlanned")
    assert ready["message"] == f"the plan is in force; Degraded: {with_remedy(problem)}"


def test_ready_does_not_say_of_a_dry_run_that_its_plan_is_in_force() -> None:
    ready, *_ = conditions(Report("n", Spec(mode=Mode.DRY_RUN), a_plan()))
    assert (ready["status"], ready["reason"]) == ("True", "AsPlanned")
    assert ready["message"] == "mode is DryRun: nothing is written to the host"


def degraded(notes: tuple[Problem, ...]) -> str:
    """The message of a plan that goes without these."""
    found = conditions(Report("n", Spec(), a_plan(), notes=notes))
    message: str = next(entry["message"] for entry in found if entry["type"] == "Degraded")
    return message


def test_a_condition_that_is_as_it_should_be_says_nothing_of_that() -> None:
    good = [entry for entry in every_condition() if entry["status"] == GOOD.get(entry["type"], "False")]
    good = [entry for entry in good if "; Degraded: " not in entry["message"]]
    assert [entry for entry in good if entry["message"].endswith(tuple(REMEDIES.values()))] == []


def test_a_message_ends_with_its_remedy_where_both_fit() -> None:
    short = with_remedy(Problem(Reason.INSUFFICIENT_CPUS, "4 CPUs"))
    assert short.message == f"4 CPUs; {REMEDIES[Reason.INSUFFICIENT_CPUS]}"
    long = Problem(Reason.INSUFFICIENT_CPUS, "x" * (MAX_MESSAGE_BYTES - 10))
    assert with_remedy(long) == long
    assert with_remedy(Problem(Reason.AS_PLANNED, "m")).message == "m"


@pytest.mark.parametrize("reason", REMEDIES)
def test_every_remedy_fits_behind_a_message_of_usual_length(reason: Reason) -> None:
    assert len(REMEDIES[reason].encode()) <= 90
    assert not REMEDIES[reason].endswith(".")
