"""What the log is told of troubles that come, change, and go."""

from __future__ import annotations

import pytest

from agent.kube.telling import LASTING_SECONDS, MAX_TOLD, STEADY_SECONDS, Lasting, Trouble
from agent.model.reason import Problem, Reason
from agent.model.remedies import REMEDIES

REFUSED = Problem(Reason.API_REFUSED, "list of pods: 403 Forbidden")
AWAY = Problem(Reason.API_UNREACHABLE, "watch of pods: Connection refused")


class Told:
    """A trouble that is looked at once a second."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1000.0
        self.trouble = Trouble("pods", "pods: well again", lambda: self.now)
        self.watched = Lasting(lambda: self.now)
        self.lasting: Problem | None = None
        self._caplog = caplog
        caplog.set_level("INFO")

    def look(self, problem: Problem | None, seconds: float = 1.0) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.trouble.look(problem)
            self.lasting = self.watched.look(problem)

    @property
    def reason(self) -> str:
        """Of what lasts; empty where nothing does."""
        return str(self.lasting.reason) if self.lasting else ""

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_it_is_told_once_that_it_begins_and_once_that_it_ends(told: Told) -> None:
    told.look(None, 100)
    told.look(REFUSED, 3600)
    assert told.lines == [
        f"pods: {REFUSED}; what is bound stays and is kept; {REMEDIES[Reason.API_REFUSED]}",
    ]
    told.look(None, 3600)
    assert told.lines[1:] == ["pods: well again"]
    told.look(REFUSED)
    assert len(told.lines) == 3


def test_what_comes_and_goes_all_the_time_is_one_trouble(told: Told) -> None:
    for _ in range(100):
        told.look(AWAY, 2)
        told.look(None, STEADY_SECONDS - 2)
    assert len(told.lines) == 1
    told.look(None, STEADY_SECONDS)
    assert len(told.lines) == 2


def test_a_trouble_that_changes_is_told_anew_but_not_for_ever(told: Told) -> None:
    for second in range(1000):
        told.look(Problem(Reason.API_UNREACHABLE, f"watch of pods: attempt {second}"))
        told.look(AWAY)
    assert len(told.lines) == MAX_TOLD


def test_one_cause_is_told_once_whatever_was_asked_for(told: Told) -> None:
    told.look(AWAY)
    told.look(Problem(Reason.API_UNREACHABLE, "patch of cpubindingplans: Connection refused"))
    assert len(told.lines) == 1


def test_a_moment_is_not_worth_a_write_and_what_lasts_is(told: Told) -> None:
    told.look(REFUSED, LASTING_SECONDS)
    assert told.lasting is None
    told.look(REFUSED)
    assert told.lasting == REFUSED


def test_what_lasts_changes_with_its_reason_alone_and_is_over_when_it_is(told: Told) -> None:
    told.look(REFUSED, LASTING_SECONDS + 1)
    told.look(Problem(Reason.API_REFUSED, "watch of pods: 403 Forbidden"))
    assert told.lasting == REFUSED
    told.look(AWAY)
    assert told.reason == "ApiUnreachable"
    told.look(None)
    told.look(REFUSED, LASTING_SECONDS)
    assert told.reason == ""
