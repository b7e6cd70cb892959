"""When the process table is read, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product

import pytest

from agent.control.news import News
from agent.control.scanning import SCAN_SECONDS, Cause, Sight, cause
from agent.model.cpuset import CpuSet
from agent.model.node import DeviceType, Inventory, Npu, ProcessRow, ProcessTable, Topology
from agent.model.reason import Problem, Reason
from agent.model.spec import Spec
from agent.model.workload import ExclusiveGrant, KubeletState, Pod, ProcessId

CPUS = CpuSet.parse("0-63")
WORKER = ProcessId(4711, 99)
CALM = News()


def npu(number: int) -> Npu:
    return Npu(id=number)


def quiet() -> Sight:
    """What a look saw, made anew each time, as reading makes it, but for what is the same object while it lasts."""
    return Sight(
        topology=Topology(CpuSet.parse("0-63"), CpuSet.parse("0-63"), (), ()),
        inventory=Inventory((npu(0),), DeviceType.A2),
        table=TABLE,
        davinci={0: (236, 0)},
        kubelet=KubeletState("static", (ExclusiveGrant("u", "c", CpuSet.parse("8-9")),)),
        pods=PODS,
        cgroups={WORKER: ("/a", CpuSet.parse("0-63"), CpuSet.parse("0-63"))},
        bound={WORKER: ""},
        spec=Spec(),
    )


TABLE = ProcessTable((ProcessRow(0, 4711, 30000, "python"),))
PODS = (Pod(uid="u", namespace="prod", name="llm-0"),)

CHANGES: dict[Cause, list[Callable[[Sight], Sight]]] = {
    Cause.TOPOLOGY: [lambda s: replace(s, topology=replace(s.topology, online=CpuSet.parse("0-62")))],
    Cause.INVENTORY: [lambda s: replace(s, inventory=Inventory((npu(0), npu(1)), DeviceType.A2))],
    Cause.NPU_SMI: [
        lambda s: replace(s, table=ProcessTable(())),
        # The same again, younger.
        lambda s: replace(s, table=ProcessTable(TABLE.rows)),
    ],
    Cause.DEVICES: [lambda s: replace(s, davinci={}), lambda s: replace(s, davinci={0: (237, 0)})],
    Cause.PODS: [
        lambda s: replace(s, pods=()),
        # A pod that was deleted is listed for a while.
        lambda s: replace(s, pods=(replace(PODS[0]),)),
    ],
    Cause.KUBELET: [
        lambda s: replace(s, kubelet=KubeletState("none")),
        lambda s: replace(s, kubelet=replace(s.kubelet, grants=())),
        lambda s: replace(s, unread=Problem(Reason.KUBELET_STATE_UNREADABLE, "damaged")),
    ],
    Cause.CPUSETS: [
        lambda s: replace(s, cgroups={}),
        lambda s: replace(s, cgroups={WORKER: ("/b", CPUS, CPUS)}),
        lambda s: replace(s, cgroups={WORKER: ("/a", CpuSet.parse("0-7"), CPUS)}),
        lambda s: replace(s, cgroups={WORKER: ("/a", CPUS, CpuSet.parse("0-7"))}),
        lambda s: replace(s, cgroups={WORKER: ("/a", CPUS, None)}),
        lambda s: replace(s, cgroups={ProcessId(4711, 100): ("/a", CPUS, CPUS)}),
    ],
    Cause.BOUND: [lambda s: replace(s, bound={})],
    Cause.SPEC: [lambda s: replace(s, spec=Spec(reserved_cpus=CpuSet.parse("0-1")))],
}


def test_where_nothing_changed_the_table_is_not_read() -> None:
    assert cause(quiet(), quiet(), CALM, age=SCAN_SECONDS - 0.001) is None


def test_suspects_who_hold_nothing_are_no_cause() -> None:
    assert cause(quiet(), quiet(), News(suspects=frozenset({17})), age=0.0) is None


@pytest.mark.parametrize(
    ("expected", "change"), [(why, change) for why, changes in CHANGES.items() for change in changes]
)
def test_whatever_changed_is_cause(expected: Cause, change: Callable[[Sight], Sight]) -> None:
    assert cause(quiet(), change(quiet()), CALM, age=0.0) is expected


def test_every_field_of_a_sight_is_compared() -> None:
    told = {cause(quiet(), change(quiet()), CALM, age=0.0) for changes in CHANGES.values() for change in changes}
    assert told == CHANGES.keys()
    assert {name for changes in CHANGES.values() for change in changes for name in differing(change)} == {
        field.name for field in fields(Sight)
    }


def differing(change: Callable[[Sight], Sight]) -> set[str]:
    """Names of the fields that are other ones after a change."""
    before, after = quiet(), change(quiet())
    return {
        field.name
        for field in fields(Sight)
        if getattr(before, field.name) != getattr(after, field.name)
        or (field.name in {"table", "pods"} and getattr(before, field.name) is not getattr(after, field.name))
    }


def test_any_of_the_others_is_cause_by_itself_and_none_hides_another() -> None:
    kinds: dict[str, tuple[object, object]] = {
        "lost": (False, True),
        "processes": (False, True),
        "suspect": (False, True),
        "waiting": (False, True),
        "asked": (False, True),
        "age": (0.0, SCAN_SECONDS),
        "changed": (False, True),
        "first": (False, True),
        "heard": (True, False),
    }
    for values in product(*kinds.values()):
        case = dict(zip(kinds, values, strict=True))
        news = News(lost=bool(case["lost"]), processes=bool(case["processes"])) if case["heard"] else None
        now = CHANGES[Cause.DEVICES][0](quiet()) if case["changed"] else quiet()
        why = cause(
            None if case["first"] else quiet(),
            now,
            news,
            age=float(str(case["age"])),
            suspect=bool(case["suspect"]),
            waiting=bool(case["waiting"]),
            asked=bool(case["asked"]),
        )
        calm = all(value == usual for value, (usual, _) in zip(values, kinds.values(), strict=True))
        assert (why is None) is calm, case


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"news": None}, Cause.NO_NEWS),
        ({"before": None}, Cause.FIRST),
        ({"news": News(lost=True)}, Cause.LOST),
        ({"news": News(processes=True)}, Cause.PROCESSES),
        ({"suspect": True}, Cause.SUSPECT),
        ({"waiting": True}, Cause.WAITING),
        ({"asked": True}, Cause.ASKED),
        ({"age": SCAN_SECONDS}, Cause.AGE),
    ],
)
def test_the_cause_says_what_it_was(arguments: dict[str, object], expected: Cause) -> None:
    usual: dict[str, object] = {"before": quiet(), "now": quiet(), "news": CALM, "age": 0.0}
    assert cause(**(usual | arguments)) is expected  # type: ignore[arg-type]
