"""What becomes an event: the difference of two reports, and what was done in a pass."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.control.act import ActResult
from agent.control.happenings import MAX_MESSAGE, Happening, happenings
from agent.control.observe import Observation
from agent.control.report import Report
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Topology
from agent.model.outcome import IrqOutcome, Misplaced, WorkerOutcome
from agent.model.plan import Allotment, Plan, WorkerPlan
from agent.model.reason import Problem, Reason
from agent.model.remedies import REMEDIES
from agent.model.spec import Mode, Role, Spec, Strategy
from agent.model.workload import ProcessId, Worker

ALL = CpuSet.parse("0-39")
TOPOLOGY = Topology(architecture="aarch64", possible=ALL, online=ALL, root=ALL, isolated=CpuSet(()), nodes=(), cores=())
ROLES = {"irq": "0-1", "main": "2-37", "acl": "38", "release": "39"}
OTHER_ROLES = {"irq": "40-41", "main": "42-77", "acl": "78", "release": "79"}

Object = dict[str, Any]


def worker(pid: int = 1, state: str = "Bound", *, pod: str = "llm-0", **more: Any) -> Object:
    return {"pid": pid, "namespace": "prod", "pod": pod, "container": "vllm", "state": state, **more}


def npu(*workers: Object, number: int = 0, roles: Mapping[str, str] | None = ROLES) -> Object:
    return {"id": number, **({"roles": dict(roles)} if roles else {}), "workers": list(workers)}


def plan(*npus: Object, **conditions: tuple[str, str]) -> Object:
    """A CpuBindingPlan; `conditions` as type=(status, reason)."""
    listed = [{"type": k, "status": s, "reason": r, "message": f"about {r}"} for k, (s, r) in conditions.items()]
    return {"status": {"npus": list(npus), "conditions": listed}}


def told(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    mode: Mode = Mode.ENFORCE,
    seen: Observation | None = None,
    act: ActResult | None = None,
    **more: Any,
) -> list[Happening]:
    report = Report(node="n", spec=Spec(mode=mode), seen=seen, **more)
    return list(happenings(before, after, report, act or ActResult()))


def reasons(*args: Any, **more: Any) -> list[str]:
    return [happening.reason.value for happening in told(*args, **more)]


# Workers

STATES = ("", "Pending", "Planned", "Bound", "Partial", "Failed", "Skipped")
EVENTS = {
    "Bound": ("CpuBound", False),
    "Partial": ("CpuBindingFailed", True),
    "Failed": ("CpuBindingFailed", True),
    "Skipped": ("CpuBindingSkipped", False),
}


@pytest.mark.parametrize(("was", "now"), list(product(STATES, repeat=2)))
@pytest.mark.parametrize("mode", list(Mode))
def test_a_worker_s_new_state_is_told_once_where_the_plan_is_enforced(was: str, now: str, mode: Mode) -> None:
    """The empty state stands for no worker."""
    before = plan(npu(worker(state=was)) if was else npu())
    after = plan(npu(worker(state=now)) if now else npu())
    news = told(before, after, mode=mode)
    expected = EVENTS.get(now) if mode is Mode.ENFORCE and was != now else None
    assert [(h.reason.value, h.warning) for h in news] == ([expected] if expected else [])
    for happening in news:
        assert (happening.namespace, happening.pod, happening.standing) == ("prod", "llm-0", False)
        assert happening.message.startswith("process 1 on NPU 0")
    assert told(after, after, mode=mode) == []


def test_a_bound_worker_is_told_with_its_cpus() -> None:
    (happening,) = told({}, plan(npu(worker(4711), number=3)))
    assert happening == Happening(
        Reason.CPU_BOUND,
        "process 4711 on NPU 3 (irq 0-1, main 2-37, acl 38, release 39)",
        namespace="prod",
        pod="llm-0",
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (npu(worker()), npu(worker(), roles=OTHER_ROLES), ["CpuBound"]),
        (npu(worker()), npu(worker(roles={"main": "2-9"})), ["CpuBound"]),
        (npu(worker()), npu(worker(), number=1), ["CpuBound"]),
        (npu(worker()), npu(worker(2)), ["CpuBound"]),
        (npu(worker()), npu(worker(pod="llm-1")), ["CpuBound"]),
        (npu(worker(state="Partial", reason="A")), npu(worker(state="Partial", reason="B")), ["CpuBindingFailed"]),
        (npu(worker(state="Failed", reason="A")), npu(worker(state="Failed", reason="B")), ["CpuBindingFailed"]),
        # A count in a message, a container that got its name, and CPUs that a worker does not have, are no news.
        (npu(worker(state="Failed", message="3")), npu(worker(state="Failed", message="4")), []),
        (npu(worker()), npu(worker(container="")), []),
        (npu(worker(state="Failed")), npu(worker(state="Failed"), roles=OTHER_ROLES), []),
        (npu(worker()), npu(worker(), roles=dict(sorted(ROLES.items()))), []),  # as an API server orders fields
    ],
)
def test_what_is_bound_elsewhere_or_fails_for_another_reason_is_news(
    one: Object, other: Object, expected: list[str]
) -> None:
    assert reasons(plan(one), plan(other)) == expected
    assert reasons(plan(other), plan(one)) == expected


def test_a_failure_is_told_with_its_reason() -> None:
    failed = worker(7, "Failed", reason="InsufficientCpus", message="an NPU needs 5 CPUs")
    (happening,) = told({}, plan(npu(failed)))
    assert happening.message == (
        "process 7 on NPU 0: InsufficientCpus: an NPU needs 5 CPUs; "
        "reserve fewer CPUs, give the pod more, or let fewer pods have CPUs of their own"
    )
    (happening,) = told({}, plan(npu(worker(7, "Skipped", reason="UnsupportedArchitecture"))))
    assert (
        happening.message == "process 7 on NPU 0: UnsupportedArchitecture; nothing, or set allowAnyArchitecture: true"
    )


def test_a_worker_that_somebody_else_keeps_moving_is_told_by_that_reason() -> None:
    contested = worker(7, "Partial", reason="CpuBindingConflict", message="somebody else")
    for before in ({}, plan(npu(worker(7)))):
        (happening,) = told(before, plan(npu(contested)))
        assert (happening.reason, happening.warning, happening.pod) == (Reason.CPU_BINDING_CONFLICT, True, "llm-0")
        assert happening.message.endswith(
            f": CpuBindingConflict: somebody else; {REMEDIES[Reason.CPU_BINDING_CONFLICT]}"
        )
    longer = worker(7, "Partial", reason="CpuBindingConflict", message="left for 20 s")
    assert told(plan(npu(contested)), plan(npu(longer))) == []
    assert reasons(plan(npu(contested)), plan(npu(worker(7)))) == ["CpuBound"]


def test_a_process_that_is_in_no_pod_has_nobody_to_be_told_to() -> None:
    assert told({}, plan(npu({"pid": 1, "state": "Bound"}, {"pid": 2, "state": "Failed"}))) == []


def test_what_to_do_about_several_workers_of_a_pod_is_told_once_for_each_reason() -> None:
    few = {"reason": "InsufficientCpus", "message": "4 CPUs"}
    after = plan(
        npu(worker(1, "Failed", **few), number=0),
        npu(worker(2, "Failed", **few), number=1),
        npu(worker(3, "Failed", reason="NoAffinity"), number=2),
    )
    (happening,) = told({}, after)
    assert happening.message == (
        "3 workers: process 1 on NPU 0: InsufficientCpus: 4 CPUs; process 2 on NPU 1: InsufficientCpus: 4 CPUs; "
        f"process 3 on NPU 2: NoAffinity; {REMEDIES[Reason.INSUFFICIENT_CPUS]}; {REMEDIES[Reason.NO_AFFINITY]}"
    )


def test_workers_of_a_pod_are_folded_into_one_by_reason() -> None:
    after = plan(
        npu(worker(1), number=0),
        npu(worker(2), number=1, roles=OTHER_ROLES),
        npu(worker(3, "Failed", reason="NoAffinity"), number=2),
        npu(worker(4, pod="llm-1"), number=3),
    )
    news = told({}, after)
    assert [(h.reason.value, h.pod) for h in news] == [
        ("CpuBound", "llm-0"),
        ("CpuBindingFailed", "llm-0"),
        ("CpuBound", "llm-1"),
    ]
    assert news[0].message == (
        "2 workers: process 1 on NPU 0 (irq 0-1, main 2-37, acl 38, release 39); "
        "process 2 on NPU 1 (irq 40-41, main 42-77, acl 78, release 79)"
    )


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    after = plan(npu(worker(1), worker(2, namespace="test")))
    assert sorted((h.namespace, h.pod) for h in told({}, after)) == [("prod", "llm-0"), ("test", "llm-0")]


def test_a_worker_on_several_npus_is_told_once() -> None:
    spans = worker(5, roles={"main": "2-37,42-77"}, reason="MultipleNpus")
    (happening,) = told({}, plan(npu(spans, number=0), npu(spans, number=1, roles=OTHER_ROLES)))
    assert happening.message == "process 5 on NPU 0, 1 (main 2-37,42-77)"


# What was done in a pass

SEEN = Observation(
    TOPOLOGY,
    places={ProcessId(1, 9): ("prod", "llm-0", "vllm"), ProcessId(2, 9): ("prod", "llm-0", "vllm")},
    misannotated={("prod", "odd"): Problem(Reason.INVALID_ANNOTATION, "cannot be used")},
)
ODD = Happening(Reason.INVALID_ANNOTATION, "cannot be used; correct the annotation", True, "prod", "odd", standing=True)


def repaired(pid: int, count: int) -> WorkerOutcome:
    drift = tuple(Misplaced(pid + k, "x", Role.MAIN, CpuSet({1}), CpuSet({2})) for k in range(count))
    return WorkerOutcome(ProcessId(pid, 9), "Bound", drift=drift)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (ActResult(outcomes={ProcessId(1, 9): repaired(1, 0)}), []),
        (
            ActResult(outcomes={ProcessId(1, 9): repaired(1, 3), ProcessId(2, 9): repaired(2, 1)}),
            [("CpuBindingRepaired", "2 workers: process 1: 3 threads put back; process 2: 1 threads put back")],
        ),
        (
            ActResult(undone={ProcessId(1, 9): 4}),
            [("CpuReleased", "process 1: 4 threads given back to their cpuset")],
        ),
        (
            ActResult(released={ProcessId(2, 9): 4}),
            [("CpuReleased", "process 2: 4 threads given back to their cpuset: it has no plan any more")],
        ),
        # Neither in a pod, nor the process that it was.
        (ActResult(undone={ProcessId(3, 9): 4}, released={ProcessId(1, 8): 4}), []),
        (ActResult(stuck={ProcessId(1, 9): Problem(Reason.PERMISSION_DENIED, "no")}), []),
    ],
)
def test_what_was_done_to_a_worker_is_told_to_its_pod(act: ActResult, expected: list[tuple[str, str]]) -> None:
    news = told({}, {}, seen=SEEN, act=act)
    assert news[0] == ODD
    assert [(h.reason.value, h.message) for h in news[1:]] == expected
    assert {(h.namespace, h.pod, h.warning, h.standing) for h in news[1:]} <= {("prod", "llm-0", False, False)}
    assert told({}, {}, seen=None, act=act) == []


def on(*npus: int, pid: int = 1) -> WorkerPlan:
    return WorkerPlan(Worker(ProcessId(pid, 9), npus, "c", "python3"), "", Allotment())


AT_ONCE = (
    "2 workers: process 1: 3 threads and 1 interrupts of its NPU put back; process 2: 2 interrupts of its NPU put back"
)


def placed(npu: int, drift: int) -> IrqOutcome:
    return IrqOutcome(npu, "Bound", irqs=17, written=drift, drift=drift)


@pytest.mark.parametrize(
    ("workers", "irqs", "act", "expected"),
    [
        ([on(0)], [placed(0, 0)], ActResult(), []),
        ([on(0)], [IrqOutcome(0, "Bound", irqs=17, written=17)], ActResult(), []),  # for the first time
        ([on(0)], [placed(0, 3)], ActResult(), ["process 1: 3 interrupts of its NPU put back"]),
        ([on(0, 1)], [placed(0, 3), placed(1, 2)], ActResult(), ["process 1: 5 interrupts of its NPU put back"]),
        (
            [on(0), on(1, pid=2)],
            [placed(0, 1), placed(1, 2)],
            ActResult(outcomes={ProcessId(1, 9): repaired(1, 3)}),
            [AT_ONCE],
        ),
        ([on(0, pid=3)], [placed(0, 3)], ActResult(), []),  # in no pod
        ([on(0)], [placed(1, 3)], ActResult(), []),
    ],
)
def test_interrupts_that_were_put_back_are_told_to_the_pod_of_the_worker(
    workers: list[WorkerPlan], irqs: list[IrqOutcome], act: ActResult, expected: list[str]
) -> None:
    made = Plan(DeviceType.A3, Strategy.GLOBAL_SLICE, workers=tuple(workers))
    by_npu = {outcome.npu: outcome for outcome in irqs}
    news = told({}, {}, seen=SEEN, act=act, plan=made, irqs=by_npu)
    assert [(h.reason.value, h.message) for h in news[1:]] == [("CpuBindingRepaired", text) for text in expected]
    assert told({}, {}, mode=Mode.DRY_RUN, seen=SEEN, plan=made, irqs=by_npu) == [ODD]


BALANCED = Problem(Reason.IRQBALANCE_ACTIVE, "irqbalance (7): start it with --banmod=x")


def test_an_irqbalance_that_has_to_be_configured_is_told_each_time_as_something_that_stands() -> None:
    """And once: not by the condition, too, nor hidden by a graver one."""
    graver = Problem(Reason.DRIVER_BUSY, "busy")
    shown, hidden = plan(Degraded=("True", "IrqbalanceActive")), plan(Degraded=("True", "DriverBusy"))
    standing = Happening(Reason.IRQBALANCE_ACTIVE, BALANCED.message, True, standing=True)
    for before in ({}, shown, hidden):
        assert told(before, shown, seen=SEEN, notes=(BALANCED,)) == [ODD, standing]
    assert told(hidden, hidden, seen=SEEN, notes=(graver, BALANCED)) == [ODD, standing]
    assert told({}, shown, mode=Mode.DRY_RUN, seen=SEEN, notes=(BALANCED,)) == [ODD]


def test_a_dry_run_tells_nothing_but_what_people_wrote_wrong() -> None:
    act = ActResult(outcomes={ProcessId(1, 9): repaired(1, 3)}, withheld=3)
    assert told({}, plan(npu(worker(state="Planned"))), mode=Mode.DRY_RUN, seen=SEEN, act=act) == [ODD]


def test_an_annotation_that_cannot_be_used_is_told_each_time_as_something_that_stands() -> None:
    for mode in Mode:
        assert told({}, {}, mode=mode, seen=SEEN) == told({}, {}, mode=mode, seen=SEEN) == [ODD]


# Conditions

TELLING = [("TopologyDiscovered", "False"), ("PlanValid", "False"), ("Degraded", "True")]
QUIET = {"TopologyDiscovered": "True", "PlanValid": "True", "Degraded": "False"}


@pytest.mark.parametrize(("kind", "status"), TELLING)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_condition_is_told_once_and_again_when_it_comes_back(kind: str, status: str, mode: Mode) -> None:
    bad, good = plan(**{kind: (status, "NpuSmiHung")}), plan(**{kind: (QUIET[kind], "AsPlanned")})
    expected = [Happening(Reason.NPU_SMI_HUNG, "about NpuSmiHung", True)]
    assert told({}, bad, mode=mode) == expected
    assert told(good, bad, mode=mode) == expected
    assert told(bad, bad, mode=mode) == []
    assert told(bad, good, mode=mode) == []
    assert told(plan(**{kind: (status, "DriverBusy")}), bad, mode=mode) == expected


@pytest.mark.parametrize("kind", ["Ready", "Bound", "Restored", "Other"])
@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_other_conditions_are_no_events(kind: str, status: str) -> None:
    assert told({}, plan(**{kind: (status, "NpuSmiHung")})) == []


def test_one_reason_of_several_conditions_is_told_once_wherever_it_shows() -> None:
    both = plan(TopologyDiscovered=("False", "NpuSmiHung"), PlanValid=("False", "NpuSmiHung"))
    assert reasons({}, both) == ["NpuSmiHung"]
    later = plan(TopologyDiscovered=("True", "AsPlanned"), Degraded=("True", "NpuSmiHung"))
    assert reasons(both, later) == reasons(later, both) == []
    two = plan(PlanValid=("False", "InvalidSpec"), Degraded=("True", "NpuSmiHung"))
    assert reasons(both, two) == ["InvalidSpec"]


def test_a_message_that_changes_is_no_news() -> None:
    before, after = plan(Degraded=("True", "NpuSmiHung")), plan(Degraded=("True", "NpuSmiHung"))
    after["status"]["conditions"][0]["message"] = "for 20 s"
    assert told(before, after) == []


# What a file may hold

MESSAGES = st.text(min_size=200, max_size=256)


@settings(max_examples=30, deadline=None)
@given(message=MESSAGES, count=st.integers(1, 40))
def test_a_message_is_one_line_of_a_thousand_bytes_at_most(message: str, count: int) -> None:
    failed = [worker(pid, "Failed", reason="NoAffinity", message=message) for pid in range(count)]
    news = told({}, plan(npu(*failed), Degraded=("True", "NpuSmiHung")))
    assert len(news) == 2
    for happening in news:
        assert happening.message
        assert "\n" not in happening.message
        assert len(happening.message.encode()) <= MAX_MESSAGE
    if len(news[0].message.encode()) > MAX_MESSAGE - 3:
        assert news[0].message.endswith("…")


def test_a_message_is_cut_between_characters() -> None:
    for shift in range(4):
        failed = worker(1, "Failed", reason="NoAffinity", message="x" * shift + "域" * 900)
        (happening,) = told({}, plan(npu(failed)))
        assert MAX_MESSAGE - 3 <= len(happening.message.encode()) <= MAX_MESSAGE
        assert happening.message.endswith("域…")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.floats(allow_nan=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = {
    "worker": ("pid", "namespace", "pod", "state", "reason", "message", "roles"),
    "npu": ("id", "roles"),
    "condition": ("type", "status", "reason", "message"),
}


def entry(kind: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An entry as it should be but for some fields, or anything."""
    usual = {"pid": 1, "namespace": "prod", "pod": "llm-0", "state": "Bound", "id": 0, "type": "Degraded"}
    fields = {name: st.just(usual.get(name, "x")) | JSON for name in NAMES[kind]}
    return st.fixed_dictionaries({}, optional={**fields, **more}) | JSON


DAMAGED = JSON | st.fixed_dictionaries(
    {},
    optional={
        "status": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "npus": st.lists(entry("npu", workers=st.lists(entry("worker"), max_size=3) | JSON), max_size=3) | JSON,
                "conditions": st.lists(entry("condition"), max_size=3) | JSON,
            },
        )
    },
)


@settings(max_examples=100, deadline=None)
@given(before=DAMAGED.filter(lambda value: isinstance(value, dict)))
def test_what_was_reported_before_may_be_damaged_in_any_way(before: dict[str, Any]) -> None:
    after = plan(npu(worker()), Degraded=("True", "NpuSmiHung"))
    assert set(reasons(before, after)) <= {"CpuBound", "NpuSmiHung"}
    for more in ({}, {"status": {"npus": [npu(worker())], "conditions": None}}):
        assert "NpuSmiHung" in reasons(more, after)
