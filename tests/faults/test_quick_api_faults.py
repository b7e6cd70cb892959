"""Some rows of the fault matrix of the API server; ``make test-slow`` tries all of them."""

from __future__ import annotations

import pytest

from tests.faults.api_rows import AGENT_ROWS, ApiRow
from tests.faults.test_api_faults import Stage, stage

__all__ = ["stage"]

QUICK = [row for row in AGENT_ROWS if row.quick]


@pytest.mark.parametrize("row", QUICK, ids=[row.key for row in QUICK])
def test_a_request_that_fails_costs_nobody_a_cpu(stage: Stage, row: ApiRow) -> None:
    stage.endure(row)
