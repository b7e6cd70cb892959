"""The fault matrix as a table."""

from __future__ import annotations

from agent.model.reason import Reason
from tests.faults.rows import ALL
from tests.faults.table import Row, Side, Tally, duplicates, matrix

ROWS = (
    Row(Side.HOST, "/proc/<pid>/stat", "EIO", Reason.PROCESS_UNREADABLE),
    Row(Side.HOST, "/proc/<pid>/stat", "EACCES", Reason.PROCESS_UNREADABLE),
    Row(Side.HOST, "/proc/<pid>/stat", "ENOENT"),
    Row(Side.API, "list pods", "403", Reason.API_REFUSED),
)


def lines(tally: Tally | None = None) -> list[list[str]]:
    return [line.split() for line in matrix(ROWS, tally)]


def test_faults_of_one_place_that_are_reported_alike_are_one_line() -> None:
    assert ["/proc/<pid>/stat", "ProcessUnreadable", "EIO", "·", "EACCES", "2"] in lines()
    assert ["/proc/<pid>/stat", "nothing", "ENOENT", "1"] in lines()
    assert lines()[-1] == ["all", "4", "rows", "4"]


def test_counts_are_of_what_was_tried_and_marks_tell_what_was_not_survived() -> None:
    tally = Tally()
    for survived in (True, False):
        tally.add(ROWS[0].key, survived=survived)
    tally.add(ROWS[2].key, survived=True)
    assert ["/proc/<pid>/stat", "ProcessUnreadable", "EIO!", "·", "(EACCES)", "2", "1"] in lines(tally)
    assert ["/proc/<pid>/stat", "nothing", "ENOENT", "1", "1"] in lines(tally)
    assert lines(tally)[-1] == ["all", "4", "rows", "3", "2"]


def test_no_two_rows_of_the_matrix_are_of_the_same_fault_at_the_same_place() -> None:
    assert duplicates(ALL) == []
