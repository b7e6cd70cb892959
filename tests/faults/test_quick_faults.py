"""Some rows of the fault matrix, one of each kind; ``make test-slow`` tries all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.host_rows import HostRow
from tests.faults.npu_smi_rows import NpuSmiRow
from tests.faults.rows import ALL
from tests.faults.table import Row
from tests.faults.test_host_faults import tried as tried_on_the_host
from tests.faults.test_npu_smi_faults import tried as tried_with_npu_smi

QUICK = [row for row in ALL if row.quick and isinstance(row, HostRow | NpuSmiRow)]


@pytest.mark.parametrize("row", QUICK, ids=[row.key for row in QUICK])
def test_a_fault_unbinds_nobody_is_told_and_heals(row: Row, tmp_path: Path) -> None:
    if isinstance(row, HostRow):
        tried_on_the_host(row, "bound", tmp_path)
    elif isinstance(row, NpuSmiRow):
        tried_with_npu_smi(row, tmp_path, at_start=False)
