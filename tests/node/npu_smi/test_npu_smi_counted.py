"""Queries of npu-smi are timed and counted by what was asked."""

from __future__ import annotations

import threading

import pytest

from agent.model.figures import QUERIES, QUERY_REASONS
from agent.model.reason import Reason, Refused
from agent.node.npu_smi.counted import CountedNpuSmi, command_of


class _Answering:
    """Answers, but to what it refuses."""

    def __init__(self, **refused: Reason) -> None:
        self.refused = refused

    def query(self, *args: str) -> str:
        if reason := self.refused.get(args[-1].lstrip("-")):
            raise Refused(reason, "no")
        return " ".join(args)


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (("info",), "info"),
        (("info", "-m"), "info -m"),
        (("info", "-t", "topo"), "info -t topo"),
        (("info", "-t", "board", "-i", "7", "-c", "1"), "info -t board"),
        (("info", "-t", "power", "-i", "7"), "other"),
        (("info", "-l"), "other"),
        ((), "other"),
    ],
)
def test_a_command_is_what_is_asked_whichever_card_it_is_asked_of(args: tuple[str, ...], command: str) -> None:
    assert command_of(args) == command


def test_answers_and_refusals_pass_through_and_are_counted() -> None:
    counted = CountedNpuSmi(_Answering(topo=Reason.NPU_SMI_HUNG))
    assert counted.query("info") == "info"
    assert counted.query("info", "-m") == "info -m"
    with pytest.raises(Refused) as refused:
        counted.query("info", "-t", "topo")
    assert refused.value.reason is Reason.NPU_SMI_HUNG
    assert {command: seconds.count for command, seconds in counted.seconds.items() if seconds.count} == {
        "info": 1,
        "info -m": 1,
        "info -t topo": 1,
    }
    assert {key for key, count in counted.errors.items() if count} == {("info -t topo", Reason.NPU_SMI_HUNG)}


def test_every_reason_that_a_query_can_have_is_there_from_the_start_and_others_come_when_they_come() -> None:
    counted = CountedNpuSmi(_Answering(m=Reason.SNAPSHOT_UNREADABLE))
    assert counted.errors == {(command, reason): 0 for command in QUERIES for reason in QUERY_REASONS}
    with pytest.raises(Refused):
        counted.query("info", "-m")
    assert counted.errors["info -m", Reason.SNAPSHOT_UNREADABLE] == 1


def test_several_threads_lose_no_count() -> None:
    counted = CountedNpuSmi(_Answering())
    threads = [threading.Thread(target=lambda: [counted.query("info") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.seconds["info"].count == 800
