"""What the publisher does while one kind of write fails: the other kind goes on, and nothing is asked too often."""

from __future__ import annotations

from typing import Any

import pytest

from agent.control.happenings import Happening
from agent.kube.api import ApiError
from agent.kube.publisher import MAX_WAITING
from agent.kube.retry import MAX_PAUSE
from agent.model.reason import Problem, Reason
from tests.kube.test_publisher import Desk, refused

NO_RIGHT = ApiError(
    Problem(Reason.API_REFUSED, 'create of events: 403 events is forbidden: User "x" cannot create resource "events"'),
    403,
)
NO_COUNT = ApiError(
    Problem(
        Reason.API_REFUSED, 'patch of events: 403 events "x" is forbidden: User "x" cannot patch resource "events"'
    ),
    403,
)
ENDING = ApiError(
    Problem(Reason.API_REFUSED, "create of events: 403 unable to create new content in namespace prod"), 403
)


@pytest.fixture
def desk() -> Desk:
    """With a plan that has a status."""
    desk = Desk()
    desk.plan.replace([])
    desk.want(mode="DryRun")
    desk.turn()
    desk.turn(1.0)
    desk.turn(100.0)
    desk.api.calls.clear()
    return desk


def bound(number: int = 0) -> Happening:
    return Happening(Reason.CPU_BOUND, f"bound {number}", namespace="prod", pod=f"llm-{number}")


def test_events_are_posted_while_the_plan_cannot_be_written(desk: Desk) -> None:
    desk.api.always["apply"] = refused(403)
    desk.want(mode="Enforce")
    desk.publisher.tell([bound()])
    desk.turn()
    assert desk.api.of("event") == [("event", "CpuBound", "llm-0")]
    assert str(desk.publisher.problem) == "ApiRefused: 403 no"
    assert desk.publisher.events_problem is None


def test_the_plan_is_written_while_events_cannot_be_posted(desk: Desk) -> None:
    desk.api.always["event"] = NO_RIGHT
    desk.publisher.tell([bound()])
    for mode in ("Enforce", "DryRun", "Disabled"):
        desk.want(mode=mode)
        desk.turn(20.0)
    assert [status["mode"] for status in desk.applied] == ["Enforce", "DryRun", "Disabled"]
    assert desk.publisher.problem is None
    assert desk.publisher.events_problem == NO_RIGHT.problem


def test_an_event_waits_for_a_right_that_comes_later_and_is_tried_ever_more_rarely(desk: Desk) -> None:
    """An API server that starts knows of no rights for a moment."""
    desk.api.always["event"] = NO_RIGHT
    desk.publisher.tell([bound(0), bound(1)])
    for _ in range(3600):
        desk.turn(1.0)
    assert 50 < len(desk.api.of("event")) < 110
    del desk.api.always["event"]
    desk.api.calls.clear()
    desk.turn(MAX_PAUSE)
    assert [call[2] for call in desk.api.of("event")] == ["llm-0", "llm-1"]
    assert desk.publisher.events_problem is None


WEBHOOK = ApiError(
    Problem(Reason.API_UNREACHABLE, 'create of events: 500 Internal error occurred: failed calling webhook "x"'), 500
)


@pytest.mark.parametrize("failure", [NO_RIGHT, WEBHOOK], ids=["a right that is missing", "a webhook that is away"])
def test_a_namespace_in_which_no_event_can_be_written_holds_up_no_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, failure: ApiError
) -> None:
    """Where people give the right by RoleBindings, and left one out; or a policy is for some namespaces."""
    create = desk.api.create_event

    def only_in_prod(body: dict[str, Any]) -> dict[str, Any]:
        created = create(body)
        if body["metadata"]["namespace"] != "prod":
            raise failure
        return created

    monkeypatch.setattr(desk.api, "create_event", only_in_prod)
    elsewhere = [Happening(Reason.CPU_BOUND, f"bound {n}", namespace="test", pod=f"other-{n}") for n in range(2)]
    desk.publisher.tell([elsewhere[0], bound(0), elsewhere[1], bound(1)])
    desk.turn()
    assert [call[2] for call in desk.api.of("event")] == ["other-0", "llm-0", "llm-1"]
    assert desk.publisher.events_problem == failure.problem
    monkeypatch.setattr(desk.api, "create_event", create)
    desk.turn(MAX_PAUSE)
    assert [call[2] for call in desk.api.of("event")[3:]] == ["other-0", "other-1"]


def test_without_the_right_to_count_events_new_ones_are_posted(desk: Desk) -> None:
    """As `cpubind doctor` says of it."""
    desk.api.always["recount"] = NO_COUNT
    desk.publisher.tell([bound(0), bound(0), bound(0), bound(1)])
    desk.turn()
    assert [call[2] for call in desk.api.of("event")] == ["llm-0", "llm-1"]
    assert desk.api.of("recount") == [("recount", 2)]
    desk.publisher.tell([bound(2)])
    desk.turn(MAX_PAUSE)
    assert [call[2] for call in desk.api.of("event")] == ["llm-0", "llm-1", "llm-2"]
    del desk.api.always["recount"]
    desk.turn(MAX_PAUSE)
    assert desk.api.of("recount")[-1] == ("recount", 3)


def test_what_may_not_be_written_costs_bounded_memory_and_the_oldest_is_dropped(desk: Desk) -> None:
    desk.api.always["event"] = NO_RIGHT
    for n in range(2 * MAX_WAITING):
        desk.publisher.tell([bound(n)])
        desk.turn(MAX_PAUSE)
    del desk.api.always["event"]
    desk.api.calls.clear()
    desk.turn(MAX_PAUSE)
    assert desk.api.of("event")[0] == ("event", "CpuBound", f"llm-{MAX_WAITING}")
    assert len(desk.publisher._waiting) == 0


def test_what_happens_while_an_event_is_tried_in_vain_drops_the_oldest_not_the_newest(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A try may take twenty seconds; what came last is what people look for once the API server is back."""

    def away(_body: object) -> None:
        desk.publisher.tell([bound(MAX_WAITING)])
        raise refused(None)

    desk.publisher.tell([bound(n) for n in range(MAX_WAITING)])
    with monkeypatch.context() as patch:
        patch.setattr(desk.api, "create_event", away)
        desk.turn()
    waiting = [happening.pod for happening in desk.publisher._waiting]
    assert waiting == [f"llm-{n}" for n in range(1, MAX_WAITING + 1)]


def test_an_event_of_a_namespace_that_is_ending_waits_for_nothing(desk: Desk) -> None:
    desk.api.refusals = [ENDING]
    desk.publisher.tell([bound(0), bound(1)])
    desk.turn()
    assert [call[2] for call in desk.api.of("event")] == ["llm-0", "llm-1"]
    assert desk.publisher.events_problem is None


def test_nobody_is_asked_for_a_plan_whose_resource_is_known_to_be_missing(desk: Desk) -> None:
    missing = [True]
    desk.publisher._resource_missing = lambda: missing[0]
    desk.plan.apply("DELETED", desk.api.objects.pop("node-a"))
    desk.want(mode="DryRun")
    for _ in range(100):
        desk.turn(60.0)
    assert desk.api.calls == []
    missing[0] = False
    desk.turn()
    assert [call[0] for call in desk.api.calls] == ["node", "create"]


def test_no_wait_that_is_asked_for_is_longer_than_a_minute(desk: Desk) -> None:
    desk.want(mode="Enforce")
    desk.api.refusals = [refused(429, retry_after=86400.0)]
    assert desk.turn() == MAX_PAUSE


def test_a_fault_of_the_agents_own_is_told_with_all_that_is_known_of_it_but_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a bug")

    desk.api.apply_status = fail  # type: ignore[method-assign, assignment]
    desk.want(mode="Enforce")
    for _ in range(100):
        desk.turn(60.0)
    (record,) = caplog.records
    assert record.exc_info
    assert str(desk.publisher.problem) == "ApiRefused: a fault of the agent's own: LookupError"


def test_the_last_write_is_tried_even_in_the_pause_after_a_failure(desk: Desk) -> None:
    desk.api.refusals = [refused(500)]
    desk.want(mode="Enforce")
    desk.turn()
    desk.publisher.start()
    desk.publisher.stop()
    assert desk.api.objects["node-a"]["status"] == {"mode": "Enforce"}


@pytest.mark.parametrize("status", [404, 409])
def test_a_write_that_somebody_forestalled_is_told_only_where_it_fails_again(desk: Desk, status: int) -> None:
    desk.api.always["apply"] = refused(status)
    desk.want(mode="Enforce")
    desk.turn()
    assert desk.publisher.problem is None
    desk.turn(100.0)
    assert str(desk.publisher.problem) == f"ApiRefused: {status} no"


def test_an_event_that_the_api_server_keeps_no_more_is_posted_anew_at_once(desk: Desk) -> None:
    desk.publisher.tell([bound()])
    desk.turn()
    desk.api.always["recount"] = refused(404)
    desk.publisher.tell([bound()])
    desk.turn()
    assert [call[0] for call in desk.api.calls] == ["event", "recount", "event"]


def test_an_event_that_cannot_be_taken_is_lost_and_the_log_says_so_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.api.always["event"] = refused(422)
    desk.publisher.tell([bound(0), bound(1), bound(2)])
    desk.turn()
    assert len(desk.api.of("event")) == 3
    assert [record.getMessage() for record in caplog.records] == ["an event is lost: ApiRefused: 422 no"]


def test_events_that_are_lost_for_one_cause_are_one_line_whatever_was_to_be_done_with_them(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.publisher.tell([bound(0)])
    desk.turn()
    for call, verb in (("event", "create"), ("recount", "patch")):
        desk.api.always[call] = ApiError(Problem(Reason.API_REFUSED, f"{verb} of events: 422 no"), 422)
    desk.publisher.tell([bound(0), bound(1)])
    desk.turn()
    assert {call[0] for call in desk.api.calls} == {"event", "recount"}
    assert [record.getMessage() for record in caplog.records] == [
        "an event is lost: ApiRefused: patch of events: 422 no"
    ]
