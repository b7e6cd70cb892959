"""What the publisher asks of the API server, with a recorder in its place: when, how often, and after which failures.

Against an API server the same is in tests/api.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from agent.control.happenings import Happening
from agent.kube.api import ApiError
from agent.kube.plan import GRACE_SECONDS, PlanResource
from agent.kube.publisher import Publisher
from agent.kube.retry import Backoffs
from agent.model.reason import Problem, Reason

Object = dict[str, Any]


class RecorderApi:
    """Takes what is written, as an API server would, and refuses what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: list[ApiError] = []
        self.always: dict[str, ApiError] = {}
        self.objects: dict[str, Object] = {}
        self.unknown: set[str] = set()
        self.version = 100

    def node(self, name: str) -> Object:
        self._called("node", name)
        return {"metadata": {"name": name, "uid": "node-uid"}}

    def create_plan(self, body: Mapping[str, Any]) -> Object:
        self._called("create", body)
        made = {**copy.deepcopy(dict(body)), "status": {}}
        made["metadata"] |= {"uid": f"uid-{self.version}", "generation": 1, "resourceVersion": self._next()}
        self.objects[body["metadata"]["name"]] = made
        return copy.deepcopy(made)

    def apply_status(self, name: str, status: Mapping[str, Any]) -> Object:
        self._called("apply", copy.deepcopy(dict(status)))
        for field in self.unknown & status.keys():
            message = f"500 failed to create typed patch object: .status.{field}: field not declared in schema"
            raise ApiError(Problem(Reason.API_REFUSED, message), 500)
        found = self.objects[name]
        if found["status"] != status:
            found["status"] = copy.deepcopy(dict(status))
            found["metadata"]["resourceVersion"] = self._next()
        return copy.deepcopy(found)

    def create_event(self, body: Mapping[str, Any]) -> Object:
        self._called("event", body["reason"], body["involvedObject"]["name"])
        return {}

    def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        self._called("recount", patch["count"])
        return {}

    def of(self, verb: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == verb]

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refusals:
            raise self.refusals.pop(0)
        if call[0] in self.always:
            raise self.always[call[0]]

    def _next(self) -> str:
        self.version += 1
        return str(self.version)


class Desk:
    """A publisher that a test drives round by round, and an agent that wants the same until a test says otherwise."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.api = RecorderApi()
        self.woken = self._looked = 0
        self._wanted: Object = {}
        self.plan = PlanResource("node-a", pods_listed=lambda: True, changed=self._woken, clock=lambda: self.now)
        self.publisher = Publisher(
            self.api,  # type: ignore[arg-type]
            self.plan,
            lambda _namespace, name: f"uid-{name}" if name != "gone" else "",
            backoffs=Backoffs(1.0, 60.0),
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
        )

    def _woken(self) -> None:
        self.woken += 1

    def want(self, **status: Any) -> None:
        self._wanted = {"metadata": {"name": "node-a"}, "spec": {"mode": "DryRun"}, "status": status}
        self._look()

    def _look(self) -> None:
        """A pass of the agent."""
        self._looked = self.woken
        self.plan.spec()
        self.plan.write(self._wanted)

    def turn(self, seconds: float = 0.0) -> float:
        """One round, after so many seconds; returns in how many the next one is due."""
        self.now += seconds
        if self._wanted and self._looked != self.woken:
            self._look()
        return self.publisher._turn() - self.now

    @property
    def applied(self) -> list[Object]:
        return [call[1] for call in self.api.of("apply")]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def made(desk: Desk) -> Desk:
    """With a plan that has a status."""
    desk.plan.replace([])
    desk.want(mode="DryRun")
    desk.turn()
    desk.turn(1.0)
    desk.turn(100.0)
    desk.api.calls.clear()
    return desk


def refused(status: int | None, retry_after: float = 0.0) -> ApiError:
    return ApiError(Problem(Reason.API_REFUSED, f"{status} no"), status, retry_after)


def test_nothing_is_written_before_it_is_known_what_there_is(desk: Desk) -> None:
    desk.want(mode="Enforce")
    desk.turn(1000.0)
    assert desk.api.calls == []


def test_the_plan_is_posted_with_its_node_as_owner_and_the_accepted_spec(desk: Desk) -> None:
    desk.plan.replace([])
    desk.want(mode="DryRun")
    desk.turn()
    (call,) = desk.api.of("create")
    metadata = call[1]["metadata"]
    assert metadata["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid"}]
    assert call[1]["spec"] == {"mode": "DryRun"}
    assert "status" not in call[1]
    desk.turn(0.5)
    assert desk.plan.own
    assert desk.applied == [{"mode": "DryRun"}]
    assert len(desk.api.of("create")) == 1


def test_a_plan_of_a_person_gets_a_status_and_nothing_else(desk: Desk) -> None:
    theirs: Object = {"metadata": {"name": "node-a", "uid": "x", "generation": 1, "resourceVersion": "5"}, "spec": {}}
    desk.api.objects["node-a"] = {**copy.deepcopy(theirs), "status": {}}
    desk.plan.replace([theirs])
    desk.plan.spec()
    assert not desk.plan.own
    desk.want(mode="Enforce")
    desk.turn()
    assert [call[0] for call in desk.api.calls] == ["apply"]


def test_what_is_there_already_is_not_written(made: Desk) -> None:
    made.want(mode="DryRun")
    for _ in range(50):
        made.turn(10.0)
    assert made.api.calls == []


def test_the_first_change_goes_out_at_once_then_one_in_ten_seconds_and_the_last_always(made: Desk) -> None:
    for n in range(30):
        made.want(mode="DryRun", observedGeneration=n)
        made.turn(1.0)
    for _ in range(20):
        made.turn(1.0)
    generations = [status["observedGeneration"] for status in made.applied]
    assert generations == [0, 10, 20, 29]


def test_a_change_that_is_taken_back_within_the_interval_writes_nothing(made: Desk) -> None:
    made.want(mode="Enforce")
    made.turn()
    made.want(mode="Disabled")
    made.turn(1.0)
    made.want(mode="Enforce")
    for _ in range(20):
        made.turn(1.0)
    assert len(made.applied) == 1


def test_a_status_that_somebody_else_changed_is_put_right(made: Desk) -> None:
    theirs = made.api.objects["node-a"]
    theirs["status"] = {"mode": "Nonsense"}
    theirs["metadata"]["resourceVersion"] = "900"
    made.plan.apply("MODIFIED", copy.deepcopy(theirs))
    made.turn(20.0)
    assert made.applied == [{"mode": "DryRun"}]


def test_a_server_that_keeps_something_else_than_it_was_sent_is_not_fought(made: Desk) -> None:
    kept = made.api.apply_status

    def apply_status(name: str, status: Mapping[str, Any]) -> Object:
        answer = kept(name, status)
        answer["status"] = {**answer["status"], "extra": 1}
        return answer

    made.api.apply_status = apply_status  # type: ignore[method-assign]
    made.want(mode="Enforce")
    for _ in range(50):
        made.turn(10.0)
    assert len(made.applied) == 1


def test_a_plan_that_is_deleted_comes_back(made: Desk) -> None:
    gone = made.api.objects.pop("node-a")
    made.plan.apply("DELETED", gone)
    assert made.plan.own, "it is about to be ours"
    made.turn(20.0)
    made.turn(1.0)
    assert [call[0] for call in made.api.calls] == ["node", "create", "apply"]


def test_one_that_somebody_made_meanwhile_is_no_problem(desk: Desk) -> None:
    desk.plan.replace([])
    desk.want(mode="DryRun")
    desk.api.always["create"] = refused(409)
    desk.turn()
    assert desk.publisher.problem is None


def test_a_node_that_does_not_exist_is_asked_for_again_ever_more_rarely(desk: Desk) -> None:
    desk.plan.replace([])
    desk.want(mode="DryRun")
    missing = ApiError(Problem(Reason.NODE_NOT_FOUND, "no Node node-a"), 404)
    desk.api.always["node"] = missing
    for _ in range(3600):
        desk.turn(1.0)
    assert desk.publisher.problem == missing.problem
    assert 50 < len(desk.api.of("node")) < 110


def test_a_failure_is_followed_by_a_pause_that_is_over_after_a_success(made: Desk) -> None:
    made.want(mode="Enforce")
    made.api.refusals = [refused(None), refused(500), refused(403)]
    pauses = []
    for _ in range(3):
        pauses.append(due := made.turn())
        made.now += due
    assert 0.6 < pauses[0] <= 1.0 < pauses[1] <= 2.0 < pauses[2] <= 4.0
    made.turn()
    assert made.publisher.problem is None
    made.want(mode="Disabled")
    made.api.refusals = [refused(500)]
    assert made.turn(20.0) <= 1.0


def test_what_the_api_server_asks_to_wait_is_waited(made: Desk) -> None:
    made.want(mode="Enforce")
    made.api.refusals = [refused(429, retry_after=30.0)]
    assert made.turn() == 30.0


def test_fields_that_an_older_crd_does_not_know_are_left_out_and_named(made: Desk) -> None:
    made.api.unknown = {"uvb", "bases"}
    made.want(mode="DryRun", uvb={"cpus": "1"}, bases=[], architecture="aarch64")
    made.turn()
    assert made.applied[-1] == {"mode": "DryRun", "architecture": "aarch64"}
    outdated = made.publisher.outdated()
    assert outdated is not None
    assert (outdated.reason, outdated.message) == (Reason.SCHEMA_OUTDATED, "status fields left out: bases, uvb")
    count = len(made.applied)
    for _ in range(50):
        made.turn(10.0)
    assert len(made.applied) == count, "nothing changed"


def test_after_the_crd_was_upgraded_everything_is_written_within_ten_minutes(made: Desk) -> None:
    made.api.unknown = {"uvb"}
    made.want(mode="DryRun", uvb={"cpus": "1"})
    made.turn()
    made.api.unknown = set()
    for n in range(62):
        made.want(mode="DryRun", uvb={"cpus": "1"}, planHash=f"{n}")
        made.turn(10.0)
    assert made.applied[-1] == {"mode": "DryRun", "uvb": {"cpus": "1"}, "planHash": "61"}
    assert made.publisher.outdated() is None


def test_a_crd_that_stays_old_is_asked_again_without_a_failure(made: Desk) -> None:
    made.api.unknown = {"uvb", "bases"}
    made.want(mode="DryRun", uvb={"cpus": "1"}, bases=[])
    made.turn()
    for _ in range(130):
        made.turn(10.0)
        assert made.publisher.problem is None
    made.api.unknown = {"bases"}
    for _ in range(70):
        made.turn(10.0)
    assert made.applied[-1] == {"mode": "DryRun", "uvb": {"cpus": "1"}}, "what is known by now is written"
    outdated = made.publisher.outdated()
    assert outdated is not None
    assert outdated.message == "status fields left out: bases"


def test_an_event_goes_to_a_living_pod_and_to_nobody_else(made: Desk) -> None:
    made.publisher.tell(
        [
            Happening(Reason.CPU_BOUND, "bound", namespace="prod", pod="llm-0"),
            Happening(Reason.CPU_BOUND, "bound", namespace="prod", pod="gone"),
            Happening(Reason.INVALID_SPEC, "no"),
        ]
    )
    made.turn()
    assert made.api.of("event") == [("event", "CpuBound", "llm-0"), ("event", "InvalidSpec", "node-a")]


def test_events_wait_for_an_api_server_that_is_away_and_not_for_one_that_refuses_them(made: Desk) -> None:
    made.publisher.tell([Happening(Reason.CPU_BOUND, f"{n}", namespace="prod", pod=f"p{n}") for n in range(3)])
    made.api.refusals = [refused(None), refused(403)]
    made.turn()
    made.turn(5.0)
    assert [call[2] for call in made.api.of("event")] == ["p0", "p0", "p1", "p2"]


def test_an_event_outlasts_an_outage_of_any_length(made: Desk) -> None:
    made.publisher.tell([Happening(Reason.CPU_BINDING_REPAIRED, "3 threads", namespace="prod", pod="llm-0")])
    made.api.always["event"] = refused(None)
    for _ in range(3600):
        made.turn(1.0)
    del made.api.always["event"]
    made.api.calls.clear()
    made.turn(60.0)
    assert made.api.of("event") == [("event", "CpuBindingRepaired", "llm-0")]


def test_a_state_that_was_told_by_an_earlier_run_is_no_failure(made: Desk) -> None:
    made.publisher.tell([Happening(Reason.INVALID_ANNOTATION, "no", True, "prod", "p", standing=True)])
    made.api.refusals = [refused(409)]
    made.turn()
    made.publisher.tell([Happening(Reason.INVALID_ANNOTATION, "no", True, "prod", "p", standing=True)])
    made.turn(5.0)
    assert len(made.api.of("event")) == 1


def test_an_api_server_that_never_comes_back_costs_bounded_memory(made: Desk) -> None:
    for n in range(5000):
        made.publisher.tell([Happening(Reason.CPU_BOUND, f"{n}", namespace="prod", pod="p")])
    assert len(made.publisher._waiting) == 200


def test_the_last_state_is_written_when_the_agent_is_stopped(made: Desk) -> None:
    made.publisher.start()
    made.want(mode="Enforce")
    made.plan.write({"metadata": {"name": "node-a"}, "status": {"mode": "Stopped"}})
    made.publisher.stop()
    assert made.api.objects["node-a"]["status"] == {"mode": "Stopped"}


def test_the_mirror_wakes_the_agent_for_what_people_do_and_not_for_its_own_status(made: Desk) -> None:
    woken = made.woken
    made.want(mode="Enforce")
    made.turn()
    assert made.woken == woken
    theirs = copy.deepcopy(made.api.objects["node-a"])
    theirs["spec"] = {"mode": "Disabled"}
    theirs["metadata"] |= {"generation": 2, "resourceVersion": "950"}
    made.plan.apply("MODIFIED", theirs)
    assert made.woken == woken + 1
    assert (made.plan.spec(), made.plan.generation) == ({"mode": "Disabled"}, 2)


def test_an_older_version_that_arrives_late_is_not_taken(made: Desk) -> None:
    old = copy.deepcopy(made.api.objects["node-a"])
    made.want(mode="Enforce")
    made.turn()
    made.plan.apply("MODIFIED", old)
    assert made.plan.read()["status"] == {"mode": "Enforce"}


def test_the_late_deletion_of_a_predecessor_is_not_taken(made: Desk) -> None:
    made.plan.apply("DELETED", {"metadata": {"name": "node-a", "uid": "another"}})
    assert made.plan.spec() == {"mode": "DryRun"}


def test_what_was_said_of_one_plan_is_not_said_of_the_next(made: Desk) -> None:
    """A person's plan may be deleted, and another one made, while the agent is in the middle of a pass."""
    made.plan.apply("DELETED", made.api.objects.pop("node-a"))
    made.publisher._turn()
    assert made.api.calls == [], "the agent has not seen yet that it went"
    theirs: Object = {"metadata": {"name": "node-a", "uid": "theirs", "generation": 1, "resourceVersion": "900"}}
    made.plan.apply("ADDED", theirs | {"spec": {"mode": "Disabled"}})
    made.plan.write({"metadata": {"name": "node-a"}, "spec": {"mode": "DryRun"}, "status": {"mode": "DryRun"}})
    made.publisher._turn()
    assert made.api.calls == []


def test_the_generation_is_that_of_the_spec_that_was_read(made: Desk) -> None:
    made.plan.spec()
    edited = copy.deepcopy(made.api.objects["node-a"])
    edited["metadata"] |= {"generation": 2, "resourceVersion": "950"}
    made.plan.apply("MODIFIED", edited)
    assert made.plan.generation == 1, "the pass under way has not read the edit"
    made.plan.spec()
    assert made.plan.generation == 2


def test_plans_of_other_nodes_are_not_taken(desk: Desk) -> None:
    other: Object = {"metadata": {"name": "node-b", "uid": "x", "resourceVersion": "5"}, "spec": {"mode": "Disabled"}}
    desk.plan.replace([other])
    desk.plan.apply("ADDED", other)
    assert desk.plan.known
    assert desk.plan.spec() is None


def test_without_the_pods_nothing_is_reported_for_a_while() -> None:
    now = [0.0]
    plan = PlanResource("node-a", pods_listed=lambda: False, changed=lambda: None, clock=lambda: now[0])
    plan.replace([])
    before = plan.open
    now[0] = GRACE_SECONDS + 1
    assert (before, plan.open) == (False, True)


def test_the_publisher_is_not_stirred_for_the_object_that_it_knows() -> None:
    plan = PlanResource("node-a", pods_listed=lambda: True, changed=lambda: None)
    plan.replace([])
    plan.spec()
    document = {"status": {"planHash": "1"}}
    equal = dict(document)
    for written, stirs in ((document, True), (document, False), (equal, True)):
        plan.stirred.clear()
        plan.write(written)
        assert plan.stirred.is_set() is stirs
    # Of another object of that name everything is to be told anew.
    plan.replace([{"metadata": {"name": "node-a", "uid": "other"}}])
    plan.spec()
    assert plan.both()[2] is None
    plan.stirred.clear()
    plan.write(equal)
    assert plan.stirred.is_set()
    assert plan.both()[2] is equal
