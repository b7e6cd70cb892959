"""All rows of the fault matrix."""

from __future__ import annotations

from tests.faults import api_rows, call_rows, host_rows, kubelet_rows, npu_smi_rows
from tests.faults.table import Row

ALL: tuple[Row, ...] = (
    *(*host_rows.ROWS, *call_rows.ROWS, *call_rows.OTHERS, *npu_smi_rows.ROWS),
    *(*api_rows.ROWS, *kubelet_rows.ROWS),
)
