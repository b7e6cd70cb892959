"""News between two passes: which of them make a pass, on a loop that runs by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.control.news import News
from agent.control.scanning import Cause
from agent.demo.workload import Worker
from tests.control.quiet import Quiet, opened, processes
from tests.control.rig import wait_until


@pytest.fixture
def quiet(tmp_path: Path) -> Quiet:
    return Quiet(tmp_path)


@contextmanager
def running(rig: Quiet, sweep_seconds: float = 3600.0) -> Iterator[list[int]]:
    """The loop as it runs by itself; the list grows with each pass. It rests when this begins."""
    turns: list[int] = []
    rig.agent.parts = replace(rig.agent.parts, sweep_seconds=sweep_seconds, turned=lambda: turns.append(1))
    thread = threading.Thread(target=rig.agent.run)
    thread.start()
    try:
        wait_until(lambda: len(turns) == 1)
        yield turns
    finally:
        rig.agent.stop()
        thread.join(10)


def taken_in(rig: Quiet) -> bool:
    """Whether the loop has taken the news."""
    return rig.hearsay.waiting == News()


def test_news_between_two_passes_that_are_no_cause_make_no_pass(quiet: Quiet) -> None:
    with running(quiet) as turns, opened(quiet) as paths:
        for _ in range(3):
            quiet.hearsay.tell(suspects=quiet.others[:2])
            quiet.agent.glance()
            wait_until(lambda: taken_in(quiet))
        assert len(turns) == 1
        assert processes(paths) == set(quiet.others[:2])
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 2)
    assert (quiet.cause, len(turns)) == (None, 2)


def test_that_news_were_lost_between_two_passes_makes_one_that_knows_it(quiet: Quiet) -> None:
    with running(quiet) as turns:
        quiet.hearsay.tell(lost=True)
        quiet.agent.glance()
        wait_until(lambda: len(turns) == 2)
        assert quiet.cause is Cause.LOST


def test_other_news_between_two_passes_wait_for_the_next(quiet: Quiet) -> None:
    with running(quiet) as turns:
        quiet.hearsay.tell(processes=True, suspects=quiet.others[:1])
        quiet.agent.glance()
        wait_until(lambda: taken_in(quiet))
        quiet.hearsay.tell(suspects=quiet.others[1:2])
        quiet.agent.glance()
        wait_until(lambda: taken_in(quiet))
        assert len(turns) == 1
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 2)
        assert quiet.cause is Cause.PROCESSES
    assert len(turns) == 2


def test_a_suspect_that_opened_an_npu_between_two_passes_makes_one(quiet: Quiet) -> None:
    worker = Worker.start(quiet.node, 5, listed=False, threads=2)
    with running(quiet) as turns:
        quiet.hearsay.tell(suspects=[worker.pid])
        quiet.agent.glance()
        wait_until(lambda: len(turns) >= 2)
    assert quiet.cause in (Cause.SUSPECT, Cause.WAITING, Cause.NPU_SMI)


def test_where_nothing_is_heard_a_glance_is_a_pass(quiet: Quiet) -> None:
    with running(quiet) as turns:
        quiet.hearsay.up = False
        quiet.agent.glance()
        wait_until(lambda: len(turns) == 2)


def test_glances_do_not_put_off_the_next_pass(quiet: Quiet) -> None:
    with running(quiet, sweep_seconds=0.2) as turns:

        def glanced() -> bool:
            quiet.agent.glance()
            return len(turns) >= 4

        wait_until(glanced)


def test_a_fault_in_what_is_told_ends_nothing(quiet: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(quiet) as turns:
        with monkeypatch.context() as patch:
            patch.setattr(quiet.hearsay, "take", lambda: 1 / 0)
            quiet.agent.glance()
            wait_until(lambda: len(turns) == 2)
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 3)
        quiet.agent.wake()
        wait_until(lambda: len(turns) == 4)
    assert quiet.cause is None


def test_a_loop_that_is_stopped_while_a_pass_begins_does_not_wait_for_the_next(quiet: Quiet) -> None:
    agent = quiet.agent
    agent.parts = replace(agent.parts, sweep_seconds=3600.0)
    clear = agent._wake.clear

    def stopped_meanwhile() -> None:
        agent.stop()
        clear()

    agent._wake.clear = stopped_meanwhile  # type: ignore[method-assign]
    thread = threading.Thread(target=agent.run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
