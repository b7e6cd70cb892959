"""Counts what became of the rows that were tried: of every test that has a parameter `row`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.faults.trial")

from tests.faults.rows import ALL  # noqa: E402
from tests.faults.table import Row, Tally, matrix  # noqa: E402

_KEY = "row of the fault matrix"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", action="store_true", help="print the fault matrix, with what became of each row")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    # A property of the test: pytest-xdist carries it from the process that ran the test to the one that prints.
    row = item.callspec.params.get("row") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    if isinstance(row, Row) and (_KEY, row.key) not in item.user_properties:
        item.user_properties.append((_KEY, row.key))
    yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not terminalreporter.config.getoption("--matrix"):
        return
    tally = Tally()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            for key, value in report.user_properties:
                if key == _KEY and (report.when == "call" or outcome == "error"):
                    tally.add(str(value), survived=outcome == "passed")
    terminalreporter.section("fault matrix")
    for line in matrix(ALL, tally):
        terminalreporter.line(line)
