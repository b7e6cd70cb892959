"""docs/events.md lists the events that the code tells, their types and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.control.act import ActResult
from agent.control.happenings import MAX_MESSAGE, Happening, happenings
from agent.control.observe import Observation
from agent.control.report import Report
from agent.kube.events import BURST, COMPONENT, NODE_EVENTS, NODE_SECONDS, PLAN_NAMESPACE, REFILL_SECONDS
from agent.kube.events import REMEMBER_SECONDS as FOLDED_SECONDS
from agent.kube.publisher import MAX_WAITING
from agent.model.cpuset import CpuSet
from agent.model.node import Topology
from agent.model.outcome import Misplaced, WorkerOutcome
from agent.model.reason import Problem, Reason
from agent.model.spec import Mode, Role, Spec
from agent.model.workload import ProcessId
from tests.docs.pages import ROOT, code, commands, one_line, sections, table
from tests.docs.reasons import Standing, standings

PAGE = ROOT / "docs/events.md"
SECTIONS = sections(PAGE)

CPUS = CpuSet.parse("0-9")
TOPOLOGY = Topology(
    architecture="aarch64", possible=CPUS, online=CPUS, root=CPUS, isolated=CpuSet(()), nodes=(), cores=()
)
PROCESS = ProcessId(1, 1)
PLACES = {PROCESS: ("prod", "llm-0", "vllm")}
WRONG = Problem(Reason.INVALID_ANNOTATION, "why")


def plan(state: str = "", *conditions: Standing, reason: str = "") -> dict[str, Any]:
    workers = [{"pid": 1, "namespace": "prod", "pod": "llm-0", "state": state, "reason": reason}] if state else []
    listed = [
        {"type": kind, "status": status, "reason": reason, "message": "why"} for kind, status, reason in conditions
    ]
    return {"status": {"npus": [{"id": 0, "workers": workers}], "conditions": listed}}


def told(after: Mapping[str, Any], act: ActResult, mode: Mode) -> tuple[Happening, ...]:
    seen = Observation(TOPOLOGY, places=PLACES, misannotated={("prod", "llm-0"): WRONG})
    return happenings({}, after, Report("n", Spec(mode=mode), seen=seen), act)


def everything(mode: Mode) -> Iterator[Happening]:
    """All that can happen to a worker under this mode."""
    for state in ("Pending", "Planned", "Bound", "Partial", "Failed", "Skipped"):
        yield from told(plan(state), ActResult(), mode)
    yield from told(plan("Partial", reason=Reason.CPU_BINDING_CONFLICT.value), ActResult(), mode)
    moved = (Misplaced(1, "x", Role.MAIN, CPUS, CPUS),)
    for act in (
        ActResult(outcomes={PROCESS: WorkerOutcome(PROCESS, "Bound", drift=moved)}),
        ActResult(released={PROCESS: 1}),
        ActResult(undone={PROCESS: 1}),
    ):
        yield from told(plan(), act, mode)


def kinds(found: Iterator[Happening]) -> set[tuple[str, str]]:
    return {(event.reason.value, "Warning" if event.warning else "Normal") for event in found}


def test_every_event_on_a_pod_is_on_the_page_with_its_type() -> None:
    said = {(code(row[0])[0], row[1]) for row in table(SECTIONS["On pods"])}
    assert said == kinds(everything(Mode.ENFORCE))


def test_what_is_told_in_a_dry_run_and_under_disabled_is_as_the_page_says() -> None:
    told_in = {mode: {reason for reason, _ in kinds(everything(mode))} for mode in Mode}
    text = one_line(SECTIONS["On pods"])
    assert "In a dry run nothing happens to workers: `InvalidAnnotation` alone is told." in text
    assert told_in[Mode.DRY_RUN] == {"InvalidAnnotation"}
    assert "Under `Disabled` it is that and `CpuReleased`." in text
    # An agent that has just been told to disable reports what the pass before put back; nothing is put back under it.
    assert told_in[Mode.DISABLED] - {"CpuBindingRepaired"} == {"InvalidAnnotation", "CpuReleased"}


def test_the_page_says_which_conditions_are_told_on_the_plan() -> None:
    said = {(code(row[0])[0], code(row[1])[0]) for row in table(SECTIONS["On the plan"])}
    found = set()
    for standing in standings():
        for event in happenings({}, plan("", standing), Report("n", Spec()), ActResult()):
            assert (event.reason.value, event.warning, event.pod) == (standing[2], True, "")
            found.add(standing[:2])
    assert said == found


def test_the_limits_on_the_page_are_those_in_the_code() -> None:
    limits = dict(row[:2] for row in table(SECTIONS["Limits"]))
    assert limits == {
        "of one object and reason": f"{BURST} at once, then 1 in {REFILL_SECONDS / 60:g} minutes",
        "of one node": f"{NODE_EVENTS} in any minute",
        "of one message": f"{MAX_MESSAGE:,} bytes",
        "waiting while the API server does not answer": f"{MAX_WAITING}; then the oldest are dropped",
    }
    assert NODE_SECONDS == 60
    assert f"for {FOLDED_SECONDS / 60:g} minutes" in one_line(SECTIONS["Limits"])


def test_the_commands_of_the_page_find_the_events() -> None:
    chosen = {word for command in commands(PAGE) for word in command.all_after("--field-selector")}
    assert chosen == {f"source={COMPONENT}", "involvedObject.kind=CpuBindingPlan"}
    assert [c.after("-n") for c in commands(PAGE) if "involvedObject.kind=CpuBindingPlan" in c.words] == [
        PLAN_NAMESPACE
    ]
