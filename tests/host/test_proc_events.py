"""The process connector of this machine's kernel, and the programs that it runs to drop what nobody wants."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent.demo.standin import StandIn
from agent.node import proc_filter
from agent.node.proc_events import REST_SECONDS, ProcEvents
from agent.node.proc_messages import COMM, EXIT, FORK, Event, child_of, comm_of
from tests.host.hearing import hears

pytestmark = hears


@pytest.fixture
def events() -> Iterator[ProcEvents]:
    with closing(ProcEvents.listen()) as events:
        yield events


def until(events: ProcEvents, comm: bytes) -> tuple[list[Event], list[Event]]:
    """What is heard until some thread has this name, near and far."""
    near: list[Event] = []
    far: list[Event] = []
    end = time.monotonic() + 20
    while time.monotonic() < end:
        events.wait(end - time.monotonic())
        batch = events.take()
        assert (batch.lost, batch.others_lost) == (False, False)
        near += batch.events
        far += batch.others
        if any(what == COMM and comm_of(rest) == comm for what, _, _, _, rest in batch.events):
            time.sleep(1.5 * REST_SECONDS)
            far += events.take().others
            return near, far
    raise AssertionError("nothing was heard for 20 seconds")


def test_of_those_who_are_near_all_is_heard_and_of_others_what_is_worth_it(events: ProcEvents) -> None:
    with StandIn("--threads", "1") as worker, StandIn("--threads", "1") as other, StandIn("--threads", "1") as quiet:
        events.focus({worker.pid}, (), {quiet.pid})
        [theirs] = other.spawn("worker")
        other.rename(theirs, "acl_thread")
        other.fork(theirs)
        [hidden] = quiet.spawn("worker")
        [own] = worker.spawn("worker")
        worker.rename(own, "last")
        near, far = until(events, b"last")
    assert {child_of(rest)[1] for what, _, _, _, rest in near if what == FORK} == {worker.pid}
    assert {tgid for what, _, _, tgid, _ in near if what == COMM} == {worker.pid}
    assert all(what in (FORK, EXIT) for what, *_ in far)
    born = {child_of(rest) for what, _, _, _, rest in far if what == FORK}
    assert (theirs, other.pid) in born
    assert all(child != tgid for child, tgid in born), "nobody's children are of interest"
    assert born.isdisjoint({(own, worker.pid), (hidden, quiet.pid)})


def test_what_a_family_forks_is_heard(events: ProcEvents) -> None:
    with StandIn("--threads", "1") as worker, StandIn("--threads", "1") as relative:
        events.focus({worker.pid}, {relative.pid}, ())
        children = relative.fork(relative.threads["worker"][0])
        worker.rename(worker.threads["worker"][0], "last")
        _, far = until(events, b"last")
    assert [child_of(rest)[0] for what, _, _, tgid, rest in far if what == FORK and tgid == relative.pid] == children


def test_the_kernel_takes_the_longest_programs(events: ProcEvents) -> None:
    near, family, quiet = range(1, 129), range(1001, 1129), range(2001, 2065)
    for _ in range(3):
        events.focus(near, family, quiet)
        assert events._near._program == proc_filter.near(near)
        assert events._far._program == proc_filter.far(near, family, quiet)
        events.focus((), (), ())


def test_where_it_takes_none_everything_is_heard(events: ProcEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn("--threads", "1") as stranger:
        # More than BPF_MAXINSNS instructions.
        monkeypatch.setattr(proc_filter, "near", lambda pids: proc_filter.all_processes() * 1000)
        events.focus({7}, (), ())
        stranger.rename(stranger.threads["worker"][0], "last")
        until(events, b"last")


def test_a_wait_is_ended_by_an_interrupt_and_not_after_the_end(events: ProcEvents) -> None:
    events.focus((), (), ())
    events.interrupt()
    events.wait(60)
    events.close()
    events.interrupt()
    events.close()
