"""Events are folded and limited: per object and reason five, then one in ten minutes; thirty a minute for the node."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from agent.control.happenings import Happening
from agent.kube.events import EventBook, Post, Recount, Subject
from agent.model.reason import Reason

POD = Subject("uid-1", "llm-0", "prod")
PLAN = Subject("uid-2", "node-a")


def book() -> EventBook:
    return EventBook("node-a", "start")


def happening(message: str = "process 1 on NPU 0", *, standing: bool = False, warning: bool = False) -> Happening:
    return Happening(Reason.CPU_BOUND, message, warning, "prod", "llm-0", standing)


def test_an_event_on_a_pod_says_what_kubectl_describe_looks_for() -> None:
    posted = book().admit(happening(warning=True), POD, 1_800_000_000.0)
    assert isinstance(posted, Post)
    body = posted.body
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "prod",
        "name": "llm-0",
        "uid": "uid-1",
    }
    assert (body["metadata"]["namespace"], body["type"], body["reason"]) == ("prod", "Warning", "CpuBound")
    assert body["source"] == {"component": "cpubind-agent", "host": "node-a"}
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2027-01-15T08:00:00Z"
    assert body["count"] == 1


def test_an_event_on_the_plan_is_in_the_namespace_that_the_api_server_takes_for_it() -> None:
    posted = book().admit(Happening(Reason.INVALID_SPEC, "no"), PLAN, 0.0)
    assert isinstance(posted, Post)
    assert posted.body["metadata"]["namespace"] == "default"
    assert posted.body["involvedObject"]["kind"] == "CpuBindingPlan"
    assert "namespace" not in posted.body["involvedObject"]


def test_the_same_again_raises_the_count_of_the_one_that_is_there() -> None:
    events = book()
    posted = events.admit(happening(), POD, 0.0)
    assert isinstance(posted, Post)
    again = events.admit(happening(), POD, 60.0)
    assert again == Recount(
        "prod", posted.body["metadata"]["name"], {"count": 2, "lastTimestamp": "1970-01-01T00:01:00Z"}
    )


def test_of_one_reason_and_object_five_go_out_and_then_one_in_ten_minutes() -> None:
    events = book()
    sent = [events.admit(happening(f"process {n}"), POD, float(n)) for n in range(20)]
    assert [isinstance(one, Post) for one in sent] == [True] * 5 + [False] * 15
    later = [events.admit(happening(f"process {n}"), POD, float(n)) for n in range(100, 3700, 10)]
    assert 5 <= sum(one is not None for one in later) <= 7


def test_what_was_held_back_is_in_the_next_count() -> None:
    events = book()
    for second in range(20):
        events.admit(happening(), POD, float(second))
    again = events.admit(happening(), POD, 700.0)
    assert isinstance(again, Recount)
    assert again.patch["count"] == 21


def test_one_pod_in_trouble_leaves_room_for_the_others() -> None:
    events = book()
    for n in range(50):
        events.admit(happening(f"process {n}"), POD, float(n))
    assert isinstance(events.admit(happening(), Subject("uid-3", "llm-1", "prod"), 50.0), Post)


def test_the_whole_node_posts_thirty_a_minute() -> None:
    events = book()
    sent = [events.admit(happening(), Subject(f"uid-{n}", f"pod-{n}", "prod"), 1000.0 + n * 0.01) for n in range(200)]
    assert sum(one is not None for one in sent) == 30
    sent = [events.admit(happening(), Subject(f"uid-{n}", f"pod-{n}", "prod"), 1060.0) for n in range(200, 400)]
    assert sum(one is not None for one in sent) == 1  # the first of the minute before is a minute old, the others not
    sent = [events.admit(happening(), Subject(f"uid-{n}", f"pod-{n}", "prod"), 1061.0) for n in range(400, 600)]
    assert sum(one is not None for one in sent) == 29


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    """As NTP does to a node whose own clock was ahead: by a day here."""
    events = book()
    assert events.admit(happening("before"), POD, 86_400.0)
    assert [events.admit(happening(f"after {n}"), POD, float(n)) is not None for n in range(5)] == [True] * 4 + [False]
    assert events.admit(happening("later"), POD, 700.0)
    busy = book()
    for n in range(30):
        busy.admit(happening(), Subject(f"uid-{n}", f"llm-{n}", "prod"), 86_400.0 + n)
    assert busy.admit(happening(), POD, 0.0)


def test_a_standing_state_is_told_once_and_by_the_same_name_in_every_run() -> None:
    first = book().admit(happening(standing=True), POD, 0.0)
    second = EventBook("node-a", "another start").admit(happening(standing=True), POD, 9.0)
    assert isinstance(first, Post)
    assert isinstance(second, Post)
    assert first.body["metadata"]["name"] == second.body["metadata"]["name"]
    events = book()
    events.admit(happening(standing=True), POD, 0.0)
    assert events.admit(happening(standing=True), POD, 5.0) is None


def test_events_of_two_runs_have_different_names() -> None:
    first, second = book().admit(happening(), POD, 0.0), EventBook("node-a", "later").admit(happening(), POD, 0.0)
    assert isinstance(first, Post)
    assert isinstance(second, Post)
    assert first.body["metadata"]["name"] != second.body["metadata"]["name"]


def test_one_that_did_not_arrive_is_posted_anew() -> None:
    events = book()
    events.admit(happening(), POD, 0.0)
    events.failed(happening(), POD, again=True)
    assert isinstance(events.admit(happening(), POD, 1.0), Post)


def test_one_that_the_api_server_has_forgotten_is_posted_anew() -> None:
    events = book()
    events.admit(happening(), POD, 0.0)
    assert isinstance(events.admit(happening(), POD, 3700.0), Post)


@given(st.lists(st.sampled_from(["p", "-p", ".p"]), min_size=100, max_size=200).map(lambda parts: ["p", *parts]))
def test_the_name_of_an_event_is_one_whatever_the_pod_is_called(parts: list[str]) -> None:
    """As the API server takes it: parts of letters, digits and hyphens, none of which begins or ends in a hyphen."""
    pod = "".join(parts)[:252] + "p"
    posted = book().admit(happening(), Subject("uid", pod, "prod"), 0.0)
    assert isinstance(posted, Post)
    name = posted.body["metadata"]["name"]
    assert len(name) <= 253
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{part}(\.{part})*", name), name


def test_a_thousand_pods_that_come_and_go_leave_a_bounded_memory() -> None:
    events = book()
    for n in range(5000):
        events.admit(happening(), Subject(f"uid-{n}", f"pod-{n}", "prod"), n * 10.0)
    assert len(events._posted) <= 1000
    assert len(events._buckets) <= 1000


def test_one_whose_answer_was_lost_is_sent_again_by_the_same_name_and_count() -> None:
    events = book()
    first = events.admit(happening(), POD, 0.0)
    events.failed(happening(), POD, again=True)
    again = events.admit(happening(), POD, 1.0)
    assert isinstance(first, Post)
    assert isinstance(again, Post)
    assert first.body["metadata"]["name"] == again.body["metadata"]["name"]
    counted = events.admit(happening(), POD, 2.0)
    events.failed(happening(), POD, again=True)
    again_counted = events.admit(happening(), POD, 3.0)
    assert isinstance(counted, Recount)
    assert isinstance(again_counted, Recount)
    assert (counted.name, counted.patch["count"]) == (again_counted.name, again_counted.patch["count"])
